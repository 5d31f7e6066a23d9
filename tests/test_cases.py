"""Which cases run: every combination occurs, in few cases, the same in every run; what is left out is counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest
from cases import covering

TESTS = Path(__file__).parent
RAN = re.compile(r"^test_some.py::(\S+) (?:PASSED|ERROR)|PASSED test_some.py::(\S+)", re.M)


@pytest.mark.parametrize("sizes", [(5, 4), (2, 3, 4), (7, 3, 2, 2), (1,), (4, 1, 1)], ids=str)
@pytest.mark.parametrize("strength", [1, 2])
def test_every_combination_occurs(sizes, strength):
    cases = list(product(*map(range, sizes)))[::-1]
    chosen = [cases[k] for k in covering(cases, strength)]
    assert len(set(chosen)) == len(chosen)
    for places in combinations(range(len(sizes)), min(strength, len(sizes))):
        every = {tuple(case[place] for place in places) for case in cases}
        assert {tuple(case[place] for place in places) for case in chosen} == every
    assert chosen == [cases[k] for k in covering(cases, strength)]
    assert strength > 1 or len(chosen) == max(sizes)


def test_what_never_occurs_is_not_asked_for():
    cases = [(a, b) for a in range(4) for b in range(4) if a != b]
    assert {cases[k] for k in covering(cases, 2)} == set(cases)
    assert covering([], 2) == []
    assert covering([()], 1) == [0]


FILE = """
import pytest

@pytest.mark.each_value
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 1), (1, 0)])
def test_values(a, b, c, device): pass

@pytest.mark.each_pair
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", range(3))
def test_pairs(a, b, c): pass

@pytest.mark.parametrize("a", [1, 2, 3, pytest.param(4, marks=pytest.mark.extended)])
def test_extended(a): pass

def test_gpu(gpu): pass
"""


@pytest.fixture
def run(tmp_path):
    """Runs the tests in FILE: the cases by name, and the output."""
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(FILE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]), "CUDA_VISIBLE_DEVICES": ""}

    def call(*options):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "-v", *options]
        output = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False).stdout
        return [a or b for a, b in RAN.findall(output)], output

    return call


def test_choices(run):
    """Workers tell the first process what they left out."""
    usual, output = run("-n", "1")
    rest, _ = run("--rest")
    names = ("test_values", "test_pairs", "test_extended", "test_gpu")
    counts = [[sum(test.startswith(name) for test in ran) for name in names] for ran in (usual, rest)]
    pairs = counts[0][1]
    assert 9 <= pairs <= 12
    assert counts == [[4, pairs, 3, 0], [8, 27 - pairs, 1, 0]]
    assert not set(usual) & set(rest)
    assert "5 cases left out: no GPU" in output
    assert f"{8 + 27 - pairs + 1} cases left out (make test-rest runs them)" in output
    assert "SKIPPED" not in output


def test_where_a_gpu_is_required(run):
    """What needs one alone runs, and fails without."""
    ran, output = run("--require-gpu")
    assert [name.partition("[")[0] for name in ran] == ["test_values"] * 4 + ["test_gpu"]
    assert all("cuda:0" in name for name in ran[:4])
    assert "PASSED" not in output
