"""Guards that all formats share: a damaged or dishonest file ends in a ValueError, not in a crash or in all memory used."""

from __future__ import annotations

import gzip
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..input import partition

MOST_SAID = 1000  #: letters of a message that an error about a file repeats
BLOCK = 1 << 20  #: bytes read at a time; a line of a text may be so long, and at most twice that
MOST_INFLATION = 1032  #: deflate's best: one byte of a compressed file holds at most so many

#: Memory that reading may take whatever the file's size, where neither `max_bytes` nor the environment says otherwise.
MAX_BYTES = 256 << 20
VARIABLE = "CVRARRAY_MAX_BYTES"  #: of the environment: another MAX_BYTES
PROPORTION = 100  #: memory that reading may take for a byte of the file, where that is more

#: Bytes that reading takes at most for a row (offsets), a column (a mark) and an entry (triplets and the CSR of them).
ROW_BYTES, COLUMN_BYTES, ENTRY_BYTES = 16, 1, 48

#: What libraries raise on broken contents. No other OSError: a missing file or a full disk is no fault of the contents;
#: and no MemoryError: what a file may ask for is held against a :class:`Limit` before.
_BROKEN = (
    *(ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, EOFError),
    *(gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, struct.error),
)


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """What broken contents raise, in our own checks or in the libraries that read, as a ValueError about `subject`."""
    try:
        yield
    except _BROKEN as error:
        raise ValueError(f"{subject}: {said_by(error)}") from error


def said_by(error: BaseException) -> str:
    """An error's message, of which libraries make no end where names are long; what kind of error it is where it has none."""
    text = str(error).strip() or f"cannot be read ({type(error).__name__})"
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]} ..."


class Limit:
    """The memory that reading a file may ask for: `max_bytes`, or PROPORTION times the file's size where that is more.

    A file of a few bytes can promise any number of rows, and a compressed one can hold a thousand times its size. What it
    promises is held against this before memory is asked for.

    Parameters
    ----------
    file_size : int
    max_bytes : int or str, optional
        A count or a text such as ``"4 GiB"``. Default: the environment's CVRARRAY_MAX_BYTES, else MAX_BYTES.
    """

    def __init__(self, file_size: int, max_bytes: Any = None):
        if max_bytes is None:
            stated = os.environ.get(VARIABLE)
            least = MAX_BYTES if not stated else partition.n_bytes(stated, f"the environment's {VARIABLE}")
        else:
            least = partition.n_bytes(max_bytes, "max_bytes")
        self.n_bytes = max(least, PROPORTION * file_size)
        self.file_size = file_size

    def require(self, n_bytes: int, what: str) -> None:
        """ValueError where `what`, of `n_bytes`, is more than the limit."""
        if n_bytes > self.n_bytes:
            raise ValueError(
                f"{what} {size(n_bytes)}; the limit for a file of {size(self.file_size)} is {size(self.n_bytes)}. If you trust "
                f"the file, read it with max_bytes={n_bytes} or more, or set the environment's {VARIABLE}"
            )

    def require_matrix(self, shape: tuple[int, int], n_entries: int, at: str) -> None:
        """ValueError where a matrix takes more than the limit, or its rows more than this machine has."""
        rows, columns = ROW_BYTES * shape[0], COLUMN_BYTES * shape[1]
        for n_bytes, what in ((rows, f"{shape[0]} rows"), (columns, f"{shape[1]} columns")):
            self.require(n_bytes, f"{at}: {what} need")
        self.require(rows + columns + ENTRY_BYTES * n_entries, f"{at}: {shape[0]} rows and {n_entries} entries need")
        memory = _memory()
        if rows > memory:  # the system might kill us, not refuse
            raise ValueError(f"{at}: {shape[0]} rows need {size(rows)}; this machine has {size(memory)}")


def size(n_bytes: int) -> str:
    """``"3 bytes"``, ``"1.5 GiB"``: rounded up, so that it never looks smaller than what it exceeds."""
    for k, unit in reversed(list(enumerate(("KiB", "MiB", "GiB", "TiB"), 1))):
        if n_bytes >= 1 << 10 * k:
            return f"{-(-10 * n_bytes >> 10 * k) / 10:.15g} {unit}"
    return f"{n_bytes} bytes"


def _memory() -> int:
    """Bytes of memory that this machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on this system
        return 1 << 46
