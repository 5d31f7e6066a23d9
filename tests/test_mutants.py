"""The faults that tests/mutants.py makes: hundreds of programs that differ from ours, the same for the same seed."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import forked
import mutants
import numpy as np
import pytest

from cvrarray.cpu import checksum

COPY = """
def kernel(n, x):
    '''a < b, 1 + 1'''
    total = 0
    for k in range(n):
        if k < n and not x[k] == 3:
            total += min(x[k], 2 * n)
    return -total
"""


def test_every_operator_and_number_of_a_function(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(COPY)
    found = mutants.mutants_of(path, tmp_path)
    changes = sorted((COPY[m.start : m.end], m.new) for m in found)
    assert changes == [
        ("*", "+"), ("+=", "-="), ("-", ""), ("0", "1"), ("2", "3"), ("3", "4"), ("<", "<="), ("==", "!="), ("and", "or"),
        ("min", "max"), ("not ", ""),
    ]  # fmt: skip
    assert len({mutant.name for mutant in found}) == len(found)


@pytest.mark.parametrize("path", mutants.sources("cpu"), ids=lambda path: path.name)
def test_mutants_are_other_programs(path):
    text = path.read_text()
    for mutant in mutants.mutants_of(path)[::20]:
        changed = mutant.applied(text)
        assert changed != text
        ast.parse(changed)


def test_every_kernel_is_changed_and_its_tests_exist():
    names = {path.stem for path in mutants.sources("cpu")}
    assert names >= {
        "cvr",
        "bbcsr",
        "csr",
        "checksum",
        "parts",
        "masks",
        "vector",
        "loads",
        "stores",
    }
    every = [*mutants.sources("cpu"), *mutants.sources("gpu")]
    for path in every:
        assert all((mutants.ROOT / test).is_file() for test in mutants.tests_of(str(path))), path
    stems = {path.stem for path in every} | {path.stem.partition("_")[0] for path in every}
    assert stems >= set(mutants.TESTS) - {""}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_hundreds_of_them(device):
    drawn = mutants.draw(device, 200, 0)
    assert len({mutant.name for mutant in drawn}) == 200
    assert drawn == mutants.draw(device, 200, 0)
    assert drawn != mutants.draw(device, 200, 1)


def test_report_tells_what_the_smaller_set_misses():
    text = mutants.report(
        {
            "a.py:1:1 x": {"covering": "test_a"},
            "a.py:2:1 y": {"covering": "passed", "rest": "timeout"},
            "b.py:1:1 z": {"covering": "passed", "rest": "passed"},
        }
    )
    assert "killed by make test: 1 of 3" in text
    assert "killed by other cases only: a.py:2:1 y" in text
    assert "survived: b.py:1:1 z" in text


def test_what_a_kernel_calls():
    """By names of its own module and of others, through helpers and what LLVM makes in place."""
    called = {function.__qualname__ for function in mutants.called_by(checksum._sum_blocks.py_func)}
    assert called >= {"_sum_blocks", "_sum", "_add", "prefetch", "pointer"}
    assert "_sum_blocks" not in {function.__qualname__ for function in mutants.called_by(checksum._add.py_func)}


@forked.needs_fork
def test_a_change_reaches_modules_that_nothing_has_imported():
    """As most are imported by the calls that need them: the changed one, and those of kernels that call it."""
    path = mutants.ROOT / "cvrarray" / "cpu" / "simd" / "words.py"
    at = path.read_text().index("ctlz")
    mutant = mutants.Mutant(path.relative_to(mutants.ROOT).as_posix(), at, at + 4, "cttz", "name")

    def changed():
        for name in ("cvrarray.cpu.simd.words", "cvrarray.cpu.text", "cvrarray.files.matrix_market"):
            sys.modules.pop(name, None)
        mutants.change(mutant)
        text = importlib.import_module("cvrarray.cpu.text")
        codes = mutants._within(text.words.leading_zeros._defn.__code__)
        return any("cttz" in code.co_names for code in codes), type(text._parse._cache).__name__

    assert forked.Child(changed).wait() == (0, "(True, 'NullCache')")


@forked.needs_fork
@pytest.mark.slow
def test_a_change_reaches_the_kernels_that_call_the_function_and_no_other_process():
    path = Path(checksum.__file__)
    text = path.read_text()
    at = text.index("+=", text.index("def _add"))
    mutant = mutants.Mutant(path.relative_to(mutants.ROOT).as_posix(), at, at + 2, "-=", "name")
    content = np.arange(100.0)
    before = checksum.checksum(content)

    def differs():
        mutants.change(mutant)
        return checksum.checksum(content) != before

    assert forked.Child(differs).wait() == (0, "True")
    assert checksum.checksum(content) == before
