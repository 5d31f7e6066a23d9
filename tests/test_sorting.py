"""Coordinates in any order on a GPU, beside NumPy's sort: by row, then column, then as they come."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.small


def coordinates(rng, n, shape):
    """Uniform ones, a long row among short ones, rows in order, columns next to each other, and places that all differ."""
    row, col = rng.integers(0, shape[0], n), rng.integers(0, shape[1], n)
    yield row, col
    yield np.where(rng.random(n) < 0.3, shape[0] // 2, row), col
    yield np.sort(row), col
    yield row, (rng.integers(0, 4, n) * (shape[1] // 4) + rng.integers(0, 9, n)) % shape[1]
    places = rng.permutation(np.unique(row * shape[1] + col))
    yield places // shape[1], places % shape[1]


@pytest.mark.parametrize("most_at_once", [512, 4])
@pytest.mark.parametrize(
    ("n", "shape"),
    [
        (1, (1, 1)),
        (5, (3, 4)),
        (1000, (50, 60)),
        (20_000, (3, 7)),  # rows that are too long for shared memory, of the same few places
        (40_000, (30, 100_000)),  # rows of all lengths that are sorted in shared memory
        (60_000, (300, 5_000)),  # in registers, several keys a lane
        (60_000, (9_000, 5_000)),
        (50_000, (1 << 20, 1 << 20)),  # most rows are empty
        (4096, (2, 1 << 20)),  # rows as long as a bucket
        (30_000, (2_000, 1 << 30)),  # columns whose low bits do not fit
    ],
    ids=str,
)
def test_order(n, shape, most_at_once, gpu, monkeypatch):
    import cupy

    from cvrarray.gpu import sorting

    monkeypatch.setattr(sorting, "MOST_AT_ONCE", most_at_once)  # more buckets get their entries in two steps
    monkeypatch.setattr(sorting, "MOST_COARSE", most_at_once // 2)
    for row, col in coordinates(np.random.default_rng(n), n, shape):
        found = sorting.in_buckets(cupy.asarray(row), cupy.asarray(col), shape).sorted()
        order = np.lexsort((col, row))
        assert np.array_equal(found.order().get(), order)
        row, col = row[order], col[order]
        assert np.array_equal(found.indptr.get(), np.searchsorted(row, np.arange(shape[0] + 1)))
        is_first = np.r_[True, (np.diff(row) != 0) | (np.diff(col) != 0)]
        assert found.has_duplicates == (not is_first.all())
        assert np.array_equal(found.starts().get(), np.flatnonzero(np.r_[is_first, True]))
        columns = (found.entries >> np.uint64(32)).get().astype(np.uint32) & np.uint32(2**31 - 1)
        assert np.array_equal(columns, col)


def test_what_needs_more_bits_is_sorted_by_others(gpu):
    import cupy

    from cvrarray.gpu import csr, sorting

    rng = np.random.default_rng(5)
    for shape in ((3, 1 << 40), (1 << 31, 5)):
        row, col = rng.integers(0, min(shape[0], 9), 500), rng.integers(0, min(shape[1], 9), 500) * (shape[1] // 9)
        there = cupy.asarray(row), cupy.asarray(col)
        assert sorting.in_buckets(*there, shape) is None
        if shape[0] < 100:
            found = csr.canonical(*there, cupy.ones(500), shape)
            places = np.unique(row * shape[1] + col)
            assert np.array_equal(found.indices.get(), places % shape[1])
            assert np.array_equal(found.indptr.get(), np.searchsorted(places // shape[1], np.arange(shape[0] + 1)))


@pytest.mark.parametrize(
    ("dtype", "most_at_once"),
    [("bool", 512), ("uint8", 1), ("float16", 1), ("float32", 512), ("float64", 1), ("complex128", 512), ("complex128", 1)],
)
def test_sums_have_the_bits_of_a_cpu(dtype, most_at_once, gpu, monkeypatch):
    """Duplicates are added in the order in which they come, on both devices."""
    import cupy

    from cvrarray.core import devices
    from cvrarray.gpu import csr, sorting

    monkeypatch.setattr(sorting, "MOST_AT_ONCE", most_at_once)
    monkeypatch.setattr(sorting, "MOST_COARSE", 2)
    rng = np.random.default_rng(8)
    row, col = rng.integers(0, 700, 9000).astype(np.int32), rng.integers(0, 9, 9000).astype(np.int32)
    val = (rng.random(9000) * 3).astype(dtype)
    here = devices.CPU.backend("csr").canonical(row, col, val, (700, 9))
    there = csr.canonical(cupy.asarray(row), cupy.asarray(col), cupy.asarray(val), (700, 9))
    for mine, theirs in zip(here[:3], there[:3], strict=True):
        assert mine.tobytes() == theirs.get().astype(mine.dtype).tobytes()
