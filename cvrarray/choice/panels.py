"""The cut of a matrix into panels of rows, and the format of the panels: for Dask's chunks and for stores."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ..bbcsr import DEFAULT_BLOCK_SIZE
from ..core import devices
from ..core.tables import CSR
from ..input import partition
from .model import choose, statistics

SLICE = 1 << 22  #: nonzeros whose blocks are counted at a time


def decided(csr: CSR, format: str, parameters: dict[str, Any], device: str) -> tuple[str, dict[str, Any]]:
    """Format and parameters of all panels: those given, or the choice for the whole matrix on a kind of device."""
    if format != "auto" or parameters.keys() - {"values"}:
        return format, parameters
    plan = choose(statistics(csr, exact=False), device)
    return plan.format, parameters | plan.keywords


def block_size(format: str, parameters: dict[str, Any]) -> int | None:
    """The panels' block size; None for CVR, which has no blocks."""
    return parameters.get("block_size", DEFAULT_BLOCK_SIZE) if format == "bbcsr" else None


def panel_rows(csr: CSR, bytes_of_panel: int, block_size: int | None = None) -> list[int]:
    """The first row of each panel, and n_rows, for a matrix in BBCSR if `block_size` is given, else in CVR."""
    lengths = partition.lengths(csr)
    if block_size is not None and block_size > 1 and csr.nnz:
        indptr, indices = (devices.move(part, devices.CPU) for part in csr[:2])
        blocks = _blocks_of_block_rows(indptr, indices, block_size)
        lengths = np.repeat(blocks, block_size)[: lengths.size] * block_size  # with holes
    before = partition.bytes_before(lengths, csr.data.dtype.itemsize, csr.indices.dtype.itemsize, block_size)
    first_rows: list[int] = partition.cut(before, bytes_of_panel, partition.alignment(block_size or 1)).tolist()
    return first_rows


def _blocks_of_block_rows(indptr: np.ndarray, indices: np.ndarray, size: int) -> np.ndarray:
    """(n_block_rows,) int64: the different block columns in each, of about SLICE nonzeros at a time."""
    ptr = np.append(indptr[:-1:size], indptr[-1])
    counts = np.empty(ptr.size - 1, np.int64)
    cuts = np.unique(np.append(np.searchsorted(ptr[:-1], np.arange(0, int(ptr[-1]), SLICE)), [0, counts.size]))
    for first, last in pairwise(cuts.tolist()):
        known, column = np.unique(indices[ptr[first] : ptr[last]] // size, return_inverse=True)
        row = np.repeat(np.arange(last - first), np.diff(ptr[first : last + 1]))
        found = np.unique(row * max(1, known.size) + column)
        counts[first:last] = np.bincount(found // max(1, known.size), minlength=last - first)
    return counts
