"""Progress: a line on a terminal for what takes longer than a second, and nothing anywhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checks import until
from forked import Child, needs_fork

import cvrarray
from cvrarray.core import progress

ROOT = Path(__file__).parent.parent


class Terminal:
    """What is written to it."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.fixture
def terminal(monkeypatch):
    """stderr is one, and what takes a tenth of a second is shown there."""
    found = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found))  # not pytest's
    monkeypatch.setattr(progress, "DELAY", 0.1)
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    monkeypatch.delenv("CVRARRAY_PROGRESS", raising=False)
    return found


def test_shown_and_erased(terminal):
    with progress.shown("reading a.mtx", 2_000_000, "B") as update:
        update(500_000)
        until(lambda: "25%" in terminal.text)
        update(1_000_000, 4_000_000)  # the total may be known later
        until(lambda: terminal.text.count("25%") > 1)
    assert "reading a.mtx" in terminal.text
    assert terminal.text.endswith(" \r")
    assert "\n" not in terminal.text


def test_without_a_total_the_time_is_shown(terminal):
    with progress.shown("converting 7 nonzeros"):
        until(lambda: "converting 7 nonzeros: 0 s" in terminal.text)
    with progress.shown("setting aside", unit="pieces") as update:
        update(12_345)
        until(lambda: "setting aside, 12,345 pieces: 0 s" in terminal.text)


def test_what_is_short_is_not_shown(terminal):
    for _ in range(3):
        with progress.shown("short"):
            pass
    time.sleep(0.2)
    assert terminal.text == ""


def test_only_the_outermost_is_shown(terminal):
    with progress.shown("outer"), progress.shown("inner"):
        until(lambda: "outer" in terminal.text)
        time.sleep(0.1)
    assert "inner" not in terminal.text
    with progress.shown("next"):
        until(lambda: "next" in terminal.text)


@pytest.mark.parametrize("options", [{}, {"iterations": 3}])
def test_solves_are_shown(terminal, options):
    class Slow:
        shape, dtype = (3, 3), np.dtype(float)

        def matvec(self, x, out=None):
            time.sleep(0.1)
            out[...] = [1, 2, 3] * x

    cvrarray.linalg.CG(Slow(), **options).solve(np.ones(3))
    assert "for 3 unknowns: 0 s" in terminal.text
    assert terminal.text.endswith(" \r")


def test_errors_erase_the_line_too(terminal):
    with pytest.raises(KeyboardInterrupt), progress.shown("cut short"):
        until(lambda: "cut short" in terminal.text)
        raise KeyboardInterrupt
    assert terminal.text.endswith(" \r")


def test_the_thread_sleeps_and_wakes(terminal):
    with progress.shown("first"):
        until(lambda: "first" in terminal.text)
    until(lambda: progress._line.idle)
    with progress.shown("second"):
        until(lambda: "second" in terminal.text)


@pytest.mark.parametrize("why", ["no terminal", "switched off", "another thread", "no stderr", "closed"])
def test_nothing_is_shown_elsewhere(monkeypatch, terminal, why):
    if why == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    elif why == "switched off":
        monkeypatch.setenv("CVRARRAY_PROGRESS", "0")
    elif why in ("no stderr", "closed"):
        with open(os.devnull, "w") as closed:
            pass
        monkeypatch.setattr(progress.sys, "stderr", None if why == "no stderr" else closed)

    def work():
        with progress.shown("work") as update:
            update(1)
            time.sleep(0.3)

    if why == "another thread":
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    assert terminal.text == ""


@needs_fork
def test_a_forked_child_has_its_own(terminal):
    def work():
        with progress.shown("in the child"):
            until(lambda: "in the child" in terminal.text)
        return "shown"

    with progress.shown("in the parent"):
        until(lambda: "in the parent" in terminal.text)
        assert Child(work).wait() == (0, "'shown'")


SLOW = """
import sys, time, numpy as np, cvrarray
from cvrarray.core import progress
progress.DELAY, progress.INTERVAL = 0.0, 0.005
convert = cvrarray.CVRArray._convert.__func__
cvrarray.CVRArray._convert = classmethod(lambda cls, *a, **k: (time.sleep(0.2), convert(cls, *a, **k))[1])
A = cvrarray.asarray(np.eye(9), format="cvr", device="cpu")
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_conversion_on_a_terminal(on_terminal):
    """A real terminal; and a pipe, which gets nothing."""
    keeper, end = os.openpty() if on_terminal else os.pipe()
    with subprocess.Popen([sys.executable, "-c", SLOW], stderr=end, stdout=subprocess.PIPE, cwd=ROOT) as process:
        os.close(end)
        text = b""
        while True:
            try:
                part = os.read(keeper, 4096)
            except OSError:  # a terminal whose other side is closed
                break
            if not part:
                break
            text += part
    os.close(keeper)
    assert process.returncode == 0, text
    assert (b"converting 9 nonzeros: 0 s" in text) == on_terminal
    if not on_terminal:
        assert text == b""


def test_what_is_shown(monkeypatch, tmp_path):
    """Whatever may take long on a large matrix is under way by a name, and by how much of it is done where that is
    known.
    """
    for folder in ("XDG_CACHE_HOME", "LOCALAPPDATA"):  # with what tune remembers of earlier runs it measures nothing
        monkeypatch.setenv(folder, str(tmp_path / "cache"))
    began, done = [], []
    monkeypatch.setattr(progress, "_wanted", lambda: True)
    monkeypatch.setattr(progress._line, "begin", lambda task: (began.append(task), setattr(progress._line, "task", task)))
    path = tmp_path / "a.zarr"
    dense = np.eye(96)
    A = cvrarray.asarray(dense, device="cpu")
    cvrarray.to_store(dense, path, chunks=1, device="cpu", format="cvr")
    stored = cvrarray.Stored(path, device="cpu")
    calls = {
        "reading the matrix's entries": lambda: cvrarray.asarray(dense, device="cpu"),
        "converting 96 nonzeros": lambda: cvrarray.CVRArray(dense),
        "looking at the matrix": lambda: cvrarray.statistics(dense),
        "measuring formats": lambda: cvrarray.tune(dense, device="cpu", budget_s=1),
        "sorting 2 places": lambda: cvrarray.Assembly([0, 1], [1, 0]),
        "decoding 96 nonzeros": A.tocsr,
        "converting the transpose": lambda: (A.T @ np.ones(96), A.T @ np.ones(96)),
        "streaming": lambda: stored @ np.ones(96),
        "checking": stored.check,
    }
    for name, call in calls.items():
        began.clear()
        call()
        assert name in [task.what for task in began]
        done += [(task.done, task.total) for task in began if task.total]
    assert done == [(3, 3), (3, 3)]


def test_reading_and_writing_say_how_far_they_are(monkeypatch, tmp_path):
    """Each names its file, and its updates end at the total."""
    seen = {}

    def shown(what, total=None, unit=""):
        @progress.contextmanager
        def context():
            yield lambda *done: seen.setdefault((what, unit), []).append(done)

        return context()

    from cvrarray import files

    monkeypatch.setattr(files, "shown", shown)
    path = tmp_path / "a.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 1.5\n")
    A = cvrarray.read(path, device="cpu")
    cvrarray.save(tmp_path / "a.cvra", A)
    size = path.stat().st_size
    assert seen["reading a.mtx", "B"][-1] == (size, size)
    assert seen["writing a.cvra", "B"][-1][0] >= A.nbytes
