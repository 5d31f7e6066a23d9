"""What a conversion wants to know of a CSR before it allocates anything, in one launch and one wait.

``kernels/csr_look.cu`` says what that is.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.distinct import NARROWER
from ..core.tables import WARP, WINDOW, Measured, Survey, ValueSample, Wanted
from . import prefix
from .compiler import NULL, Kernel, blocks, struct

BLOCK, WARPS = 256, 8  # threads, warps
#: Nonzeros that a warp checks: more where there are enough of them to fill the device.
PARTS, MANY = (1024, 4096), 1 << 23
BINS = WINDOW // WARP  #: of a window
MOST_SIZES = 8  #: block sizes that the kernel takes
#: Words that the kernel writes, and the first of those for windows: the enum of its file.
WINDOWS = 12
WORDS = WINDOWS + 2 + MOST_SIZES

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
    n_more : int
        Words, 0 at first, for kernels of the caller's that count in ``more``; they are read in the same wait.
    """

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        n_cols: int,
        wanted: Wanted,
        *,
        checks: bool = True,
        data: Any = None,
        n_more: int = 0,
    ) -> None:
        self._arrays, self._wanted, self._checks, self._data = (indptr, indices), wanted, checks, data
        n_rows, nnz, size = indptr.size - 1, indices.size, max(1, wanted.block_size)
        n_windows, n_counted, sizes = wanted.windows or (0, 0, ())
        n_bins = -(-n_rows // WARP) if wanted.block_size else 0
        self._n_bins, n_sizes = n_bins, 2 * (n_bins + 1) if n_bins else 0
        self._n_words = WORDS + n_more
        self._words = cupy.zeros(self._n_words + prefix.n_states(n_sizes), np.int64)
        self.more = self._words[WORDS : self._n_words]
        bins = 0, None, None, None
        if n_bins:
            counts, self._col_base = cupy.empty(n_sizes, np.int64), cupy.empty(n_bins, indices.dtype)
            bins = n_bins, counts, counts[n_bins + 1 :], self._col_base
        grid = blocks(n_rows, BLOCK)[0] + BINS * n_counted + (data is not None)
        part = PARTS[nnz >= MANY]
        if size > 1:
            grid += blocks(-(-n_rows // size), WARPS)[0]
        elif checks and nnz:
            grid += blocks(-(-nnz // part), WARPS)[0]
        LOOK(indptr.dtype, indices.dtype, size)(
            (grid,),
            (BLOCK,),
            (struct(indptr, indices, n_rows, n_cols, nnz), struct(*bins), np.int64(n_windows), np.int64(n_counted),
             packed(sizes), NULL if data is None else data, np.int32(0 if data is None else data.itemsize),
             data is not None and data.dtype in NARROWER, np.int32(part), self._words),
        )  # fmt: skip
        if n_bins:
            self._sums = prefix.sums(counts, self._words[self._n_words :])

    def found(self) -> Looked:
        """When the device is done."""
        (indptr, indices), wanted, size = self._arrays, self._wanted, self._wanted.block_size
        words = read(self._words[: self._n_words])
        first, last, bad_row, bad_position, unsorted, hole, n_values, n_narrow, empty, beyond, longest = words[:11].tolist()
        largest = np.iinfo(np.int64).max
        measured = None
        counted = words[WINDOWS:WORDS].tolist() if wanted.windows else []
        numbers = [n_values, empty, largest - beyond if indptr.size > 1 else 0, longest, *counted]
        survey = Survey(indptr, indices, wanted.windows, numbers)
        if self._n_bins and not hole:
            end = self._n_bins + 1
            measured = Measured(
                indptr, indices, size, self._sums[:end], self._sums[end:], self._col_base, n_values, n_narrow, False
            )
        return Looked(
            first,
            last,
            largest - bad_row if bad_row else -1,
            largest - bad_position if bad_position else -1,
            not (unsorted or hole),
            survey,
            measured,
            None if self._data is None else sample_of(self._data, words[WINDOWS - 1 : WINDOWS]),
            words[WORDS:].tolist(),
        )


def sample_of(data: cupy.ndarray, found: np.ndarray) -> ValueSample:
    """What a look at the values `data` found, in 8 bytes: how many of them differ, and whether the narrower dtype would change
    bits of some, if there is one.
    """
    n_different, changes = found.view(np.int32).tolist()
    return ValueSample(data, n_different, bool(changes))


def packed(sizes: tuple[int, ...]) -> np.uint64:
    """Block sizes as kernels take them: a byte each."""
    assert len(sizes) <= MOST_SIZES
    assert all(WINDOW % size == 0 for size in sizes)
    return np.uint64(sum(size << 8 * k for k, size in enumerate(sizes)))


_of_thread = threading.local()


def read(numbers: cupy.ndarray) -> np.ndarray:
    """At most 64 integers of 64 bits, once the current stream is done with them; to be used before the next call.

    They are copied to memory of the thread's own that the device can write: quicker than CuPy's ``get``.
    """
    if not hasattr(_of_thread, "numbers"):
        _of_thread.numbers = np.frombuffer(cupy.cuda.alloc_pinned_memory(8 * 64), np.int64, 64)
        _of_thread.pointer = _of_thread.numbers.ctypes.data
    stream = cupy.cuda.get_current_stream()
    numbers.data.copy_to_host_async(_of_thread.pointer, numbers.nbytes, stream)
    stream.synchronize()
    found: np.ndarray = _of_thread.numbers[: numbers.size]
    return found
