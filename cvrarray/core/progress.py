"""Progress of what takes longer than a second: a line on stderr that goes away, if that is a terminal.

One thread looks four times a second at what the main thread is doing, so that an operation that is a single call of
compiled code is shown too, and a short one costs a microsecond. It sleeps while nothing is under way.
``CVRARRAY_PROGRESS=0`` turns it off.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY = 1.0  #: seconds after which an operation is shown
INTERVAL = 0.25  #: seconds between two looks
LINGER = 8  #: looks at nothing before the thread sleeps

Update = Callable[..., None]


class _Task:
    """An operation of the main thread."""

    def __init__(self, what: str, total: float | None, unit: str):
        self.what, self.total, self.unit, self.done = what, total, unit, 0.0
        self.start = time.monotonic()

    def line(self, width: int) -> str:
        """What is shown, at most `width` characters."""
        elapsed = time.monotonic() - self.start
        if not self.total:
            count = f", {self.done:,.0f} {self.unit}" if self.done else ""
            return f"{self.what}{count}: {elapsed:.0f} s"[:width]
        from tqdm import tqdm

        scale = {"unit": self.unit, "unit_scale": self.unit == "B"}
        return str(tqdm.format_meter(self.done, self.total, elapsed, ncols=width, prefix=self.what, **scale))[:width]


class _Line:
    """The line on the terminal, and the thread that writes it."""

    def __init__(self) -> None:
        self.task: _Task | None = None  # the outermost operation
        self.lock = threading.Lock()
        self.wake = threading.Event()
        self.idle = True
        self.thread: threading.Thread | None = None
        self.width = 0  # of what is shown; blanks erase it, as not every terminal knows a sequence for that

    def begin(self, task: _Task) -> None:
        self.task = task
        if self.idle:
            self.idle = False
            if self.thread is None:
                self.thread = threading.Thread(target=self._watch, name="cvrarray_progress", daemon=True)
                self.thread.start()
            self.wake.set()

    def end(self) -> None:
        self.task = None
        if self.width:
            with self.lock:
                _write("\r" + " " * self.width + "\r")
                self.width = 0

    def _watch(self) -> None:
        looks = 0
        while True:
            task = self.task
            if task is not None and time.monotonic() - task.start >= DELAY:
                text = task.line(shutil.get_terminal_size().columns - 1)
                with self.lock:
                    if self.task is task:
                        _write("\r" + text.ljust(self.width))
                        self.width = len(text)
            looks = 0 if task is not None else looks + 1
            if looks > LINGER:
                self.wake.clear()
                self.idle = True
                self.wake.wait()
                looks = 0
            time.sleep(INTERVAL)


_line = _Line()


@contextmanager
def shown(what: str, total: float | None = None, unit: str = "") -> Iterator[Update]:
    """Show `what` while the context lasts; gives the function (done[, total]) that says how far it is.

    Within another one, on another thread than the main one, and where stderr is no terminal nothing is shown.

    Parameters
    ----------
    what
        Such as ``"reading a.mtx"``.
    total, unit
        How much there is to do, in which unit (``"B"``: bytes, in kB and MB). Without a total the time is shown.

    Examples
    --------
    >>> from cvrarray.core import progress
    >>> with progress.shown("adding", total=3, unit="numbers") as update:
    ...     for k in range(3):
    ...         update(k + 1)
    """
    if _line.task is not None or not _wanted():
        yield _ignore
        return
    task = _Task(what, total, unit)

    def update(done: float, total: float | None = None) -> None:
        task.done = done
        task.total = task.total if total is None else total

    _line.begin(task)
    try:
        yield update
    finally:
        _line.end()


def _ignore(done: float, total: float | None = None) -> None:
    """Take note of nothing."""


def _wanted() -> bool:
    """Whether anybody would see it, and wants to."""
    try:
        if not sys.stderr.isatty():  # asked first: most programs' is none, and it is the quickest to know
            return False
    except (AttributeError, ValueError):  # none, or closed
        return False
    return threading.current_thread() is threading.main_thread() and os.environ.get("CVRARRAY_PROGRESS") != "0"


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # it went away meanwhile
        pass


def _forget() -> None:
    """A forked child has no such thread, and nothing under way."""
    global _line
    _line = _Line()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
