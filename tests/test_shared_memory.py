"""Entries of x in shared memory: other kernels, the same bits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from checks import assert_products, assert_same_bits, autotune_at
from scipy.sparse import csr_array, vstack

from cvrarray import CVRArray

N = 1 << 17
PREPARE_AT = 3


@pytest.fixture
def small(monkeypatch):
    """A test's matrices count as large, and shared memory, which has room for some popular columns only, as worth it."""
    from cvrarray.gpu import row_lanes, shared_memory

    monkeypatch.setattr(row_lanes, "suits", lambda tables: False)
    autotune_at(monkeypatch, PREPARE_AT)
    monkeypatch.setattr(shared_memory, "L1_SHARE", 0)
    monkeypatch.setattr(shared_memory, "shared_memory", lambda: 4096)
    return shared_memory


@pytest.fixture
def loaded(monkeypatch):
    """The kernels that are asked for from here on: name and template arguments."""
    from cvrarray.gpu import compiler

    asked, load = [], compiler.load
    monkeypatch.setattr(compiler, "load", lambda *of, **how: asked.append(of[2:]) or load(*of, **how))
    return asked


def skewed(dtype) -> csr_array:
    """Columns of a power law, numbered at random; a long row that chunks cut, and rows without entries."""
    rng = np.random.default_rng(4)
    col = (N * rng.random(60_000) ** 6).astype(np.int64) * 40_503 % N
    row = np.r_[np.full(9000, 700), rng.integers(0, 2000, 51_000) // 2 * 2]
    val = rng.standard_normal(col.size)
    csr = csr_array((val.astype(dtype), (row, col)), shape=(2000, N))
    csr.sum_duplicates()
    return csr


def wide_and_narrow(dtype) -> csr_array:
    """A matrix as above beside a band: some chunks have narrow columns, some wide ones."""
    band = csr_array((np.ones(4000, dtype), (np.arange(4000) // 2, np.arange(4000))), shape=(2000, N))
    return vstack([skewed(dtype), band], format="csr")


@pytest.mark.small
@pytest.mark.parametrize("n_lanes", [32, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32"])
@pytest.mark.parametrize("whole", [False, True])
def test_same_bits_before_and_after(small, n_lanes, dtype, whole, gpu):
    csr = wide_and_narrow(dtype)
    if whole:  # 256 columns: 4 KB of complex128
        csr = csr_array((csr.data, csr.indices % 256, csr.indptr), shape=(csr.shape[0], 256))
        csr.sum_duplicates()
    assert_products(CVRArray(csr, n_lanes=n_lanes, device=gpu), csr, dtype)  # of which the third is by the other kernels


@pytest.mark.parametrize("n_cols", [100, 1024, 1025, N])
def test_whole_where_it_fits(small, n_cols, gpu, loaded):
    """The kernel that runs from the PREPARE_AT-th product on: 4096 bytes hold 1024 float32."""
    import cupy

    csr = skewed("float32")
    csr = csr_array((csr.data, csr.indices % n_cols, csr.indptr), shape=(csr.shape[0], n_cols))
    csr.sum_duplicates()
    A, x = CVRArray(csr, device=gpu), cupy.ones(n_cols, np.float32)
    for _ in range(PREPARE_AT):
        assert not any(name == "cvr_matvec_shared" for name, *_ in loaded)
        A @ x
    whole = [how[-3] for name, *how in loaded if name == "cvr_matvec_shared"]
    assert whole == [n_cols <= 1024]
    assert any(name == "cvr_pack_columns" for name, *_ in loaded) == (n_cols > 1024)


def test_columns_are_packed(small, gpu):
    """Packing loses no column, narrow or wide, and takes those that are hit most."""
    t = CVRArray(wide_and_narrow("float32"), device=gpu)._tables
    packed = small.columns(t, 1024)
    base, start, first = t.col_base.get(), t.col_ptr.get(), t.step_ptr.get() * t.n_lanes
    assert (base >= 0).any() and (base < 0).any()
    col = np.concatenate(
        [
            int(base[k]) + t.col_narrow[start[k] : start[k] + first[k + 1] - first[k]].get().astype(np.int64)
            if base[k] >= 0
            else t.col_wide[start[k] : start[k] + first[k + 1] - first[k]].get()
            for k in range(base.size)
        ]
    )
    code, popular = packed.packed.get(), packed.popular.get()
    np.testing.assert_array_equal(np.where(code < 0, popular[np.where(code < 0, ~code, 0)], code), col)
    assert 0 < popular.size <= 1024
    assert small.LEAST_SHARE < (code < 0).mean() < 1
    hits = np.bincount(col, minlength=N)
    assert hits[popular].min() >= np.delete(hits, popular).max()


def test_even_columns_are_not_packed(small, gpu):
    rng = np.random.default_rng(6)
    csr = csr_array((np.ones(40_000), (rng.integers(0, 2000, 40_000), rng.permutation(N)[:40_000])), shape=(2000, N))
    assert small.columns(CVRArray(csr, device=gpu)._tables, 512) is None


def test_arrays_with_fewer_popular_columns_later(small, gpu, monkeypatch):
    """The kernel's limit of shared memory is the kernel's, not an array's: a later, smaller need leaves it."""
    import cupy

    monkeypatch.setattr(small, "shared_memory", lambda: 100_000)
    monkeypatch.setattr(small, "LEAST_SHARE", 0)
    row, col = np.divmod(np.arange(64_000), 32)  # 32 columns of each row
    col = np.where(col < 4, (4 * row + col) % 4000, 4000 + np.arange(64_000))  # 4000 columns are hit twice, others once
    many = CVRArray(csr_array((np.ones(64_000, complex), (row, col)), shape=(2000, N)), device=gpu)
    few = CVRArray(csr_array((np.ones(500, complex), (np.arange(500), np.arange(500) % 50)), shape=(500, N)), device=gpu)
    x = cupy.ones(N)
    for A in (many, few, many):
        for _ in range(PREPARE_AT + 1):
            y = A @ x
        np.testing.assert_allclose(y.get(), A.to_scipy() @ np.ones(N), atol=1e-12)
    assert small.columns(many._tables, 6250).popular.size * 16 > 48 << 10


def test_short_of_memory(small, gpu, monkeypatch):
    """An array that finds no memory for other columns does without."""
    import cupy

    def columns(tables, room):
        raise cupy.cuda.memory.OutOfMemoryError(1 << 40, 1 << 40)

    monkeypatch.setattr(small, "columns", columns)
    csr = skewed("float64")
    A, x = CVRArray(csr, device=gpu), cupy.ones(N)
    products = [(A @ x).get() for _ in range(PREPARE_AT + 1)]
    for product in products[1:]:
        assert_same_bits(product, products[0])


def test_a_structure_keeps_its_buffers(gpu):
    """A kernel knows tables by address alone: they live as long as the structure that it is launched with."""
    import cupy

    from cvrarray.gpu.launches import struct

    table = cupy.zeros(3)
    made = struct(None, table, 7)
    assert list(made.words) == [0, table.data.ptr, 7]
    assert made.ptr == ctypes.addressof(made.words)
    assert [buffer is table for buffer in made.buffers] == [True]
