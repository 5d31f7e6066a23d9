"""Kernels compile with a pipeline of our own, which no version of Numba is taken for that it was not tried with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cvrarray.cpu.runtime import pipeline


def test_versions_of_numba_are_those_that_were_tried():
    first, last = pipeline.TRIED
    bounds = f'"numba>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"'
    assert bounds in (Path(__file__).parent.parent / "pyproject.toml").read_text()


def test_another_version_of_numba_is_refused():
    code = "import numba; numba.version_info = (0, 99); numba.__version__ = '0.99.0'; import cvrarray.cpu.runtime.pipeline"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: cvrarray's kernels need numba 0.62 to 0.68; got 0.99.0" in done.stderr
