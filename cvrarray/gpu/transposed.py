"""``A.T @ x`` from the tables of A, the same bits in every run: the host's side of ``kernels/transposed.cuh``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.arrays import Run
from .captures import aside
from .compiler import PRODUCTS, Kernel, constant
from .launches import blocks, struct, update
from .properties import has_float_vectors, processors
from .streams import PerStream

COUNT, ADD = range(2)
CALL_WORDS = 256  # 64-bit words of the kernels' struct Call
TILE = constant("transposed.cuh", "TILE")  # columns that share a flag
FLOATS_BELOW = 256  # entries of the longest column: four floats hold the sum of so few doubles
BLOCK = 256
BLOCKS_A_PROCESSOR = 8  # of kernels whose threads stride over their work

#: Those of PRODUCTS whose sums are rounded: of floating-point numbers.
ROUNDED = [(value, product) for value, product in PRODUCTS if np.dtype(product).kind in "fc"]
LARGEST_EXPONENT = Kernel("transposed", "largest_exponent", ROUNDED)
LONGEST_COLUMN = Kernel("transposed", "longest_column")
BEGIN = Kernel("transposed", "transposed_begin", [(product,) for _, product in ROUNDED])


class Passes(NamedTuple):
    """A format's own kernels, without the one that adds the terms, of which it may have several."""

    count: Callable[..., None]  #: ``count(sums)``: entries of each column, into the marks
    finish: Callable[..., None]  #: ``finish(floats, x, sums, y, alpha, beta, form)``: y; sums and marks are 0 again


class ColumnSums:
    """The sums of a product's columns, and what is known of the matrix: for ``y = alpha * A.T @ x + beta * y``.

    Parameters
    ----------
    passes
        Of the format.
    values
        The table of stored values; padding, which is 0, does no harm.
    n_cols, dtype
        Length and dtype of y.
    """

    def __init__(self, passes: Passes, values: cupy.ndarray, n_cols: int, dtype: np.dtype) -> None:
        self.passes, self.n_cols, self.dtype, self._values = passes, n_cols, dtype, values
        self.is_exact = dtype.kind in "iu"
        with aside():
            self._matrix = matrix = cupy.zeros(2, np.uint32)  # the kernels' struct Matrix
            if not self.is_exact and n_cols:
                self.renew()
                count = cupy.zeros(n_cols, np.uint32)
                passes.count(struct(None, None, None, None, count, None))
                LONGEST_COLUMN()(strided(n_cols), (BLOCK,), (count, np.int64(n_cols), matrix[1:]))
            self.floats = may_be_floats(dtype) and has_float_vectors() and int(matrix[1]) < FLOATS_BELOW
        n_parts = n_cols * components(dtype)
        n_fine, n_marks = (0, 0) if self.is_exact else (n_parts, n_cols)
        # 64-bit words of: the kernels' struct Call, limbs, fine integers, marks, flags of tiles with marks
        sizes = CALL_WORDS, n_parts * limbs(dtype), n_fine, -(-n_marks // 2), -(-n_marks // (2 * TILE))
        self.memory = PerStream(lambda: Memory(matrix, sizes))

    def renew(self) -> None:
        """What is known of the values, after these were replaced. Nothing is allocated."""
        if self.is_exact or not self.n_cols:
            return
        values, largest = self._values, self._matrix[:1]
        largest.data.memset_async(0, largest.nbytes)
        LARGEST_EXPONENT(values.dtype, self.dtype)(strided(values.size), (BLOCK,), (values, np.int64(values.size), largest))

    def product(self, add: Callable[..., None]) -> Run:
        """``run(x, y, alpha, beta)``, with ``add(x, sums)`` for the pass that adds all terms to the sums of their
        columns.
        """
        n_cols = self.n_cols
        begin = None if self.is_exact else BEGIN(self.dtype)

        def run(x, y, alpha, beta):
            if not n_cols:
                return
            with self.memory.get() as memory:
                if begin:
                    grid = strided(max(x.size, -(-n_cols // TILE), 1))
                    begin(grid, (BLOCK,), (x, np.int64(x.size), memory.marked, np.int64(n_cols), memory.call))
                add(x, memory.sums)
                self.passes.finish(self.floats, x, memory.sums, y, alpha, beta, update(alpha, beta))

        run.renew = self.renew  # type: ignore[attr-defined]
        return run


class Memory:
    """The kernels' struct ColumnSums and its memory, which is 0 before and after a product.

    It is cleared here only where an error ended a product between its kernels.
    """

    def __init__(self, matrix: cupy.ndarray, sizes: tuple[int, ...]) -> None:
        self._words, self._is_clear = cupy.zeros(sum(sizes), np.uint64), True
        ends = np.cumsum([0, *sizes]).tolist()
        self.call, limbs, fine, marks, self.marked = (self._words[begin:end] for begin, end in pairwise(ends))
        self.sums = struct(matrix, self.call, limbs, fine, marks, self.marked)

    def __enter__(self) -> Memory:
        if not self._is_clear:
            self._words.data.memset_async(0, self._words.nbytes)
        self._is_clear = False
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._is_clear = kind is None


def components(dtype: np.dtype) -> int:
    """Real numbers in one of `dtype`."""
    return 2 if dtype.kind == "c" else 1


def limbs(dtype: np.dtype) -> int:
    """64-bit words of the sum of one real part."""
    return 2 if dtype.kind in "fc" and dtype.itemsize // components(dtype) == 8 else 1


def may_be_floats(dtype: Any) -> bool:
    """May sums of this dtype be held as four floats?"""
    return limbs(np.dtype(dtype)) == 2


def strided(n_threads: int) -> tuple[int]:
    """A grid of at most BLOCKS_A_PROCESSOR blocks a multiprocessor."""
    return (min(blocks(n_threads, BLOCK)[0], BLOCKS_A_PROCESSOR * processors()),)


def cooperative(found: cupy.cuda.Function, *args: Any) -> None:
    """Launch a kernel whose blocks wait for each other, with as many blocks as the device holds at a time."""
    driver = cupy.cuda.driver
    at_once = driver.occupancyMaxActiveBlocksPerMultiprocessor(found.ptr, BLOCK, 0)
    grid = (min(at_once, BLOCKS_A_PROCESSOR) * processors(),)
    found(grid, (BLOCK,), args, enable_cooperative_groups=True)
