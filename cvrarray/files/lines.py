"""The text of a file in blocks of whole lines, which threads take in turn, and what becomes of the first fault in it."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..core import devices
from ..core.threads import get_num_threads
from ..input.limits import Limit

_NEWLINE = ord("\n")


class Block(NamedTuple):
    """Whole lines, each of which ends."""

    buffer: mmap.mmap
    text: np.ndarray  # the same
    begin: int
    end: int
    line: int  # number of the first of the lines
    n_lines: int  # that are not blank
    before: int  # such lines in the blocks before, since :meth:`Lines.restart`

    def at(self, k: int) -> tuple[int, bytes]:
        """Number and text of the line that begins at `k`."""
        return self.line + self.buffer[self.begin : k].count(b"\n"), self.buffer[k : self.buffer.find(b"\n", k)]


class Lines:
    """The lines of a file, read as they are wanted.

    Parameters
    ----------
    file
        Where the text is read from.
    limit
        What its length is held against.
    longest : int
        Bytes that a line may have, at least; and as many as are read at a time, at most.
    """

    def __init__(self, file: BinaryIO, limit: Limit, longest: int):
        self._file: Any = file
        self._limit, self._longest = limit, longest
        self._read = min(longest, 1 << 18)  # they stay in a cache until they are parsed
        self._kernels = devices.CPU.backend("text")
        self._rest = b""
        self._line, self._before = 1, 0
        self.n_bytes = 0  #: of text in the blocks so far
        self._most_threads = limit.file_size // self._read  # what a file unpacks to comes from one thread anyway

    def buffer(self) -> mmap.mmap:
        """Memory for a block."""
        # of which the system provides what is used: most files have no such line
        buffer = mmap.mmap(-1, self._kernels.LEAD + self._longest + 2 * self._read + self._kernels.PAD)
        buffer[self._kernels.LEAD - 1] = _NEWLINE
        return buffer

    def restart(self, rest: bytes = b"") -> None:
        """Put `rest`, of the block that was taken last, back; and count lines that are not blank anew."""
        self._line -= rest.count(b"\n")
        self.n_bytes -= len(rest)
        self._rest, self._before = rest + self._rest, 0

    def take(self, buffer: mmap.mmap, n_bytes: int | None = None) -> Block | None:
        """The next block, in `buffer`; None where there is none. So many bytes are read at a time."""
        begin = self._kernels.LEAD
        end = self._fill(buffer, begin, min(n_bytes or self._read, self._read))
        if end == begin:
            return None
        text = np.frombuffer(buffer, np.uint8)
        n_newlines, n_lines = self._kernels.count_lines(text, end)
        block = Block(buffer, text, begin, end, self._line, n_lines, self._before)
        self._line += n_newlines
        self._before += n_lines
        self.n_bytes += end - begin
        self._limit.require(self.n_bytes, f"line {self._line - 1}: the text up to here has")
        return block

    def _fill(self, buffer: mmap.mmap, begin: int, n_bytes: int) -> int:
        """Where the whole lines end that now stand from `begin` on; at `begin` where the file ends."""
        end = begin + len(self._rest)
        buffer[begin:end] = self._rest
        with memoryview(buffer) as memory:
            while n_read := self._file.readinto(memory[end : end + n_bytes]):
                last, end = end, end + n_read
                cut = buffer.rfind(b"\n", last, end) + 1
                if cut:
                    self._rest = buffer[cut:end]
                    return cut
                if end - begin >= self._longest:
                    cut = buffer.rfind(b"\n", begin, last) + 1
                    line = self._line + buffer[begin:end].count(b"\n")
                    if end - max(cut, begin) >= self._longest:
                        raise ValueError(f"line {line}: must be shorter than {self._longest} bytes")
        self._rest = b""
        if end > begin and buffer[end - 1] != _NEWLINE:  # the last line need not end
            buffer[end] = _NEWLINE
            end += 1
        return end

    def each(self, do: Callable[[Block], Any], most_bytes: float = float("inf")) -> None:
        """Call `do` with each block, on some threads, until the blocks so taken have `most_bytes`.

        Raises
        ------
        What `do`, or reading, raises first: where several blocks have faults, that of the first of these.
        """
        lock, faults = threading.Lock(), list[tuple[int, BaseException]]()
        n_taken, last_byte = 0, self.n_bytes + most_bytes

        def work() -> None:
            nonlocal n_taken
            number = -1  # of a fault before any block
            try:
                buffer = self.buffer()
                while True:
                    with lock:
                        if faults or self.n_bytes >= last_byte:
                            return
                        number = n_taken
                        n_taken += 1
                        block = self.take(buffer)
                    if block is None:
                        return
                    do(block)
            except BaseException as error:
                faults.append((number, error))

        n_threads = min(get_num_threads(), self._most_threads)
        if n_threads < 2:
            work()
        else:
            with ThreadPoolExecutor(n_threads - 1) as pool:
                for _ in range(n_threads - 1):
                    pool.submit(work)
                work()
        if faults:
            raise min(faults, key=lambda fault: fault[0])[1]
