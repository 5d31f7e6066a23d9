"""One writer at a time: a lock of the operating system on a file beside the store, which dies with its process.

The file, ``matrix.zarr.lock``, lies beside the store and not in it: there it is while there is no store yet, it stays
when the store is overwritten, it covers the spool, and Zarr's tools never meet it. Readers do not take the lock. The
last act of the writer is to remove the file; one that a killed writer left is taken over by the next. (Whoever has
opened the file in the meantime holds a lock on a file without a name, which filelock refuses.)
"""

from __future__ import annotations

import errno
import json
import os
import platform
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout


class WriterLock:
    """The right to write the store at `path`, in a ``with`` statement; its holder may enter again.

    Raises
    ------
    BlockingIOError
        When entered: another writer, in this process or another, has it. The message names the store and its writer.
    OSError
        When entered: the folder of the store cannot be written.
    """

    def __init__(self, path: str):
        self.path = path
        self._file = Path(f"{path}.lock")
        self._lock = FileLock(self._file, timeout=0, thread_local=False)

    def __enter__(self) -> WriterLock:
        self._file.parent.mkdir(parents=True, exist_ok=True)
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
                self._file.write_text(json.dumps({"process": os.getpid(), "machine": platform.node()}))
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock.lock_counter == 1:
            with suppress(OSError):  # Windows removes no open file: there it stays, and is taken over
                self._file.unlink()
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
