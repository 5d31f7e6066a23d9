"""``A @ x`` by parts of rows: small matrices with long rows."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import zoo
from checks import assert_few_values_keep_bits, assert_graph_multiplies_again, assert_new_values_count, assert_products, put
from scipy.sparse import csr_array

from cvrarray import CVRArray

N_COLS = 90_001


def long_rows(dtype, n_rows: int = 23) -> csr_array:
    """Rows of 0 to 20,000 random columns; every fifth is empty, one has a single nonzero."""
    rng = np.random.default_rng(3)
    lengths = (20_000 * rng.random(n_rows) ** 2).astype(int)
    lengths[::5], lengths[3] = 0, 1
    return zoo.random_rows(lengths, N_COLS, dtype, rng)


@pytest.mark.small
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("most", [1, 7, 2048])
def test_layout(most, far, gpu):
    """Every nonzero is in one part, of its own row; a row without any has a part too. Columns are offsets where near."""
    import cupy

    from cvrarray.core.tables import CSR
    from cvrarray.gpu.long_rows import Layout

    of_row = np.array([0, 5, 2049, 4096, 1, 0])
    ptr = np.cumsum([0, *of_row])
    col = np.concatenate([100 + 9 * np.arange(n) for n in of_row]).astype(np.int32)
    if far:
        col[ptr[3] - 1] = 1 << 20
    is_far = far and most > 1
    layout = Layout(CSR(*map(cupy.asarray, (ptr, col, 1 + np.arange(col.size, dtype=np.int32))), (6, 1 << 21)), most)
    begin, length, row, first, count = layout.parts.get().T[:5]
    base = layout.parts.get().view(np.int64)[:, 3]
    assert layout.n_parts == row.size and length.max() <= most
    np.testing.assert_array_equal(begin, np.cumsum(length) - length)
    np.testing.assert_array_equal(np.bincount(row, length), of_row)
    np.testing.assert_array_equal(count, np.bincount(row)[row])
    np.testing.assert_array_equal(first, np.searchsorted(row, row))
    for of in range(of_row.size):
        assert np.ptp(length[row == of]) <= 1
    assert layout.col.dtype == (np.int32 if is_far else np.uint16)
    np.testing.assert_array_equal(layout.col.get() + np.repeat(base, length), col)
    np.testing.assert_array_equal(layout.source.get(), 1 + np.arange(col.size))


@pytest.mark.small
@pytest.mark.parametrize("n_lanes", [32, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32", "bool"])
def test_products(n_lanes, dtype, gpu):
    """Products with scales, empty rows and infinities in x that no row meets; the same bits each time."""
    from cvrarray.gpu import long_rows as module

    csr = long_rows(dtype)
    A = CVRArray(csr, n_lanes=n_lanes, device=gpu)
    assert module.suits(A._tables)
    product = np.result_type(dtype, np.float32) if dtype == "bool" else np.dtype(dtype)
    assert_products(A, csr, product)


@pytest.mark.small
@pytest.mark.parametrize("n_cols", [3_000, 5_000_000])
def test_columns_near_and_far(n_cols, gpu):
    """Offsets from a part's first column have 16 bits, or columns are stored as they are."""
    import cupy

    from cvrarray.gpu import cvr
    from cvrarray.gpu import long_rows as module

    rng = np.random.default_rng(3)
    csr = zoo.random_rows([700] * 3, n_cols, np.float64, rng)
    A, x = CVRArray(csr, device=gpu), rng.standard_normal(n_cols)
    assert module.suits(A._tables)
    expected, bound = oracle.product(csr, x, 1, 0, np.zeros(3))
    assert (np.abs((A @ cupy.asarray(x)).get() - expected) <= bound).all()
    layout = module.Layout(cvr.slots_by_rows(A._tables), 1024)
    assert layout.col.dtype == ("uint16" if n_cols < 1 << 16 else "int32")


def test_few_values(gpu):
    assert_few_values_keep_bits(long_rows("float64"), gpu)


def test_new_values(gpu):
    csr = long_rows("float64")
    assert_new_values_count(CVRArray(csr, device=gpu), csr)


def test_in_a_graph(gpu):
    """Values that are replaced in place count too, and the array has some beside others of one structure."""
    csr = long_rows("float32")
    A = CVRArray(csr, device=gpu)
    A = A.with_values(put(csr.data, gpu))
    assert_graph_multiplies_again(A, lambda: A.with_values(put(3 * csr.data, gpu), out=A))


@pytest.mark.parametrize(
    ("n_rows", "nnz", "expected"),
    [
        (40, 30_000, True),
        (2_000, 800_000, True),
        (40, 30_000_000, False),
        (40_000, 90_000, False),
        (14_400, 2_800_000, False),
        (0, 0, False),
    ],
)
def test_which_matrices(n_rows, nnz, expected):
    """Long rows, and neither so many nonzeros that their bytes count, nor so many rows that thread blocks wait in turn."""
    pytest.importorskip("cupy")
    from types import SimpleNamespace

    from cvrarray.gpu import long_rows as module

    assert module.suits(SimpleNamespace(shape=(n_rows, 100_000), nnz=nnz)) == expected
