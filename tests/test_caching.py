"""Compiled code on disk: no other code is ever taken for it, and nothing that is wrong with the disk stops a kernel."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

import cvrarray.cpu
from cvrarray.cpu.runtime import caching, compiler, helpers
from cvrarray.cpu.runtime.caching import STAMP, CacheFiles


def files(folder, stamp="now") -> CacheFiles:
    return CacheFiles(str(folder), "kernel", stamp)


def test_every_version_has_a_file_of_its_own(tmp_path):
    """So processes that compile side by side need not know of one another."""
    ours, theirs = files(tmp_path), files(tmp_path)
    ours.save("our types", "our code")
    theirs.save("their types", "their code")
    ours.save("our types", "our code")
    assert [files(tmp_path).load(key) for key in ("our types", "their types", "other types")] == [
        "our code",
        "their code",
        None,
    ]
    assert files(tmp_path, "before").load("our types") is None  # of other sources


def test_a_change_in_any_folder_changes_the_stamp(tmp_path, monkeypatch):
    shutil.copytree(Path(cvrarray.cpu.__file__).parents[1], tmp_path / "cvrarray", ignore=shutil.ignore_patterns("*.nb?"))
    monkeypatch.setattr(caching, "__file__", str(tmp_path / "cvrarray" / "cpu" / "runtime" / "caching.py"))
    stamps = {STAMP, caching._stamp()}
    assert len(stamps) == 1
    for name in ("cpu/cvr.py", "cpu/simd/llvm.py", "cpu/products/tiling.py", "core/tables.py"):
        with open(tmp_path / "cvrarray" / name, "a") as file:
            file.write("# changed\n")
        stamps.add(caching._stamp())
    assert len(stamps) == 5


def test_a_save_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(Exception, match="pickle"):
        files(tmp_path).save("types", threading.Lock())
    assert os.listdir(tmp_path) == []


def test_every_kernel_is_cached_so():
    kernels = [
        kernel
        for module in pkgutil.walk_packages(cvrarray.cpu.__path__, "cvrarray.cpu.")
        for kernel in vars(importlib.import_module(module.name)).values()
        if isinstance(kernel, CPUDispatcher)
    ]
    kernels = [kernel for kernel in kernels if kernel._compiler.pipeline_class is not helpers.Compiler]
    assert len(kernels) > 25
    for kernel in kernels:
        assert type(kernel._cache._cache_file) is CacheFiles, kernel
        assert kernel._cache._cache_file._source_stamp == STAMP


def test_helpers_are_compiled_as_parts_of_kernels_alone():
    def twice(x):
        return 2 * x

    helper = compiler.inlined(twice)
    assert numba.njit(lambda x: helper(x) + 1)(3) == 7
    (compiled,) = helper.overloads.values()
    assert type(compiled.library) is helpers.Library
    with pytest.raises((TypeError, IndexError)):  # Python has no way to call it
        helper(3)


# A disk with faults


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """What CVRARRAY_CACHE_DIR names; NUMBA_CACHE_DIR names another, and the process has not warned yet."""
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setenv("CVRARRAY_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setattr(caching, "_warned", False)
    return tmp_path / "ours"


def plus_one(number):
    return number + 1


def run_kernel() -> tuple[int, list[str]]:
    """Calls of a kernel that was never called before: how many of 2 versions came from the disk, and what was warned
    of.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = caching.njit(cache=True)(plus_one)
        assert kernel(1) == 2
        assert kernel(1.5) == 2.5
    return sum(kernel.stats.cache_hits.values()), [str(warning.message) for warning in caught]


def test_our_folder_wins(folder, monkeypatch):
    assert [run_kernel() for _ in range(2)] == [(0, []), (2, [])]
    assert len(os.listdir(folder)) == 2
    assert not (folder.parent / "numba").exists()
    monkeypatch.delenv("CVRARRAY_CACHE_DIR")
    assert [run_kernel() for _ in range(2)] == [(0, []), (2, [])]
    assert len(list((folder.parent / "numba").rglob("*.nbc"))) == 2


DAMAGES = {
    "empty": lambda content: b"",
    "cut in the checksum": lambda content: content[:20],
    "cut": lambda content: content[:-1],
    "a bit": lambda content: content[:99] + bytes([content[99] ^ 1]) + content[100:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_replaced(damage, folder):
    run_kernel()
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for path, content in whole.items():
        path.write_bytes(damage(content))
    hits, (warned,) = run_kernel()
    assert hits == 0
    assert str(folder) in warned
    assert "does not match its checksum" in warned
    assert run_kernel() == (2, [])
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole}


def test_a_file_that_another_numba_cannot_use_is_replaced(folder, monkeypatch):
    """Its checksum is right, and yet it cannot be loaded."""
    run_kernel()
    monkeypatch.setattr("numba.core.compiler.CompileResult._rebuild", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in run_kernel()[1][0]
    monkeypatch.undo()


def test_the_folder_cannot_be_made(folder):
    folder.write_text("a file stands where the folder should be")
    hits, (warned,) = run_kernel()
    assert hits == 0
    assert f"compiled code cannot be saved in {folder}" in warned
    assert "set CVRARRAY_CACHE_DIR to a folder" in warned


def test_a_full_disk(folder):
    """Files of more than 100 bytes cannot be written: half of one is left of none."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        hits, (warned,) = run_kernel()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert hits == 0
    assert f"compiled code cannot be saved in {folder}" in warned
    assert "OSError" in warned
    assert os.listdir(folder) == []
    assert run_kernel() == (0, [])  # one warning a process
    assert len(os.listdir(folder)) == 2


def test_a_folder_that_can_only_be_read(folder, monkeypatch):
    """What was compiled there before is used, and what was not is compiled."""
    run_kernel()
    monkeypatch.setattr(caching.OwnFolder, "ensure_cache_path", lambda _: os.mkdir("/proc/none"))
    assert run_kernel() == (2, [])
    for path in folder.iterdir():
        path.unlink()
    assert len(run_kernel()[1]) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder in which nobody can make another")
def test_an_installation_that_can_only_be_read(tmp_path):
    """Without a home, so that there is no folder at all: one warning, and all works."""
    shutil.copytree(Path(cvrarray.__file__).parent, tmp_path / "cvrarray", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {path.parent for path in (tmp_path / "cvrarray/cpu").rglob("*.py")}:
        (folder / "__pycache__").write_text("")
    environment = {"PATH": os.environ["PATH"], "HOME": "/proc/none", "PYTHONPATH": os.pathsep.join(sys.path)}
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.dont_write_bytecode = True\n"
        f"import numpy, {caching.__package__}.threads as threads, cvrarray.cpu.csr\n"
        "assert threads.spin_wait(numpy.zeros(1, 'i8'), 1, 1, 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("Warning") == 1
    assert re.search(f"cannot be saved in {tmp_path}/.*__pycache__, nor in the user's cache folder", done.stderr)


# Forks


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12: threads run beside it
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o707])
def test_a_folder_that_others_may_write_to(mode, folder):
    """What lies there is not run, and nothing is put there."""
    run_kernel()
    saved = sorted(folder.iterdir())
    folder.chmod(mode)
    hits, (warned,) = run_kernel()
    assert hits == 0
    assert "only you, or root, may write to" in warned
    assert f"{mode:o}" in warned
    saved[0].unlink()
    caching._warned = False
    assert len(run_kernel()[1]) == 1
    assert sorted(folder.iterdir()) == saved[1:]
    folder.chmod(0o755)
    caching._warned = False
    assert run_kernel() == (1, [])


def test_without_the_compiler():
    code = "import numpy as np, cvrarray; cvrarray.CVRArray(np.eye(3)) @ np.ones(3)"
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True
    )
    assert found.returncode == 1
    assert "NUMBA_DISABLE_JIT is set" in found.stderr.splitlines()[-1]


def test_a_fork_while_another_thread_compiles():
    """The child finds the compiler's lock open. It would wait for ever else: the thread that holds the lock is not
    there.
    """
    compiling, forking = threading.Event(), threading.Event()

    def compile_slowly():
        with global_compiler_lock:
            compiling.set()
            forking.wait()
            threading.Event().wait(0.1)

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    compiling.wait()
    forking.set()
    child = os.fork()
    if not child:
        os._exit(0 if global_compiler_lock._lock.acquire(timeout=10) else 1)
    status = os.waitpid(child, 0)[1]
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert caching.njit()(plus_one)(np.int8(1)) == 2  # and so does the parent


def test_memory_that_a_limit_does_not_leave(folder, monkeypatch):
    """LLVM would end the process."""
    resource = pytest.importorskip("resource")
    caching.require_room(1 << 60)  # without a limit nothing is asked
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 40, 1 << 40))
    run_kernel()
    monkeypatch.setattr(caching, "TO_LOAD", 1 << 60)
    with pytest.raises(MemoryError, match="ulimit -v"):
        run_kernel()
    monkeypatch.setattr(caching, "TO_LOAD", 1)
    monkeypatch.setattr(caching, "TO_COMPILE", 1 << 60)
    assert run_kernel() == (2, [])
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(MemoryError, match="ulimit -v"):
        run_kernel()
