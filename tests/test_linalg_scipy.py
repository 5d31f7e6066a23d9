"""SciPy's own tests of its iterative solvers, with our functions in the place of SciPy's."""

from __future__ import annotations

import importlib.util
import inspect
import itertools

import numpy as np
import pytest

from cvrarray import linalg

NAMES = ("bicgstab", "cg", "gmres", "minres")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Marks:
    """In the place of ``pytest.mark``: SciPy's functions are called one by one, and keep their parameters for it."""

    def __getattr__(self, name):
        return lambda *values, **keywords: values[0] if len(values) == 1 and callable(values[0]) else lambda function: function

    def parametrize(self, names, values, **keywords):
        def marked(function):
            function.parameters = {names: list(values), **getattr(function, "parameters", {})}
            return function

        return marked


def run(function, **known):
    """One of SciPy's tests, with every value of its parameters but those that are `known`; NumPy is the array module."""
    known |= {"xp": np, "batch_A": (), "batch_b": ()}  # arguments of SciPy 1.18 and later
    wanted = inspect.signature(function).parameters
    parameters = {name: values for name, values in getattr(function, "parameters", {}).items() if name not in known}
    arguments = {name: value for name, value in known.items() if name in wanted}
    for values in itertools.product(*parameters.values()):
        function(**arguments, **dict(zip(parameters, values, strict=True)))


def load(name):
    """A module of SciPy's tests, of its own, with our functions; None where this SciPy has none."""
    try:
        spec = importlib.util.find_spec(f"scipy.sparse.linalg._isolve.tests.{name}")
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest, "mark", Marks())
        patch.setattr(pytest, "param", lambda *values, **keywords: values[0])
        spec.loader.exec_module(module)
    for function in (*NAMES, "lsmr"):
        if hasattr(module, function):
            setattr(module, function, getattr(linalg, function))
    return module


iterative, minres_tests, lsmr_tests = map(load, ("test_iterative", "test_minres", "test_lsmr"))
if iterative is None:
    pytest.skip("this SciPy comes without its tests", allow_module_level=True)
iterative._SOLVERS[:] = [getattr(linalg, name) for name in NAMES]
CASES = iterative.IterativeParams().generate_tests()
OURS = pytest.mark.parametrize("solver", iterative._SOLVERS, ids=lambda solver: solver.__name__)
WITH_ATOL = pytest.mark.parametrize("solver", [linalg.bicgstab, linalg.cg, linalg.gmres], ids=lambda solver: solver.__name__)


#: SciPy's tests skip the others of these: breakdowns, and one that rounding decides.
PAIRS = [
    (test, case)
    for case in CASES
    for test in ("test_maxiter", "test_convergence", "test_precond_dummy", "test_x0_equals_Mb")
    if case.convergence or test not in ("test_maxiter", "test_precond_dummy")
    if (test, case.name) != ("test_x0_equals_Mb", "nonsymposdef-bicgstab")
]


@pytest.mark.parametrize(("test", "case"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_case(test, case):
    run(getattr(iterative, test), case=case)


@pytest.mark.parametrize("name", ["poisson1d", "poisson2d"])
def test_precond_inverse(name):
    if "xp" in inspect.signature(iterative.test_precond_inverse).parameters:  # SciPy 1.18 and later: one solver a case
        found = [case for case in CASES if case.casename == name]
    else:
        found = [case for case in iterative.IterativeParams().cases if case.name == name]
    assert found
    for case in found:
        run(iterative.test_precond_inverse, case=case)


@OURS
@pytest.mark.parametrize(
    "test", ["test_zero_rhs", "test_x0_working", "test_x0_solves_problem_exactly", "test_positional_error"]
)
def test_solver(test, solver):
    run(getattr(iterative, test), solver=solver)


@WITH_ATOL
def test_atol(solver):
    run(iterative.test_atol, solver=solver)


@WITH_ATOL
@pytest.mark.parametrize("atol", ["legacy", None, -1])
def test_invalid_atol(solver, atol):
    run(iterative.test_invalid_atol, solver=solver, atol=atol)


#: A number that should be 0 is compared without a tolerance in the last test: rounding decides.
OF_GMRES = {name for name in dir(iterative.TestGMRES) if name.startswith("test_")} - {"test_defective_precond_breakdown"}


@pytest.mark.parametrize("test", sorted(OF_GMRES))
def test_gmres(test):
    run(getattr(iterative.TestGMRES(), test))


@pytest.mark.parametrize("test", [name for name in dir(minres_tests) if name.startswith("test_")])
def test_minres(test):
    run(getattr(minres_tests, test))


LSMR = [
    (cls, name)
    for cls in (lsmr_tests.TestLSMR, lsmr_tests.TestLSMRReturns)
    for name, value in inspect.getmembers(cls, inspect.isfunction)
    if name.startswith("test")
]


@pytest.mark.parametrize(("cls", "test"), LSMR, ids=lambda value: getattr(value, "__name__", value))
def test_lsmr(cls, test):
    tests = cls()
    tests.setup_method()
    run(getattr(tests, test))


def test_results_are_those_of_scipy():
    """Of lsmr: all eight numbers, step by step."""
    import scipy.sparse.linalg

    rng = np.random.default_rng(5)
    A, b = rng.standard_normal((20, 7)), rng.standard_normal(20)
    for damp, maxiter in ((0.0, 1), (0.0, 4), (0.5, 3), (0.5, None)):
        ours = linalg.lsmr(A, b, damp=damp, maxiter=maxiter)
        theirs = scipy.sparse.linalg.lsmr(A, b, damp=damp, maxiter=maxiter)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-12)
