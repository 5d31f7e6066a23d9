"""Atomic file writes: whatever stops the writer, a reader finds the old content or the new."""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")  #: names of files that are being written; a killed writer leaves one
_BUFFER = 1 << 20


@contextmanager
def replacing(path: str, open_new: Callable[[str], Any] | None = None) -> Iterator[BinaryIO]:
    """A new file, open for writing, that takes the place of `path` once all of it is on the disk, and is gone if not.

    It has the mode of the file that it replaces, from the start, so that nobody reads it who might not read that one.

    Parameters
    ----------
    path : str
        A regular file, or nothing yet, in a folder that exists.
    open_new : callable, optional
        Makes the raw file of a name that is not taken. Default: ``io.FileIO``.

    Raises
    ------
    OSError
        It cannot be written; `path` is as it was.
    """
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        raw = io.FileIO(temporary, "x") if open_new is None else open_new(temporary)
        with io.BufferedWriter(raw, _BUFFER) as file:
            with suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Make the names in `folder` last through a crash of the system, where the system has a way to."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder
        return
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems have no such thing; the names are there all the same
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
