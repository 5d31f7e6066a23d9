"""Kernels compile with Numba's own pipeline, lowering and wrapper too, where a version of Numba was not tried with ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numba
import pytest

from cvrarray.cpu.runtime import native, pipeline

#: A kernel of another process, with what it inlines, and whether the wrapper that was compiled is ours.
KERNEL = """
import sys
from typing import NamedTuple

import numpy as np

from cvrarray.cpu.runtime import pipeline

pipeline.IS_TRIED = sys.argv[1] == "tried"

from cvrarray.cpu.runtime import caching, entry
from cvrarray.cpu.runtime.compiler import helper, inlined, kernel

class Table(NamedTuple):
    ptr: np.ndarray
    val: np.ndarray

@inlined
def term(t, k, x):
    return t.val[k] * x[k]

@helper
def row(t, i, x):
    total = 0.0
    for k in range(t.ptr[i], t.ptr[i + 1]):
        total += term(t, k, x)
    return total

@kernel
def product(first, last, t, x, y):
    for i in range(first, last):
        y[i] = row(t, i, x)

built, build = [], entry.Wrapper.build
entry.Wrapper.build = lambda self: (built.append(self), build(self))[1]
y = np.zeros(2)
product(0, 2, Table(np.array([0, 1, 3]), np.array([2.0, 3, 4])), np.array([1.0, 10, 100]), y)
assert y.tolist() == [2, 430], y
assert (caching.folder() is None) == (not pipeline.IS_TRIED)
print("ours" if built else "Numba's")
"""


@pytest.mark.parametrize(("version", "wrapper", "saved"), [("tried", "ours", True), ("another", "Numba's", False)])
def test_kernels_either_way(version, wrapper, saved, tmp_path, monkeypatch):
    monkeypatch.setenv("CVRARRAY_CACHE_DIR", str(tmp_path))
    path = tmp_path / "of_rows.py"
    path.write_text(KERNEL)
    done = subprocess.run([sys.executable, "-W", "error", path, version], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == wrapper
    assert any(tmp_path.glob("*.nbc")) == saved


def test_versions_of_numba_are_those_that_were_tried():
    assert pipeline.IS_TRIED
    first, last = pipeline.TRIED
    bounds = f'"numba>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"'
    assert bounds in (Path(__file__).parent.parent / "pyproject.toml").read_text()


@pytest.mark.parametrize("change", ["kinds", "order"])
def test_another_calling_convention_is_refused(change, monkeypatch):
    """Before any kernel is called at its address: by the number of arguments, and by what a call gives."""
    if change == "kinds":
        monkeypatch.setattr(native, "CONVENTION", native.CONVENTION + "i")
    else:
        flat = native.packed

        def exchanged(args):
            """First and last dimension of the last array."""
            slots = flat(args)
            slots[[14, 15]] = slots[[15, 14]]
            return slots

        monkeypatch.setattr(native, "packed", exchanged)
    with pytest.raises(RuntimeError, match=rf"cg on a CPU needs a Numba .*numba {numba.__version__} does not"):
        native._require_convention.__wrapped__()
