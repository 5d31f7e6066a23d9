"""How threads are laid out over vectors, and memory for sums over them: ``kernels/vectors.cuh``."""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy

from cvrarray.gpu.compiler import constant
from cvrarray.gpu.launches import Struct, struct
from cvrarray.gpu.properties import processors

THREADS, MANY = constant("vectors.cuh", "THREADS"), constant("cg.cu", "MANY")  # of a block, and of one of cg_advance
BLOCKS_A_PROCESSOR = 8, 4  # of one column, and of several: one block adds up the sums of all
ROWS_OF_STACK, MOST_BLOCKS_OF_STACK = 4, 1024  # of a thread and of a system, in stacks
MOST_SUMS = 2  # of a column at a time, of most kernels

#: Dtypes of vectors, as cases of kernels.
VECTORS = [(dtype,) for dtype in ("float32", "float64", "complex64", "complex128")]


class Layout(NamedTuple):
    """How threads are laid out over vectors (n, k) in C order: the struct Shape of ``kernels/vectors.cuh``."""

    n: int
    k: int
    rows: int  # of a block
    columns: int
    grid: tuple[int, int]
    shape: Struct

    @classmethod
    def of(cls, n: int, k: int, block_size: int = 1) -> Layout:
        """For vectors of `k` columns, with whole blocks of `block_size` rows in a block of threads."""
        most = THREADS // block_size
        tiles = max(1, -(-k // most))
        columns = max(1, -(-k // tiles))
        rows = THREADS // columns // block_size * block_size
        at_once = max(1, BLOCKS_A_PROCESSOR[k > 1] * processors() // tiles)
        grid = max(1, min(-(-n // rows), at_once)), tiles
        return cls(n, k, rows, columns, grid, struct(n, k, rows | columns << 32))

    @classmethod
    def of_stack(cls, n: int, k: int, block_size: int = 1) -> Layout:
        """For vectors of `k` systems, one after the other, each with a preconditioner of its own: no block has rows of two. How
        a system's rows are added up depends on `n` alone.
        """
        rows = THREADS // block_size * block_size
        grid = max(1, min(-(-n // (ROWS_OF_STACK * rows)), MOST_BLOCKS_OF_STACK)), k
        return cls(n, k, rows, 1, grid, struct(n, k, rows | 1 << 32, -(-n // block_size) * block_size))

    @classmethod
    def of_waiting_blocks(cls, n: int, k: int, block_size: int) -> Layout:
        """One block a multiprocessor, of MANY threads, for blocks that wait for each other."""
        rows = MANY // k // block_size * block_size
        grid = max(1, min(-(-n // rows), processors())), 1
        return cls(n, k, rows, k, grid, struct(n, k, rows | k << 32))

    def launch(self, kernel: cupy.cuda.Function, arguments: tuple[Any, ...], shared_mem: int = 0) -> None:
        """Launch over all entries of the vectors."""
        kernel(self.grid, (THREADS,), (self.shape, *arguments), shared_mem=shared_mem)

    def partials(self, sums: int = MOST_SUMS) -> Struct:
        """Memory for the sums of blocks, so many of a column at a time: the struct Partials. Kernels that use it run one
        after the other.
        """
        blocks, tiles = self.grid
        count = tiles * blocks * sums * self.columns
        memory = cupy.zeros(count + tiles)  # the sums, and a counter for each tile
        made = struct(memory, memory.data.ptr + memory.itemsize * count)
        return made
