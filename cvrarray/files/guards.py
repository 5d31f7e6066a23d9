"""Guards that all formats share: a damaged or dishonest file ends in a ValueError, not in a crash or in all memory used."""

from __future__ import annotations

import gzip
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

BLOCK = 1 << 20  #: bytes read at a time; a line of a text may be so long, and at most twice that
MOST_INFLATION = 1032  #: deflate's best: one byte of a compressed file holds at most so many

#: What libraries raise on broken contents. No other OSError: a missing file or a full disk is no fault of the contents.
_BROKEN = (
    *(ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError, EOFError),
    *(gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, struct.error),
)


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """What broken contents raise, in our own checks or in the libraries that read, as a ValueError about `subject`."""
    try:
        yield
    except _BROKEN as error:
        raise ValueError(f"{subject}: {error}") from error


def require_memory(n_rows: int, at: str) -> None:
    """ValueError where row offsets and one result do not fit this machine: the system might kill us, not refuse."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on this system
        memory = 1 << 46
    if 16 * n_rows > memory:
        raise ValueError(f"{at}: {n_rows} rows need {16 * n_rows >> 30} GiB or more; this machine has {memory >> 30}")
