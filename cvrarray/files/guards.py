"""Guards of all file formats: a damaged or dishonest file ends in a ValueError, not in a crash or without memory."""

from __future__ import annotations

import errno
import gzip
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

MOST_SAID = 1000  #: letters of a message that an error about a file repeats
BLOCK = 1 << 20  #: bytes read at a time; a line of a text may be so long, and at most twice that
MOST_INFLATION = 1032  #: deflate's best: one byte of a compressed file holds at most so many

#: What libraries raise on broken contents. No other OSError: a missing file or a full disk is no fault of the contents;
#: and no MemoryError: what a file may ask for is held against a :class:`~cvrarray.input.limits.Limit` before.
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
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"{subject}: there is not enough memory to map or read it") from error


def said_by(error: BaseException) -> str:
    """An error's message, of which libraries make no end where names are long; what kind of error it is where it has
    none.
    """
    text = str(error).strip() or f"cannot be read ({type(error).__name__})"
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]} ..."
