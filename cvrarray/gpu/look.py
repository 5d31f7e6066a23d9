"""What a conversion wants to know of a CSR before it allocates anything, in one launch and one wait.

``kernels/csr_look.cu`` says what that is.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.distinct import NARROWER
from ..core.tables import NOTHING, WARP, WINDOW, Measured, Survey, ValueSample, Wanted
from . import prefix
from .captures import refuse_capture, synchronize
from .compiler import Kernel
from .launches import struct
from .memory import together
from .properties import processors

BLOCK, WARPS = 256, 8  # threads, warps
#: Nonzeros that a warp checks: more where there are enough of them to fill the device.
PARTS, MANY = (1024, 2048), 1 << 22
#: Thread blocks a multiprocessor that look at rows, or at blocks of 2 or more, at most: as many as it holds.
AT_ONCE = 5
BINS = WINDOW // WARP  #: of a window
MOST_SIZES = 8  #: block sizes that the kernel takes
FEW_BINS = 4096  #: whose sizes one thread block adds up; those of more have a kernel
MOST_COUNTS = 3 * (FEW_BINS + 1)  #: of few bins
#: The kernel's words that the host reads: the first for windows, the first that other kernels count in, all of them.
WINDOWS, MORE, WORDS = 12, 25, 41
LARGEST = 2**63 - 1

LOOK = Kernel(
    "csr_look",
    "csr_look",
    [(*dtypes, size) for dtypes in (("int32", "int32"), ("int64", "int64")) for size in (1, 2, 3, 6, 7, 32)]
    + [("int32", "int64", 1), ("int64", "int32", 1)],
)


class Looked(NamedTuple):
    """What was found."""

    first: int
    last: int
    bad_row: int  # -1: none
    bad_position: int
    is_canonical: bool  # where columns were checked
    survey: Survey
    measured: Measured | None  # None too where blocks of that size have holes
    sample: ValueSample | None
    more: list[int]  # what the caller's kernels have counted


class Look:
    """A CSR on the current device that is being looked at; :meth:`found` waits.

    Parameters
    ----------
    indptr, indices
        Of the CSR. They may break its rules.
    n_cols : int
    wanted : Wanted
        Bins of blocks of 2 or more are found only where no block has a hole. Columns are checked in the same pass then.
    checks : bool
        Check the columns. Otherwise they are known to be right.
    data : (nnz,), optional
        Values to take a sample of.

    Notes
    -----
    Kernels of the caller's may count in :func:`more` before.
    """

    def __init__(
        self, indptr: Any, indices: Any, n_cols: int, wanted: Wanted = NOTHING, *, checks: bool = True, data: Any = None
    ) -> None:
        self._arrays, self._wanted, self._data, self._memory = (indptr, indices), wanted, data, _memory()
        n_rows, nnz, size = indptr.size - 1, indices.size, max(1, wanted.block_size)
        n_windows, n_counted, sizes = wanted.windows or (0, 0, ())
        self._n_bins = n_bins = -(-n_rows // WARP)
        has_sizes, has_filled = bool(wanted.block_size and n_bins), bool(wanted.filled and n_bins)
        n_each, n_counts = n_bins + 1, (2 * has_sizes + has_filled) * (n_bins + 1)
        n_states = prefix.n_states(n_counts) if n_bins > FEW_BINS else 0
        self._sums = self._col_base = counts = states = None
        bins: tuple[Any, ...] = n_bins, None, None, None
        if n_counts:
            counts = cupy.empty(n_counts + n_states, np.int64) if n_states else self._memory.counts
            self._sums, col_base = together((n_counts, np.int64), (n_bins if has_sizes else 0, indices.dtype))
        if has_sizes:
            self._col_base = col_base
            bins = n_bins, counts, counts.data.ptr + 8 * n_each, self._col_base
        filled = counts.data.ptr + 8 * (n_counts - n_each) if has_filled else None
        if n_states:
            states = counts.data.ptr + 8 * n_counts
        part = PARTS[nnz >= MANY]
        n_blocks, at_once = 0, AT_ONCE * processors()
        if size > 1:
            n_blocks = min(-(-n_rows // (size * WARPS)), at_once)
        elif checks:
            n_blocks = -(-nnz // (part * WARPS))
        grid = BINS * n_counted + (data is not None) + n_blocks + max(1, min(-(-n_rows // BLOCK), at_once))
        sample = (data, data.itemsize, int(data.dtype in NARROWER)) if data is not None else (None, 0, 0)
        sums = None if n_states else self._sums
        look = struct(
            indptr, indices, n_rows, n_cols, nnz, *bins, filled, counts, n_counts, sums, states, n_states,
            n_windows, n_counted, packed(sizes), *sample, part, n_blocks, self._memory.words, self._memory.pointer,
        )  # fmt: skip
        LOOK(indptr.dtype, indices.dtype, size)((grid,), (BLOCK,), (look,))
        self._memory.is_counting = False
        if n_states:
            prefix.sums(counts, n_counts, out=self._sums)

    def found(self) -> Looked:
        """When the device is done."""
        (indptr, indices), wanted, size = self._arrays, self._wanted, self._wanted.block_size
        synchronize()
        words = self._memory.numbers
        found = words.tolist()
        first, last, bad_row, bad_position, unsorted, hole, n_values, n_narrow, empty, beyond, longest = found[:11]
        sums, measured = self._sums, None
        counted = found[WINDOWS:MORE] if wanted.windows else []
        numbers = [n_values, empty, LARGEST - beyond if indptr.size > 1 else 0, longest, *counted]
        if self._col_base is not None and not hole:
            measured = Measured(indptr, indices, size, sums, self._col_base, n_values, n_narrow, False)
        return Looked(
            first,
            last,
            LARGEST - bad_row if bad_row else -1,
            LARGEST - bad_position if bad_position else -1,
            not (unsorted or hole),
            Survey(indptr, indices, wanted.windows, numbers, sums if wanted.filled else None),
            measured,
            None if self._data is None else sample_of(self._data, words[WINDOWS - 1 : WINDOWS]),
            found[MORE:],
        )


def host() -> tuple[int, np.ndarray]:
    """Where memory begins to which kernels on the current stream may write for the host, and that as integers."""
    memory = _memory()
    return memory.pointer, memory.numbers


def more() -> cupy.ndarray:
    """(16,) int64, all 0: where kernels may count before a :class:`Look` on the same stream, which passes the numbers on."""
    memory = _memory()
    if memory.is_counting:  # an error kept the look from being launched
        memory.words.data.memset_async(0, memory.words.nbytes)
    memory.is_counting = True
    return memory.more


def sample_of(data: cupy.ndarray, found: np.ndarray) -> ValueSample:
    """What a look at the values `data` found, in 8 bytes: how many of them differ, and whether the narrower dtype would change
    bits of some, if there is one.
    """
    n_different, changes = found.view(np.int32).tolist()
    return ValueSample(data, n_different, bool(changes))


@lru_cache
def packed(sizes: tuple[int, ...]) -> int:
    """Block sizes as kernels take them: a byte each."""
    assert len(sizes) <= MOST_SIZES
    assert all(WINDOW % size == 0 for size in sizes)
    return sum(size << 8 * k for k, size in enumerate(sizes))


class _Memory:
    """What a look on one stream of one device writes to: 0 before and after. It ends before the next one begins."""

    def __init__(self) -> None:
        self.words = cupy.zeros(WORDS + 1, np.int64)
        self.more = self.words[MORE:WORDS]
        self.counts = cupy.empty(MOST_COUNTS, np.int64)
        self.is_counting = False  # kernels have counted in `more` what no look has passed on yet
        self.numbers = np.frombuffer(cupy.cuda.alloc_pinned_memory(8 * WORDS), np.int64, WORDS)
        self.pointer = self.numbers.ctypes.data  # the same for the device


_of_thread = threading.local()


def _memory() -> _Memory:
    """That of the current stream and thread."""
    known: dict[tuple[int, int], _Memory] = _of_thread.__dict__.setdefault("memory", {})
    key = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
    if key not in known:
        refuse_capture()
        if len(known) > 64:  # streams come and go
            known.clear()
        known[key] = _Memory()
    return known[key]


def read(numbers: cupy.ndarray) -> np.ndarray:
    """At most 64 integers of 64 bits, once the current stream is done with them; to be used before the next call.

    They are copied to memory of the thread's own that the device can write: quicker than CuPy's ``get``.
    """
    if not hasattr(_of_thread, "numbers"):
        _of_thread.numbers = np.frombuffer(cupy.cuda.alloc_pinned_memory(8 * 64), np.int64, 64)
        _of_thread.pointer = _of_thread.numbers.ctypes.data
    numbers.data.copy_to_host_async(_of_thread.pointer, numbers.nbytes, cupy.cuda.get_current_stream())
    synchronize()
    found: np.ndarray = _of_thread.numbers[: numbers.size]
    return found
