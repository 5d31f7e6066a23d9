"""``A.T @ x`` from the tables of A, the same bits in every run: the host's side of ``kernels/transposed.cuh``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from .compiler import NULL, PRODUCTS, Scratch, blocks, instantiation, kernel, processors, settle, struct, update

COUNT, ADD, EXPONENT, REFINE = range(4)
CALL_WORDS = 256  # 64-bit words of the kernels' struct Call
BLOCK = 256
BLOCKS_A_PROCESSOR = 8  # of kernels whose threads stride over their work


def product(
    scatter: Callable[[int, Any, np.ndarray], None], file: str, values: cupy.ndarray, n_cols: int, dtype: np.dtype
) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)`` from a format's own pass over its entries.

    Parameters
    ----------
    scatter
        ``scatter(step, x, sums)`` launches the format's kernel for one of the four passes.
    file
        The kernel file of the format: it has the kernels that all formats share, too.
    values
        The table of stored values; padding, which is 0, does no harm.
    n_cols, dtype
        Length and dtype of y.
    """
    components = 2 if dtype.kind == "c" else 1
    is_exact = dtype.kind in "iu"
    n_limbs = n_cols * components * (2 if dtype.itemsize // components == 8 and not is_exact else 1)
    finish_grid = blocks(n_cols, BLOCK)
    matrix, scratch = cupy.zeros(2, np.uint32), Scratch()
    if not is_exact:
        _largest_exponent(file, values, dtype, matrix)
        count = cupy.zeros(n_cols, np.uint32)
        scatter(COUNT, NULL, struct(None, None, None, count))
        kernel(file, "longest_column")(strided(n_cols), (BLOCK,), (count, np.int64(n_cols), matrix[1:]))
        settle()

    def run(x, y, alpha, beta):
        if not n_cols:
            return
        work = scratch.empty(CALL_WORDS + n_limbs + (n_cols + 1) // 2, np.uint64)  # Call, limbs, marks
        work.data.memset_async(0, work.nbytes)
        limbs = work.data.ptr + 8 * CALL_WORDS
        sums = struct(matrix, work, limbs, limbs + 8 * n_limbs)
        if not is_exact:
            _largest_exponent(file, x, dtype, work)
        for step in steps(dtype)[not is_exact :]:
            scatter(step, x, sums)
            if step in (ADD, REFINE):
                kernel(file, "transposed_finish", dtype, step)(
                    finish_grid if step == ADD else strided(n_cols),
                    (BLOCK,),
                    (sums, np.int64(n_cols), y, alpha, beta, update(alpha, beta)),
                )

    return run


def steps(dtype: Any) -> tuple[int, ...]:
    """The passes over the matrix that a product of `dtype` makes, the one of its preparation first."""
    return (ADD,) if np.dtype(dtype).kind in "iu" else (COUNT, ADD, EXPONENT, REFINE)


def grid(step: int, n_threads: int, block: int) -> tuple[int]:
    """A thread for all of the work; few for the passes that nearly always end at once."""
    return blocks(n_threads, block) if step in (COUNT, ADD) else strided(n_threads)


def strided(n_threads: int) -> tuple[int]:
    """A grid of at most BLOCKS_A_PROCESSOR blocks a multiprocessor."""
    return (min(blocks(n_threads, BLOCK)[0], BLOCKS_A_PROCESSOR * processors(cupy.cuda.runtime.getDevice())),)


def _largest_exponent(file: str, values: cupy.ndarray, dtype: np.dtype, top: cupy.ndarray) -> None:
    kernel(file, "largest_exponent", values.dtype, dtype)(strided(values.size), (BLOCK,), (values, np.int64(values.size), top))


def instantiations() -> list[str]:
    """Of the kernels that all formats share: what CI compiles without a GPU."""
    return [
        "longest_column",
        *(instantiation("largest_exponent", a, y) for a, y in PRODUCTS if np.dtype(y).kind in "fc"),
        *(
            instantiation("transposed_finish", y, step)
            for y in dict.fromkeys(y for _, y in PRODUCTS)
            for step in steps(y)
            if step in (ADD, REFINE)
        ),
    ]
