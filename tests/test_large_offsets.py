"""Numbers beyond 2^31: offsets, slots and nonzeros; rows and columns.

On a GPU with the memory for it, real matrices. On the CPU the same numbers without the memory: arrays of zeros are
pages that the system maps only when they are written.
"""

from __future__ import annotations

import numpy as np
import pytest
from checks import Build, bbcsr, from_csr, get, put
from scipy.sparse import csr_array

import cvrarray
from cvrarray.core.tables import CSR, BBCSRTables, CVRTables

BEYOND = 2**31 + 2**20
GPU_BYTES = 100e9
CLASS = pytest.mark.parametrize("cls", [cvrarray.CVRArray, cvrarray.BBCSRArray], ids=lambda cls: cls.__name__)


# Columns


@CLASS
@pytest.mark.parametrize("n_cols", [2**31 - 1, 2**31, 2**31 + 7, 2**40], ids=["2^31-1", "2^31", "2^31+7", "2^40"])
def test_columns_beyond_int32(cls, n_cols, device):
    """Columns take 64 bits from a width of 2^31 on; every conversion is exact."""
    row = np.array([0, 0, 0, 2, 2, 40])
    col = np.array([0, 5, n_cols - 1, n_cols // 2, n_cols - 2, n_cols - 1], np.int64)
    val = np.array([1, 2, 3, 4, 5, 6], np.int8)
    indptr = np.searchsorted(row, np.arange(42))
    A = from_csr(cls, *(put(a, device) for a in (indptr, col, val)), (41, n_cols))
    A.check()
    assert A.shape == (41, n_cols)
    assert A._tables.col_wide.dtype == (np.int32 if n_cols < 2**31 else np.int64)
    back = A.to_scipy()
    np.testing.assert_array_equal(back.indices, col)
    np.testing.assert_array_equal(back.indptr, indptr)
    np.testing.assert_array_equal(back.data, val)


@CLASS
def test_product_with_more_than_2_31_columns(cls):
    """x takes 2 GiB of address space, of which four pages are touched."""
    n_cols = BEYOND
    x = np.zeros(n_cols, np.int8)
    col = np.array([0, n_cols - 1, 2**31 - 1, 2**31], np.int64)
    x[col] = [2, 3, 5, 7]
    A = from_csr(cls, np.array([0, 2, 2, 4]), col, np.array([1, 10, 1, 10], np.int8), (3, n_cols))
    np.testing.assert_array_equal(A @ x, [32, 0, 75])


# Slots


def test_bbcsr_slots_beyond_2_31():
    """A bin of explicit zeros that fills 2^31 slots, and behind it one with values."""
    size = 32
    n_blocks = 2**31 // (32 * size)  # of each row of bin 0
    bin_rowptr = np.array([0, 2**31, 2**31 + 32 * size])
    data = np.zeros(bin_rowptr[-1], np.int8)
    data[2**31 :: 32] = np.arange(size)  # row 32's only block, slots 32 apart
    col_narrow = np.zeros(bin_rowptr[-1] // size, np.uint16)
    col_narrow[-32:] = 1
    tables = BBCSRTables(
        shape=(64, 64),
        nnz=int(bin_rowptr[-1]),
        block_size=size,
        bin_rowptr=bin_rowptr,
        data=data,
        col_base=np.zeros(2, np.int32),
        col_ptr=np.array([0, 32 * n_blocks]),
        col_narrow=col_narrow,
        col_wide=np.zeros(0, np.int32),
        present=None,
    )
    A = cvrarray.BBCSRArray._from_tables(tables)
    x = np.arange(64, dtype=np.int8)
    expected = np.zeros(64, np.int8)
    expected[32] = np.sum(np.arange(32) * np.arange(32, 64)).astype(np.int8)
    np.testing.assert_array_equal(A @ x, expected)


def test_cvr_slots_beyond_2_31():
    """A chunk of explicit zeros that fills 2^31 slots, one row a lane, and behind it one with values."""
    n_lanes, n_steps = 32, 2**26
    lane = np.arange(n_lanes)
    val = np.zeros((n_steps + 1) * n_lanes, np.int8)
    val[-n_lanes:] = lane + 1
    col_narrow = np.zeros(val.size, np.uint16)
    col_narrow[-n_lanes:] = lane
    rec_mask = np.zeros(n_steps + 1, np.uint32)
    rec_mask[-2:] = 2**32 - 1
    tables = CVRTables(
        shape=(64, 32),
        nnz=val.size,
        n_lanes=n_lanes,
        step_ptr=np.array([0, n_steps, n_steps + 1]),
        val=val,
        col_base=np.zeros(2, np.int32),
        col_ptr=np.array([0, n_steps * n_lanes]),
        col_narrow=col_narrow,
        col_wide=np.zeros(0, np.int32),
        rec_mask=rec_mask,
        rec_ptr=np.array([0, 32, 64]),
        rec_wb=np.tile(~lane, 2).astype(np.int32),
        tail=np.arange(64, dtype=np.int32).reshape(2, 32),
        carry_row=np.full(2, -1, np.int32),
        cut_row=np.zeros(0, np.int32),
        cut_ptr=np.zeros((0, 2), np.int64),
        empty_row=np.zeros(0, np.int32),
    )
    A = cvrarray.CVRArray._from_tables(tables)
    x = np.arange(32, dtype=np.int8)
    np.testing.assert_array_equal(A @ x, np.r_[np.zeros(32), (lane + 1) * lane].astype(np.int8))
    last = A.chunk(1)
    np.testing.assert_array_equal(last.val[:, 0], lane + 1)
    np.testing.assert_array_equal(last.col_idx[:, 0], lane)


# Real ones


ALONE = pytest.mark.xdist_group("large")  # with pytest-xdist's --dist loadgroup: one at a time


@pytest.fixture
def large_gpu(gpu):
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < GPU_BYTES:
        pytest.skip(f"needs a GPU with {GPU_BYTES / 1e9:.0f} GB of free memory; this one has {free / 1e9:.0f}")
    yield gpu
    cupy.get_default_memory_pool().free_all_blocks()


@ALONE
@pytest.mark.parametrize("build", [Build("cvr", {}), bbcsr(1)], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_more_than_2_31_nonzeros(build, dtype, large_gpu):
    """Rows of 2048 entries of 1, every second column from the row's start: a product is a difference of sums of x."""
    import cupy

    n_rows, length, n_cols = 2**20 + 2**16, 2048, 1 << 20
    start = cupy.arange(n_rows, dtype=np.int64) * 37 % (n_cols - 2 * length)
    indices = (start[:, None] + cupy.arange(0, 2 * length, 2)).astype(np.int32).ravel()
    indptr = cupy.arange(n_rows + 1, dtype=np.int64) * length
    data = cupy.ones(indices.size, dtype)
    assert data.size > 2**31
    A = build(CSR(indptr, indices, data, (n_rows, n_cols)))
    del indices, data
    assert A.nnz == n_rows * length
    assert A._tables.col_wide.dtype == np.int32
    x = cupy.arange(n_cols, dtype=np.int32 if dtype == "int8" else np.float32) % 5
    every_second = cupy.stack([cupy.cumsum(x[k::2].astype(np.int64)) for k in (0, 1)])
    first = start // 2
    expected = every_second[start % 2, first + length - 1] - every_second[start % 2, first] + x[start].astype(np.int64)
    y = A @ x
    assert bool((y.astype(np.int64) == expected).all())
    last = slice(n_rows - 5, n_rows)
    y = A.matvec(x, out=cupy.full(n_rows, 7, y.dtype), alpha=2, beta=3)
    assert bool((y[last] == 2 * expected[last] + 21).all())


@ALONE
def test_more_than_2_31_rows(large_gpu):
    """Nearly all empty: row numbers and the bins' offsets take 64 bits."""
    import cupy

    n_rows = BEYOND
    rows = cupy.array([0, 5, 2**31 - 1, 2**31, n_rows - 1])
    indptr = cupy.zeros(n_rows + 1, np.int64)
    indptr[rows + 1] = 1
    cupy.cumsum(indptr, out=indptr)
    x = cupy.array([2, 3, 5], np.int8)
    A = from_csr(cvrarray.CVRArray, indptr, cupy.array([0, 1, 2, 0, 1]), cupy.arange(1, 6, dtype=np.int8), (n_rows, 3))
    assert A._tables.rec_wb.dtype == np.int64
    y = A @ x
    assert int(cupy.count_nonzero(y)) == 5
    np.testing.assert_array_equal(get(y[rows]), [2, 6, 15, 8, 15])


def test_cupy_holds_fewer_columns(gpu):
    A = cvrarray.CVRArray(csr_array((np.ones(2), np.array([3, 2**33]), np.array([0, 1, 2])), shape=(2, 2**34)), device=gpu)
    with pytest.raises(ValueError, match=r"rows, columns and nonzeros; this array is 2 x 17179869184 and has 2\."):
        A.tocsr()


def test_scipy_of_many_columns_is_taken(device):
    """SciPy switches to int64 indices by itself."""
    wide = csr_array((np.ones(2), np.array([3, 2**33]), np.array([0, 1, 2])), shape=(2, 2**34))
    for cls in (cvrarray.CVRArray, cvrarray.BBCSRArray):
        A = cls(wide, device=device)
        np.testing.assert_array_equal(A.to_scipy().indices, [3, 2**33])
