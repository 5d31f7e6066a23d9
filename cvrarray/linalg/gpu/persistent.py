"""All iterations of conjugate gradients in one cooperative kernel: ``kernels/cg_bbcsr.cu`` and ``kernels/cg_cvr.cu``.

A block of threads has neighbouring rows, and keeps its parts of vectors in shared memory as far as they fit; of BBCSR
also tables.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import cupy
import numpy as np

from cvrarray.bbcsr import BBCSRArray
from cvrarray.core.remembered import Remembered
from cvrarray.core.tables import WARP, BBCSRTables, CVRTables, mask_dtype
from cvrarray.cvr import CVRArray
from cvrarray.gpu import bbcsr, bbcsr_tables, cvr, cvr_tables, distinct
from cvrarray.gpu.bbcsr_lengths import Lengths
from cvrarray.gpu.compiler import STORED, Coded, Kernel, allowed, constant
from cvrarray.gpu.launches import MOST_IN_Y, Struct, struct
from cvrarray.gpu.properties import attribute, processors
from cvrarray.linalg.gpu import partition
from cvrarray.linalg.gpu.layout import Layout
from cvrarray.linalg.gpu.partition import SHARING_THREADS, THREADS
from cvrarray.linalg.gpu.state import BLOCKS, DIAGONAL, GIVEN, IDENTITY, State

#: Iterations of a launch, at most: the host can be interrupted between launches.
BATCH = 4096
WORDS_A_BLOCK = constant("cg_bbcsr.cu", "EXCHANGED")  # of 64 bits, for exchanges between blocks: 2 * 5 sums and a barrier
BIN = 40  # bytes of the kernel's struct OwnBin, at most
RESERVED = 4096  # bytes of shared memory for the kernels' own variables
#: Threads of a block for single columns where there are enough bins, as their rows need few registers.
MANY_THREADS = 1024
#: Of a stack's systems that have a block each: its threads, blocks that a multiprocessor has room for, bytes of shared memory
#: for a kernel's own variables, and single columns that are in flight.
ALONE_THREADS, ALONE_BLOCKS, ALONE_RESERVED, ALONE_IN_FLIGHT = 256, 2, 2048, 8
#: The others have so many blocks each that vectors take this part of shared memory, and the tables of those that are solved at
#: the same time this part of L2.
VECTORS_PART, TABLES_PART = 0.9, 0.6
#: Blocks of the preconditioner that kernels are compiled for, if they are the matrix's; others' size is an argument.
MOST_KNOWN = 8
#: Tables that come from L2 take at most this part of it; larger ones are streamed past it.
IN_CACHE = 0.8


def _unroll(size: int, itemsize: int, is_far: bool, is_alone: bool) -> tuple[int, int]:
    """Blocks in flight in a narrow and in a wide bin."""
    narrow, wide = bbcsr.unroll(size, itemsize, is_far)
    return (max(narrow, ALONE_IN_FLIGHT) if is_alone and size == 1 and itemsize <= 8 else narrow), wide


ROUNDED = [pair for pair in STORED if np.dtype(pair[1]).kind in "fc"]
BBCSR = Kernel(
    "cg_bbcsr",
    "cg_bbcsr",
    [
        (*dtypes, *how)
        for dtypes in ROUNDED
        for how in (
            ("int32", 1, False, 1, False, MANY_THREADS, True, False, 0),
            ("int32", 3, False, 2, False, THREADS, False, True, 3),
            ("int64", 6, False, 4, True, SHARING_THREADS, True, False, 6),
        )
    ],
    lambda value, product, index, size, far, sharers, holes, threads, streams, is_marked, known_size: (
        value, product, index, mask_dtype(size), size, *bbcsr.unroll(size, product.itemsize, far), holes, sharers,
        threads, streams, is_marked, known_size,
    ),
)  # fmt: skip
STACK = Kernel(
    "cg_bbcsr",
    "cg_bbcsr_stack",
    [
        (*dtypes, *how)
        for dtypes in ROUNDED
        if not isinstance(dtypes[0], Coded)
        for how in (
            ("int32", 1, False, 1, False, ALONE_THREADS, False, 0, True),
            ("int32", 3, False, 2, False, THREADS, True, 3, False),
            ("int64", 6, False, 4, True, SHARING_THREADS, False, 6, False),
        )
    ],
    lambda value, product, index, size, far, sharers, holes, threads, is_marked, known_size, is_alone: (
        value, product, index, mask_dtype(size), size, *_unroll(size, product.itemsize, far, is_alone), holes, sharers,
        threads, is_marked, known_size, is_alone,
    ),
)  # fmt: skip
CVR = Kernel(
    "cg_cvr",
    "cg_cvr",
    [(*dtypes, *how) for dtypes in ROUNDED for how in (("int32", WARP, False), ("int64", 4, True))],
    lambda value, product, index, n_lanes, cut: (value, product, index, n_lanes, cvr.UNROLL[product.itemsize], cut, THREADS),
)


def loop(matrix: Any, state: State, layout: Layout, kind: int, before: Any = None) -> Persistent | None:
    """The loop for this matrix, or None where there is none, or where it would be slower than a graph.

    That of a matrix of the same structure `before` is used again with the new values.
    """
    fits = isinstance(matrix, (BBCSRArray, CVRArray)) and matrix.nnz and kind != GIVEN and layout.k == 1
    if not fits or not _is_cooperative():
        return None
    if isinstance(before, Persistent) and before.take(matrix._tables):
        return before
    try:
        if isinstance(matrix, BBCSRArray):
            return _of_bbcsr(matrix._tables, state, kind, processors())
        return _of_cvr(matrix._tables, state, kind)
    except DoesNotFit:
        return None


def _is_cooperative() -> bool:
    return bool(attribute("CooperativeLaunch"))


class DoesNotFit(Exception):
    """A block's parts of vectors do not fit its shared memory."""


class SharedMemory:
    """Places in a block's shared memory, after what it knows of its bins; `reserved` bytes are for values."""

    def __init__(self, reserved: int, bins: int = 0, blocks: int = 1) -> None:
        most = attribute("MaxSharedMemoryPerBlockOptin") // blocks  # of a multiprocessor
        self.size, self.free = most - (RESERVED if blocks == 1 else ALONE_RESERVED) - reserved, 0
        self.place(bins * BIN)

    def place(self, size: int) -> int:
        """Where `size` bytes are, or -1 where there is no room."""
        size = -(-size // 16) * 16
        if self.free + size > self.size:
            return -1
        self.free += size
        return self.free - size

    def place_vectors(self, rows: int, state: State, kind: int, sharers: int | None, with_x: bool = True) -> dict[str, int]:
        """For a block's parts of the vectors, in the order of the traffic that each saves; s has a part for each
        sharer.
        """
        wanted = {
            "s": 0 if sharers is None else rows * sharers,
            "r": rows,
            "inverse": rows * int(state.block_size) if kind in (DIAGONAL, BLOCKS) else 0,
            "x": rows * with_x,
        }
        places = {name: self.place(count * state.x.itemsize) if count else -1 for name, count in wanted.items()}
        places["p"] = -1
        if places["r"] < 0 or (sharers is not None and places["s"] < 0):
            raise DoesNotFit
        return places


class Persistent:
    """Launches of a kernel, whose blocks have vectors at `places` in `memory`; `sizes`: blocks, threads, shared memory."""

    batch, stops = BATCH, True

    def __init__(
        self,
        kernel: cupy.cuda.Function,
        matrix: BBCSRTables | CVRTables,
        others: tuple[Any, ...],
        state: State,
        kind: int,
        memory: SharedMemory,
        places: dict[str, int],
        sizes: tuple[int, int, int],
        stack: tuple[int, ...] = (),
        groups: int = 1,
    ) -> None:
        """`stack`: what the kernels' struct StackVectors adds, if it is one; so many `groups` of blocks solve its systems."""
        self._kernel, self._others, self._state = allowed(kernel, memory.size), others, state
        self._matrix, self._tables = matrix, _struct(matrix)
        self._blocks, self._threads, self._end = sizes
        size = {IDENTITY: 0, DIAGONAL: 1, BLOCKS: int(state.block_size)}[kind]
        self._fixed = (
            size,
            *(places[name] & (1 << 64) - 1 for name in ("x", "r", "p", "s", "inverse")),
            memory.free,
            self._end,
            *stack,
        )
        self._vectors: Any = None
        self._key: Any = None
        self._groups = groups
        self._words = cupy.empty(WORDS_A_BLOCK * self._blocks * (stack[0] if stack else 1), np.uint64)

    def take(self, matrix: BBCSRTables | CVRTables) -> bool:
        """Take a matrix of the same structure with other values; False if it is not one."""
        old, new = (t._asdict() for t in (self._matrix, matrix))
        kinds = [distinct.kind(t.pop("data" if "data" in t else "val"), t.pop("distinct")) for t in (old, new)]
        if old.keys() != new.keys() or any(old[name] is not new[name] for name in old if name not in ("shape", "nnz")):
            return False
        if kinds[0] != kinds[1]:
            return False
        self._matrix, self._tables = matrix, _struct(matrix)
        return True

    def _struct_of_vectors(self) -> Struct:
        s = self._state
        inverse, history = (v if isinstance(v, cupy.ndarray) else None for v in (s.inverse, s.history))
        return struct(s.x, s.r, s.z, s.p, s.q, inverse, history, *self._fixed)

    def launch(self, count: int) -> None:
        """Run `count` iterations, or as many as there are to the end."""
        if self._vectors is None or self._key != self._state.key():
            self._vectors, self._key = self._struct_of_vectors(), self._state.key()
        vectors = self._vectors
        self._words.data.memset_async(0xFF, self._words.nbytes)
        self._kernel(
            (self._blocks, self._groups),
            (self._threads,),
            (self._tables, *self._others, vectors, self._state.columns, self._words, np.int64(count)),
            shared_mem=self._end,
            enable_cooperative_groups=self._groups == 1 or self._blocks > 1,
        )


def _struct(t: BBCSRTables | CVRTables) -> Struct:
    return bbcsr_tables.as_struct(t) if isinstance(t, BBCSRTables) else cvr_tables.as_struct(t)


def of_stack(stack: Any, state: State, kind: int) -> Persistent | None:
    """The loop for the systems of a stack, or None where there is none. A system has as few blocks as hold its vectors, so that
    many systems are solved at the same time; one that fits a block waits for nobody.
    """
    like, n = stack._like, stack.shape[1]
    if not isinstance(like, BBCSRArray) or not like.nnz or kind == GIVEN or not _is_cooperative():
        return None
    t = like._tables._replace(data=stack._tables[0])
    vectors = 4 * n * state.x.itemsize / (VECTORS_PART * attribute("MaxSharedMemoryPerBlockOptin"))
    tables = processors() * (like.nbytes / (TABLES_PART * attribute("L2CacheSize")))
    blocks = max(1, math.ceil(max(vectors, tables)))
    if blocks > processors():
        return None
    groups = processors() // blocks
    inverse_apart = -(-n // int(state.block_size)) * int(state.block_size)
    of = len(stack), stack._tables.shape[1], n, inverse_apart
    try:
        if blocks == 1:
            return _of_bbcsr(t, state, kind, 1, of, min(len(stack), MOST_IN_Y))
        return _of_bbcsr(t, state, kind, processors() // groups, of, min(len(stack), groups))
    except DoesNotFit:
        return None


def _of_bbcsr(t: BBCSRTables, state: State, kind: int, most: int, stack: tuple[int, ...] = (), groups: int = 1) -> Persistent:
    """At most `most` blocks have neighbouring rows of about the same number of slots; a warp takes a bin, or a share of one."""
    pointer, part = _parted(t, int(state.block_size), most)
    bins, itemsize = int(part.n_bins.max()), state.x.itemsize
    unroll = min(bbcsr.unroll(t.block_size, itemsize, bbcsr.is_far(t)))
    is_alone = bool(stack) and most == 1
    if is_alone:
        threads, sharers = ALONE_THREADS, 1
    else:
        threads, sharers = partition.workers(bins, bbcsr_tables.mean_blocks(t), unroll, itemsize)
        if t.block_size == 1 and itemsize <= 8 and bins >= MANY_THREADS // WARP:
            threads = MANY_THREADS
    memory = SharedMemory(distinct.shared_bytes(t.distinct), bins, ALONE_BLOCKS if is_alone else 1)
    rows = int(np.diff(part.first_row).max())
    places = memory.place_vectors(rows, state, kind, sharers, with_x=not is_alone)
    of_tables, of_vector = _table_bytes(t, part, pointer), rows * itemsize + 16
    if is_alone:
        places["p"], is_marked = memory.place(of_vector), False
        if memory.free + of_tables + of_vector <= memory.size:  # x is read once an iteration, tables are gathered by
            places["x"] = memory.place(of_vector)
    else:
        is_marked = memory.free + of_tables + of_vector <= memory.size and min(places["s"], places["x"]) >= 0
        if is_marked:  # few entries to gather: waiting for each is less than a barrier
            places["p"] = memory.place(of_vector)
    blocks = part.n_bins.size
    kept = (memory.size - memory.free) * blocks
    left = sum(table.nbytes for table in (t.data, t.col_narrow, t.col_wide, t.present) if table is not None) - kept
    streams = left > IN_CACHE * attribute("L2CacheSize")
    size = int(state.block_size) if kind == BLOCKS else 0
    known = size if size == t.block_size <= MOST_KNOWN else 0
    of = distinct.kind(t.data, t.distinct), state.x.dtype, t.col_wide.dtype, t.block_size, bbcsr.is_far(t), sharers
    if stack:
        kernel = STACK(*of, t.present is not None, threads, is_marked, known, is_alone)
    else:
        kernel = BBCSR(*of, t.present is not None, threads, streams, is_marked, known)
    end = min(memory.size, memory.free + of_tables)
    sizes = blocks, threads, end
    return Persistent(kernel, t, (cupy.asarray(part.first_row),), state, kind, memory, places, sizes, stack, groups)


#: By the table of a structure: to find it takes the host longer than a small solve.
_PARTS = Remembered()


def _parted(t: BBCSRTables, size: int, most: int) -> tuple[np.ndarray, partition.Partition]:
    """Where bins begin, in host memory, and the rows of blocks of threads, which are whole blocks of `size` rows."""

    pointer = Lengths(t).slots

    def find() -> partition.Partition:
        return partition.parted(pointer, t.shape[0], size, most)

    return pointer, _PARTS.of(t.bin_rowptr, (t.shape[0], size, most), find)


def _table_bytes(t: BBCSRTables, part: partition.Partition, pointer: np.ndarray) -> int:
    """Shared memory that holds any block's tables: three of each bin, each at a multiple of 16."""
    others = t.col_wide.itemsize + (0 if t.present is None else t.present.itemsize)
    values = pointer[part.first_bin + part.n_bins] - pointer[part.first_bin]
    value = 0 if distinct.is_one(t.distinct) else t.data.itemsize
    return int((values * value + values // t.block_size * others + 48 * part.n_bins).max())


def _of_cvr(t: CVRTables, state: State, kind: int) -> Persistent:
    """Blocks have equal shares of chunks and of rows; a warp takes a chunk."""
    n, size, dtype = t.shape[0], int(state.block_size), state.x.dtype
    n_units = -(-n // size)
    enough = max(1, -(-t.carry_row.size // (THREADS // WARP)))
    blocks = min(processors(), enough, n_units)
    first_row = np.minimum(np.arange(blocks + 1) * n_units // blocks * size, n)
    memory = SharedMemory(distinct.shared_bytes(t.distinct))
    rows = max(end - first for first, end in pairwise(first_row.tolist()))
    places = memory.place_vectors(rows, state, kind, None)
    kernel = CVR(distinct.kind(t.val, t.distinct), dtype, t.tail.dtype, t.n_lanes, t.cut_row.size > 0)
    others = cvr_tables.cuts_of_chunks(t, dtype)(), np.int64(n), cupy.asarray(first_row)
    return Persistent(kernel, t, others, state, kind, memory, places, (blocks, THREADS, memory.free))
