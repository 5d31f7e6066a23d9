"""One writer at a time: a lock of the operating system on a file beside the store, which dies with its process.

The file, ``.matrix.store.cvrarray-lock``, lies beside the store and not in it: there it is while there is no store yet,
it stays when the store is overwritten, and it covers the spool. Readers do not take the lock. The last act of the
writer is to remove the file; one that a killed writer left is taken over by the next. (Whoever has opened the file in
the meantime holds a lock on a file without a name, which filelock refuses.)

What is no file, or a link, is not written to and not removed.
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


def beside(path: str, what: str) -> str:
    """Where a hidden file or folder of ours lies that belongs to the store at `path`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.cvrarray-{what}")


class WriterLock:
    """The right to write the store at `path`, in a ``with`` statement.

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
        with suppress(FileNotFoundError):  # another writer may remove it at any time
            if not stat.S_ISREG(os.lstat(self._file).st_mode):
                raise FileExistsError(
                    errno.EEXIST, "must be the lock of a store of cvrarray; it is something else. Move it away", str(self._file)
                )
        try:
            self._lock.acquire()
            with suppress(OSError):  # it only serves others' messages
                self._file.write_text(json.dumps({"process": os.getpid(), "machine": platform.node()}))
            return self
        except Timeout:
            raise BlockingIOError(
                errno.EWOULDBLOCK,
                f"is being written by {self._holder()}. A store has one writer at a time: wait until that one is done",
                self.path,
            ) from None
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self._lock.is_locked:
                with suppress(OSError):  # Windows removes no open file: there it stays, and is taken over
                    self._file.unlink()
        finally:
            self._lock.release()

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
