"""The model of ``A @ X`` on a GPU by which a format is chosen for many columns."""

from __future__ import annotations

import numpy as np
import pytest

import cvrarray
from cvrarray.choice import model
from cvrarray.core import wide
from cvrarray.core.profile import FITTED, Profile

#: Family -> block size (0: CVR).
FAMILIES = {"cvr": 0, "rows": 1, "blocks": 3}


def matrix(size: int, columns: int, dtype: str, others: dict) -> wide.Matrix:
    n, nnz = 1_000_000, others.get("nnz", 7_000_000)
    n_bytes = int(nnz * (np.dtype(dtype).itemsize + 2 / max(1, size)))
    stats = model.Statistics(
        shape=(n, n), nnz=nnz, dtype=np.dtype(dtype), empty_rows=0, row_min=7, row_mean=nnz / n, row_median=np.nan, row_max=7,
        row_std=np.nan, block_fill={max(1, size): 1.0}, table_bytes={}, sampled=True, sectors=0.2, lines=0.1,
    )  # fmt: skip
    return wide.Matrix(stats._replace(**others), n_bytes, size, columns)


def test_families():
    assert {name: wide.kernel(matrix(size, 16, "float32", {})) for name, size in FAMILIES.items()} == {n: n for n in wide.COSTS}


def test_rows_that_read_nothing_together():
    """In long rows each row of a bin is elsewhere: as if columns were anywhere."""
    near, apart = ({"shape": (2_000, 1_000_000), "row_max": 6_000, "sectors": s, "lines": s} for s in (0.1, 1.0))
    long, short = {"nnz": 2_000_000}, {"nnz": 700_000}
    for size, columns in ((1, 64), (0, 128)):
        times = {
            of["nnz"]: [wide.microseconds(matrix(size, columns, "float32", where | of)) for where in (near, apart)]
            for of in (long, short)
        }
        sectors = wide.COSTS[wide.kernel(matrix(size, columns, "float32", near | long))].sectors * 0.9 * 2
        assert times[2_000_000][1] - times[2_000_000][0] == pytest.approx(sectors)
        assert times[700_000][1] > 1.1 * times[700_000][0]


@pytest.mark.parametrize("size", FAMILIES.values(), ids=FAMILIES)
def test_more_columns_take_longer(size):
    of = matrix(size, 4, "float32", {})
    assert wide.microseconds(of) < wide.microseconds(of._replace(columns=16))


def test_slower_memory_and_gathers_take_longer():
    """Constants are one GPU's: on another, times of memory are scaled by its rates, and what L2 holds by its size."""
    half = FITTED._replace(memory=FITTED.memory / 2, gathers=FITTED.gathers / 2)
    for S in (cvrarray.generate.elast3(12), cvrarray.generate.rmat(13, 16)):
        stats = cvrarray.statistics(S)._replace(gpu=FITTED)
        slow, small = stats._replace(gpu=half), stats._replace(gpu=FITTED._replace(l2_bytes=1 << 10))
        for columns in (1, 4, 64):
            fast, slower, of_small = (model.predict(of, "cuda", columns) for of in (stats, slow, small))
            assert all(fast[name] < slower[name] <= 2 * fast[name] for name in fast)
            assert all(fast[name] <= of_small[name] for name in fast) or columns < 64  # what does not fit L2 is not cold
    assert Profile(0.0, 0.0, 1, 1, 1).slower_memory == 1.0  # which a virtual GPU does not say
