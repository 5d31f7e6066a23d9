"""The suites: which test modules of which peers, and what is put in the place of what in them.

What takes ``A.tocsr()`` or ``A.tocsc()`` is left out: it would compute with SciPy's own classes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numba.core.entrypoints
import numpy as np
import ours
import pytest
import scipy.sparse
import scipy.sparse.linalg
import sparse

numba.core.entrypoints.init_all()  # before `sparse` is anything else for a moment


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
    sys.modules[name] = module  # pickles look there for a function
    importlib.import_module(module.__package__)
    SUITES[suite](module, kind, functools.partial(spec.loader.exec_module, module))
    return module


# ---------------------------------------------------------------------------------------------------------------- SciPy

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
    module.TestOurs.is_array_test = True
    for name in ("inv", "expm", "splu"):
        setattr(module, name, _back(csc, kind)(getattr(module, name)))


def functions(*names: str) -> Any:
    """Functions under test, of which every matrix among the arguments becomes one of ours."""

    def adapt(module: ModuleType, kind: Any, execute: Any) -> None:
        execute()
        for name in (name for name in names if hasattr(module, name)):
            setattr(module, name, taking_ours(getattr(module, name), kind))

    return adapt


def taking_ours(function: Any, kind: Any) -> Any:
    def convert(value: Any) -> Any:
        return kind(value) if ours.is_matrix(value) else value

    @functools.wraps(function)
    def call(A: Any, *args: Any, **kwargs: Any) -> Any:
        return function(convert(A), *args, **{k: convert(v) if k in ("A", "M") else v for k, v in kwargs.items()})

    return call


def solvers(module: ModuleType, kind: Any, execute: Any) -> None:
    """``solver(A, b)`` for every iterative solver: wrapped before they are read, as they are parameters of fixtures."""
    home = scipy.sparse.linalg._isolve
    names = ("bicg", "bicgstab", "cg", "cgs", "gcrotmk", "gmres", "lgmres", "minres", "qmr", "tfqmr")
    theirs = {name: getattr(home, name) for name in names}
    try:
        for name in names:
            setattr(home, name, taking_ours(theirs[name], kind))
        execute()
    finally:
        for name in names:
            setattr(home, name, theirs[name])


def csc(A: Any) -> Any:
    return A.tocsc()


def operator(A: Any) -> Any:
    return A.aslinearoperator()


def exponentials(module: ModuleType, kind: Any, execute: Any) -> None:
    """``expm_multiply(A.aslinearoperator(), B, traceA=A.trace())``: classes that it does not know get a dense identity."""
    execute()
    theirs = module.expm_multiply

    @functools.wraps(theirs)
    def expm_multiply(A: Any, B: Any, *args: Any, **kwargs: Any) -> Any:
        if not ours.is_matrix(A):
            return theirs(A, B, *args, **kwargs)
        B = B.toarray() if scipy.sparse.issparse(B) else B
        A = kind(A)
        return theirs(A.aslinearoperator(), B, *args, **{"traceA": A.trace()} | kwargs)

    module.expm_multiply = expm_multiply


def krylov(module: ModuleType, kind: Any, execute: Any) -> None:
    """``funm_multiply_krylov(f, A, b)``: the matrix is the second argument."""
    execute()
    theirs = module.funm_multiply_krylov

    @functools.wraps(theirs)
    def funm_multiply_krylov(f: Any, A: Any, *args: Any, **kwargs: Any) -> Any:
        return theirs(f, kind(A) if ours.is_matrix(A) else A, *args, **kwargs)

    module.funm_multiply_krylov = funm_multiply_krylov


def pydata_in_scipy(module: ModuleType, kind: Any, execute: Any) -> None:
    """What SciPy does with pydata's arrays: where it asks for their class, ours are given as the matrices that it
    takes.
    """
    with standing_for("sparse", Pydata(kind)):
        execute()
    direct = ("spsolve", "splu", "spilu", "spsolve_triangular", "norm", "inv", "expm")
    if hasattr(module, "splin"):
        module.splin = Wrapped(
            module.splin, {name: _back(csc, kind) for name in direct} | {"expm_multiply": _back(operator, kind)}
        )


def _back(how: Any, kind: Any) -> Any:
    """A function that gets a matrix as `how` gives it, and whose sparse results become arrays of ours."""

    def wrap(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            found = function(*(how(a) if hasattr(a, "_like") else a for a in args), **kwargs)
            return kind(found) if scipy.sparse.issparse(found) else found

        return call

    return wrap


class Wrapped:
    """A module with some functions wrapped."""

    def __init__(self, module: Any, wraps: dict[str, Any]) -> None:
        self._module, self._wraps = module, wraps

    def __getattr__(self, name: str) -> Any:
        value, wrap = getattr(self._module, name), self._wraps.get(name)
        return wrap(value) if wrap and callable(value) else value


# -------------------------------------------------------------------------------------------------------- pydata/sparse


INSIDE = r"(\.numba_backend(\._(compressed|coo|dok|sparse_array|common)(\.\w+)?)?)?"  # where its classes come from too


@contextlib.contextmanager
def standing_for(name: str, other: Any) -> Any:
    """While a module is executed, ``import name`` gives `other`."""
    theirs = {key: value for key, value in sys.modules.items() if re.fullmatch(name + INSIDE, key)}
    sys.modules.update(dict.fromkeys(theirs, other))
    try:
        yield
    finally:
        sys.modules.update(theirs)


class Pydata(ModuleType):
    """The module ``sparse`` with our arrays, and NumPy's functions of them, under the names of theirs.

    Where `folds`, random arrays of more dimensions are made of their last two, so that tests run for which that is the
    same.
    """

    def __init__(self, kind: Any, folds: bool = False) -> None:
        super().__init__("sparse")
        self.folds = folds
        self.COO = self.GCXS = self.DOK = self.kind = kind
        self.SparseArray, self.__version__, self.__path__ = ours.Ours, sparse.__version__, sparse.__path__

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name) if hasattr(np, name) else getattr(sparse, name)

    def full(self, shape: Any, fill_value: Any, **keywords: Any) -> Any:
        return self.kind(np.zeros(shape), fill_value=fill_value)

    def random(self, shape: Any, density: Any = None, format: Any = None, **keywords: Any) -> Any:
        shape = shape if isinstance(shape, tuple) else (shape,)
        if len(shape) != 2 and not (self.folds and len(shape) > 2):
            return ours.Absent("ours have two dimensions")
        if keywords.get("fill_value") not in (None, 0):
            return ours.Absent("ours have fill value 0")
        dense = np.zeros(shape[-2:])
        count = keywords.get("nnz") or round(dense.size * (0.01 if density is None else density))
        rng = np.random.default_rng(7)
        values = keywords["data_rvs"](count) if keywords.get("data_rvs") else 1 - rng.random(count)
        dense = dense.astype(np.asarray(values).dtype)
        dense.flat[rng.permutation(dense.size)[:count]] = values
        return self.kind(dense)

    def asarray(self, obj: Any, **keywords: Any) -> Any:
        return self.kind(obj)

    as_coo = asarray

    def eye(self, *args: Any, **keywords: Any) -> Any:
        return self.kind(np.eye(*args, **keywords))

    def zeros(self, shape: Any, format: Any = None, **keywords: Any) -> Any:
        return self.kind(np.zeros(shape, **keywords))

    def elemwise(self, function: Any, *args: Any, **keywords: Any) -> Any:
        return function(*args, **keywords)

    def asnumpy(self, array: Any, **keywords: Any) -> Any:
        return array.todense(**keywords)


def assert_equal(x: Any, y: Any, check_nnz: bool = True, compare_dtype: bool = True, **keywords: Any) -> None:
    """pydata's ``assert_eq`` for arrays of which one may be ours; zeros may be stored."""
    assert np.shape(x) == np.shape(y)
    if compare_dtype:
        assert x.dtype == y.dtype
    x, y = (value.todense() if hasattr(value, "todense") else value for value in (x, y))
    assert np.array_equal(x, y) if np.asarray(x).dtype.kind in "biu" else np.allclose(x, y, equal_nan=True, **keywords)


def pydata(module: ModuleType, kind: Any, execute: Any, folds: bool = False) -> None:
    with standing_for("sparse", Pydata(kind, folds)):
        execute()
    module.assert_eq = assert_equal
    module.rng = pytest.fixture(scope="module", name="rng")(lambda: np.random.default_rng(1))


# ----------------------------------------------------------------------------------------------------------------- Dask


def dask(module: ModuleType, kind: Any, execute: Any) -> None:
    with standing_for("sparse", Pydata(kind)):
        execute()
    if hasattr(module, "da"):
        module.da = Wrapped(module.da, {})
        module.da.random = Flat()


class Flat:
    """``da.random`` whose arrays have the last two dimensions alone."""

    def random(self, shape: Any, chunks: Any = "auto") -> Any:
        import dask.array as da

        return da.random.random(shape[-2:], chunks=chunks[-2:] if isinstance(chunks, tuple) else chunks)


def interface(module: ModuleType, kind: Any, execute: Any) -> None:
    execute()
    module.interface = Wrapped(module.interface, {"aslinearoperator": lambda f: taking_ours(f, kind)})


_LINALG = "scipy.sparse.linalg"
_EIGEN = f"{_LINALG}._eigen"
SUITES: dict[str, Any] = {
    "scipy.sparse.tests.test_base": base,
    f"{_LINALG}.tests.test_expm_multiply": exponentials,
    f"{_LINALG}.tests.test_pydata_sparse": pydata_in_scipy,
    f"{_LINALG}._isolve.tests.test_iterative": solvers,
    f"{_LINALG}._isolve.tests.test_gcrotmk": solvers,
    f"{_LINALG}._isolve.tests.test_lgmres": solvers,
    f"{_LINALG}._isolve.tests.test_minres": solvers,
    f"{_LINALG}._isolve.tests.test_lsqr": functions("lsqr"),
    f"{_LINALG}._isolve.tests.test_lsmr": functions("lsmr"),
    f"{_LINALG}.tests.test_interface": interface,
    f"{_LINALG}.tests.test_onenormest": functions("onenormest"),
    f"{_LINALG}.tests.test_funm_multiply_krylov": krylov,
    f"{_EIGEN}.arpack.tests.test_arpack": functions("eigs", "eigsh", "svds"),
    f"{_EIGEN}.lobpcg.tests.test_lobpcg": functions("lobpcg"),
    f"{_EIGEN}.tests.test_svds": functions("svds"),
    "sparse.numba_backend.tests.test_array_function": pydata,
    "sparse.numba_backend.tests.test_coo": pydata,
    "sparse.numba_backend.tests.test_dot": pydata,
    "sparse.numba_backend.tests.test_einsum": pydata,
    "sparse.numba_backend.tests.test_elemwise": functools.partial(pydata, folds=True),
    "dask.array.tests.test_sparse": dask,
}
