"""Calls in forked processes, to be killed where they change the disk, or to be run at once.

A fork begins with everything imported and compiled, so that a call takes as long as its work. Only this thread goes on
in the child: what is called there must start the threads that it needs, as writers of stores do.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest

KILLED = 77  #: exit status of a process that was killed at a point
LIMIT_S = 60  #: a call that takes longer hangs

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")

_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.link", "os.symlink"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Child:
    """``function()`` in a forked process, begun at once."""

    def __init__(self, function: Callable[[], Any]):
        self._pipe, pipe = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, where other threads are alive
            self._id = os.fork()
        if self._id == 0:
            status = 1
            try:
                os.close(self._pipe)
                signal.alarm(LIMIT_S)
                text, status = repr(function()), 0
            except BaseException:
                text = traceback.format_exc()
            os.write(pipe, text.encode()[:60_000])
            os._exit(status)
        os.close(pipe)

    def wait(self) -> tuple[int, str]:
        """(exit status, what the function returned, as repr, or its traceback)."""
        with os.fdopen(self._pipe, "rb") as pipe:
            text = pipe.read().decode()
        return os.waitstatus_to_exitcode(os.waitpid(self._id, 0)[1]), text


def points(function: Callable[[], Any], folder: str) -> int:
    """How many times a call changes the disk below `folder`; the call is made."""
    status, text = Child(lambda: _counted(function, folder, None)).wait()
    assert status == 0, text
    return int(text)


def kill(function: Callable[[], Any], folder: str, point: int) -> None:
    """Make a call in a process that ends, as if killed, when it is about to change the disk for the `point`-th time."""
    status, text = Child(lambda: _counted(function, folder, point)).wait()
    assert status == KILLED, f"exit status {status} at point {point}: {text}"


def _counted(function: Callable[[], Any], folder: str, last: int | None) -> int:
    """Count the points of a call, and leave the process at the `last`: files lose what was not written, nothing is
    undone.
    """
    done = 0

    def point() -> None:
        nonlocal done
        if done == last:
            os._exit(KILLED)
        done += 1

    def hook(event: str, arguments: tuple) -> None:
        if event in _CHANGES:
            point()
        elif event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(folder) and flags & _WRITES:
                point()

    class File(io.FileIO):
        """A file with a point before each write, and one in its middle."""

        def write(self, content: Any) -> int:
            view = memoryview(content).cast("B")
            half = len(view) // 2
            for part in (view[:half], view[half:]):
                point()
                while len(part):
                    part = part[super().write(part) :]
            return len(view)

    real_open, real_sync = builtins.open, os.fsync

    def open_for_writing(file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
        if not set(mode) & set("wax") or "+" in mode:
            return real_open(file, mode, *args, **keywords)
        binary = io.BufferedWriter(File(file, mode.replace("b", "").replace("t", "")))
        return binary if "b" in mode else io.TextIOWrapper(binary)

    def sync(descriptor: int) -> None:
        point()
        real_sync(descriptor)

    io.FileIO, io.open, builtins.open, os.fsync = File, open_for_writing, open_for_writing, sync
    sys.addaudithook(hook)  # of the child alone: it is never removed
    function()
    return done
