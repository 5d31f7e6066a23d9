"""Replacing values is one step: whatever interrupts it, and whoever reads meanwhile, the array at rest agrees with itself.

So is writing a file or a store: what was there stays, or what is begun can be gone on with or written over at once.
"""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import sys
import threading
import warnings
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
import zoo
from checks import get, put

import cvrarray
from cvrarray.array import format as array_format
from cvrarray.array import transposed, values
from cvrarray.core import atomic
from cvrarray.store import layout, lock, spool, writer

BUILDS = {
    "cvr": lambda S, device: cvrarray.CVRArray(S, device=device),
    "bbcsr": lambda S, device: cvrarray.BBCSRArray(S, block_size=2, device=device),
    "few values": lambda S, device: cvrarray.CVRArray(S.sign(), device=device),
}
WATCHED = (values.__file__, array_format.__file__, transposed.__file__)


def interrupted_at(line: int, error: type[BaseException], call, watched=WATCHED, most: float = float("inf")) -> bool:
    """Whether `call` was interrupted, by `error` at the line of that number among those of `watched` that run.

    A line that runs more than `most` times counts so often.
    """
    left, times = line, Counter()

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in watched:
            return None
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            times[place] += 1
            left -= times[place] <= most
            if left == 0 and times[place] <= most:
                raise error("at a line")
        return trace

    sys.settrace(trace)
    try:
        call()
    except error:
        return True
    finally:
        sys.settrace(None)
    return left <= 0


def assert_agrees(A, x) -> None:
    """`A`, its transpose, CSR, pickle and copies are one matrix."""
    tables = A.copy().to_scipy().tocsr()  # what the tables hold, whatever is kept
    np.testing.assert_allclose(get(A @ x), tables @ get(x), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(get(A.T @ x), tables.T @ get(x), rtol=1e-10, atol=1e-10)
    for B in (A, pickle.loads(pickle.dumps(A, 5)), pickle.loads(pickle.dumps(A, 2)), copy.deepcopy(A)):
        np.testing.assert_array_equal(B.to_scipy().tocsr().data, tables.data)


def prepared(build: str, device: str):
    """A square array all of whose derived state is there, what replaces its values, and a vector."""
    S = zoo.floats("banded_stencil", np.float64)
    S = sp.csr_array(S[: min(S.shape), : min(S.shape)])
    A = BUILDS[build](S, device)
    A = A.with_values(put(S.data, device)) if build != "few values" else A
    x = put(np.arange(1.0, S.shape[0] + 1), device)
    derive(A, x)
    return A, S, x


def derive(A, x) -> None:
    for _ in range(2):
        A @ x
        A.T @ x
        A.tocsr()
        pickle.dumps(A, 5)


def replacements(A, S, device):
    """Ways to replace the values of A."""
    rng = np.random.default_rng(0)
    shuffled = S.tocoo()
    order = rng.permutation(S.nnz)
    plan = cvrarray.Assembly(put(shuffled.row[order], device), put(shuffled.col[order], device), shape=S.shape, device=device)

    def data():
        return put(rng.standard_normal(S.nnz), device)

    yield lambda: A.with_values(data(), out=A)
    yield lambda: A.T.with_values(data(), out=A.T)
    own = plan(data())
    yield lambda: plan(data(), out=own)
    yield lambda: A.with_values(data(), out=pickle.loads(pickle.dumps(A)))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("build", BUILDS)
def test_interrupted_at_a_line(build, error, device):
    A, S, x = prepared(build, device)
    for replace in replacements(A, S, device):
        line = 1
        while interrupted_at(line, error, replace):
            assert_agrees(A, x)
            derive(A, x)
            line += 7
        assert line > 7, "no line was watched"
        assert_agrees(A, x)


def test_interrupted_assembly(device):
    _, S, x = prepared("cvr", device)
    plan = cvrarray.Assembly(put(S.tocoo().row, device), put(S.tocoo().col, device), shape=S.shape, device=device)
    own = plan(put(S.data, device))
    derive(own, x)
    line = 1
    while interrupted_at(line, KeyboardInterrupt, lambda: plan(put(-S.data, device), out=own)):
        assert_agrees(own, x)
        plan(put(S.data, device), out=own)
        derive(own, x)
        line += 5


@pytest.mark.parametrize("build", BUILDS)
def test_readers_beside_two_writers(build, device):
    """Readers may see old and new values side by side; at rest all is of the values that the tables hold."""
    A, S, x = prepared(build, device)
    rng, failures = np.random.default_rng(0), []

    def write():
        for _ in range(3):
            A.with_values(put(rng.standard_normal(S.nnz), device), out=A)

    readers = [lambda: A @ x, lambda: A.T @ x, A.tocsr, lambda: A.T.tocsr(), lambda: pickle.dumps(A, 5), A.copy, lambda: A + A]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(10):
            stop = threading.Event()

            def read(call, stop=stop):
                try:
                    while not stop.is_set():
                        call()
                except BaseException as error:  # which pytest would not see in a thread
                    failures.append(error)

            threads = [threading.Thread(target=read, args=(call,)) for call in readers]
            for thread in threads:
                thread.start()
            other = threading.Thread(target=write)
            other.start()
            write()
            other.join()
            stop.set()
            for thread in threads:
                thread.join()
            assert_agrees(A, x)
    finally:
        sys.setswitchinterval(switch)
    assert not failures


def test_memory_that_ends_during_the_first_transposed_product(monkeypatch):
    """The next product tries again, and has the bits of every other run."""
    S = zoo.floats("power_law", np.float64)
    x = zoo.float_vector(S.shape[0])
    want = cvrarray.CVRArray(S, device="cpu").T @ x
    A = cvrarray.CVRArray(S, device="cpu")

    def short(self):
        raise MemoryError

    with monkeypatch.context() as patched, pytest.warns(RuntimeWarning, match="no memory for tables of the transpose"):
        patched.setattr(transposed.TransposedArray, "_canonical_csr", short)
        first = A.T @ x
    np.testing.assert_allclose(first, want, rtol=1e-12, atol=1e-12 * abs(want).max())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(A.T @ x, want)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_out_of_a_pickle(protocol):
    """However its bytes lie in memory."""
    for seed in range(20):
        S = sp.random_array((40 + seed % 7, 30), density=0.2, rng=seed, format="csr")
        B = pickle.loads(pickle.dumps(cvrarray.CVRArray(S, device="cpu"), protocol))
        assert B.with_values(2 * S.data, out=B) is B
        np.testing.assert_array_equal(B.tocsr().data, 2 * S.data)


# Files and stores

WRITTEN = (cvrarray.files.__file__, *(module.__file__ for module in (atomic, layout, lock, spool, writer)))
OLD, NEW = (sp.random_array((64, 30), density=0.2, rng=seed, format="csr") for seed in (1, 2))


def save(path, **how):
    cvrarray.save(path, cvrarray.CVRArray(NEW, device="cpu"))


def store_matrix(path, **how):
    cvrarray.to_store(NEW, path, chunks="4 kB", format="cvr", device="cpu", **how)


def store_pieces(path, **how):
    row, col = NEW.tocoo().coords
    pieces = [(row[part], col[part], NEW.data[part]) for part in (slice(0, 150), slice(150, None))]
    cvrarray.to_store(pieces, path, shape=NEW.shape, name="entries", chunks="4 kB", format="cvr", device="cpu", **how)


def held(path):
    """The matrix at `path`; None where nothing is, or what is not complete."""
    if os.path.isfile(path):
        return cvrarray.load(path).to_scipy().tocsr()
    try:
        stored = cvrarray.Stored(path, device="cpu", budget=0)
    except (FileNotFoundError, ValueError):
        return None
    stored.check()
    return sp.vstack([stored.panel(k).to_scipy().tocsr() for k in range(stored.n_panels)], format="csr")


def same(found, csr) -> bool:
    return found is not None and found.shape == csr.shape and (found != csr).nnz == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(
    ("write", "how", "again"),
    [
        (save, {}, {}),
        (store_matrix, {}, {"resume": True}),
        (store_matrix, {"overwrite": True}, {"overwrite": True}),
        (store_pieces, {}, {"resume": True}),
        (store_pieces, {"overwrite": True}, {"overwrite": True}),
    ],
    ids=lambda part: part.__name__ if callable(part) else str(part),
)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # interrupted before its with statement
def test_a_file_or_store_that_is_interrupted_at_a_line(write, how, again, error, tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "BUFFER", 1 << 11)
    monkeypatch.setattr(spool, "MOST_BUCKETS", 2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    old = write is save or "overwrite" in how
    before, folder = tmp_path / "before", tmp_path / "now"
    before.mkdir()
    if old and write is save:
        cvrarray.save(before / "m", cvrarray.CVRArray(OLD, device="cpu"))
    elif old:
        cvrarray.to_store(OLD, before / "m", chunks="4 kB", format="cvr", device="cpu")
    path, line = str(folder / "m"), 1
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        if not interrupted_at(line, error, lambda: write(path, **how), WRITTEN, most=2):
            break
        found = held(path)
        assert same(found, OLD) or same(found, NEW) or (found is None and write is not save), f"line {line}"
        write(path, **again)
        assert same(held(path), NEW), f"line {line}"
        assert os.listdir(folder) == ["m"], f"line {line}"
        assert not [file for file in folder.rglob("*") if atomic.TEMPORARY.fullmatch(file.name)], f"line {line}"
        line += 29
    assert line > 29, "no line was watched"
    assert same(held(path), NEW)
