"""``A.T @ x`` from the tables of A, the same bits in every run: the host's side of ``kernels/transposed.cuh``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np

from .compiler import PRODUCTS, PerStream, blocks, instantiation, kernel, processors, settle, struct, update

COUNT, ADD = range(2)
CALL_WORDS = 256  # 64-bit words of the kernels' struct Call
TILE = 256  # columns that share a flag
FEWER_THAN_FLOATS = 256  # entries of the longest column: then four floats hold a double's sum
BLOCK = 256
BLOCKS_A_PROCESSOR = 8  # of kernels whose threads stride over their work

Run = Callable[[Any, Any, Any, Any], None]


class Passes(NamedTuple):
    """A format's own kernels, but for the one that adds the terms, of which it may have several."""

    count: Callable[..., None]  #: ``count(sums)``: entries of each column, into the marks
    finish: Callable[..., None]  #: ``finish(floats, x, sums, y, alpha, beta, form)``: y; sums and marks are 0 again


class Sums:
    """Where the sums of a product stand, and what is known of the matrix: for ``y = alpha * A.T @ x + beta * y``.

    Parameters
    ----------
    passes
        Of the format.
    file
        The kernel file of the format: it has the kernels that all formats share, too.
    values
        The table of stored values; padding, which is 0, does no harm.
    n_cols, dtype
        Length and dtype of y.
    """

    def __init__(self, passes: Passes, file: str, values: cupy.ndarray, n_cols: int, dtype: np.dtype) -> None:
        self.passes, self.file, self.n_cols, self.dtype = passes, file, n_cols, dtype
        self.n_parts = n_cols * components(dtype)
        self.matrix = cupy.zeros(2, np.uint32)
        self.is_exact = dtype.kind in "iu"
        if not self.is_exact and n_cols:
            kernel(file, "largest_exponent", values.dtype, dtype)(
                strided(values.size), (BLOCK,), (values, np.int64(values.size), self.matrix)
            )
            count = cupy.zeros(n_cols, np.uint32)
            passes.count(struct(None, None, None, None, count, None))
            kernel(file, "longest_column")(strided(n_cols), (BLOCK,), (count, np.int64(n_cols), self.matrix[1:]))
        self.floats = limbs(dtype) == 2 and has_float_vectors() and int(self.matrix[1]) < FEWER_THAN_FLOATS
        n_fine = 0 if self.is_exact else self.n_parts
        n_marks = 0 if self.is_exact else n_cols
        # 64-bit words up to the end of: the kernels' struct Call, limbs, fine integers, marks, flags of tiles with marks
        sizes = CALL_WORDS, self.n_parts * limbs(dtype), n_fine, -(-n_marks // 2), -(-n_marks // (2 * TILE))
        self.ends = np.cumsum(sizes).tolist()
        self.kept = PerStream(lambda: Kept(cupy.zeros(self.ends[-1], np.uint64)))
        settle()

    def product(self, add: Callable[..., None]) -> Run:
        """``run(x, y, alpha, beta)``, with ``add(x, sums)`` for the pass that adds all terms to the sums of their columns."""
        n_cols = self.n_cols
        begin = None if self.is_exact else kernel(self.file, "transposed_begin", self.dtype)

        def run(x, y, alpha, beta):
            if not n_cols:
                return
            with self.kept.get() as words:
                *parts, marked, _ = (words.data.ptr + 8 * end for end in self.ends)
                sums = struct(self.matrix, words, *parts, marked)
                if begin:
                    grid = strided(max(x.size, -(-n_cols // TILE), 1))
                    begin(grid, (BLOCK,), (x, np.int64(x.size), np.uint64(marked), np.int64(n_cols), words))
                add(x, sums)
                self.passes.finish(self.floats, x, sums, y, alpha, beta, update(alpha, beta))

        return run


class Kept:
    """Memory that is 0 before and after a product: cleared only where one was broken off between its kernels."""

    def __init__(self, words: cupy.ndarray) -> None:
        self._words, self._is_clear = words, True

    def __enter__(self) -> cupy.ndarray:
        if not self._is_clear:
            self._words.data.memset_async(0, self._words.nbytes)
        self._is_clear = False
        return self._words

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._is_clear = kind is None


def components(dtype: np.dtype) -> int:
    """Real numbers in one of `dtype`."""
    return 2 if dtype.kind == "c" else 1


def limbs(dtype: np.dtype) -> int:
    """64-bit words of the sum of one real part."""
    return 2 if dtype.kind in "fc" and dtype.itemsize // components(dtype) == 8 else 1


def has_float_vectors() -> bool:
    """Can the current device add four floats by one instruction?"""
    return int(cupy.cuda.Device().compute_capability) >= 90


def strided(n_threads: int) -> tuple[int]:
    """A grid of at most BLOCKS_A_PROCESSOR blocks a multiprocessor."""
    return (min(blocks(n_threads, BLOCK)[0], BLOCKS_A_PROCESSOR * processors(cupy.cuda.runtime.getDevice())),)


def cooperative(found: cupy.cuda.Function, *args: Any) -> None:
    """Launch a kernel whose blocks wait for each other: as many as fit the device at a time."""
    driver = cupy.cuda.driver
    at_once = driver.occupancyMaxActiveBlocksPerMultiprocessor(found.ptr, BLOCK, 0)
    grid = (min(at_once, BLOCKS_A_PROCESSOR) * processors(cupy.cuda.runtime.getDevice()),)
    found(grid, (BLOCK,), args, enable_cooperative_groups=True)


def instantiations() -> list[str]:
    """Of the kernels that all formats share: what CI compiles without a GPU."""
    dtypes = dict.fromkeys(y for _, y in PRODUCTS)
    return [
        "longest_column",
        *(instantiation("largest_exponent", a, y) for a, y in PRODUCTS if np.dtype(y).kind in "fc"),
        *(instantiation("transposed_begin", y) for y in dtypes if np.dtype(y).kind in "fc"),
    ]
