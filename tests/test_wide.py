"""The model of ``A @ X`` on a GPU by which a format is chosen for many columns."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cvrarray.choice import model
from cvrarray.core import wide

PAGE = Path(__file__).parents[1] / "docs" / "decisions" / "0005-choice-of-format.md"

#: Kernel -> block size (0: CVR), columns, dtype, and what differs from a stencil of a million rows.
KERNELS = {
    "cvr": (0, 4, "float32", {}),
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


def test_the_page_has_the_constants():
    rows = re.findall(r"^\| ([a-z ]+) \|((?: [\d.]* ?\|){14})$", PAGE.read_text(), re.MULTILINE)
    found = {name: tuple(float(cell.strip() or 0) for cell in cells.split("|")[:-1]) for name, cells in rows}
    assert found == wide.COSTS
