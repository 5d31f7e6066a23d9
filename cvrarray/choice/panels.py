"""The cut of a matrix into panels of rows, and the format of the panels: for Dask's chunks and for stores."""

from __future__ import annotations

from typing import Any

from ..bbcsr import DEFAULT_BLOCK_SIZE
from ..core import devices
from ..core.tables import CSR
from ..input import partition
from .model import choose, statistics


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
    if block_size is not None and csr.nnz:
        indptr, indices = (devices.move(part, devices.CPU) for part in csr[:2])
        windows = devices.CPU.backend("statistics").Windows(indptr, indices, csr.shape[1], ())
        blocks, _ = windows.in_groups([block_size])[block_size]
        lengths = lengths * (blocks * block_size**2 / csr.nnz)  # with holes, of which rows have alike
    before = partition.bytes_before(lengths, csr.data.dtype.itemsize, csr.indices.dtype.itemsize, block_size)
    first_rows: list[int] = partition.cut(before, bytes_of_panel, partition.alignment(block_size or 1)).tolist()
    return first_rows
