"""``A @ X`` with CVR, long rows of A cut at the same columns."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import assert_graph_multiplies_again, assert_same_bits, get, put
from scipy.sparse import csr_array

import cvrarray
from cvrarray import CVRArray


@pytest.fixture
def made(monkeypatch):
    """The pieces that were made, where rows of a lane and more are cut, whatever there is to gain."""
    pytest.importorskip("cupy")
    from cvrarray.gpu import cut_rows

    made = []

    class Recorded(cut_rows.Pieces):
        def __init__(self, *of):
            super().__init__(*of)
            made.append(self)

    for name in ("LEAST_SHARE", "LEAST_PIECES", "LEAST_LENGTH", "LEAST_ROW_BYTES", "LEAST_BYTES"):
        monkeypatch.setattr(cut_rows, name, 0)
    monkeypatch.setattr(cut_rows, "LEAST_LANES", 1)
    monkeypatch.setattr(cut_rows, "attribute", lambda name: 0)
    monkeypatch.setattr(cut_rows, "Pieces", Recorded)
    return made


def long_rows(dtype, n_rows: int = 41, n_cols: int = 900) -> csr_array:
    """Rows of 0 to all columns, small integers: every fifth is empty, one has its columns in one segment, and one its last."""
    rng = np.random.default_rng(3)
    full = rng.integers(1, 5, (n_rows, n_cols)) * (rng.random((n_rows, n_cols)) < rng.random((n_rows, 1)) ** 2)
    full[::5] = 0
    full[3, 100:] = full[4, :-1] = 0
    full[4, -1] = 2
    return csr_array(full.astype(dtype))


def matrix(n_rows: int, k: int, dtype, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4 if np.dtype(dtype).kind in "ifc" else 0, 5, (n_rows, k)).astype(dtype)


@pytest.mark.small
@pytest.mark.parametrize("least", [1, 300, 900])
def test_pieces(least, gpu):
    """Those of a segment follow each other; rows that are not cut come last. Every nonzero is in one piece."""
    from cvrarray.gpu import cut_rows, cvr

    csr = long_rows("float32")
    n_rows, n_cols = csr.shape
    found = []
    t = CVRArray(csr, device=gpu)._tables
    of = cut_rows.Cut(7, least, -(-n_cols // cut_rows.SEGMENTS))
    nonzeros = cvr.slots_by_rows(t)

    def convert(pieces, n_chunks):
        found.append(pieces)
        return cvr._of_slots(t.n_lanes, pieces, n_chunks)

    layout = cut_rows.Layout(of, nonzeros, convert)
    ptr, col, slot, shape = (part.get() if hasattr(part, "get") else part for part in found[0][:4])
    number = layout.number.get().reshape(-1, n_rows)
    lengths, starts = np.diff(csr.indptr), csr.indptr
    expected, pieces = np.full_like(number, -1), []
    for segment in range(cut_rows.SEGMENTS + 1):
        for row in range(n_rows):
            places = np.arange(starts[row], starts[row + 1])
            is_cut = lengths[row] >= least
            if segment < cut_rows.SEGMENTS:
                places = places[csr.indices[places] // of.width == segment] if is_cut else places[:0]
            elif is_cut:
                places = places[:0]
            if places.size:
                expected[segment, row] = len(pieces)
                pieces.append(places)
    np.testing.assert_array_equal(number, expected)
    np.testing.assert_array_equal(ptr, np.cumsum([0, *map(len, pieces)]))
    order = np.concatenate(pieces)
    np.testing.assert_array_equal(col, csr.indices[order])
    np.testing.assert_array_equal(slot, nonzeros.data.get()[order])
    assert shape == (len(pieces), n_cols)
    assert cut_rows._count(nonzeros, of)[1] == (len(pieces), lengths[lengths >= least].sum())


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int8", "bool"])
def test_products(dtype, made, gpu):
    """With scales, for every width of a vector load, and with rows of X that no product may touch."""
    csr = long_rows(dtype)
    product = np.dtype("int64" if dtype == "bool" else dtype)
    A = CVRArray(csr, n_chunks=9, device=gpu)
    for k in (2, 5, 16, 36, 64, 131):
        x, before = matrix(csr.shape[1], k, product), matrix(csr.shape[0], k, product, seed=7)
        exact = csr.astype(product) @ x
        if product.kind in "fc":
            x[np.diff(csr.tocsc().indptr) == 0] = np.nan
        y = A @ put(x, gpu)
        np.testing.assert_array_equal(get(y), exact, f"{k} columns")
        assert_same_bits(y, A @ put(x, gpu))
        for alpha, beta in ((2, 0), (-1, 3)):
            out = put(before, gpu)
            A.matmat(put(x, gpu), out=out, alpha=alpha, beta=beta)
            np.testing.assert_array_equal(get(out), (alpha * exact + beta * before).astype(product))
    assert made


@pytest.mark.small
@pytest.mark.parametrize("name", zoo.ZOO)
def test_any_matrix(name, made, gpu):
    csr = zoo.integers(name, np.float32)
    x = matrix(csr.shape[1], 20, np.float32)
    np.testing.assert_array_equal(get(CVRArray(csr, device=gpu) @ put(x, gpu)), csr @ x)
    assert made or not csr.nnz


def test_transposed(made, gpu):
    """``A.T @ X`` of many products, by tables of the transpose."""
    csr = csr_array(long_rows("float64").T)
    x = matrix(csr.shape[0], 20, np.float64)
    transposed = CVRArray(csr, device=gpu).T.copy()
    np.testing.assert_array_equal(get(transposed @ put(x, gpu)), csr.T @ x)
    assert made


def test_new_values(made, gpu):
    """In another array of the structure, which shares the pieces, and in place."""
    csr = long_rows("float64")
    x, data = put(matrix(csr.shape[1], 20, np.float64), gpu), put(csr.data, gpu)
    A = CVRArray(csr, n_chunks=9, device=gpu)
    first = A @ x
    assert_same_bits(A.with_values(4 * data) @ x, 4 * first)
    assert_same_bits(A.with_values(2 * data, out=A) @ x, 2 * first)
    assert len({id(pieces.tables.step_ptr) for pieces in made}) == 1


@pytest.mark.parametrize("different", [1, 3])
def test_few_values(different, made, gpu):
    """Values that are stored once, or as numbers, keep the bits."""
    csr = long_rows("float64")
    csr.data[:] = 0.1 + np.arange(csr.nnz) % different
    x = put(np.random.default_rng(5).standard_normal((csr.shape[1], 20)), gpu)
    assert_same_bits(CVRArray(csr, device=gpu) @ x, CVRArray(csr, device=gpu, values="plain") @ x)
    assert len(made) == 2


def test_in_a_graph(made, gpu):
    assert_graph_multiplies_again(CVRArray(long_rows("float32"), n_chunks=9, device=gpu), columns=(20,))
    assert made


def test_short_of_memory(made, gpu, monkeypatch):
    import cupy

    from cvrarray.gpu import cvr

    def convert(*of):
        raise cupy.cuda.memory.OutOfMemoryError(1 << 40, 1 << 40)

    A = CVRArray(long_rows("float32"), n_chunks=9, device=gpu)
    monkeypatch.setattr(cvr, "convert", convert)
    with pytest.raises(MemoryError, match=r"format='bbcsr'"):
        A @ put(matrix(A.shape[1], 20, np.float32), gpu)


@pytest.mark.parametrize(("columns", "is_cut"), [(16, False), (64, True)])
def test_which_rows_are_cut(columns, is_cut, gpu, monkeypatch):
    """Few long rows, where rows of X are long: by counts alone, so with other values too."""
    from cvrarray.gpu import cut_rows

    made, pieces = [], cut_rows.Pieces
    monkeypatch.setattr(cut_rows, "Pieces", lambda *of: made.append(pieces(*of)) or made[-1])
    rng = np.random.default_rng(5)
    n_rows, n_cols, length = 200, 20_000, 5_200
    row, col = np.repeat(np.arange(n_rows), length), rng.integers(0, n_cols, n_rows * length)
    csr = csr_array((rng.integers(1, 4, row.size).astype(np.float64), (row, col)), (n_rows, n_cols))
    x = matrix(n_cols, columns, np.float64)
    A = cvrarray.CVRArray(csr, device=gpu)
    np.testing.assert_array_equal(get(A @ put(x, gpu)), csr @ x)
    assert bool(made) == is_cut
