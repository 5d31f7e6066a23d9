"""A short run of the fuzzing harness, the recipes of what it found before, and what it makes of inputs that misbehave.

The long run is ``make fuzz``; its record is in docs/security.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fuzz import driver, edits, judge, meaning
from fuzz.__main__ import KINDS
from scipy.sparse import csr_array

import cvrarray

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="needs forks and /proc")

TESTS = Path(__file__).parent


def test_inputs_of_every_kind_and_all_that_failed_before():
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "fuzz", "--inputs", "100"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{100 * len(KINDS)} inputs in this run; 0 failures; 0 regressions" in done.stdout
    assert not done.stderr


# What the driver makes of inputs that do what none may


class Kind:
    """A kind whose inputs hold a digit; those with an 8 or a 9 do something, and all others are refused."""

    BASES = ("base",)

    def __init__(self, misdeed):
        self.misdeed = misdeed

    def propose(self, rng, base):
        return [["idle", rng.randrange(10)], ["digit", rng.randrange(10)]]

    def examine(self, base, recipe, folder):
        if any(name == "digit" and digit >= 8 for name, digit in recipe):
            return self.misdeed() or ("refused", 10)
        return "refused", 10


def eat():
    """Touch more than may be."""
    np.ones(driver.LIMIT + driver.SLACK + (700 << 20), np.int8)  # pages of a large process may have been given back


MISDEEDS = {
    "crash": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crash: SIGSEGV"),
    "hang": (lambda: time.sleep(60), "hang"),
    "memory": (eat, "memory: "),
    "much memory at once": (lambda: np.empty(1 << 31), "MemoryError in "),
    "exception": (lambda: {}["key"], "KeyError in test_fuzz.py, <lambda>: 'key'"),
    "violation": (lambda: judge.refused(KeyError("key"), (ValueError,)), "another exception, KeyError: 'key'"),
    "empty message": (lambda: judge.refused(ValueError("row.npy: "), (ValueError,)), "a message that ends in nothing"),
    "no name": (lambda: judge.refused(ValueError("is cut"), (ValueError,), "m.mtx"), "a message without the name m.mtx"),
}


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_what_none_may_do_is_found_and_minimised(misdeed):
    does, says = MISDEEDS[misdeed]
    kept = []
    hang = 0.6 if misdeed == "hang" else 10
    tally = driver.run("fake", Kind(does), 0, most=8, keep=lambda *of: kept.append(of), hang=hang)
    failing = [n for n in range(8) if driver.recipe("fake", Kind(does), n).edits[1][1] >= 8]
    assert tally == {"inputs": 8, "refused": 8 - len(failing), "failures": len(failing), "accepted": 0, "never made": 0}
    ((case, what),) = kept
    assert what.startswith(says)
    assert case.edits in ([["digit", 8]], [["digit", 9]])  # the other edit was not needed


# What the judge makes of wrong answers


def test_an_array_that_contradicts_itself():
    csr = csr_array(np.array([[1.0, 0, 2], [0, 3, 0]]))
    A = cvrarray.CVRArray(csr, device="cpu")
    judge.accepted(A, 0)
    with pytest.raises(judge.Violation, match="A @ x is not that of tocsr"):
        judge.products(A, 2 * csr, 0)
    with pytest.raises(judge.Violation, match=r"entry .* is .*1\.0.* instead of 7\.0"):
        judge.same(csr, (2, 3), {(0, 0): 7.0, (0, 2): 2.0, (1, 1): 3.0})
    with pytest.raises(judge.Violation, match="entries at"):
        judge.same(csr, (2, 3), {(0, 0): 1.0})
    forged = A._from_tables(A._tables._replace(nnz=4))
    with pytest.raises(judge.Violation, match="accepted, but check"):
        judge.accepted(forged, 0)


def test_what_files_say():
    text = "%%MatrixMarket matrix coordinate integer skew-symmetric\n% c\n\n2 2 1\n2 1 3\n"
    assert meaning.of_text(text) == ((2, 2), {(1, 0): 3, (0, 1): -3})
    arrays = {"data": np.arange(1.0, 7.0).reshape(2, 3), "offsets": np.array([0, 1])}
    assert meaning.of_arrays("dia", (2, 3), arrays) == {(0, 0): 1, (1, 1): 2, (0, 1): 5, (1, 2): 6}
    blocks = {"data": np.ones((1, 2, 2)), "indices": np.array([1]), "indptr": np.array([0, 1])}
    assert meaning.of_arrays("bsr", (2, 4), blocks) == dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], 1.0)
    for indptr in ([0, 3, 0], [0, 1, 1], [1, 1], [0, -1]):
        with pytest.raises(meaning.Invalid):
            meaning.of_arrays("bsr", (2, 4), blocks | {"indptr": np.array(indptr)})


def test_edits_stay_valid_without_one_another():
    """A ramp is what makes differences of offsets wrap."""
    assert edits.apply_bytes(b"", ["set", 7, 1]) == b"\1"
    assert edits.apply_bytes(b"abcd", ["insert", 6, "xy"]) == b"abxycd"
    arrays = {"ptr": np.array([0, 10, 20, 30])}
    edits.apply_array(arrays, ["ramp", "ptr", 62, 1])
    assert arrays["ptr"].tolist() == [0, 10 + 2**62, 20 - 2**63, 30]
    edits.apply_array(arrays, ["item", "missing", 0, 1])
    edits.apply_array(arrays, ["resize", "ptr", 0])
    edits.apply_array(arrays, ["item", "ptr", 3, 2**63])
