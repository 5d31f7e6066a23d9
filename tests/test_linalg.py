"""Iterative solvers on both devices: against dense solves in double precision, and every end of a solve provoked."""

from __future__ import annotations

import copy
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from checks import DEFAULTS, PRECISIONS, assert_same_bits, get, in_pairs, in_threads, in_turn, put
from zoo import ZOO

import cvrarray
from cvrarray import linalg
from cvrarray.array import structure
from cvrarray.core import devices
from cvrarray.linalg.solution import INFO

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
METHODS = ("cg", "minres", "bicgstab", "gmres")
EPS = {"float32": 6e-8, "complex64": 6e-8, "float64": 1.1e-16, "complex128": 1.1e-16}


def poisson(side=12):
    """The 5-point Laplacian on a square."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    eye = scipy.sparse.eye_array(side)
    return scipy.sparse.csr_array(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))


def definite(csr, dtype="float64"):
    """A Hermitian positive definite matrix with the pattern of a square one and of its transpose."""
    csr = csr.astype(np.float64)
    if np.dtype(dtype).kind == "c":
        csr = csr * (1 + 0.5j)
    both = scipy.sparse.csr_array(csr + csr.conj().T)
    weight = np.asarray(abs(both).sum(axis=1)).ravel() + 1
    return scipy.sparse.csr_array(both + scipy.sparse.diags_array(weight)).astype(dtype)


def right_side(n, dtype, columns=None, seed=0):
    rng = np.random.default_rng(seed)
    shape = n if columns is None else (n, columns)
    b = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        b = b + 1j * rng.standard_normal(shape)
    return b.astype(dtype)


def solve(method, A, b, **keywords):
    """x and info of a method, on the host."""
    if method == "lsmr":
        found = linalg.lsmr(A, b, atol=1e-13, btol=1e-13, maxiter=2000, **keywords)
        return get(found.x), 0
    x, info = getattr(linalg, method)(A, b, **keywords)
    return get(x), info


def relative(csr, x, b):
    """Norms of true residuals over those of b, in double precision."""
    wide = csr.astype(np.complex128 if csr.dtype.kind == "c" else np.float64)
    size = np.linalg.norm(b, axis=0)
    return np.linalg.norm(b - wide @ x, axis=0) / np.where(size > 0, size, 1)


# ------------------------------------------------------------------------------------------------------ right solutions

SQUARE = [name for name, make in ZOO.items() if 0 < make().shape[0] == make().shape[1] <= 1000]


@in_turn("name, method, build", SQUARE, METHODS, DEFAULTS)
def test_the_zoo_made_definite(build, name, method):
    check_zoo(build, name, method, "cpu")


@BUILD
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SQUARE[:: max(1, len(SQUARE) // 5)])
def test_some_of_the_zoo_on_a_gpu(build, name, method, gpu):
    """Each matrix may need kernels of its own, which take seconds to compile."""
    check_zoo(build, name, method, gpu)


def check_zoo(build, name, method, device):
    csr = definite(ZOO[name]())
    b = right_side(csr.shape[0], "float64")
    x, info = solve(method, build(csr, device), put(b, device), rtol=1e-11)
    assert info == 0
    assert relative(csr, x, b) <= 1.01e-11
    expected = np.linalg.solve(csr.toarray(), b)
    np.testing.assert_allclose(x, expected, atol=1e-9 * abs(expected).max())


@in_pairs(
    "method, M, columns, dtype",
    METHODS,
    [None, "jacobi", "block_jacobi", "chebyshev", "array"],
    [None, 1, 3],
    ["float64", "complex64", "float32", "complex128"],
)
def test_dtypes_preconditioners_columns(method, dtype, M, columns, device):
    csr = definite(poisson(10), dtype)
    A = cvrarray.BBCSRArray(csr, block_size=2, device=device)
    rtol = 1e-4 if dtype in ("float32", "complex64") else 1e-10
    b = right_side(csr.shape[0], dtype, columns)
    preconditioner = preconditioners(A, csr, device)[M]()
    x, info = solve(method, A, put(b, device), rtol=rtol, M=preconditioner)
    assert info == 0
    assert x.dtype == dtype
    assert x.shape == b.shape
    assert (relative(csr, x, b) <= 1.01 * rtol).all()


def preconditioners(A, csr, device):
    return {
        None: lambda: None,
        "jacobi": lambda: linalg.jacobi(A),
        "block_jacobi": lambda: linalg.block_jacobi(A),
        "chebyshev": lambda: linalg.chebyshev(A, 3),
        "array": lambda: cvrarray.CVRArray(scipy.sparse.diags_array(1 / csr.diagonal()).tocsr(), device=device),
    }


@pytest.mark.parametrize("dtype", ["int8", "float16"])
@pytest.mark.parametrize("method", [*METHODS, "lsmr"])
def test_integers_and_half_precision_count_as_double(method, dtype, device):
    csr = scipy.sparse.eye_array(30, format="csr") * 2 if dtype != "bool" else scipy.sparse.eye_array(30, format="csr")
    A = cvrarray.CVRArray(csr, device=device).astype(dtype)
    b = np.arange(30) % 2
    x, info = solve(method, A, put(b.astype(dtype), device))
    assert info == 0
    assert x.dtype == np.float64
    np.testing.assert_allclose(csr @ x, b, atol=1e-6)


@BUILD
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_nonsymmetric(build, dtype, device):
    rng = np.random.default_rng(3)
    csr = scipy.sparse.random_array((200, 200), density=0.03, rng=rng, format="csr") + 4 * scipy.sparse.eye_array(200)
    csr = scipy.sparse.csr_array(csr).astype(dtype) * (1 + (1j if dtype == "complex128" else 0))
    b = right_side(200, dtype, 3)
    expected = np.linalg.solve(csr.toarray(), b)
    A = build(csr, device)
    for method in ("bicgstab", "gmres"):
        x, info = solve(method, A, put(b, device), rtol=1e-11)
        assert info == 0
        np.testing.assert_allclose(x, expected, atol=1e-9)


@BUILD
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(120, 40), (40, 120), (50, 50)])
@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_lsmr(build, dtype, shape, damp, device):
    rng = np.random.default_rng(4)
    csr = scipy.sparse.random_array(shape, density=0.2, rng=rng, format="csr").astype(dtype)
    if dtype == "complex128":
        csr.data *= np.exp(1j * np.arange(csr.nnz))
    b = right_side(shape[0], dtype, 2)
    found = linalg.lsmr(build(csr, device), put(b, device), damp=damp, atol=1e-14, btol=1e-14, conlim=0, maxiter=3000)
    stacked = np.vstack([csr.toarray(), damp * np.eye(shape[1])])
    expected = np.linalg.lstsq(stacked, np.vstack([b, np.zeros((shape[1], 2))]), rcond=1e-13)[0]
    np.testing.assert_allclose(get(found.x), expected, atol=1e-7)
    single = linalg.lsmr(
        build(csr, device), put(b[:, 1].copy(), device), damp=damp, atol=1e-14, btol=1e-14, conlim=0, maxiter=3000
    )
    np.testing.assert_allclose(get(single.x), expected[:, 1], atol=1e-7)
    assert 0 < single.istop < 7


@pytest.mark.parametrize("method", METHODS)
def test_columns_stop_by_their_own_tolerance(method, device):
    """Column 1 is solved at once, column 2 is 0, the others take their time."""
    csr = poisson()
    A = cvrarray.CVRArray(csr, device=device)
    b = right_side(csr.shape[0], "float64", 4)
    b[:, 2] = 0
    x0 = np.zeros_like(b)
    x0[:, 1] = scipy.sparse.linalg.spsolve(csr.tocsc(), b[:, 1])
    x, info = solve(method, A, put(b, device), x0=put(x0, device), rtol=1e-9)
    assert info == 0
    assert (relative(csr, x, b) <= 1.01e-9).all()
    assert_same_bits(x[:, 1], x0[:, 1])
    assert not x[:, 2].any()
    one, info = solve(method, A, put(b[:, 3].copy(), device), rtol=1e-9)
    assert info == 0
    np.testing.assert_allclose(one, x[:, 3], atol=1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_x0_is_the_start_and_stays(method, device):
    csr = poisson()
    b = right_side(csr.shape[0], "float64")
    x0 = scipy.sparse.linalg.spsolve(csr.tocsc(), b)
    kept = x0.copy()
    x, info = solve(method, cvrarray.CVRArray(csr, device=device), put(b, device), x0=put(x0, device), maxiter=1)
    assert info == 0
    assert_same_bits(x, kept)
    assert_same_bits(x0, kept)


@pytest.mark.parametrize("method", [*METHODS, "lsmr"])
def test_empty(method, device):
    A = cvrarray.CVRArray(np.zeros((0, 0)), device=device)
    x, info = solve(method, A, put(np.zeros(0), device))
    assert (x.shape, info) == ((0,), 0)
    x, info = solve(method, cvrarray.CVRArray(np.eye(3), device=device), put(np.zeros((3, 0)), device))
    assert (x.shape, info) == ((3, 0), 0)


@pytest.mark.parametrize("method", METHODS)
def test_same_bits_again_and_again(method, device):
    csr = poisson(30)
    A = cvrarray.CVRArray(csr, device=device)
    b = put(right_side(csr.shape[0], "float64"), device)
    first = solve(method, A, b, M=linalg.jacobi(A), rtol=1e-7)[0]
    for _ in range(5):
        assert_same_bits(solve(method, A, b, M=linalg.jacobi(A), rtol=1e-7)[0], first)


@pytest.mark.parametrize("options", [{"rtol": 1e-9}, {"iterations": 30}], ids=str)
@pytest.mark.parametrize("M", ["jacobi", "chebyshev"])
@BUILD
def test_threads_share_a_solver(build, options, M, device):
    """And its preconditioner; on a GPU also a stream, on which work of both is mixed."""
    csr = definite(poisson(40))
    A = build(csr, device)
    solver = linalg.CG(A, M=getattr(linalg, M)(A), **options)
    sides = [put(right_side(csr.shape[0], "float64") * k, device) for k in (1, 3, 7)]
    expected, found = [get(solver.solve(b).x) for b in sides], [[], [], []]
    solver.solve(put(right_side(csr.shape[0], "float64", 3), device))

    def work(k):
        for _ in range(10):
            found[k].append(get(solver.solve(sides[k]).x))

    in_threads(work, range(3))
    for k in range(3):
        assert len(found[k]) == 10
        for x in found[k]:
            assert_same_bits(x, expected[k])


@pytest.mark.parametrize("method", ["cg", "minres", "gmres"])
def test_same_bits_with_any_number_of_threads(method, monkeypatch):
    """With numbers enough for helpers, whether these are faster or not."""
    csr = poisson(300)
    A, b, found = cvrarray.asarray(csr, device="cpu"), right_side(csr.shape[0], "float64"), []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("CVRARRAY_NUM_THREADS", threads)
        found.append(solve(method, A, b, M="jacobi", maxiter={"cg": 60, "minres": 15, "gmres": 1}[method])[0])
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], found[2])


def test_columns_one_by_one_are_those_side_by_side(monkeypatch):
    csr = definite(poisson(20))
    A, b = cvrarray.asarray(csr, device="cpu"), right_side(csr.shape[0], "float64", 3)
    b[:, 1] = 0
    b[:, 2] *= 1e-200
    alone = linalg.CG(A).solve(b)
    monkeypatch.setattr(sys.modules["cvrarray.linalg.cg"], "_is_thin", lambda _: False)
    together = linalg.CG(A).solve(b)
    np.testing.assert_allclose(alone.x / [1, 1, 1e-200], together.x / [1, 1, 1e-200], rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(alone.iterations, together.iterations)
    assert (relative(csr, alone.x[:, :2], b[:, :2]) <= 1e-4).all()


def test_lsmr_makes_no_product_after_one_that_did_not_converge():
    counts = {"A": 0, "A.H": 0}

    def counted(name, matrix):
        def times(x):
            counts[name] += 1
            return matrix @ x

        return times

    csr = poisson()
    calls = {"matvec": counted("A", csr), "rmatvec": counted("A.H", csr.T)}
    A = scipy.sparse.linalg.LinearOperator(csr.shape, **calls, dtype=csr.dtype)
    counts.update(dict.fromkeys(counts, 0))  # SciPy may look at dtypes
    assert linalg.lsmr(A, right_side(csr.shape[0], "float64"), maxiter=3).istop == 7
    assert counts == {"A": 3, "A.H": 4}


@pytest.mark.parametrize("damp", [0.0, 0.3])
def test_lsmr_checks_what_it_says_on_x_itself(damp, device):
    """A matrix that is another one as soon as its 8 columns had their 8 iterations: estimates cannot see that."""
    dense = np.random.default_rng(0).standard_normal((30, 8))
    A, b, calls = put(dense, device), put(np.random.default_rng(1).standard_normal(30), device), []

    def times(matrix, x):
        calls.append(1)
        return matrix @ x * (1.0 if len(calls) > 17 else 0.7)

    given = SimpleNamespace(shape=A.shape, dtype=A.dtype)
    given.matvec, given.rmatvec = (lambda x: times(A, x)), (lambda u: times(A.T, u))
    assert linalg.lsmr(given, b, damp=damp, atol=1e-10, btol=1e-10).istop == 7
    assert len(calls) == 19 or device != "cpu"


def test_lsmr_says_that_numbers_are_not_finite():
    A = cvrarray.CVRArray(np.eye(3, 2), device="cpu")
    assert linalg.lsmr(A, np.array([1, np.nan, 0])).istop == 7
    assert linalg.lsmr(A, np.array([[1, np.nan], [1, 0], [1, 0]])).istop.tolist() == [2, 7]


# ------------------------------------------------------------------------------------------------------------ operators


class Own:
    """The smallest operator there is."""

    def __init__(self, csr, device):
        self.A = cvrarray.CVRArray(csr, device=device)
        self.shape, self.dtype = csr.shape, csr.dtype

    def matvec(self, x, out=None):
        return self.A.matvec(x, out=out)


@pytest.mark.parametrize("kind", ["own", "without out", "LinearOperator", "sparse", "dense"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("columns", [None, 2])
def test_operators(kind, method, columns, device):
    csr = poisson()
    b = right_side(csr.shape[0], "float64", columns)
    A = operator(kind, csr, device)
    x, info = solve(method, A, put(b, device), rtol=1e-9)
    assert info == 0
    assert (relative(csr, x, b) <= 1.01e-9).all()
    x, info = solve(method, Own(csr, device), put(b, device), rtol=1e-9, M=operator(kind, scaled(csr), device))
    assert info == 0


def scaled(csr):
    return scipy.sparse.diags_array(1 / csr.diagonal()).tocsr()


def operator(kind, csr, device):
    A = cvrarray.CVRArray(csr, device=device)
    if kind == "own":
        return Own(csr, device)
    if kind == "without out":
        found = Own(csr, device)
        found.matvec = lambda x: A @ x
        return found
    if kind == "LinearOperator":
        return A.aslinearoperator()
    return A.tocsr() if kind == "sparse" else put(csr.toarray(), device)


def test_lsmr_takes_operators(device):
    csr = poisson()
    b = right_side(csr.shape[0], "float64")
    for kind in ("LinearOperator", "sparse", "dense"):
        x = linalg.lsmr(operator(kind, csr, device), put(b, device), atol=1e-12, btol=1e-12, maxiter=5000).x
        assert relative(csr, get(x), b) <= 1e-8
    with pytest.raises(TypeError, match="must have rmatvec"):
        linalg.lsmr(Own(csr, device), put(b, device))


# ----------------------------------------------------------------------------------------------------------------- ends


def ends(A, b, device, **keywords):
    found = linalg.CG(A, **keywords).solve(put(b, device))
    assert found.info == (INFO[found.reason] if INFO[found.reason] is not None else max(1, found.iterations))
    return found


@BUILD
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_left_to_solve(build, dtype, device):
    """Iterations go on, or end, where the updated residual is 0 or too small for its square: x stays what it is."""
    cases = [(scipy.sparse.eye_array(40, format="csr"), 1.0), (poisson(), 1.0), (poisson(), 1e-30)]
    for csr, size in cases:
        A = build(csr.astype(dtype), device=device)
        b = np.array(size, dtype) * right_side(csr.shape[0], dtype)
        counted = ends(A, b, device, iterations=400)
        x = get(counted.x)
        assert np.isfinite(x).all()
        assert relative(csr, x, b) <= 400 * EPS[dtype]
        for M in (None, "jacobi"):
            assert ends(A, b, device, rtol=0, maxiter=10**9, M=M).reason in ("converged", "stagnation")


def test_kernels_count_ends_as_the_host_does():
    text = (Path(__file__).parent.parent / "kernels" / "cg.cuh").read_text()
    names = re.search(r"enum Reason {(.*?)}", text)[1].replace(" ", "").split(",")
    from cvrarray.linalg import ends as numbers

    assert [getattr(numbers, name) for name in names] == list(range(len(names)))
    assert [numbers.ENDS[getattr(numbers, name)] for name in ("CONVERGED", "M_SINGULAR", "COUNTED", "BREAKDOWN")] == [
        "converged", "M singular", "iterations", "breakdown"
    ]  # fmt: skip


def test_every_end_of_cg(device):
    csr = poisson()
    n = csr.shape[0]
    A = cvrarray.CVRArray(csr, device=device)
    b = right_side(n, "float64")
    minus, zero = -scipy.sparse.eye_array(n, format="csr"), scipy.sparse.csr_array((n, n))
    for reason, matrix, how in (
        ("converged", csr, {}),
        ("maxiter", csr, {"maxiter": 3}),
        ("maxiter", csr, {"maxiter": 0}),
        ("iterations", csr, {"iterations": 3}),
        ("stagnation", csr, {"rtol": 1e-30, "maxiter": 10**9}),
        ("stagnation", csr, {"rtol": 0, "maxiter": 10**9}),
        ("not positive definite", -csr, {}),
        ("not positive definite", csr - 4 * scipy.sparse.eye_array(n), {}),
        ("M not positive definite", csr, {"M": cvrarray.CVRArray(minus, device=device)}),
        ("M singular", csr, {"M": cvrarray.CVRArray(zero, device=device)}),
    ):
        assert ends(cvrarray.CVRArray(matrix, device=device), b, device, **how).reason == reason, how
    for bad in (np.nan, np.inf):
        broken = csr.copy()
        broken.data[7] = bad
        assert ends(cvrarray.CVRArray(broken, device=device), b, device).reason == "A not finite"
        values = np.ones(n)
        values[5] = bad
        M = cvrarray.CVRArray(scipy.sparse.diags_array(values).tocsr(), device=device)
        assert ends(A, b, device, M=M).reason == "M not finite"
        wrong = b.copy()
        wrong[3] = bad
        assert ends(A, wrong, device).reason == "b not finite"
        found = linalg.CG(A).solve(put(b, device), x0=put(wrong, device))
        assert (found.reason, found.info, found.converged) == ("x0 not finite", -7, False)
        assert_same_bits(found.x, wrong)


def test_singular_systems_end(device):
    """A graph's Laplacian: a right side that has no solution, and one that has."""
    csr = scipy.sparse.csr_array(scipy.sparse.csgraph.laplacian((poisson() != 0).astype(float)))
    A = cvrarray.CVRArray(csr, device=device)
    b = right_side(csr.shape[0], "float64")
    for method in METHODS:
        assert solve(method, A, put(b, device), rtol=1e-10, maxiter=2000)[1] != 0
        fair = b - b.mean()
        x, info = solve(method, A, put(fair, device), rtol=1e-9)
        assert info == 0, method
        assert relative(csr, x, fair) <= 1.01e-9


@pytest.mark.parametrize("method", METHODS)
def test_bad_numbers_end_every_method(method, device):
    csr = poisson()
    A = cvrarray.CVRArray(csr, device=device)
    b = right_side(csr.shape[0], "float64", 3)
    b[5, 1] = np.nan
    x, info = solve(method, A, put(b, device), rtol=1e-9)
    assert info == -6
    assert (relative(csr, x[:, ::2], b[:, ::2]) <= 1.01e-9).all()
    assert not x[:, 1].any()
    broken = csr.copy()
    broken.data[7] = np.nan
    assert solve(method, cvrarray.CVRArray(broken, device=device), put(b[:, 0].copy(), device))[1] == -4
    M = cvrarray.CVRArray(scipy.sparse.diags_array(np.where(np.arange(csr.shape[0]) == 3, np.nan, 1.0)).tocsr(), device=device)
    assert solve(method, A, put(b[:, 0].copy(), device), M=M)[1] == -5


def test_bicgstab_breaks_down(device):
    A = cvrarray.CVRArray(np.array([[0.0, 1], [-1, 0]]), device=device)  # r @ A r = 0
    x, info = solve("bicgstab", A, put(np.array([1.0, 0]), device))
    assert info == -10
    assert np.isfinite(x).all()
    assert solve("gmres", A, put(np.array([1.0, 0]), device))[1] == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.parametrize("method", METHODS)
def test_singular_matrices_end_with_a_finite_iterate(method, columns, dtype, device):
    """Factors of a step may have any size then: x of BiCGSTAB overflowed in 4 to 20 of these, and the end said maxiter."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(3, 16))
        dense = rng.integers(-2, 3, (n, n)).astype(dtype)
        dense[:, rng.integers(n)] = 0
        b = rng.integers(-3, 4, n if columns is None else (n, columns)).astype(dtype)
        x, info = solve(method, cvrarray.CVRArray(dense, device=device), put(b, device), rtol=1e-12, maxiter=2000)
        assert np.isfinite(x).all()
        residual, size = (np.linalg.norm(vector, axis=0) for vector in (b - dense.astype("float64") @ x, b))
        assert info or (residual <= 1e-11 * size).all()
        if method == "bicgstab":
            assert (residual <= size * (1 + 10 * EPS[dtype])).all()


@pytest.mark.parametrize("method", [*METHODS, "lsmr"])
@pytest.mark.parametrize("start", [None, 2.0])
def test_an_iterate_that_overflows_is_not_handed_out(method, start, device):
    n = 16
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)).toarray()
    A = cvrarray.CVRArray((1e-41 * line).astype("float32"), device=device)
    x0 = None if start is None else put(np.full(n, start, "float32"), device)
    x, *_, stop = getattr(linalg, method)(A, put(np.ones(n, "float32"), device), x0=x0)[:2]
    assert stop or method == "lsmr"  # for which A.T @ b may be as good as 0
    assert (get(x) == (start or 0)).all()


def test_gmres_stagnates(device):
    """A cyclic shift: no restart before the last iteration makes any progress."""
    csr = scipy.sparse.csr_array(np.roll(np.eye(20), 1, axis=0))
    b = np.eye(20)[0]
    A = cvrarray.CVRArray(csr, device=device)
    _, info = solve("gmres", A, put(b, device), restart=5, maxiter=10**6)
    assert 0 < info < 10
    assert solve("gmres", A, put(b, device), restart=20)[1] == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_extreme_sizes(method, size, device):
    csr = poisson()
    b = size * right_side(csr.shape[0], "float64")
    x, info = solve(method, cvrarray.CVRArray(csr, device=device), put(b, device), rtol=1e-9)
    assert info == 0
    assert relative(csr, x / size, b / size) <= 1.01e-9


def test_success_is_of_the_true_residual(device):
    """Single precision: the updated residual meets the tolerance long before the true one."""
    csr = poisson(40)
    b = right_side(csr.shape[0], "float32")
    found = linalg.CG(cvrarray.CVRArray(csr.astype("float32"), device=device), rtol=1e-7).solve(put(b, device))
    true = relative(csr, get(found.x), b)
    assert found.converged == bool(true <= 1.05e-7)
    assert abs(found.residual - true) <= 0.2 * true  # some 5% of it are roundings of A @ x, the updated one is a tenth
    assert found.reason in ("stagnation", "converged")


# --------------------------------------------------------------------------------------------------------- the class CG


def test_solver_is_used_again(device):
    csr = poisson()
    A = cvrarray.CVRArray(csr, device=device)
    solver = linalg.CG(A, M="jacobi", rtol=1e-9)
    b = right_side(csr.shape[0], "float64", 3)
    for columns in (b[:, 0].copy(), b, b[:, 1].copy(), b[:, :2].copy()):
        found = solver.solve(put(columns, device))
        assert (relative(csr, get(found.x), columns) <= 1.01e-9).all()
    out = put(np.empty(csr.shape[0]), device)
    assert solver.solve(put(b[:, 0].copy(), device), out=out).x is out


@pytest.mark.parametrize(("M", "dtype"), [("jacobi", "complex128"), ("block_jacobi", "float32")])
def test_new_values_reach_every_copy(M, dtype, device):
    """The engines hold the preconditioner's numbers in precisions and layouts of their own."""
    csr = definite(poisson(), dtype)
    A, other = cvrarray.BBCSRArray(csr, block_size=3, device=device), csr.copy()
    other.data *= 1e-3
    other.setdiag(0.02 + 1e-4 * np.arange(csr.shape[0]))
    rtol = 1e-4 if dtype == "float32" else 1e-10
    b = right_side(csr.shape[0], dtype)
    for precision in PRECISIONS[device]:
        how = {"M": M, "rtol": rtol, "precision": precision}
        solver = linalg.CG(A, **how)
        before = solver.solve(put(b, device)).x
        changed = A.with_values(put(other.data, device))
        solver.update(changed)
        found, anew = (one.solve(put(b, device), x0=before) for one in (solver, linalg.CG(changed, **how)))
        assert found.converged
        assert relative(other, get(found.x), b) <= 1.1 * rtol
        assert_same_bits(get(found.x), get(anew.x))


def test_a_complex_diagonal():
    csr = scipy.sparse.csr_array(definite(poisson(), "complex128") + 1j * scipy.sparse.eye_array(144))
    b = right_side(144, "complex128")
    A = cvrarray.CVRArray(csr)
    x, info = linalg.gmres(A, b, rtol=1e-9, M="jacobi")
    assert info == 0
    assert relative(csr, x, b) <= 1.01e-9


@pytest.mark.parametrize("columns", [None, 2])
def test_multigrid_by_hand(columns, device):
    """Levels as pyamg has them, made here."""
    fine = csr = poisson(27)
    levels = []
    for _ in range(2):
        n = csr.shape[0]
        P = scipy.sparse.csr_array((np.ones(n), (np.arange(n), np.arange(n) // 3)), shape=(n, -(-n // 3)))
        P = scipy.sparse.csr_array(P - 0.66 * scipy.sparse.diags_array(1 / csr.diagonal()) @ (csr @ P))
        levels.append(SimpleNamespace(A=csr, P=P, R=scipy.sparse.csr_array(P.T)))
        csr = scipy.sparse.csr_array(P.T @ (csr @ P))
    M = linalg.multigrid([*levels, SimpleNamespace(A=csr)], device=device)
    A = cvrarray.BBCSRArray(fine, block_size=1, device=device)
    b = right_side(fine.shape[0], "float64", columns)
    solver = linalg.CG(A, M=M, rtol=1e-9)
    found, again = solver.solve(put(b, device)), solver.solve(put(b, device))
    assert (relative(fine, get(found.x), b) <= 1.01e-9).all()
    assert_same_bits(get(found.x), get(again.x))
    assert np.max(found.iterations) < np.min(linalg.CG(A, rtol=1e-9).solve(put(b, device)).iterations)


def test_preconditioners_take_new_values(device):
    csr = poisson()
    A = cvrarray.BBCSRArray(csr, block_size=2, device=device)
    twice = A.with_values(2 * A.tocsr().data)
    r = put(right_side(csr.shape[0], "float64"), device)
    for make in (linalg.jacobi, linalg.block_jacobi, linalg.chebyshev):
        M = make(A)
        before = get(M.matvec(r))
        M.update(twice)
        np.testing.assert_allclose(get(M.matvec(r)), before / 2, rtol=1e-12)


def test_sparse_matrices_of_other_packages(device):
    """Converted once; they take new values as arrays of ours do."""
    csr = poisson()
    S = cvrarray.CVRArray(csr, device=device).tocsr()
    b = put(right_side(csr.shape[0], "float64"), device)
    solver = linalg.CG(S, M="jacobi", rtol=1e-9)
    before = get(solver.solve(b).x)
    with pytest.raises(TypeError, match="A must be an array of ours"):
        solver.update(2 * S)
    solver.update(cvrarray.asarray(2 * S, device=device))
    np.testing.assert_allclose(get(solver.solve(b).x), before / 2, atol=1e-8)


def test_a_solve_in_a_graph(gpu):
    """Captured as by PyTorch, in the global mode, while CuPy has no memory at hand."""
    import cupy

    csr = poisson()
    A = cvrarray.BBCSRArray(csr, block_size=2, device=gpu)
    solver = linalg.CG(A, M="jacobi", iterations=12)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        b, out = cupy.ones(csr.shape[0]), cupy.empty(csr.shape[0])
        solver.solve(b, out=out)
        stream.synchronize()
        cupy.get_default_memory_pool().free_all_blocks()
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        try:
            found = solver.solve(b, out=out)
            with pytest.raises(RuntimeError, match="pass out="):
                solver.solve(b)
        finally:
            graph = stream.end_capture()
        assert found.residual is None
        b[...] = cupy.asarray(right_side(csr.shape[0], "float64"))
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
        replayed = get(out).copy()
        assert_same_bits(replayed, get(solver.solve(b).x))


def test_iterations_and_history(device):
    csr = poisson()
    A = cvrarray.CVRArray(csr, device=device)
    b = right_side(csr.shape[0], "float64")
    found = linalg.CG(A, iterations=7, history=True, M="jacobi").solve(put(b, device))
    assert (found.iterations, found.reason, found.converged) == (7, "iterations", False)
    history = get(found.history)
    assert history.shape == (8,)
    assert history[0] == pytest.approx(1)
    assert history[-1] == pytest.approx(float(relative(csr, get(found.x), b)), rel=1e-6)
    assert float(found.residual) == pytest.approx(history[-1])
    columns = linalg.CG(A, history=True, rtol=1e-8).solve(put(np.stack([b, 2 * b], axis=1), device))
    assert get(columns.history).shape == (columns.iterations.max() + 1, 2)


@pytest.mark.parametrize("scale", [1.0, 1e-30])
@pytest.mark.parametrize("columns", [None, 2])
def test_iterations_that_change_nothing_are_left_out_on_a_cpu(scale, columns):
    """Else they would go on with denormal numbers, which take several times as long."""
    csr = poisson().astype("float32")
    b = (scale * right_side(csr.shape[0], "float64")).astype("float32")
    if columns:
        b = np.stack([b, 0 * b], axis=1)
    A = cvrarray.BBCSRArray(csr, block_size=1, device="cpu")
    solutions = [linalg.CG(A, M="jacobi", iterations=count, history=True).solve(b) for count in (1500, 3000)]
    assert_same_bits(*(found.x for found in solutions))
    long = solutions[1]
    last = long.history[-1] if columns is None else long.history[-1, 0]
    assert long.history.shape[0] == 3001
    assert np.all(long.iterations == 3000)
    if scale == 1.0:
        assert last > 1e-37  # and no number of the residual is denormal but by chance
    first = (slice(None), 0) if columns else slice(None)
    residual = b[first].astype("float64") - csr.astype("float64") @ long.x[first].astype("float64")
    assert np.linalg.norm(residual) <= 1e-5 * np.linalg.norm(b[first].astype("float64"))


@pytest.mark.parametrize("size", [1.0, 1e200])
@pytest.mark.parametrize("method", METHODS)
def test_a_callback_gets_x_and_errors_are_not_raised(method, size, device):
    csr = poisson()
    b, seen = size * right_side(csr.shape[0], "float64"), []
    keywords = {"callback_type": "x"} if method == "gmres" else {}
    keywords["callback"] = lambda x: seen.append(get(x).copy())
    with np.errstate(all="raise"):
        x, info = solve(method, cvrarray.CVRArray(csr, device=device), put(b, device), **keywords)
    assert info == 0
    assert len(seen) > 1
    assert_same_bits(seen[-1], x)
    norms = [float(relative(csr, one / size, b / size)) for one in seen]
    assert norms[-1] < 1e-5 < norms[0]


@pytest.fixture
def always_mixed(monkeypatch, gpu):
    """Single precision also for systems so small that it is not faster on a GPU."""
    from cvrarray.linalg.gpu import refined

    monkeypatch.setattr(refined, "SMALL", 0)


@pytest.mark.usefixtures("always_mixed")
@in_turn("M, columns, dtype", [None, "jacobi", "block_jacobi"], [None, 2], ["float64", "complex128"])
def test_mixed_precision(columns, M, dtype, gpu):
    csr = definite(poisson(20), dtype)
    A = cvrarray.BBCSRArray(csr, block_size=2, device=gpu)
    b = right_side(csr.shape[0], dtype, columns)
    x, info = linalg.cg(A, put(b, gpu), M=M, rtol=1e-12, precision="mixed")
    assert info == 0
    assert x.dtype == dtype
    assert (relative(csr, get(x), b) <= 1.05e-12).all()


def test_mixed_precision_on_a_cpu_is_double():
    A, b = cvrarray.CVRArray(cvrarray.generate.poisson7(6), device="cpu"), np.arange(216.0)
    assert_same_bits(linalg.cg(A, b, rtol=1e-12, precision="mixed")[0], linalg.cg(A, b, rtol=1e-12)[0])


def test_mixed_precision_where_it_pays(gpu):
    """Not where shared memory holds the system: the iterations are those of double precision then."""
    from cvrarray.linalg.gpu.refined import Engine

    for side, is_mixed in ((20, False), (500, True)):
        csr = definite(poisson(side))
        solver = linalg.CG(cvrarray.BBCSRArray(csr, block_size=1, device=gpu), M="jacobi", rtol=1e-6, precision="mixed")
        found = solver.solve(put(right_side(csr.shape[0], "float64"), gpu))
        assert found.converged
        assert [isinstance(lane.engine, Engine) for lane in solver._lanes.others(())] == [is_mixed]


@pytest.mark.usefixtures("always_mixed")
def test_mixed_precision_takes_about_as_many_iterations(gpu):
    """Residuals are replaced, and directions kept."""
    csr = poisson(60)
    A, b = cvrarray.asarray(csr, device=gpu), put(right_side(csr.shape[0], "float64"), gpu)
    double, mixed = (linalg.CG(A, M="jacobi", rtol=1e-10, precision=name).solve(b) for name in (None, "mixed"))
    assert double.converged
    assert mixed.converged
    assert mixed.iterations <= 1.25 * double.iterations


@pytest.mark.usefixtures("always_mixed")
def test_mixed_precision_falls_back(gpu):
    """What single precision cannot do is done in double precision."""
    csr = scipy.sparse.diags_array(np.logspace(0, 7, 60)).tocsr() + 0
    A = cvrarray.CVRArray(csr, device=gpu)
    b = right_side(60, "float64")
    found = linalg.CG(A, rtol=1e-9, precision="mixed", maxiter=10000).solve(put(b, gpu))
    assert found.converged, found.reason
    solver = linalg.CG(A, M="jacobi", rtol=1e-9, precision="mixed")
    solver.solve(put(b, gpu))
    solver.update(A.with_values(3 * A.tocsr().data))
    found = solver.solve(put(b, gpu))
    assert relative(3 * csr, get(found.x), b) <= 1.01e-9


@pytest.mark.usefixtures("always_mixed")
def test_mixed_precision_keeps_history_and_calls_back(gpu):
    """Norms fall to what is met in the end; x as it is passed on is the solution so far, in double precision."""
    csr = definite(poisson(20), "float64")
    A, b, seen = cvrarray.CVRArray(csr, device=gpu), right_side(csr.shape[0], "float64"), []
    found = linalg.CG(A, M="jacobi", rtol=1e-11, precision="mixed", history=True).solve(put(b, gpu))
    history = get(found.history)
    assert found.converged
    assert history[0] == pytest.approx(1)
    assert history[-1] <= 1.001e-11
    x, info = linalg.cg(
        A, put(b, gpu), M="jacobi", rtol=1e-11, precision="mixed", callback=lambda x: seen.append(get(x).copy())
    )
    assert info == 0
    assert x.dtype == np.float64
    assert len(seen) > 1
    assert relative(csr, seen[0], b) < 0.1
    np.testing.assert_array_equal(seen[-1], get(x))
    cut = linalg.CG(A, M="jacobi", rtol=1e-11, precision="mixed", maxiter=5).solve(put(b, gpu))
    assert cut.reason == "maxiter"
    assert cut.iterations == 5
    assert cut.residual == pytest.approx(relative(csr, get(cut.x), b))


@pytest.mark.usefixtures("always_mixed")
@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e200])
def test_mixed_precision_of_any_size(size, gpu):
    """What squares or single precision could not hold is scaled."""
    csr = definite(poisson(12), "float64")
    b = size * right_side(csr.shape[0], "float64")
    found = linalg.CG(cvrarray.CVRArray(csr, device=gpu), rtol=1e-10, precision="mixed").solve(put(b, gpu))
    assert found.converged
    assert relative(csr, get(found.x) / size, b / size) <= 1.001e-10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1e-160, 1e-310])
def test_a_start_beside_which_b_is_tiny(method, size, device):
    """Squares of the residual vanish before it is small."""
    csr = definite(poisson(5))
    b = size * right_side(csr.shape[0], "float64")
    x, info = solve(method, cvrarray.CVRArray(csr, device=device), put(b, device), x0=put(np.ones_like(b), device), rtol=0.01)
    assert info != 0 or relative(csr, get(x) / size, b / size) <= 0.011


@pytest.mark.parametrize("method", [*METHODS, "lsmr"])
@pytest.mark.parametrize(("factor", "size"), [(1e-20, 1e30), (1e15, 1e-37)], ids=["too large", "too small"])
def test_solutions_that_the_dtype_cannot_hold(method, factor, size, device):
    """The scaled system is solved, but x would be infinite, or is 0: it ends as it began."""
    A = cvrarray.CVRArray((factor * scipy.sparse.eye_array(5, format="csr")).astype("float32"), device=device)
    b = np.full(5, size, "float32")
    x, info = getattr(linalg, method)(A, put(b, device))[:2]
    assert not get(x).any()
    if method == "lsmr":
        assert info == 7 or size < 1
        return
    assert info == (-4 if size > 1 else 1)
    found = linalg.CG(A).solve(put(np.stack([b, np.ones(5, "float32")], axis=1), device))
    assert found.reason == ["A not finite" if size > 1 else "stagnation", "converged"]
    assert found.residual[0] == 1 or size > 1


# ------------------------------------------------------------------------------------------------------ preconditioners


@BUILD
@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_blocks_of_the_diagonal(build, block_size, dtype, device):
    csr = definite(poisson(7), dtype)
    dense = csr.toarray()
    n = len(dense)
    A = build(csr, device)
    blocks = get(structure.block_diagonal(A, block_size))
    padded = np.zeros((-(-n // block_size) * block_size,) * 2, dtype)
    padded[:n, :n] = dense
    expected = np.stack([padded[k : k + block_size, k : k + block_size] for k in range(0, len(padded), block_size)])
    assert_same_bits(blocks, expected)
    M = linalg.block_jacobi(A, block_size)
    for columns in (None, 3):
        r = right_side(n, dtype, columns)
        whole = expected.copy()
        beyond = len(padded) - n
        for k in range(block_size - beyond, block_size) if beyond else ():
            whole[-1, k, k] = 1
        rows = np.zeros((len(padded), *r.shape[1:]), np.complex128)
        rows[:n] = r
        exact = np.linalg.solve(whole.astype(np.complex128), rows.reshape(len(whole), block_size, -1))
        np.testing.assert_allclose(
            get(M.matvec(put(r, device))), exact.reshape(rows.shape)[:n], rtol=1e-4 if dtype == "complex64" else 1e-10
        )


def test_bad_diagonals_are_named(device):
    csr = poisson(6)
    csr.setdiag(np.where(np.arange(36) == 17, 0.0, 4.0))
    A = cvrarray.BBCSRArray(csr, block_size=3, device=device)
    with pytest.raises(ValueError, match=r"A\[17, 17\] is 0"):
        linalg.jacobi(A)
    with pytest.raises(ValueError, match="block 5, of the rows 15 to 17"):
        linalg.block_jacobi(A)
    with pytest.raises(ValueError, match="block_size must be a whole number"):
        linalg.block_jacobi(cvrarray.CVRArray(csr, device=device))
    csr.setdiag(np.where(np.arange(36) == 20, np.nan, 4.0))
    with pytest.raises(ValueError, match=r"A\[20, 20\] is nan"):
        linalg.jacobi(cvrarray.CVRArray(csr, device=device))
    with pytest.raises(TypeError, match="needs the entries of A"):
        linalg.jacobi(Own(poisson(), device))


def test_jacobi_of_a_store(device, tmp_path):
    A = cvrarray.CVRArray(poisson(), device=device)
    cvrarray.to_store(A, tmp_path / "s", chunks=20, device=device)
    T, b = cvrarray.Stored(tmp_path / "s", device=device), put(np.ones(A.shape[0]), device)
    for solve in (linalg.cg, linalg.minres, lambda matrix, b, M: (linalg.CG(matrix, M=M).solve(b).x,)):
        wanted, found = (get(solve(matrix, b, M="jacobi")[0]) for matrix in (A, T))
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
    M = linalg.jacobi(T)
    M.update(T * 2)
    np.testing.assert_array_equal(get(M.inverse), get(linalg.jacobi(A).inverse) / 2)


@pytest.mark.parametrize(("name", "columns"), [("poisson", None), ("poisson", 2), ("elasticity", None)])
def test_multigrid(name, columns, device):
    pyamg = pytest.importorskip("pyamg")
    csr = poisson(50) if name == "poisson" else scipy.sparse.csr_array(cvrarray.generate.elasticity(1))
    csr = csr + 1e-3 * abs(csr).max() * scipy.sparse.eye_array(csr.shape[0]) if name == "elasticity" else csr
    matrix = scipy.sparse.csr_matrix(csr).tobsr((3, 3)) if name == "elasticity" else csr
    A = cvrarray.asarray(csr, device=device)
    M = linalg.multigrid(pyamg.smoothed_aggregation_solver(matrix, max_coarse=20), device=device)
    b = right_side(csr.shape[0], "float64", columns)
    plain = linalg.CG(A, M="jacobi", rtol=1e-8).solve(put(b, device))
    for precision in PRECISIONS[device]:
        found = linalg.CG(A, M=M, rtol=1e-8, precision=precision).solve(put(b, device))
        assert np.all(found.converged)
        assert (relative(csr, get(found.x), b) <= 1.01e-8).all()
        assert np.max(found.iterations) < np.min(plain.iterations)
    r, s = (put(right_side(csr.shape[0], "float64", seed=seed), device) for seed in (1, 2))
    left, right = float((s * M.matvec(r)).sum()), float((r * M.matvec(s)).sum())
    assert left == pytest.approx(right, rel=1e-8)  # symmetric


def test_largest_eigenvalue_is_bounded():
    from cvrarray.linalg.preconditioners import spectrum

    for seed in range(5):
        csr = definite(scipy.sparse.random_array((80, 80), density=0.1, rng=np.random.default_rng(seed), format="csr"))
        csr = csr.tocsr()
        inverse = 1 / csr.diagonal()
        exact = np.linalg.eigvals(inverse[:, None] * csr.toarray()).real.max()
        estimate, bound = spectrum(cvrarray.CVRArray(csr), inverse, devices.CPU)
        assert 0.9 * exact <= estimate <= exact * (1 + 1e-10) <= bound * (1 + 1e-9) <= 1.6 * exact


# --------------------------------------------------------------------------------------------------------------- errors

A3 = cvrarray.CVRArray(np.eye(3), device="cpu")
ONES = np.ones(3)
WRONG = {
    "square": (ValueError, "A must be square", lambda: linalg.cg(cvrarray.CVRArray(np.ones((2, 3))), np.ones(2))),
    "length": (ValueError, r"b must have shape \(3,\)", lambda: linalg.cg(A3, np.ones(4))),
    "dimensions": (ValueError, "b must have shape", lambda: linalg.cg(A3, np.ones((3, 1, 1)))),
    "x0": (ValueError, "x0 must have b's shape", lambda: linalg.cg(A3, np.ones(3), np.ones(4))),
    "x0 text": (ValueError, "x0 must be", lambda: linalg.cg(A3, np.ones(3), "Mc")),
    "x0 complex": (TypeError, "x0 is complex", lambda: linalg.cg(A3, np.ones(3), np.ones(3) * 1j)),
    "text": (TypeError, "b must be of a numeric dtype", lambda: linalg.cg(A3, np.array(["a"] * 3))),
    "longdouble": (TypeError, "at most complex128", lambda: linalg.cg(A3, np.ones(3, np.longdouble))),
    "sparse b": (TypeError, "b must be dense", lambda: linalg.cg(A3, scipy.sparse.eye_array(3))),
    "masked b": (TypeError, "masked", lambda: linalg.cg(A3, np.ma.masked_array(np.ones(3), [0, 0, 1]))),
    "rtol": (ValueError, "rtol must be a real number from 0", lambda: linalg.cg(A3, np.ones(3), rtol=-1)),
    "nan": (ValueError, "rtol must be", lambda: linalg.cg(A3, np.ones(3), rtol=np.nan)),
    "maxiter": (ValueError, "maxiter must be a whole number", lambda: linalg.cg(A3, np.ones(3), maxiter=2.5)),
    "M shape": (ValueError, "M must have A's shape", lambda: linalg.cg(A3, np.ones(3), M=np.eye(4))),
    "M name": (ValueError, r"M must be 'jacobi'.*linalg\.multigrid\(A\)", lambda: linalg.cg(A3, np.ones(3), M="ilu")),
    "M complex": (TypeError, "M is complex", lambda: linalg.cg(A3, np.ones(3), M=np.eye(3) * (1 + 0j))),
    "A": (TypeError, "A must be an array of ours", lambda: linalg.bicgstab(object(), np.ones(3))),
    "precision": (ValueError, "precision must be", lambda: linalg.cg(A3, np.ones(3), precision="half")),
    "mixed operator": (TypeError, "needs a sparse matrix", lambda: linalg.cg(np.eye(3), np.ones(3), precision="mixed")),
    "restart": (ValueError, "restart must be", lambda: linalg.gmres(A3, np.ones(3), restart=0)),
    "callback_type": (ValueError, "callback_type must be", lambda: linalg.gmres(A3, np.ones(3), callback_type="y")),
    "out": (ValueError, "out must be contiguous", lambda: linalg.CG(A3).solve(np.ones(3), out=np.ones(3, np.float32))),
    "out is b": (ValueError, "out must not share memory", lambda: linalg.CG(A3).solve(ONES, out=ONES)),
    "update shape": (ValueError, "A must have shape", lambda: linalg.CG(A3).update(cvrarray.CVRArray(np.eye(4)))),
    "update kind": (TypeError, "A must be an array of ours", lambda: linalg.CG(A3).update(np.eye(3))),
    "chebyshev": (ValueError, "needs a Hermitian A", lambda: linalg.chebyshev(cvrarray.CVRArray(np.diag([1, 1j])))),
    "degree": (ValueError, "degree must be", lambda: linalg.chebyshev(A3, 0)),
    "levels": (TypeError, "levels must be a hierarchy", lambda: linalg.multigrid([])),
    "levels of nothing": (TypeError, "multigrid needs the entries", lambda: linalg.multigrid(3)),
    "lsmr b": (ValueError, "b must have shape", lambda: linalg.lsmr(A3, np.ones(4))),
    "lsmr x0 turned": (
        ValueError,
        "x0 must have shape",
        lambda: linalg.lsmr(A3, np.ones((3, 2)), x0=np.ones((2, 3))),
    ),
    "damp": (ValueError, "damp must be a finite real number", lambda: linalg.lsmr(A3, np.ones(3), damp=np.nan)),
    "damp complex": (ValueError, "damp must be", lambda: linalg.lsmr(A3, np.ones(3), damp=1j)),
    "lsmr x0": (ValueError, "x0 must have shape", lambda: linalg.lsmr(A3, np.ones(3), x0=np.ones(4))),
}


@pytest.mark.parametrize("method", ["cg", "minres", "bicgstab", "gmres", "lsmr"])
def test_more_iterations_than_are_counted(method, device):
    A, b = cvrarray.CVRArray(np.eye(3), device=device), put(np.ones(3), device)
    np.testing.assert_allclose(get(getattr(linalg, method)(A, b, maxiter=2**70)[0]), 1)


@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    error, message, call = WRONG[case]
    with pytest.raises(error, match=message):
        call()


def test_operators_errors():
    class Shapes(Own):
        def matvec(self, x):
            return np.ones(2)

    with pytest.raises(ValueError, match="a product with A must have shape"):
        linalg.cg(Shapes(poisson(), "cpu"), np.ones(144))

    class Complex(Own):
        def matvec(self, x):
            return x * 1j

    with pytest.raises(TypeError, match="is complex"):
        linalg.cg(Complex(poisson(), "cpu"), np.ones(144))


def test_devices_must_agree(gpu):
    A = cvrarray.CVRArray(np.eye(3), device=gpu)
    with pytest.raises(TypeError, match="b must be on the device of A"):
        linalg.cg(A, np.ones(3))
    for M in (A3, linalg.jacobi(A3), linalg.block_jacobi(A3, 2), linalg.chebyshev(A3)):
        with pytest.raises(TypeError, match=f"M must be on the device of (A|b), {gpu}; got"):
            linalg.cg(A, put(np.ones(3), gpu), M=M)
    with pytest.raises(TypeError, match="b must be on the device of A"):
        linalg.cg(scipy.sparse.eye_array(3, format="csr"), put(np.ones(3), gpu))


# ---------------------------------------------------------------------------------------------- arguments of methods


def preconditioner_of(kind, A):
    return linalg.block_jacobi(A, 7) if kind == "block_jacobi" else getattr(linalg, kind)(A)


KINDS_OF_M = pytest.mark.parametrize("kind", ["jacobi", "block_jacobi", "chebyshev"])


@KINDS_OF_M
def test_matvec_of_a_preconditioner_checks_what_kernels_trust(kind, device):
    A = cvrarray.CVRArray(np.diag(np.arange(1.0, 61)), device=device)
    M, x = preconditioner_of(kind, A), put(np.ones(60), device)
    for wrong in (put(np.ones(3), device), put(np.ones(61), device), put(np.ones((2, 60)), device)):
        with pytest.raises(ValueError, match=r"x must have shape \(60,\) or \(60, k\)"):
            M.matvec(wrong)
    for out in (put(np.ones(3), device), put(np.ones(60, np.float32), device), put(np.ones(120), device)[::2]):
        with pytest.raises(ValueError, match="out must be contiguous"):
            M.matvec(x, out)
    with pytest.raises(ValueError, match="out must not share memory with x"):
        M.matvec(x, x)
    with pytest.raises(ValueError, match=r"A must have shape \(60, 60\), as before; got \(1, 1\)"):
        M.update(cvrarray.CVRArray(np.ones((1, 1)), device=device))
    if device == "cpu":
        np.testing.assert_array_equal(M.matvec([1.0] * 60), M.matvec(x))
        with pytest.raises(TypeError, match="x must hold all its values"):
            M.matvec(np.ma.masked_equal(x, 1))


@KINDS_OF_M
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda M: pickle.loads(pickle.dumps(M))])
def test_copies_of_used_preconditioners(kind, duplicate, device):
    A, b = cvrarray.CVRArray(np.diag(np.arange(1.0, 61)), device=device), put(np.ones(60), device)
    M = preconditioner_of(kind, A)
    expected = M.matvec(b)
    linalg.cg(A, b, M=M)
    assert_same_bits(duplicate(M).matvec(b), expected)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda solver: pickle.loads(pickle.dumps(solver))])
def test_copies_of_a_solver_have_matrices_of_their_own(duplicate, device):
    A, b = cvrarray.CVRArray(np.diag(np.arange(1.0, 5)), device=device), put(np.arange(1.0, 5), device)
    solver = linalg.CG(A, rtol=1e-12)
    solver.solve(b)
    other = duplicate(solver)
    other.update(cvrarray.CVRArray(2 * np.diag(np.arange(1.0, 5)), device=device))
    np.testing.assert_allclose(get(solver.solve(b).x), 1)
    np.testing.assert_allclose(get(other.solve(b).x), 0.5)


@pytest.mark.parametrize("shift", [np.nan, np.inf, 1j, "1"], ids=str)
def test_minres_shift(shift):
    with pytest.raises(ValueError, match="shift must be a finite real number"):
        linalg.minres(np.eye(3), np.ones(3), shift=shift)


@pytest.mark.parametrize("columns", [(), (2,)], ids=["vector", "columns"])
@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e200, 1e300], ids=str)
def test_lsmr_of_numbers_whose_squares_vanish(size, columns, device):
    """Theirs are 0 or inf, which would be a solution that is 0, or none."""
    A = np.array([[3.0, 1, 0], [1, 2, 1], [0, 1, 4], [0, 0, 1]])
    x = np.arange(1.0, 4).reshape(3, *(1 for _ in columns)) * np.ones((3, *columns))
    given = cvrarray.CVRArray(A, device=device), put(A @ x * size, device)
    for start in (None, put(np.ones((3, *columns)) * size, device)):
        found = linalg.lsmr(*given, atol=1e-12, btol=1e-12, maxiter=50, x0=start)
        np.testing.assert_allclose(get(found.x) / size, x, rtol=1e-8)
        assert set(np.atleast_1d(found.istop)) <= {1, 2, 4, 5}
        np.testing.assert_allclose(found.normx / size, np.linalg.norm(x, axis=0), rtol=1e-6)


def test_a_preconditioner_without_dtype():
    M = SimpleNamespace(shape=(3, 3), apply=lambda r, out: np.copyto(out, r / 2))
    x, info = linalg.cg(np.diag([2.0, 2, 2]), np.ones(3), M=M)
    np.testing.assert_allclose(x, 0.5)
    assert info == 0


@pytest.mark.parametrize("method", ["minres", "bicgstab"])
def test_a_callback_may_write_to_its_x(method):
    """Columns that are solved stay; and x is shown as it is returned."""
    shown = []

    def callback(X):
        shown.append(X.copy())
        X[:] = 0

    S, B = np.diag([1.0, 2, 3, 4]), np.arange(12.0).reshape(4, 3) + 1
    X, info = getattr(linalg, method)(S, B, rtol=1e-10, callback=callback)
    assert info == 0
    np.testing.assert_allclose(S @ X, B, rtol=1e-9)
    np.testing.assert_array_equal(shown[-1], X)
