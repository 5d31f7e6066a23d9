"""The statistics by which a format is chosen, against counts by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import assert_same_tables, get, in_turn, put

import cvrarray
from cvrarray.choice import model
from cvrarray.core import lanes, short_rows
from cvrarray.core.tables import NOTHING, Seen
from cvrarray.cpu import statistics
from cvrarray.input import coercion


@in_turn("name, exact, index", zoo.ZOO, [True, False], [np.int32, np.int64])
def test_row_lengths(name, exact, index, device):
    csr = zoo.integers(name)
    csr.indptr, csr.indices = csr.indptr.astype(index), csr.indices.astype(index)
    found = cvrarray.statistics(cvrarray.CVRArray(csr, device=device), exact=exact)
    lengths = np.diff(csr.indptr)
    n_rows = len(lengths)
    assert (found.row_min, found.row_max) == ((lengths.min(), lengths.max()) if n_rows else (0, 0))
    assert found.empty_rows == np.count_nonzero(lengths == 0)
    assert found.row_mean == (lengths.mean() if n_rows else 0)
    if csr.nnz:  # a BBCSR array of blocks of size 1 pads each 32 rows to their longest, and has an offset for them
        padded = np.resize(np.append(lengths, np.zeros(-n_rows % 32, int)), (-(-n_rows // 32), 32)).max(axis=1).sum() * 32
        assert found.table_bytes["bbcsr1"] >= padded * (1 + 2)
        if exact:
            assert found.row_std == pytest.approx(lengths.std())
            slots = cvrarray.BBCSRArray(csr, block_size=1, device="cpu").padded_data.size
            assert slots == padded


def test_narrow_columns(device):
    """The share of the nonzeros in bins of 32 rows whose columns fit 16 bits; the second bin's do not."""
    row, col = [0, 1, 31, 32, 33, 64], [5, 60_000, 9, 0, 70_000, 99_999]
    csr = scipy.sparse.csr_array((np.ones(6), (row, col)), shape=(65, 100_000))
    found = cvrarray.statistics(cvrarray.CVRArray(csr, device=device))
    assert found.narrow_columns == pytest.approx(4 / 6)
    assert cvrarray.statistics(scipy.sparse.csr_array((3, 3))).narrow_columns == 0


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("n_cols", [900, 1_200_000])
def test_sectors_and_lines_of_x(n_cols, exact, device):
    """The different groups of 8 and of 64 columns in each bin of 32 rows; of many columns 65,536 groups are told apart."""
    csr = scipy.sparse.random_array((300, n_cols), density=4000 / (300 * n_cols), format="csr", rng=np.random.default_rng(2))
    found = cvrarray.statistics(cvrarray.CVRArray(csr, device=device), exact=exact)
    row = np.repeat(np.arange(300), np.diff(csr.indptr))
    sectors = csr.indices // 8 % 65_536
    for groups, ratio in ((sectors, found.sectors), (sectors // 8, found.lines)):
        assert ratio == np.unique(row // 32 * 65_536 + groups).size / csr.nnz
    assert found.lines < found.sectors < 1


@pytest.mark.parametrize("nnz", [400_000, 900_000, 3_000_000])
@pytest.mark.parametrize("n_rows", [2000, 40_000, 300_000])
def test_what_costs_a_product_on_a_gpu(nnz, n_rows):
    """Whichever way CVR goes: more bytes, sectors of x, lines in chunks, rows that lanes cut and chunks' uneven ones; long rows
    in BBCSR. Of short rows, for which both have one kernel, how long the longest is says how many bytes there are.
    """
    tables, mean = {"cvr": 7 * nnz, "bbcsr1": 8 * nnz, "bbcsr3": 6 * nnz}, nnz // n_rows
    even = model.Statistics(
        (n_rows, n_rows), nnz, np.dtype(np.float32), 0, mean, mean, mean, mean, 0, {1: 1.0, 3: 1.0}, tables, True,
        sectors=0.2, lines=0.1,
    )  # fmt: skip
    times = model.predict(even, "cuda")

    def slower(**changed):
        other = model.predict(even._replace(**changed), "cuda")
        return {name for name in times if other[name] > times[name]}

    slots = lanes.slots_of_lanes(nnz, n_rows, 4, mean, 132)
    alike = {"bbcsr1"} | ({"cvr"} if slots else set()) if short_rows.suit(n_rows, nnz, mean, 132) else set()
    assert len({times[name] for name in alike}) <= 1
    assert slower(row_max=mean + 1) >= alike
    assert slower(table_bytes={name: 2 * n_bytes for name, n_bytes in tables.items()}) == {*tables} - alike
    counts_sectors = slots > 0 or mean > 2  # chunks of shorter rows have so many that lines tell
    assert slower(sectors=0.9) == {"bbcsr1"} | ({"cvr"} if counts_sectors else set())
    assert slower(lines=0.9) == ({"bbcsr1"} if slots else {"cvr", "bbcsr1"}) - alike
    is_cut = slots > 0 and lanes.are_cut(lanes.MOST_SLOTS, mean) == 1  # as all rows are
    assert slower(row_max=100 * mean) >= {"bbcsr1", "bbcsr3"} | (set() if is_cut else {"cvr"})


def test_what_fits_l2_costs_more_a_byte_as_it_may_not_be_there():
    """The same tables: of a matrix that fits L2, and of one with an entry of x and y more than that."""
    stats = model.Statistics(
        (100_000, 100_000), 7_690_000, np.dtype(np.float32), 0, 77, 77.0, 77.0, 77, 0, {1: 1.0, 3: 1.0},
        {"cvr": 48_000_000, "bbcsr1": 47_000_000, "bbcsr3": 44_000_000}, True, sectors=0.02, lines=0.01,
    )  # fmt: skip
    larger = stats._replace(nnz=7_715_000)
    assert stats.fits_l2
    assert not larger.fits_l2
    fits, beyond = (model.predict(found, "cuda") for found in (stats, larger))
    assert all(beyond[name] < fits[name] for name in ("cvr", "bbcsr1"))


@pytest.mark.parametrize("columns", [256, 512])
def test_tables_of_many_times_the_bytes_are_not_chosen(columns, monkeypatch):
    # as a graph of the web, whose blocks of 2 took 2.7 times what CVR took with 256 columns
    stats = model.Statistics(
        shape=(325_557, 325_557), nnz=3_216_152, dtype=np.dtype(np.float32), empty_rows=78_056, row_min=0, row_mean=9.88,
        row_median=np.nan, row_max=27_160, row_std=np.nan, block_fill={1: 1.0, 2: 1.0},
        table_bytes={"cvr": 22_405_075, "bbcsr1": 65_484_336, "bbcsr2": 112_386_974}, sampled=True,
    )  # fmt: skip
    monkeypatch.setattr(model, "predict", lambda *of: {"cvr": 2.0, "bbcsr1": 3.0, "bbcsr2": 1.0})
    assert model.choose(stats, "cuda", columns).format == "cvr"
    smaller = stats._replace(table_bytes=stats.table_bytes | {"bbcsr2": 60_000_000})
    assert model.choose(smaller, "cuda", columns).block_size == 2


def test_no_product_is_predicted_to_take_less_than_a_call():
    stats = cvrarray.statistics([[1.0]])
    assert all(us > 1 for columns in (1, 4) for us in model.predict(stats, "cpu", columns).values())


@pytest.mark.small
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_cuda_counts_what_a_cpu_counts(index, gpu, monkeypatch):
    """In windows, which reach over the last row, and in all rows: so both choose the same format."""
    import cupyx.scipy.sparse as on_gpu

    from cvrarray.gpu.look import Look

    begin, calls = Look.__init__, []

    def counted_begin(self, indptr, indices, n_cols, wanted=NOTHING, **keywords):
        calls.extend([wanted.windows] if wanted.windows else [])
        begin(self, indptr, indices, n_cols, wanted, **keywords)

    monkeypatch.setattr(Look, "__init__", counted_begin)
    rng = np.random.default_rng(3)
    rows = [scipy.sparse.random_array((n, 700), density=0.02, rng=rng, format="csr") for n in (1, 97, 3001)]
    holes = scipy.sparse.kron(rows[2][:1003, :200], np.triu(np.ones((3, 3))), format="csr")
    full = scipy.sparse.kron(rows[2][:, :90], np.ones((6, 6)), format="csr")
    few = scipy.sparse.csr_array(([1.0], ([20_000], [7])), shape=(40_000, 9))  # between the windows
    for csr in (*rows, holes, full, few, *(zoo.integers(name, np.float64) for name in ("power_law", "one_dense_row"))):
        csr.indptr, csr.indices = csr.indptr.astype(index), csr.indices.astype(index)
        there = on_gpu.csr_matrix(csr)
        there.indptr, there.indices = there.indptr.astype(index), there.indices.astype(index)
        for exact in (False, True):
            found, expected = cvrarray.statistics(there, exact=exact), cvrarray.statistics(csr, exact=exact)
            inexact = {"row_std": pytest.approx(expected.row_std, nan_ok=True), "values": found.values}
            assert found == expected._replace(row_median=pytest.approx(expected.row_median, nan_ok=True), **inexact)
        with_the_check = coercion.as_csr(there, model.wanted_of)
        assert with_the_check.seen.survey.indices is with_the_check.indices
        counted = cvrarray.statistics(with_the_check._replace(seen=Seen()), exact=False)
        calls.clear()
        again = cvrarray.statistics(with_the_check, exact=False)
        assert len(calls) == (csr is few)  # whose nonzero is in no window
        calls.clear()
        assert str(again) == str(counted)  # nan is nan
        assert abs(cvrarray.asarray(there).to_scipy() - csr).max() == 0
        assert len(calls) == 1 + (csr is few)
        seen, unseen = cvrarray.CVRArray(with_the_check), cvrarray.CVRArray(there)  # which counts the empty rows itself
        assert_same_tables(seen._tables, unseen._tables)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_blocks_are_counted_in_windows(index):
    """On a CPU, of any size, against sets of block columns; the last window is cut."""
    csr = scipy.sparse.random_array((301, 300), density=0.05, rng=np.random.default_rng(0), format="csr")
    indptr, indices, sizes = csr.indptr.astype(index), csr.indices.astype(index), (1, 2, 3, 5, 7, 32)
    for first, height in (([0], 301), ([0, 192, 288], 96)):
        windows = statistics.Windows(indptr, indices, 300, sizes, np.array(first), height)
        found = windows.in_groups(sizes)
        for size in sizes:
            single = blocks = slots = 0
            for start in first:
                rows = [indices[indptr[r] : indptr[r + 1]] // size for r in range(start, min(start + height, 301))]
                single += sum(len(np.unique(row)) for row in rows)
                of_rows = [np.unique(np.concatenate(rows[r : r + size])).size for r in range(0, len(rows), size)]
                blocks += sum(of_rows)
                slots += sum(
                    max(of_rows[r // size : (min(r + 32, len(rows)) - 1) // size + 1]) for r in range(0, len(rows), 32)
                )
            assert (windows.single_rows[size], *found[size]) == (single, blocks, slots)


def test_of_long_rows_bands_of_columns_are_counted():
    """They stand for all: nearly the same shares and sizes, and the same choice. The longest row of a bin seems longer."""
    rng = np.random.default_rng(1)
    blocks = scipy.sparse.random_array((12, 20_000), density=0.3, rng=rng, format="csr")
    long = scipy.sparse.csr_array(scipy.sparse.kron(blocks, np.ones((3, 3))))
    some, every = cvrarray.statistics(long, exact=False), cvrarray.statistics(long)
    assert some.sampled and not every.sampled
    assert some.block_fill[3] == pytest.approx(every.block_fill[3], rel=0.02) == 1
    for name, n_bytes in some.table_bytes.items():
        assert n_bytes == pytest.approx(every.table_bytes[name], rel=0.15)
    assert model.choose(some, "cpu")[:2] == model.choose(every, "cpu")[:2]


def test_columns_that_share_counters(monkeypatch):
    """Where there are too many columns for a counter each, blocks that are far enough apart still count as different."""
    csr = scipy.sparse.random_array((97, 60), density=0.2, rng=np.random.default_rng(2), format="csr")
    counted = statistics.Windows(csr.indptr, csr.indices, 60, (2, 3)).in_groups((2, 3))
    monkeypatch.setattr(statistics, "MOST_COUNTERS", 67)
    for far in (6 * 67, 6 * 67 << 40):
        windows = statistics.Windows(csr.indptr, csr.indices + np.int64(far), far + 60, (2, 3))
        assert windows.in_groups((2, 3)) == counted


@pytest.mark.parametrize("size", [5, 7, 8])
def test_whole_blocks_of_other_sizes(size, device):
    """Where a kernel gains by them; one entry in another place, and blocks of half the rows, are seen."""
    places = scipy.sparse.random_array((96, 80), density=0.1, rng=np.random.default_rng(size), format="csr")
    blocks = scipy.sparse.csr_array(scipy.sparse.kron(places, np.ones((size, size))))
    moved = blocks.copy()
    row = int(np.argmax(np.diff(moved.indptr) > size))
    last = moved.indptr[row + 1] - 1
    moved.indices[last] = 80 * size - 1 if moved.indices[last] < 80 * size - 1 else moved.indices[last - 1]
    moved.sum_duplicates()
    shifted = scipy.sparse.csr_array(scipy.sparse.vstack([blocks[size // 2 :], blocks[: size // 2]]))
    found = []
    for csr in (blocks, moved, shifted, blocks[:, 1:]):
        found.append(size in model.statistics(cvrarray.CVRArray(csr, device=device), exact=False).block_fill)
    assert found == [size in model.WHOLE_SIZES["cpu" if device == "cpu" else "cuda"], False, False, False]
    A = cvrarray.asarray(blocks, device=device)
    np.testing.assert_allclose(get(A @ put(np.ones(80 * size), device)), blocks @ np.ones(80 * size))
