"""One writer at a time: a lock of the operating system on a file beside the store, which dies with its process.

The file, ``.matrix.zarr.cvrarray-lock``, lies beside the store and not in it: there it is while there is no store yet, it
stays when the store is overwritten, it covers the spool, and Zarr's tools never meet it. Readers do not take the lock. The
last act of the writer is to remove the file; one that a killed writer left is taken over by the next. (Whoever has
opened the file in the meantime holds a lock on a file without a name, which filelock refuses.)

The file is empty, or begins with MARK. Another file of that name is not written to, and not removed.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import stat
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

#: What a lock's file begins with, as far as its writer came.
MARK = b'{"cvrarray": "lock", '


def beside(path: str, what: str) -> str:
    """Where a hidden file or folder of ours lies that belongs to the store at `path`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.cvrarray-{what}")


class WriterLock:
    """The right to write the store at `path`, in a ``with`` statement; its holder may enter again.

    Raises
    ------
    BlockingIOError
        When entered: another writer, in this process or another, has it. The message names the store and its writer.
    FileExistsError
        When entered: there is something else where the lock's file should be. It stays as it is.
    OSError
        When entered: the folder of the store cannot be written.
    """

    def __init__(self, path: str):
        self.path = path
        self._file = Path(beside(path, "lock"))
        self._lock = FileLock(self._file, timeout=0, thread_local=False)

    def __enter__(self) -> WriterLock:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if not self._is_ours():  # before it is opened, which might cut it
            raise FileExistsError(
                errno.EEXIST, "must be the lock of a store of cvrarray; it is something else. Move it away", str(self._file)
            )
        try:
            self._lock.acquire()
        except Timeout:
            raise BlockingIOError(
                errno.EWOULDBLOCK,
                f"is being written by {self._holder()}. A store has one writer at a time: wait until that one is done",
                self.path,
            ) from None
        if self._lock.lock_counter == 1:
            with suppress(OSError):  # it only serves others' messages
                self._file.write_text(json.dumps({"cvrarray": "lock", "process": os.getpid(), "machine": platform.node()}))
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock.lock_counter == 1 and self._is_ours():
            with suppress(OSError):  # Windows removes no open file: there it stays, and is taken over
                self._file.unlink()
        self._lock.release()

    def _is_ours(self) -> bool:
        """Whether the file is a lock's, or not there."""
        try:
            if not stat.S_ISREG(os.lstat(self._file).st_mode):
                return False
            with open(self._file, "rb") as file:
                return MARK.startswith(file.read(len(MARK)))
        except FileNotFoundError:
            return True
        except OSError:  # Windows reads no locked file; acquiring it tells
            return os.name == "nt"

    def _holder(self) -> str:
        """Who has the lock, in words, as far as the file tells."""
        try:
            found = json.loads(self._file.read_text())
            process, machine = int(found["process"]), str(found["machine"])
        except (OSError, ValueError, LookupError, TypeError):
            return "another process"
        if machine != platform.node():
            return f"process {process} on {machine}"
        return "another writer in this process" if process == os.getpid() else f"process {process}"
