"""The suites: which test modules of which peers, and what is put in the place of what in them."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import ours
import scipy.sparse

import cvrarray

Adapt = Callable[[ModuleType, Any], None]


def path(suite: str) -> Path | None:
    """Where a peer's test module lies; None if it is not there. Found without importing the peer's test package."""
    top, _, rest = suite.partition(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / (rest.replace(".", "/") + ".py")
    return found if found.exists() else None


def adapted(suite: str, kind: Any) -> ModuleType:
    """A copy of a peer's test module in which arrays are ours."""
    file = path(suite)
    assert file is not None
    name = f"peer_{kind.__name__.lower()}_{suite.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = suite.rpartition(".")[0]
    importlib.import_module(module.__package__)
    SUITES[suite](module, kind, functools.partial(spec.loader.exec_module, module))
    return module


# ------------------------------------------------------------------------------------------------------------------- SciPy

DTYPES = [np.dtype(c).type for c in "?bBhHiIqQfdFD"]


def base(module: ModuleType, kind: Any, execute: Any) -> None:
    """The tests of every format of SciPy's."""
    execute()
    for name in [name for name in vars(module) if name.startswith("Test") or name.startswith("test")]:
        delattr(module, name)
    module.supported_dtypes = DTYPES
    module.TestDOK = module.TestDIA = module.TestBSR = module.TestLIL = type("No", (), {})
    body = {"spcreator": kind, "math_dtypes": [np.bool_, np.int_, np.float64, np.complex128]}
    module.TestOurs = type("TestOurs", (module.sparse_test_class(),), body)
    module.TestOurs.init_class()


def functions(*names: str, how: Callable[[Any], Any] = lambda A: A) -> Any:
    """Functions under test, of which every matrix among the arguments becomes one of ours; `how` is the documented adapter."""

    def adapt(module: ModuleType, kind: Any, execute: Any) -> None:
        execute()
        for name in names:
            setattr(module, name, taking_ours(getattr(module, name), kind, how))

    return adapt


def taking_ours(function: Any, kind: Any, how: Any) -> Any:
    def convert(value: Any) -> Any:
        return how(kind(value)) if ours.is_matrix(value) else value

    @functools.wraps(function)
    def call(A: Any, *args: Any, **kwargs: Any) -> Any:
        return function(convert(A), *args, **{k: convert(v) if k in ("A", "M") else v for k, v in kwargs.items()})

    return call


def solvers(module: ModuleType, kind: Any, execute: Any) -> None:
    """``solver(A, b)`` for every iterative solver."""
    execute()
    for name in ("bicg", "bicgstab", "cg", "cgs", "gcrotmk", "gmres", "lgmres", "minres", "qmr", "tfqmr"):
        if hasattr(module, name):
            setattr(module, name, taking_ours(getattr(module, name), kind, lambda A: A))
    if hasattr(module, "_SOLVERS"):
        module._SOLVERS[:] = [getattr(module, f.__name__) for f in module._SOLVERS]


def pydata_in_scipy(how: dict[str, Any]) -> Any:
    """SciPy's tests of what it does with pydata's arrays."""

    def adapt(module: ModuleType, kind: Any, execute: Any) -> None:
        execute()

    return adapt


SUITES: dict[str, Any] = {
    "scipy.sparse.tests.test_base": base,
    "scipy.sparse.linalg.tests.test_onenormest": functions(),
}
