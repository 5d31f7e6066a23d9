"""``A @ x`` by segments of columns: few long rows over many columns."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from checks import assert_graph_multiplies_again, assert_new_values_count, assert_products, assert_same_bits, take_segments
from scipy.sparse import csr_array

from cvrarray import CVRArray

N_COLS = 700_001


@pytest.fixture
def eager(monkeypatch):
    from cvrarray.gpu import segments

    take_segments(monkeypatch)
    return segments


def long_rows(dtype, n_rows: int = 40) -> csr_array:
    """Rows of 0 to 20,000 random columns; every fifth is empty, one has its columns in one segment."""
    rng = np.random.default_rng(3)
    lengths = (20_000 * rng.random(n_rows) ** 3).astype(int)
    lengths[::5] = 0
    row = np.repeat(np.arange(n_rows), lengths)
    col = rng.integers(0, N_COLS, row.size)
    col[row == 3] %= 200
    csr = csr_array((rng.standard_normal(row.size).astype(dtype), (row, col)), shape=(n_rows, N_COLS))
    csr.sum_duplicates()
    return csr


@pytest.mark.small
@pytest.mark.parametrize("n_lanes", [32, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32", "bool"])
def test_products(eager, n_lanes, dtype, gpu):
    """Products with scales, empty rows and infinities in x that no row meets; the same bits each time."""
    csr = long_rows(dtype)
    A = CVRArray(csr, n_lanes=n_lanes, n_chunks=9, device=gpu)
    product = np.result_type(dtype, np.float32) if dtype == "bool" else np.dtype(dtype)
    assert eager.cut(A._tables, product) is not None
    assert_products(A, csr, product)


def test_new_values(eager, gpu):
    csr = long_rows("float64")
    assert_new_values_count(CVRArray(csr, n_chunks=9, device=gpu), csr)


def test_in_a_graph(eager, gpu):
    assert_graph_multiplies_again(CVRArray(long_rows("float32"), n_chunks=9, device=gpu))


@pytest.mark.small
def test_too_little_memory(eager, monkeypatch, gpu):
    """The error says what is needed and what to do; the plain product would have other bits. Later it works."""
    import cupy

    from cvrarray.gpu import copied

    def full(*args):
        raise cupy.cuda.memory.OutOfMemoryError(1 << 40, 0, 0)

    csr = long_rows("float32")
    A, x = CVRArray(csr, n_chunks=9, device=gpu), cupy.ones(N_COLS, np.float32)
    with monkeypatch.context() as context:
        context.setattr(copied, "Values", full)
        with pytest.raises(MemoryError, match=rf"copy of their {csr.nnz:,} nonzeros.*Free memory.*format='bbcsr'"):
            A @ x
    assert_same_bits((A @ x).get(), (CVRArray(csr, n_chunks=9, device=gpu) @ x).get())


@pytest.mark.parametrize("shape", [(400, 300_000), (300_000, 400), (3, 2_000_000)])
def test_which_matrices(shape, gpu):
    """Few long rows over many columns; not their transpose, nor rows with something in every second column."""
    import cupy

    from cvrarray.gpu import segments

    rng = np.random.default_rng(2)
    pairs = rng.integers(0, shape[0], 6_000_000), rng.integers(0, shape[1], 6_000_000)
    csr = csr_array((np.ones(6_000_000, np.float32), pairs), shape=shape)
    csr.sum_duplicates()
    A = CVRArray(csr, device=gpu)
    assert (segments.cut(A._tables, A.dtype) is not None) == (shape[0] == 400)
    x = rng.standard_normal(shape[1]).astype(np.float32)
    expected, bound = oracle.product(csr, x, 1, 0, None)
    assert (np.abs((A @ cupy.asarray(x)).get() - expected) <= bound).all()
