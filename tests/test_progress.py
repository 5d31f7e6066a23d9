"""Progress: a bar on a terminal for what takes longer than a second, and nothing anywhere else."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import tqdm
from scipy.sparse import csr_array
from test_store import pieces_of

import cvrarray
from cvrarray.core import progress


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
    """A function that makes stderr one (once pytest has set its own), where everything is shown at once."""

    def begin():
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.delenv("CVRARRAY_PROGRESS", raising=False)
    return begin


def test_shown_and_erased(terminal):
    stderr = terminal()
    with pytest.raises(KeyboardInterrupt), progress.shown("reading a.mtx", unit="B") as update:
        update(500_000, 2_000_000)  # the total may be known later
        raise KeyboardInterrupt
    assert "reading a.mtx" in stderr.text
    assert stderr.text.endswith(" \r")
    assert "\n" not in stderr.text


def test_what_is_short_is_not_shown(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 60)
    stderr = terminal()
    with progress.shown("short", 3, "panels") as update:
        update(3)
    assert stderr.text == ""


@pytest.mark.parametrize("why", ["no terminal", "switched off", "no stderr", "closed"])
def test_nothing_is_shown_elsewhere(monkeypatch, terminal, why):
    stderr = terminal()
    if why == "no terminal":
        monkeypatch.setattr(stderr, "isatty", lambda: False)
    elif why == "switched off":
        monkeypatch.setenv("CVRARRAY_PROGRESS", "0")
    else:
        with open(os.devnull, "w") as closed:
            pass
        monkeypatch.setattr(sys, "stderr", None if why == "no stderr" else closed)
    with progress.shown("work", 1, "panels") as update:
        update(1)
    assert stderr.text == ""


def test_what_is_shown(monkeypatch, tmp_path, terminal):
    """What is done in parts says how many there are, and how many of them are done."""
    terminal()
    ended = {}

    class Bar(tqdm.tqdm):
        def close(self):
            ended[self.desc.rstrip(": ")] = (self.n, self.total, self.unit)
            super().close()

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    path = tmp_path / "a.zarr"
    dense = np.eye(96)
    cvrarray.to_store(pieces_of(csr_array(dense), 5), path, shape=dense.shape, chunks=1, device="cpu", format="cvr")
    assert ended == {"setting entries aside": (5, None, "pieces"), "writing": (2, 3, "panels")}
    stored = cvrarray.Stored(path, device="cpu")
    stored @ np.ones(96)
    stored.check()
    assert ended["streaming"] == ended["checking"] == (3, 3, "panels")


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
