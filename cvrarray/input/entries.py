"""The entries of a sparse matrix in the order of its own value array: for new values in a structure that is known."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core import devices
from . import coercion, validation


class Entries(NamedTuple):
    """What a sparse matrix stores, unchanged: nothing is sorted or summed, and nothing checked."""

    kind: str  # "coo" (rows, columns), "csr", "csc" or "bsr" (offsets, indices)
    shape: tuple[int, int]
    indices: tuple[Any, ...]
    data: Any  # (n,) values, of a BSR (n_blocks, block rows, block columns)


def entries(matrix: Any) -> Entries:
    """The entries of a sparse matrix of SciPy, CuPy or pydata/sparse, or of an array of ours.

    Formats other than CSR, CSC, COO, BSR and GCXS become canonical CSR first.

    Raises
    ------
    TypeError, ValueError
        As :func:`cvrarray.input.coercion.as_csr` does.
    """
    if coercion.package(matrix) in coercion.OTHERS and len(matrix.shape) == 2:
        kind, indices, data = coercion.stored(matrix)
        if kind in ("csr", "csc", "bsr", "coo"):
            return Entries(kind, tuple(matrix.shape), indices, data)
    csr = coercion.as_csr(matrix)
    return Entries("csr", csr.shape, (csr.indptr, csr.indices), csr.data)


def coordinates(found: Entries) -> tuple[Any, Any]:
    """Row and column of every stored value, in the order of ``data.ravel()``; for use on the current device.

    Raises
    ------
    TypeError, ValueError
        An index array breaks the format's rules.
    """
    kind, (n_rows, n_cols), (first, second), data = found
    if kind == "coo":
        row, col = coercion.as_integers(first, "row"), coercion.as_integers(second, "col")
        validation.check_coordinates(row, col, data.size, found.shape)
        return row, col
    if kind == "bsr":
        return _of_blocks(found)
    indptr, indices = coercion.as_integers(first, "indptr"), coercion.as_integers(second, "indices")
    n_major, n_minor = (n_rows, n_cols) if kind == "csr" else (n_cols, n_rows)
    validation.check_compressed(indptr, indices, data.size, n_major, n_minor)
    major = devices.of(indices).backend("csr").row_of_nonzero(indptr, indices)
    return (major, indices) if kind == "csr" else (indices, major)


def block_coordinates(found: Entries) -> tuple[Any, Any]:
    """Block row and block column of every block of a BSR, in its order; errors as of :func:`coordinates`."""
    indptr, indices = (coercion.as_integers(a, name) for a, name in zip(found.indices, ("indptr", "indices"), strict=True))
    validation.check_blocks(indptr, indices, found.data, found.shape)
    return devices.of(indices).backend("csr").row_of_nonzero(indptr, indices), indices


def _of_blocks(found: Entries) -> tuple[Any, Any]:
    block_row, block_col = block_coordinates(found)
    height, width = found.data.shape[1:]
    row = block_row.astype(np.int64)[:, None, None] * height + np.arange(height)[:, None]
    col = block_col.astype(np.int64)[:, None, None] * width + np.arange(width)
    row, col = np.broadcast_arrays(row, col)
    return row.ravel(), col.ravel()
