"""The model of ``A @ X`` on a GPU by which a format is chosen for many columns."""

from __future__ import annotations

import numpy as np
import pytest

from cvrarray.choice import model
from cvrarray.core import wide

#: Kernel -> block size (0: CVR), columns, dtype, and what differs from a stencil of a million rows.
KERNELS = {
    "cvr": (0, 16, "float32", {}),
    "cvr long rows": (0, 64, "float32", {"nnz": 27_000_000}),
    "cvr warps": (0, 128, "float32", {}),
    "rows": (1, 128, "float32", {"row_max": 40}),
    "rows cut": (1, 128, "float32", {"row_max": 9000}),
    "turns": (1, 16, "float32", {"row_max": 9}),
    "walk": (1, 64, "float32", {}),
    "copies": (1, 4, "float32", {}),
    "blocks": (3, 16, "float32", {}),
    "uneven blocks": (3, 16, "float32", {"row_max": 900}),
    "blocks in turns": (3, 4, "float32", {}),
    "blocks staged": (6, 16, "float64", {}),
    "narrow cvr": (0, 5, "float32", {}),
    "narrow rows": (1, 11, "float64", {}),
    "narrow blocks": (3, 6, "float32", {}),
    "few cvr": (0, 4, "float32", {}),
    "few rows": (1, 4, "float32", {"shape": (100_000, 100_000), "nnz": 700_000}),
    "few blocks": (3, 4, "float64", {}),
}


def matrix(size: int, columns: int, dtype: str, others: dict) -> wide.Matrix:
    n, nnz = 1_000_000, others.get("nnz", 7_000_000)
    n_bytes = int(nnz * (np.dtype(dtype).itemsize + 2 / max(1, size)))
    stats = model.Statistics(
        shape=(n, n), nnz=nnz, dtype=np.dtype(dtype), empty_rows=0, row_min=7, row_mean=nnz / n, row_median=np.nan, row_max=7,
        row_std=np.nan, block_fill={max(1, size): 1.0}, table_bytes={}, sampled=True, sectors=0.2, lines=0.1,
    )  # fmt: skip
    return wide.Matrix(stats._replace(**others), n_bytes, size, columns)


@pytest.mark.parametrize("name", KERNELS)
def test_counts_and_sizes_tell_the_kernel(name):
    assert wide.kernel(matrix(*KERNELS[name])) == name


def test_a_kernel_by_vectors_of_a_row_of_x():
    """Of 16 bytes: walks, lines of X that is far apart, and a warp for each row of X."""

    def kernels(vectors, size, **others):
        return [wide.kernel(matrix(size, 4 * n, "float32", others)) for n in vectors]

    assert kernels((8, 16, 24, 32, 64), 1) == ["walk", "walk", "rows", "walk", "walk"]
    few = {"shape": (35_000, 35_000), "nnz": 245_000}
    assert kernels((8, 16, 32, 64), 1, **few) == ["rows", "walk", "walk", "rows"]
    apart = {"lines": 0.99, "narrow_columns": 0.0}
    assert kernels((16, 17, 64), 1, **apart) == ["turns", "rows", "turns"]  # 17: no whole lines, which few entries do not pay
    assert kernels((16, 17, 22), 1, nnz=15_000_000, row_max=15, **apart) == ["turns", "rows", "turns"]
    assert kernels((16, 17, 32), 0) == ["cvr", "cvr warps", "cvr warps"]
    assert kernels((16, 17), 0, nnz=20_000_000) == ["cvr long rows", "cvr warps"]
    assert kernels((16, 17, 64), 0, shape=(30_000, 30_000), nnz=900_000) == ["cvr long rows"] * 3


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


def test_every_kernel_has_constants():
    assert list(wide.COSTS) == list(KERNELS)


def test_a_sum_of_the_page():
    """Blocks of 3 with 16 columns: each column of the page's table, computed here as the page says it."""
    of = matrix(*KERNELS["blocks"])
    x = 16 * 4 * of.stats.shape[1] / 1e6
    stored = 16 * 4 * of.stats.nnz / 1e6
    tables, rows = of.n_bytes / 1e6, stored / 3
    parts = (
        1, np.sqrt(7), 0, tables, 0, 0.2 * 7, rows, np.sqrt(stored), rows * 0.6 * x / (x + 2), rows * 0.3 * (1 - 20 / x), 2 * x,
        2 * x + tables - 40, 0, 0,
    )  # fmt: skip
    assert wide.microseconds(of) == pytest.approx(np.dot(wide.COSTS["blocks"], parts))


@pytest.mark.parametrize("name", KERNELS)
def test_more_columns_take_longer(name):
    of = matrix(*KERNELS[name])
    assert wide.microseconds(of) < wide.microseconds(of._replace(columns=4 * of.columns))
