"""``A @ x`` row by row: small matrices."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import zoo
from checks import (
    assert_few_values_keep_bits,
    assert_graph_multiplies_again,
    assert_new_values_count,
    assert_one_layout_a_structure,
    assert_product,
    assert_products,
    get,
    put,
)
from scipy.sparse import csr_array

from cvrarray import CVRArray
from cvrarray.array import encoding
from cvrarray.core.lanes import SPARE

N_COLS = 90_001


def uneven(dtype, n_rows: int = 700, n_cols: int = N_COLS, empty: int = 5) -> csr_array:
    """Rows of 0 to 20,000 random columns, most of them short; every fifth is empty."""
    rng = np.random.default_rng(3)
    lengths = np.minimum(1 + rng.pareto(0.5, n_rows) * 3, min(n_cols, 20_000)).astype(int)
    lengths[::empty] = 0
    return zoo.random_rows(lengths, n_cols, dtype, rng)


@pytest.mark.small
@pytest.mark.parametrize("empty", [0, 3])
@pytest.mark.parametrize("longest", [9, 40, 300, 9000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layout(longest, empty, dtype, gpu):
    """Parts follow each other; short rows are not cut, and at each cut it is known which parts its row has. Of a row's lanes
    the first has the first nonzero and every following one after as many as there are.
    """
    from cvrarray.gpu import cvr, row_lanes

    rng = np.random.default_rng(longest)
    lengths = rng.integers(1, longest + 1, 400)
    if empty:
        lengths[::empty] = 0
    csr = rows_of(lengths, rng)
    tables = CVRArray(csr, device=gpu)._tables
    slots = row_lanes.slots(tables, np.dtype(dtype), lambda: longest)
    layout = row_lanes.Layout(cvr.slots_by_rows(tables), slots, tables.empty_row)
    col, base, ends, row_of, cut_row, *_ = (field if isinstance(field, int | None) else field.get() for field in layout.fields)
    threads, per, span = row_lanes.THREADS, layout.slots, layout.span.get()
    filled = np.flatnonzero(lengths)
    assert (row_of is None) == (not empty)
    if empty:
        np.testing.assert_array_equal(row_of, filled)

    # as lanes of parts, one after the other
    slot = layout.source.get().reshape(-1, per, 32).transpose(0, 2, 1).reshape(-1, threads, per)
    col = np.where(col == 0xFFFF, -1, col.astype(np.int64)).reshape(-1, per, 32).transpose(0, 2, 1).reshape(slot.shape)
    is_there = (slot > 0).any(axis=2)
    size = is_there.sum(axis=1)
    assert size.min() > 0 and (is_there == (np.arange(threads) < size[:, None])).all()
    np.testing.assert_array_equal(col >= 0, slot > 0)
    start = np.concatenate([[0], np.cumsum(-(-lengths[filled] // per))])
    begin = np.concatenate([[0], np.cumsum(size)])
    assert begin[-1] == start[-1] and cut_row[-1] == -1 and (span[-1] == -1).all()
    for k, at in enumerate(begin[:-1]):
        if at in start:
            assert cut_row[k] == span[k, 0] == span[k, 1] == -1
            continue
        number = np.searchsorted(start, at) - 1
        first, last = span[k]
        assert cut_row[k] == filled[number] and start[number + 1] - start[number] > SPARE
        assert begin[first] <= start[number] < begin[first + 1]
        assert begin[last - 1] < start[number + 1] <= begin[last]
    assert layout.is_cut == (cut_row >= 0).any()

    slot, col = slot[is_there], (col + base[:, None, None])[is_there]
    val = encoding.plain(CVRArray(csr, device=gpu)).get()
    for number, row in enumerate(filled):
        lanes = slice(start[number], start[number + 1])
        n = lengths[row]
        found = slot[lanes].T.ravel()[:n]
        assert (slot[lanes].T.ravel()[n:] == 0).all()
        np.testing.assert_array_equal(col[lanes].T.ravel()[:n], csr.indices[csr.indptr[row] :][:n])
        np.testing.assert_array_equal(val[found - 1], csr.data[csr.indptr[row] :][:n])
    is_end = np.unpackbits(ends.view(np.uint8).reshape(-1, 8)[:, :4], axis=1, bitorder="little").reshape(-1, threads)[is_there]
    np.testing.assert_array_equal(np.flatnonzero(is_end), start[1:] - 1)


def rows_of(lengths: np.ndarray, rng: np.random.Generator) -> csr_array:
    """Rows of so many random columns."""
    ptr = np.cumsum([0, *lengths])
    col = np.concatenate([np.sort(rng.choice(20_000, length, replace=False)) for length in lengths])
    return csr_array((rng.standard_normal(ptr[-1]), col, ptr), shape=(lengths.size, 20_000))


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32", "bool", "int8"])
def test_products(dtype, gpu):
    """Products with scales, empty rows and infinities in x that no row meets; the same bits each time."""
    from cvrarray.gpu import row_lanes

    csr = uneven(dtype)
    A = CVRArray(csr, device=gpu)
    product = np.result_type(dtype, np.float32) if dtype == "bool" else np.dtype(dtype)
    assert row_lanes.suits(A._tables)
    assert_products(A, csr, product)


@pytest.mark.small
@pytest.mark.parametrize(
    "lengths", [[70_000], [1], [2048, 2048], [1024] * 3, [1] * 5000, [2041, 16, 2041], [5000, 1, 5000], [90_000] * 3]
)
def test_rows_at_the_ends_of_parts(lengths, gpu):
    """Whole parts, rows over many of them, and rows that end with a part; all sums are exact."""
    rng = np.random.default_rng(1)
    ptr = np.cumsum([0, *lengths])
    col = np.concatenate([np.sort(rng.choice(N_COLS, length, replace=False)) for length in lengths])
    csr = csr_array((rng.integers(-4, 5, ptr[-1]).astype(np.float64), col, ptr), shape=(len(lengths), N_COLS))
    x = rng.integers(-4, 5, N_COLS).astype(np.float64)
    for dtype in (np.float32, np.float64):
        A = CVRArray(csr.astype(dtype), device=gpu)
        np.testing.assert_array_equal(get(A @ put(x.astype(dtype), gpu)), csr @ x)


@pytest.mark.small
@pytest.mark.parametrize("n_cols", [3_000, 5_000_000])
def test_columns_near_and_far(n_cols, gpu):
    """Offsets from a part's first column have 16 bits, or columns are stored as they are."""
    import cupy

    from cvrarray.gpu import cvr, row_lanes

    csr, rng = uneven("float64", 30, n_cols), np.random.default_rng(3)
    A, x = CVRArray(csr, device=gpu), rng.standard_normal(n_cols)
    expected, bound = oracle.product(csr, x, 1, 0, np.zeros(30))
    assert (np.abs((A @ cupy.asarray(x)).get() - expected) <= bound).all()
    layout = row_lanes.Layout(cvr.slots_by_rows(A._tables), 8, A._tables.empty_row)
    assert layout.col.dtype == ("uint16" if n_cols < 1 << 16 else "int32")


@pytest.mark.small
@pytest.mark.parametrize(("n_rows", "dtype", "slots"), [(300, "float32", 16), (300, "float64", 8), (600, "float32", 8)])
def test_long_rows_of_short_values_have_more_slots(n_rows, dtype, slots, gpu):
    """The product's dtype decides."""
    import cupy

    from cvrarray.gpu import row_lanes

    rng = np.random.default_rng(5)
    n = 15_000
    csr = csr_array((np.ones(n), (np.sort(rng.integers(0, n_rows, n)), rng.permutation(n))), shape=(n_rows, N_COLS))
    csr.data[:] = rng.standard_normal(n)
    csr = csr.astype(dtype)
    A, x = CVRArray(csr, device=gpu), rng.standard_normal(N_COLS).astype(dtype)
    assert row_lanes.slots(A._tables, x.dtype, lambda: int(np.diff(csr.indptr).max())) == slots
    expected, bound = oracle.product(csr, x)
    assert (np.abs((A @ cupy.asarray(x)).get() - expected) <= bound).all()


@pytest.mark.small
@pytest.mark.parametrize("name", zoo.ZOO)
def test_chunks_multiply_too(name, monkeypatch, gpu):
    """What larger arrays do: by a warp's chunks, as they are."""
    from cvrarray.gpu import row_lanes

    monkeypatch.setattr(row_lanes, "suits", lambda tables: False)
    csr = zoo.floats(name, np.float32)
    x = zoo.float_vector(csr.shape[1], np.float32)
    for n_chunks in (None, 7):
        assert_product(CVRArray(csr, n_chunks=n_chunks, device=gpu) @ put(x, gpu), csr, x)


def test_few_values(gpu):
    assert_few_values_keep_bits(uneven("float64"), gpu)


def test_new_values(gpu):
    csr = uneven("float64")
    assert_new_values_count(CVRArray(csr, device=gpu), csr)


def test_arrays_of_one_structure_share_a_layout(monkeypatch, gpu):
    """Whatever their values, one for each number of slots of a lane; another array of the same matrix has its own."""
    from cvrarray.gpu import row_lanes

    csr = uneven("float32")
    A = CVRArray(csr, device=gpu)
    slots = {row_lanes.slots(A._tables, np.dtype(dtype), lambda: 20_000) for dtype in (np.float32, np.float64)}
    made = assert_one_layout_a_structure(A, monkeypatch, row_lanes, len(slots))
    CVRArray(csr, device=gpu) @ put(np.ones(csr.shape[1]), gpu)
    assert len(made) == len(slots) + 1


def test_in_a_graph(gpu):
    """Values that are replaced in place count too, and the array has some beside others of one structure."""
    csr = uneven("float32")
    A = CVRArray(csr, device=gpu)
    A = A.with_values(put(csr.data, gpu))
    assert_graph_multiplies_again(A, lambda: A.with_values(put(3 * csr.data, gpu), out=A))


@pytest.mark.parametrize(
    ("n_rows", "nnz", "n_lanes", "longest", "narrow", "wide"),
    [
        (40, 30_000, 32, 1000, 16, 8),
        (20_000, 90_000, 32, 9, 4, 4),
        (100_000, 3_000_000, 32, 90, 8, 0),
        (100_000, 3_000_000, 32, 900, 8, 8),
        (100_000, 3_900_000, 32, 90, 0, 0),
        (80_000, 1_100_000, 32, 20, 0, 0),
        (80_000, 1_100_000, 32, 300, 4, 4),
        (150_000, 1_900_000, 32, 900, 0, 0),
        (110_000, 600_000, 32, 6, 4, 4),
        (200_000, 900_000, 32, 900, 0, 0),
        (40_000, 90_000, 32, 9, 0, 0),
        (40, 30_000_000, 32, 1_000_000, 0, 0),
        (40, 30_000, 8, 1000, 0, 0),
        (9, 0, 32, 0, 0, 0),
    ],
)
def test_which_matrices(n_rows, nnz, n_lanes, longest, narrow, wide, monkeypatch):
    """Slots of a lane for products of 4 and 8 bytes. Rows are not too short, and their lanes not too many: fewer for wider
    products, more for uneven rows. Lanes that someone asked for are used.
    """
    pytest.importorskip("cupy")
    from types import SimpleNamespace

    from cvrarray.gpu import row_lanes

    monkeypatch.setattr(row_lanes, "processors", lambda: 132)
    tables = SimpleNamespace(shape=(n_rows + 3, 100_000), nnz=nnz, n_lanes=n_lanes, empty_row=np.arange(3))
    found = [row_lanes.slots(tables, np.dtype(dtype), lambda: longest) for dtype in ("float32", "float64")]
    assert [number if row_lanes.suits(tables) else 0 for number in found] == [narrow, wide]
