"""Arguments and grids of launches: numbers, structures, and how many blocks there are for which columns."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import cupy
import numpy as np

from ..core import matmat_kernels
from .properties import processors

#: Blocks that a grid may have in its second dimension.
MOST_IN_Y = 65_535


def argument(number: np.generic) -> Any:
    """A number as an argument of launches, made once for all of them: CuPy would make it anew in each."""
    return cupy.cuda.function.CNumpyArray(np.asarray(number))


#: A null pointer as a kernel's argument.
NULL = argument(np.uint64(0))

PLAIN, SCALE, ACCUMULATE = (np.int32(form) for form in range(3))


def blocks(n_threads: int, block: int) -> tuple[int]:
    """The least grid of at least `n_threads` threads, and of at least one block."""
    return (max(1, -(-n_threads // block)),)


def strided(n_threads: int) -> tuple[int]:
    """The grid of a kernel whose threads stride over their work, in blocks of 256: at most 8 of them a multiprocessor."""
    return (min(blocks(n_threads, 256)[0], 8 * processors()),)


def in_columns(n_blocks: int) -> tuple[int, int]:
    """A grid of at least `n_blocks` blocks, with a column for each multiprocessor: ``block_number`` of ``common.cuh``."""
    n_columns = max(1, min(n_blocks, processors()), -(-n_blocks // MOST_IN_Y))
    return n_columns, max(1, -(-n_blocks // n_columns))


class Struct(cupy.cuda.function.CPointer):  # type: ignore[misc]  # CuPy has no types
    """A structure that a kernel takes by value, as CuPy passes arguments on. It keeps alive the arrays that its pointers point
    to.
    """

    def __init__(self, words: ctypes.Array[ctypes.c_uint64], buffers: list[cupy.ndarray]) -> None:
        super().__init__(ctypes.addressof(words))
        self.words, self.buffers = words, buffers


def struct(*fields: cupy.ndarray | int | None) -> Struct:
    """A structure of pointers and 64-bit integers; None is a null pointer."""
    words, buffers = [], []
    for field in fields:
        if isinstance(field, int):
            words.append(field)
        elif field is None:
            words.append(0)
        else:
            words.append(field.data.ptr)
            buffers.append(field)
    return Struct(_words(len(words))(*words), buffers)


@cache
def _words(n: int) -> type[ctypes.Array[ctypes.c_uint64]]:
    return ctypes.c_uint64 * n


def scaling(alpha: np.generic, beta: np.generic) -> tuple[Any, Any, Any]:
    """The arguments `alpha`, `beta` and which form of ``y = alpha * A @ x + beta * y`` is asked for."""
    if alpha == 1 and beta == 0:  # what nearly every call passes
        return _plain(type(alpha))
    return alpha, beta, update(alpha, beta)


@cache
def _plain(number: type[np.generic]) -> tuple[Any, Any, Any]:
    return argument(number(1)), argument(number(0)), argument(PLAIN)  # type: ignore[call-arg]  # types of numbers alone


def update(alpha: np.generic, beta: np.generic) -> np.int32:
    """Which of the three forms of ``y = alpha * A @ x + beta * y`` is asked for: the enum of ``common.cuh``."""
    return ACCUMULATE if beta != 0 else SCALE if alpha != 1 else PLAIN


def vector_width(dtype: np.dtype) -> int:
    """Numbers of `dtype` in a vector load, at most."""
    return matmat_kernels.vector_width(np.dtype(dtype).itemsize)


def matrix_width(k: int, x: cupy.ndarray, y: cupy.ndarray) -> int:
    """Numbers in a vector load of rows of `k` numbers of X and Y, which must begin at multiples of its size."""
    size: int = x.itemsize
    width, ends = matmat_kernels.vector_width(size), k * size | x.data.ptr | y.data.ptr
    while ends % (width * size):
        width //= 2
    return width


def matrix_grid(n_blocks: int, tiles: int) -> tuple[int, int, int]:
    """A grid of `n_blocks` blocks for each of at least so many tiles of columns: ``tile_of_block`` of ``matrix.cuh``."""
    in_y = max(1, min(tiles, MOST_IN_Y))
    return n_blocks, in_y, max(1, -(-tiles // in_y))
