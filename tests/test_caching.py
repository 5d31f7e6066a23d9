"""Compiled code on disk: processes that compile side by side, and what an older version left, never swap it for other code."""

from __future__ import annotations

import importlib
import pkgutil
import shutil
from pathlib import Path

import pytest
from numba.core.registry import CPUDispatcher

import cvrarray.cpu
from cvrarray.cpu.runtime import compiler
from cvrarray.cpu.runtime.compiler import STAMP, CacheFiles


def files(folder, stamp="now") -> CacheFiles:
    return CacheFiles(str(folder), "kernel", stamp)


@pytest.mark.parametrize("moment", ["_load_index", "_save_data", "_save_index"])
def test_two_processes_at_once(moment, tmp_path, monkeypatch):
    """One saves its version in the midst of the other's save: each finds its own then, or none, and never the other's."""
    ours, theirs = files(tmp_path), files(tmp_path)
    step = getattr(ours, moment)

    def interrupted(*args):
        done = step(*args)
        theirs.save("their types", "their code")
        return done

    monkeypatch.setattr(ours, moment, interrupted)
    ours.save("our types", "our code")
    monkeypatch.undo()
    found = [files(tmp_path).load(key) for key in ("our types", "their types")]
    assert found[0] in ("our code", None)
    assert found[1] in ("their code", None)
    assert any(found)
    for key, code in (("our types", "our code"), ("their types", "their code")):  # what was lost is compiled and saved again
        files(tmp_path).save(key, code)
    assert [files(tmp_path).load(key) for key in ("our types", "their types")] == ["our code", "their code"]


def test_nothing_of_other_sources(tmp_path, monkeypatch):
    """Not even while the new version is being written: the index names it once it is there."""
    files(tmp_path, "before").save("types", "old code")
    new = files(tmp_path)
    assert new.load("types") is None
    write, seen = new._save_data, []
    monkeypatch.setattr(new, "_save_data", lambda *args: (seen.append(files(tmp_path).load("types")), write(*args)))
    new.save("types", "new code")
    assert seen == [None]
    assert files(tmp_path).load("types") == "new code"


def test_a_change_in_any_folder_changes_the_stamp(tmp_path, monkeypatch):
    shutil.copytree(Path(cvrarray.cpu.__file__).parents[1], tmp_path / "cvrarray", ignore=shutil.ignore_patterns("*.nb?"))
    monkeypatch.setattr(compiler, "__file__", str(tmp_path / "cvrarray" / "cpu" / "runtime" / "compiler.py"))
    stamps = {STAMP, compiler._stamp()}
    assert len(stamps) == 1
    for name in ("cpu/cvr.py", "cpu/simd/llvm.py", "cpu/products/tiling.py", "core/tables.py"):
        with open(tmp_path / "cvrarray" / name, "a") as file:
            file.write("# changed\n")
        stamps.add(compiler._stamp())
    assert len(stamps) == 5


def test_every_kernel_is_cached_so():
    kernels = [
        kernel
        for module in pkgutil.walk_packages(cvrarray.cpu.__path__, "cvrarray.cpu.")
        for kernel in vars(importlib.import_module(module.name)).values()
        if isinstance(kernel, CPUDispatcher)
    ]
    assert len(kernels) > 50
    for kernel in kernels:
        assert type(kernel._cache._cache_file) is CacheFiles, kernel
        assert kernel._cache._cache_file._source_stamp == STAMP
