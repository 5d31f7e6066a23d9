"""Every public function, class, method and property has an example in its docstring, and all examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import cvrarray
from cvrarray import cvr, generate, linalg
from cvrarray.array.transposed import TransposedArray
from cvrarray.choice import model

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "cvrarray").rglob("*.py")
    if ">>> " in path.read_text()
)
OF_DASK = ("open_store", "to_dask")
# by a module's first two names
NEEDS = {"cvrarray.dask": "dask", "cvrarray.torch": "torch", "cvrarray.generate": "skfem", "cvrarray.sklearn": "sklearn"}

#: Second names, whose first ones have the example.
ALIASES = {"mT"}


def public(module) -> dict[str, object]:
    """The functions and classes that are defined in a module."""
    return {
        f"{module.__name__.removeprefix('cvrarray.')}.{name}": value
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    }


def documented() -> dict[str, object]:
    """Public functions and classes by name, but Dask's: those of the package, and the classes of what they return."""
    names = {name: getattr(cvrarray, name) for name in cvrarray.__all__ if name not in ("generate", "linalg", *OF_DASK)}
    names |= public(generate)
    names |= {f"linalg.{name}": getattr(linalg, name) for name in linalg.__all__}
    for cls in (cvr.Chunk, TransposedArray, model.Statistics):
        names[cls.__name__] = cls
    return names


def of_dask() -> dict[str, object]:
    pytest.importorskip("dask.array")
    names = ("cg", "power_iteration", "Traffic", "Eigenpair", "matmul", "register")
    found = {f"dask.{name}": getattr(cvrarray.dask, name) for name in names}
    return found | {name: getattr(cvrarray, name) for name in OF_DASK}


def examples(value) -> str:
    """The section of a docstring, which may be inherited."""
    return (inspect.getdoc(value) or "").partition("\nExamples\n--------\n")[2]


def members(cls):
    """Public methods and properties."""
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        is_member = isinstance(value, (property, classmethod, staticmethod)) or inspect.isfunction(value)
        if is_member and not name.startswith("_") and name not in ALIASES:
            yield name, getattr(value, "__func__", value)


def lacking(names: dict[str, object]) -> list[str]:
    """What has no example; a property may share its class's."""
    found = [name for name, value in names.items() if ">>> " not in examples(value)]
    for name, cls in names.items():
        if inspect.isclass(cls):
            shared = "".join(map(examples, inspect.getmro(cls)))
            for member, value in members(cls):
                is_shared = isinstance(value, property) and re.search(rf">>> .*\.{member}\b", shared)
                if not is_shared and ">>> " not in examples(value):
                    found.append(f"{name}.{member}")
    return found


def test_everything_public_has_an_example():
    assert not lacking(documented())


def test_everything_public_has_an_example_of_dask():
    assert not lacking(of_dask())


@pytest.mark.parametrize("module", [pytest.param(name, marks=pytest.mark.xdist_group("examples")) for name in MODULES])
def test_examples_run(module, tmp_path, monkeypatch):
    """In a namespace that holds cvrarray, np and the path of a store; whatever an example leaves on disk goes."""
    needed = NEEDS.get(".".join(module.split(".")[:2]))
    needs = pytest.importorskip(needed) if needed else None
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = str(tmp_path / "matrix.store")
    cvrarray.to_store(np.diag(np.arange(96.0)), path, chunks=1000, format="cvr", device="cpu")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    with needs.config.set(scheduler="synchronous") if needed == "dask" else nullcontext():
        for test in doctest.DocTestFinder().find(importlib.import_module(module)):
            test.globs = {"cvrarray": cvrarray, "np": np, "path": path}
            runner.run(test)
    assert runner.tries
    assert not runner.failures
