"""Which cases run: every combination occurs, in few cases, the same in every run; what is left out is counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import cases
import pytest
from cases import covering

TESTS = Path(__file__).parent
PASSED = re.compile(r"^test_some.py::(\S+) PASSED|PASSED test_some.py::(\S+)", re.M)
SIZES = [(5, 4), (2, 3, 4), (7, 3, 2, 2), (1,), (4, 1, 1)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("strength", [1, 2])
def test_every_combination_occurs(sizes, strength):
    cases = list(product(*map(range, sizes)))[::-1]
    chosen = [cases[k] for k in covering(cases, strength)]
    assert len(set(chosen)) == len(chosen)
    for places in combinations(range(len(sizes)), min(strength, len(sizes))):
        every = {tuple(case[place] for place in places) for case in cases}
        assert {tuple(case[place] for place in places) for case in chosen} == every
    assert chosen == [cases[k] for k in covering(cases, strength)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_value_takes_as_few_cases_as_the_longest_parameter_has_values(sizes):
    assert len(covering(list(product(*map(range, sizes))), 1)) == max(sizes)


def test_pairs_are_fewer_than_the_product():
    assert 15 * 20 <= len(covering(list(product(range(15), range(20), range(4))), 2)) < 1.15 * 15 * 20


def test_what_never_occurs_is_not_asked_for():
    cases = [(a, b) for a in range(4) for b in range(4) if a != b]
    assert {cases[k] for k in covering(cases, 2)} == set(cases)
    assert covering([], 2) == []
    assert covering([()], 1) == [0]


def test_gpu_takes_every_case_that_needs_one():
    """Of a test with four values and two devices: the four on the GPU, and two on the CPU."""

    class Item:
        parent, originalname, own_markers = None, "test_some", ()

        def __init__(self, value, device, marker=None):
            self.name, self.callspec = f"{value}-{device}", SimpleNamespace(params={"value": value, "device": device})
            self.marker = marker

        def get_closest_marker(self, name):
            return name if name == self.marker else None

        def iter_markers(self, name):
            return iter(())

    items = [Item(value, device) for value in range(4) for device in ("cpu", "cuda:0")]
    chosen, left = cases.select(items, "gpu")
    assert sum(item.callspec.params["device"] == "cuda:0" for item in chosen) == 4
    assert 1 <= sum(item.callspec.params["device"] == "cpu" for item in chosen) <= cases.QUICK
    assert len(chosen) + len(left) == 8
    on_host = [Item(value, "cpu", marker="pages") for value in range(3)]
    assert cases.select(on_host, "gpu") == ([], on_host)
    assert len(cases.select(on_host, "quick")[0]) == cases.QUICK


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

@pytest.mark.slow
def test_slow(): pass

def test_gpu(gpu): pass
"""


SCRIPT = """
import pytest
for choice in ("quick", "all", "rest"):
    print("choice", choice)
    pytest.main(["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "-v", "--cases", choice])
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What ran and what the output says, for each choice."""
    folder = tmp_path_factory.mktemp("cases")
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "test_some.py").write_text(FILE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]), "CUDA_VISIBLE_DEVICES": ""}

    def run(*command):
        command = [sys.executable, *command]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout

    _, *others = run("-c", SCRIPT).split("choice ")
    outputs = dict(output.split("\n", 1) for output in others)
    # The default; workers tell the first process what they left out.
    outputs["covering"] = run("-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "-v", "-n", "1")
    return {choice: ([a or b for a, b in PASSED.findall(output)], output) for choice, output in outputs.items()}


def count(ran, name):
    return sum(test.startswith(name) for test in ran)


@pytest.mark.slow
def test_choices(runs):
    quick, covered, everything, rest = (runs[choice][0] for choice in ("quick", "covering", "all", "rest"))
    names = ("test_values", "test_pairs", "test_extended", "test_slow", "test_gpu")
    assert [count(covered, name) for name in names] == [4, count(covered, "test_pairs"), 3, 1, 0]
    assert 9 <= count(covered, "test_pairs") <= 12
    assert [count(everything, name) for name in names] == [12, 27, 4, 1, 0]
    assert [count(quick, name) for name in names] == [2, 2, 2, 0, 0]
    assert sorted(covered + rest) == sorted(everything)
    assert set(quick) < set(covered)


@pytest.mark.slow
def test_what_is_left_out_is_said_in_a_line_each(runs):
    ran, output = runs["covering"]
    assert "5 cases left out: no GPU" in output
    assert f"{8 + 27 - count(ran, 'test_pairs') + 1} cases left out by --cases covering (make test-all runs them)" in output
    assert "left out by" not in runs["all"][1]
    assert "SKIPPED" not in output


def test_a_sanitizer_leaves_out_cases_on_a_cpu_alone(tmp_path):
    """Whatever their names say."""
    pytest.importorskip("cupy")
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text("def test_both(device): pass\ndef test_finds_what_a_cpu_finds(gpu): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]), "CUDA_VISIBLE_DEVICES": ""}
    command += ["--collect-only", "-q", "--unpooled", "--require-gpu"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert re.findall(r"::(.+)", found.stdout) == ["test_both[cuda:0]", "test_finds_what_a_cpu_finds"]
