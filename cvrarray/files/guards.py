"""Guards of all file formats: a damaged or dishonest file ends in a ValueError, not in a crash or without memory."""

from __future__ import annotations

import bz2
import errno
import gzip
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MOST_SAID = 1000  #: letters of a message that an error about a file repeats
BLOCK = 1 << 20  #: bytes read at a time; a line of a text may be so long, and at most twice that
MOST_INFLATION = 1032  #: deflate's best: one byte of a compressed file holds at most so many
#: Begin of a compressed file -> what opens it, and bytes that one byte of it holds at most.
COMPRESSED: dict[bytes, tuple[Callable[[Any], Any], int]] = {
    b"\x1f\x8b": (lambda file: gzip.GzipFile(fileobj=file), MOST_INFLATION),
    b"BZh": (bz2.BZ2File, 1 << 21),  # 900,000 runs of 259 equal bytes in some 40 bytes
}

#: What libraries raise on broken contents. No other OSError: a missing file or a full disk is no fault of the contents;
#: and no MemoryError: what a file may ask for is held against a :class:`~cvrarray.input.limits.Limit` before.
_BROKEN = (
    *(ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, EOFError),
    *(gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, struct.error),
)


def uncompressed(file: Any, head: bytes) -> tuple[Any, int]:
    """What reads the text of a file that begins with `head`, and how many times the file's size that may be."""
    for begin, (opened, most) in COMPRESSED.items():
        if head.startswith(begin):
            return opened(file), most
    return file, 1


def members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """A zip's members by name; none stands there twice, or before the file's beginning."""
    by_name = {member.filename: member for member in archive.infolist()}
    if len(by_name) != len(archive.infolist()) or any(member.header_offset < 0 for member in by_name.values()):
        raise ValueError("has a zip directory that cannot be right. The file is damaged")
    return by_name


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """What broken contents raise, in our own checks or in the libraries that read, as a ValueError about `subject`."""
    try:
        yield
    except _BROKEN as error:
        raise ValueError(f"{subject}: {said_by(error)}") from error
    except OSError as error:
        if error.errno is None and error.filename is None:  # of bz2, about contents
            raise ValueError(f"{subject}: {said_by(error)}") from error
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"{subject}: there is not enough memory to map or read it") from error


def said_by(error: BaseException) -> str:
    """An error's message, of which libraries make no end where names are long; what kind of error it is where it has
    none.
    """
    text = str(error).strip() or f"cannot be read ({type(error).__name__})"
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]} ..."
