"""``A @ X`` with few columns as ``A @ x``, each row of X an entry of x."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import (
    assert_few_values_keep_bits,
    assert_graph_multiplies_again,
    assert_new_values_count,
    assert_products,
    assert_same_bits,
    autotune_at,
    get,
    in_turn,
    put,
    take_segments,
)
from scipy.sparse import csr_array

import cvrarray
from cvrarray import BBCSRArray, CVRArray
from cvrarray.core import few_columns

#: Columns and dtypes of X whose rows have 8, 16 and 32 bytes.
ROWS = [("float32", 2), ("float32", 4), ("float64", 2), ("complex64", 2)]
LONG_ROWS = [("float32", 8), ("float64", 4), ("complex64", 4), ("complex128", 2)]


@pytest.fixture
def taken(monkeypatch):
    """The bytes of the rows that became entries, of each product that is prepared from here on."""
    pytest.importorskip("cupy")
    from cvrarray.gpu import rows_as_entries

    found, aligned = [], rows_as_entries._aligned
    monkeypatch.setattr(rows_as_entries, "_aligned", lambda run, n_bytes: found.append(n_bytes) or aligned(run, n_bytes))
    return found


def uneven(dtype, n_rows: int = 300, longest: int = 2000, n_cols: int = 5001) -> csr_array:
    """Rows of 0 to `longest` random columns, most of them short; every fifth is empty."""
    rng = np.random.default_rng(3)
    lengths = np.minimum(1 + rng.pareto(0.7, n_rows) * 3, longest).astype(int)
    lengths[::5] = 0
    return zoo.random_rows(lengths, n_cols, dtype, rng)


def blocks(dtype, size: int) -> csr_array:
    """Blocks, some of them with holes."""
    rng = np.random.default_rng(1)
    csr = csr_array(np.kron(rng.random((50, 70)) < 0.1, rng.random((size, size)) < 0.9).astype(dtype))
    csr.data[:] = rng.standard_normal(csr.nnz)
    return csr


def chunks(csr, **of):
    return CVRArray(csr, n_lanes=32, n_chunks=9, **of)


def by_chunks(monkeypatch):
    from cvrarray.gpu import row_lanes

    monkeypatch.setattr(row_lanes, "suits", lambda tables: False)


def shared(monkeypatch):
    """From the second product on popular rows of X are in shared memory."""
    from cvrarray.gpu import shared_memory

    by_chunks(monkeypatch)
    autotune_at(monkeypatch, 2)
    monkeypatch.setattr(shared_memory, "L1_SHARE", 0)
    monkeypatch.setattr(shared_memory, "shared_memory", lambda: 8192)


def by_segments(monkeypatch):
    by_chunks(monkeypatch)  # where rows of X are too long for segments
    take_segments(monkeypatch)


def nothing(monkeypatch):
    pass


def of_size(size: int):
    """What makes an array in blocks of this size."""
    return lambda csr, **of: BBCSRArray(csr, block_size=size, **of)


def few_rows(lengths, n_cols: int):
    """What makes a matrix of rows of these lengths."""
    return lambda dtype: zoo.random_rows(lengths, n_cols, dtype, np.random.default_rng(3))


FEW, EVEN = [0, 9000, 40, 7000, 1, 5000], np.random.default_rng(1).integers(14, 21, 3000)

#: How a product with a vector goes: matrix, array, what makes it go so, and whether it goes row by row.
WAYS = {
    "chunks": (uneven, chunks, by_chunks, False),
    "chunks of few lanes": (uneven, lambda csr, **of: CVRArray(csr, n_lanes=4, n_chunks=5, **of), nothing, False),
    "shared memory": (uneven, chunks, shared, False),
    "segments": (few_rows(FEW, 700_001), chunks, by_segments, False),
    "rows in lanes": (uneven, CVRArray, nothing, True),
    "long rows": (few_rows(FEW, 90_001), CVRArray, nothing, True),
    "short rows": (lambda dtype: uneven(dtype, 900, 7), CVRArray, nothing, True),
    "blocks of 1": (few_rows(EVEN, 5001), of_size(1), nothing, False),
    "blocks of 3": (lambda dtype: blocks(dtype, 3), of_size(3), nothing, False),
    "blocks of 6": (lambda dtype: blocks(dtype, 6), of_size(6), nothing, False),
}


@pytest.mark.small
@in_turn("way, dtype, k", WAYS, ROWS + LONG_ROWS, times=2)
def test_products(way, dtype, k, taken, monkeypatch, gpu):
    matrix, build, prepare, is_row_by_row = WAYS[way]
    prepare(monkeypatch)
    csr = matrix(dtype)
    assert_products(build(csr, device=gpu), csr, dtype, columns=(k,))
    is_long = k * np.dtype(dtype).itemsize > few_columns.ONE_LOAD
    is_taken = not is_long or is_row_by_row or (np.dtype(dtype).itemsize == 8 and way == "blocks of 6")
    assert taken == ([16 if is_long else k * np.dtype(dtype).itemsize] if is_taken else [])


@pytest.mark.small
@pytest.mark.parametrize("way", ["chunks", "rows in lanes", "blocks of 1"])
@pytest.mark.parametrize("stored", ["bool", "float16", "float32", "int64"])
def test_stored_values_widen(stored, way, taken, monkeypatch, gpu):
    matrix, build, prepare, _ = WAYS[way]
    prepare(monkeypatch)
    csr = matrix(np.float64)
    csr.data[:] = 1 if stored == "bool" else np.arange(csr.nnz) % 5 + 1
    x = np.random.default_rng(1).integers(-4, 5, (csr.shape[1], 2)).astype(np.float64)
    np.testing.assert_array_equal(get(build(csr, device=gpu).astype(stored) @ put(x, gpu)), csr @ x)
    assert taken == [16]


@pytest.mark.parametrize("build", [CVRArray, of_size(1)], ids=["cvr", "bbcsr"])
def test_few_values_keep_bits(build, taken, gpu):
    assert_few_values_keep_bits(few_rows(EVEN, 5001)(np.float64), gpu, build, columns=(2,))
    assert len(taken) == 4


@pytest.mark.parametrize("name", list(zoo.ZOO)[::3])
@pytest.mark.parametrize("build", [CVRArray, of_size(1), chunks], ids=["cvr", "bbcsr", "chunks"])
def test_any_matrix(build, name, gpu):
    """Empty ones, one row, one column, explicit zeros: small integers, so every sum is exact."""
    csr = zoo.integers(name, np.float32)
    x = np.random.default_rng(2).integers(-4, 5, (csr.shape[1], 4)).astype(np.float32)
    np.testing.assert_array_equal(get(build(csr, device=gpu) @ put(x, gpu)), csr @ x)


@pytest.mark.small
@pytest.mark.parametrize(("dtype", "k"), [("float32", 2), ("float32", 4), ("float64", 2)])
def test_where_x_and_y_begin(dtype, k, taken, gpu):
    """Between multiples of a row's bytes: the same bits, and nothing is written but Y."""
    csr = uneven(dtype)
    A, rng = CVRArray(csr, device=gpu), np.random.default_rng(6)
    x, before = rng.standard_normal((csr.shape[1], k)).astype(dtype), rng.standard_normal((csr.shape[0], k)).astype(dtype)
    expected = get(A.matmat(put(x, gpu), out=put(before, gpu), alpha=2, beta=3))

    def one_on(values):
        whole = put(np.full(values.size + 2, 7, dtype), gpu)
        whole[1:-1] = put(values.ravel(), gpu)
        return whole, whole[1:-1].reshape(values.shape)

    for on_x, on_y in ((True, False), (False, True), (True, True)):
        around, y = one_on(before)
        out = y if on_y else put(before, gpu)
        A.matmat(one_on(x)[1] if on_x else put(x, gpu), out=out, alpha=2, beta=3)
        assert_same_bits(out, expected)
        assert get(around)[[0, -1]].tolist() == [7, 7]
    assert taken == [k * np.dtype(dtype).itemsize]


@pytest.mark.parametrize("way", ["chunks", "rows in lanes", "long rows", "short rows", "blocks of 3"])
def test_new_values(way, taken, monkeypatch, gpu):
    matrix, build, prepare, _ = WAYS[way]
    prepare(monkeypatch)
    csr = matrix(np.float64)
    assert_new_values_count(build(csr, device=gpu), csr, columns=(2,))
    assert taken


@pytest.mark.parametrize("way", ["chunks", "segments", "rows in lanes", "blocks of 1"])
def test_in_a_graph(way, taken, monkeypatch, gpu):
    matrix, build, prepare, _ = WAYS[way]
    prepare(monkeypatch)
    assert_graph_multiplies_again(build(matrix(np.float64), device=gpu), columns=(2,))
    assert taken


def test_a_hint_of_few_columns_keeps_the_chunks_of_a_vector(gpu):
    csr = uneven(np.float32)
    assert cvrarray.asarray(csr, format="cvr", device=gpu, columns=4).n_chunks == CVRArray(csr, device=gpu).n_chunks


def test_how_many_bytes():
    """Two, four and eight columns of numbers that are rounded, of up to 32 bytes."""
    found = {
        (dtype, k): n_bytes
        for dtype in ("bool", "int32", "float16", "float32", "float64", "complex64", "complex128")
        for k in range(1, 20)
        if (n_bytes := few_columns.row_bytes(np.dtype(dtype), k))
    }
    assert found == {
        ("float32", 2): 8, ("float32", 4): 16, ("float32", 8): 32, ("float64", 2): 16, ("float64", 4): 32,
        ("complex64", 2): 16, ("complex64", 4): 32, ("complex128", 2): 32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("n_bytes", "itemsize", "others", "expected"),
    [
        (8, 4, {}, True),
        (0, 4, {}, False),
        (32, 4, {}, False),
        (32, 8, {}, False),
        (32, 8, {"block_size": 6}, True),
        (32, 8, {"block_size": 3}, False),
        (32, 4, {"block_size": 6}, False),
        (16, 4, {"mean": 6.0, "most": 30.0}, False),  # uneven
        (16, 4, {"mean": 2.0, "most": 15.0}, True),  # no row is long
        (16, 4, {"n_bins": 100, "mean": 90.0, "most": 120.0}, False),  # few and long
        (16, 4, {"mean": 90.0, "most": 120.0}, True),
        (16, 4, {"padding": 1.7}, False),
        (16, 4, {"padding": 1.7, "block_size": 2}, True),
        (16, 4, {"mean": 5.0, "most": 7.0, "padding": 1.7}, True),  # short
    ],
)
def test_which_bins(n_bytes, itemsize, others, expected):
    bins = few_columns.Bins(3000, 1, 20.0, 25.0, 1.1)._replace(**others)
    assert few_columns.suit_bins(n_bytes, itemsize, bins) == expected


def test_which_chunks():
    found = [[few_columns.suit_chunks(n_bytes, by_rows) for n_bytes in (0, 8, 16, 32)] for by_rows in (False, True)]
    assert found == [[False, True, True, False], [False, True, True, True]]
