"""Atomic file writes: whatever stops the writer, a reader finds the old content or the new.

A file that is being written has a temporary name, and its writer holds a lock of the operating system on it, which dies
with the process. So the next writer of the same file removes what a killed one left, and nothing that a living one writes.
(Windows removes no open file: no lock is needed there.)
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Names of files that are being written: the checksum of the name that the file will have, and a random number.
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_BUFFER = 1 << 20


@contextmanager
def replacing(path: str, open_new: Callable[..., Any] | None = None) -> Iterator[BinaryIO]:
    """A new file, open for writing, that takes the place of `path` once all of it is on the disk, and is gone if not.

    It has the mode of the file that it replaces, from the start, so that nobody reads it who might not read that one.

    Parameters
    ----------
    path : str
        A regular file, or nothing yet, in a folder that exists.
    open_new : callable, optional
        Makes the raw file of a name that is not taken, with the `opener` that it is given. Default: ``io.FileIO``.

    Raises
    ------
    OSError
        It cannot be written; `path` is as it was.
    """
    folder, name = os.path.split(path)
    start = os.path.join(folder, f".{zlib.crc32(os.fsencode(name)):08x}")
    _remove_left(start)
    mode = None
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
    opener = None if mode is None else partial(os.open, mode=mode)  # whoever opens it before chmod could read all of it
    temporary, raw = _begin(start, partial(open_new or partial(io.FileIO, mode="x"), opener=opener))
    try:
        with raw:
            if mode is not None:
                os.chmod(temporary, mode)  # the umask took some of it
            file = io.BufferedWriter(raw, _BUFFER)
            yield file
            file.flush()
            os.fsync(raw.fileno())
            if fcntl is None:  # Windows renames no open file; elsewhere it is open, and so locked, until it has its name
                raw.close()
            os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:  # of a full disk, say
            error.filename = path
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def _begin(start: str, open_new: Callable[[str], Any]) -> tuple[str, Any]:
    """A new file's name and the file, locked where that is possible."""
    while True:
        temporary = f"{start}{secrets.token_hex(4)}.tmp"
        with suppress(FileExistsError):
            raw = open_new(temporary)
            if _is_locked(raw) and os.path.lexists(temporary):
                return temporary, raw
            raw.close()  # another writer took it for one that was left, before it was locked
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def _is_locked(raw: Any) -> bool:
    """Whether this process has the lock of an open file, or none can be had on its file system."""
    if fcntl is not None:
        try:
            fcntl.flock(raw.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
    return True


def _remove_left(start: str) -> None:
    """Remove files whose names begin so, and whose writers were killed, as far as that is possible."""
    folder, begin = os.path.split(start)
    with suppress(OSError):
        for name in os.listdir(folder or "."):
            if name.startswith(begin) and TEMPORARY.fullmatch(name):
                with suppress(OSError):  # it has a living writer, or is another user's
                    _remove_unlocked(os.path.join(folder, name))


def _remove_unlocked(path: str) -> None:
    if fcntl is None:
        os.unlink(path)
        return
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(path, "rb", buffering=0, opener=lambda name, _: os.open(name, flags)) as raw:
        fcntl.flock(raw.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)


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
