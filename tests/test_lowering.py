"""Kernels compile with Numba's own lowering and wrapper too, where a version of Numba was not tried with ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Products of another process, and whether the wrapper that was compiled is ours.
PRODUCTS = """
import sys, numpy as np, scipy.sparse as sp, cvrarray
from cvrarray.cpu.runtime import entry, pipeline

assert pipeline.IS_TRIED, f"tests must run with a Numba of {pipeline.TRIED}"
pipeline.IS_TRIED = sys.argv[1] == "tried"
built, build = [], entry.Wrapper.build
entry.Wrapper.build = lambda self: (built.append(self), build(self))[1]
S = sp.random_array((60, 50), density=0.1, format="csr", rng=np.random.default_rng(0))
x = np.arange(50.0)
A = cvrarray.BBCSRArray(S, block_size=2, device="cpu")
assert np.allclose(A @ x, S @ x, rtol=1e-14)
print("ours" if built else "Numba's")
"""


@pytest.mark.parametrize(("version", "wrapper"), [("tried", "ours"), ("another", "Numba's")])
@pytest.mark.extended  # in a process of its own, where all is compiled anew
def test_products_either_way(version, wrapper, tmp_path, monkeypatch):
    monkeypatch.setenv("CVRARRAY_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", PRODUCTS, version], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == wrapper
