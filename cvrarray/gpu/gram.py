"""Gram matrices and moments on the GPU. The same functions as :mod:`cvrarray.cpu.gram`."""

from __future__ import annotations

import cupy
import numpy as np

from ..core.tables import CSR
from . import csr as rows
from .compiler import Kernel
from .launches import blocks

#: Entries that are added at a time: each takes 16 to 28 bytes, and about as much while they are sorted by column.
PANEL = 1 << 23
WIDTH = 1024  #: sums of a warp at most: several warps share a longer row of the result
UNROLL = 4, 4  #: entries of a row that a lane loads at a time, and rows
BLOCK = 128

GRAM = Kernel(
    "gram",
    "gram",
    [("float32", "float32"), ("float64", "float32"), ("float64", "float64"), ("complex128", "complex64"), ("int8", "int8")],
    lambda sums, values: (sums, values, *UNROLL),
)
MOMENTS = Kernel("gram", "moments", [("float32", "int32"), ("float16", "int64"), ("int64", "int32"), ("bool", "int32")])


def add(csr: CSR, out: cupy.ndarray) -> None:
    """Add ``A.H @ A`` to `out` (n_cols, n_cols) in C order, on and above the diagonal; rows of A in their order."""
    n = out.shape[0]
    if not csr.nnz:
        return
    where = rows.transpose(csr._replace(data=cupy.arange(csr.nnz, dtype=np.int32)))
    width = min(n, WIDTH)
    tiles = -(-n // width)
    ends = csr.indptr
    if tiles > 1:
        key = rows.row_of_nonzero(csr.indptr, csr.indices).astype(np.int64) * tiles + csr.indices // width
        ends = cupy.searchsorted(key, cupy.arange(csr.shape[0] * tiles + 1))
    ptr, row, ends, indices = (part.astype(np.int32, copy=False) for part in (where.indptr, where.indices, ends, csr.indices))
    args = ptr, row, where.data, ends, indices, csr.data, np.int32(n), np.int32(width), out
    GRAM(out.dtype, csr.data.dtype)((n, tiles), (32,), args, shared_mem=width * out.itemsize)


def moments(csr: CSR, axis: int, count: cupy.ndarray, mean: cupy.ndarray, squares: cupy.ndarray) -> None:
    """Bring the moments of each row (``axis=1``) or column (0) up to date with its stored entries, one after the other."""
    lines = csr if axis == 1 else rows.transpose(csr)
    args = lines.indptr, lines.data, np.int64(count.size), count, mean, squares
    MOMENTS(lines.data.dtype, lines.indptr.dtype)(blocks(count.size, BLOCK), (BLOCK,), args)
