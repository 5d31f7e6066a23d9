"""SciPy's and CuPy's iterative solvers take our arrays as they are, and go the way that they go with a CSR."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from checks import DEFAULTS, get, put

import cvrarray
import cvrarray.linalg as solvers
from cvrarray.core import devices

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)


def poisson():
    """The 5-point Laplacian on a 24 x 24 grid."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(24, 24))
    eye = scipy.sparse.eye_array(24)
    return scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)


def elasticity():
    """The stiffness of a beam that is free on all sides: singular by itself, so each node gets a spring."""
    csr = scipy.sparse.csr_array(cvrarray.generate.elasticity(1))
    return csr + 1e-3 * abs(csr).max() * scipy.sparse.eye_array(csr.shape[0])


MATRICES = {"poisson": poisson, "elasticity": elasticity}


def spd(name):
    """A symmetric positive definite CSR of float64."""
    csr = MATRICES[name]().tocsr()
    assert abs(csr - csr.T).max() <= 1e-12 * abs(csr).max()
    return csr


def linalg(device):
    return importlib.import_module("scipy.sparse.linalg" if device == "cpu" else "cupyx.scipy.sparse.linalg")


@BUILD
@pytest.mark.parametrize("name", MATRICES)
def test_cg_takes_the_same_iterations(build, name, device):
    csr = spd(name)
    b = csr @ np.linspace(-1, 1, csr.shape[0])
    counts = []
    A = build(csr, device)
    for matrix in (A.tocsr(), A, A.aslinearoperator()):
        iterates = []
        x, info = linalg(device).cg(matrix, put(b, device), callback=iterates.append, **tolerance(device, "cg", 1e-8))
        assert info == 0
        assert np.linalg.norm(csr @ get(x) - b) <= 2e-8 * np.linalg.norm(b)
        counts.append(len(iterates))
    assert counts[0] > 10
    assert max(abs(count - counts[0]) for count in counts) <= 1  # the order of sums differs


def tolerance(device, solver, rtol):
    """CuPy's minres has the older name."""
    return {"tol" if device != "cpu" and solver == "minres" else "rtol": rtol}


@BUILD
@pytest.mark.parametrize("solver", ["cg", "cgs", "gmres", "minres", "bicgstab", "bicg", "lgmres", "qmr", "tfqmr", "gcrotmk"])
def test_linear_systems(build, solver, device):
    solve = getattr(linalg(device), solver, None)
    if solve is None:
        pytest.skip(f"CuPy has no {solver}")
    csr = spd("poisson")
    b = csr @ np.linspace(-1, 1, csr.shape[0])
    x, info = solve(build(csr, device), put(b, device), **tolerance(device, solver, 1e-8))
    assert info == 0
    assert np.linalg.norm(csr @ get(x) - b) <= 1e-5 * np.linalg.norm(b)


@BUILD
@pytest.mark.parametrize("solver", ["lsqr", "lsmr"])
def test_least_squares(build, solver, device):
    """A rectangle: products with the transpose too. CuPy's lsqr factorises, so it takes no operator."""
    if device != "cpu" and solver == "lsqr":
        pytest.skip("CuPy's lsqr takes a CSR: A.tocsr()")
    rng = np.random.default_rng(3)
    csr = scipy.sparse.random_array((300, 60), density=0.1, rng=rng, format="csr")
    b = rng.standard_normal(300)
    x = getattr(linalg(device), solver)(build(csr, device), put(b, device), atol=1e-12, btol=1e-12)[0]
    expected = np.linalg.lstsq(csr.toarray(), b, rcond=None)[0]
    np.testing.assert_allclose(get(x), expected, atol=1e-8)


@BUILD
def test_eigsh(build, device):
    csr = spd("poisson")
    v0 = put(np.random.default_rng(4).standard_normal(csr.shape[0]), device)
    found = linalg(device).eigsh(build(csr, device), k=4, which="LA", v0=v0, return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(get(found)), np.linalg.eigvalsh(csr.toarray())[-4:], rtol=1e-8)


@BUILD
def test_svds(build, device):
    csr = scipy.sparse.random_array((80, 50), density=0.2, rng=np.random.default_rng(4), format="csr")
    found = linalg(device).svds(build(csr, device), k=3, return_singular_vectors=False)
    np.testing.assert_allclose(np.sort(get(found)), np.linalg.svd(csr.toarray(), compute_uv=False)[2::-1], rtol=1e-8)


@BUILD
def test_lobpcg(build, device):
    csr = spd("poisson")
    x = put(np.random.default_rng(5).standard_normal((csr.shape[0], 4)), device)
    values, _ = linalg(device).lobpcg(build(csr, device), x, largest=True, maxiter=200, tol=1e-6)
    np.testing.assert_allclose(np.sort(get(values)), np.linalg.eigvalsh(csr.toarray())[-4:], rtol=1e-6)


@BUILD
def test_eigs(build):
    """Not in CuPy."""
    csr = scipy.sparse.random_array((80, 80), density=0.2, rng=np.random.default_rng(6), format="csr")
    csr = (csr + scipy.sparse.diags_array(np.arange(80.0))).tocsr()  # eigenvalues apart from one another
    found = scipy.sparse.linalg.eigs(build(csr), k=3, which="LM", v0=np.ones(80), return_eigenvectors=False)
    expected = np.linalg.eigvals(csr.toarray())
    np.testing.assert_allclose(np.sort(abs(found)), np.sort(abs(expected))[-3:], rtol=1e-8)


@BUILD
def test_direct_solvers_take_the_csr(build):
    csr = spd("poisson")
    b = csr @ np.linspace(-1, 1, csr.shape[0])
    x = scipy.sparse.linalg.spsolve(build(csr).tocsr().tocsc(), b)
    np.testing.assert_allclose(x, np.linspace(-1, 1, csr.shape[0]), atol=1e-8)


@BUILD
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_linear_operator(build, dtype, device):
    rng = np.random.default_rng(7)
    dense = rng.integers(-3, 4, (12, 9)).astype(dtype)
    if dense.dtype.kind == "c":
        dense = dense * (1 + 2j)
    A = build(dense, device)
    for operator in (A.aslinearoperator(), linalg(device).aslinearoperator(A)):
        assert operator.shape == A.shape
        assert operator.dtype == A.dtype
        for shape in ((9,), (9, 1), (9, 4)):
            x = rng.integers(-3, 4, shape).astype(dtype)
            np.testing.assert_array_equal(get(operator @ put(x, device)), dense @ x)
        for shape in ((12,), (12, 1), (12, 4)):
            x = rng.integers(-3, 4, shape).astype(dtype)
            np.testing.assert_array_equal(get(operator.H @ put(x, device)), dense.conj().T @ x)
    y = A.aslinearoperator() @ put(np.ones((9, 2), dtype), device)
    assert devices.of(y) == devices.parse(device)


def random_system(seed):
    """A symmetric system of any condition, b and a start of any size."""
    g = np.random.default_rng(seed)
    n, dtype = int(g.integers(1, 51)), np.dtype(g.choice(["float32", "float64"]))
    Q = np.linalg.qr(g.standard_normal((n, n)))[0]
    values = 10.0 ** -(g.uniform(0, g.uniform(0, 12), n))
    kind = g.choice(["definite", "indefinite", "singular"])
    if kind != "definite":
        values *= g.choice([-1, 1], n)
    if kind == "singular":
        values[0] = 0
    D = (Q * values) @ Q.T
    ends = np.log10(float(np.finfo(dtype).smallest_subnormal)) + 2, np.log10(float(np.finfo(dtype).max)) - 2
    b, x0 = ((g.uniform(-1, 1, n).astype("g") * np.longdouble(10) ** g.uniform(*ends)).astype(dtype) for _ in range(2))
    return ((D + D.T) / 2).astype(dtype), b, x0 if g.random() < 0.6 else None


def check_random_solves(seeds):
    """Converged is true of the true residual, and no result is worse than its start, but for rounding."""
    rtol = 1e-5
    for seed in seeds:
        D, b, x0 = random_system(seed)
        A, exact, right = cvrarray.CVRArray(D, device="cpu"), D.astype("g"), b.astype("g")
        start = np.zeros_like(right) if x0 is None else x0.astype("g")
        first, size, norm_b = (np.linalg.norm(v) for v in (right - exact @ start, exact, right))
        found = {name: getattr(solvers, name)(A, b, x0, rtol=rtol) for name in ("cg", "minres", "bicgstab", "gmres")}
        least = solvers.lsmr(A, b, x0=x0, atol=rtol, btol=rtol)
        found["lsmr"] = least.x, 0 if least.istop in (1, 4) else 1
        for name, (x, info) in found.items():
            residual, length = np.linalg.norm(right - exact @ x.astype("g")), np.linalg.norm(x.astype("g"))
            tiny = np.finfo(b.dtype)
            rounding = 10 * len(b) * (float(tiny.eps) * (size * length + norm_b) + np.longdouble(tiny.smallest_subnormal))
            allowed = rtol * (norm_b + (size * length if name == "lsmr" else 0))
            assert info or residual <= 1.5 * allowed + rounding, (seed, name, "says converged", residual / norm_b)
            assert residual <= first + rounding or not info or name == "lsmr", (seed, name, info, residual, first)


def test_random_solves():
    check_random_solves([*range(60), 1165])  # the last one: a start far larger than what solves it


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 500))
def test_many_random_solves(first):
    check_random_solves(range(first, first + 500))


@pytest.mark.parametrize("name", ["cg", "minres", "bicgstab", "gmres"])
@pytest.mark.parametrize(("dtype", "size"), [("f4", 1e-39), ("c8", 1e-39), ("f8", 1e-309), ("c16", 1e-309)])
def test_denormal_right_sides(name, dtype, size):
    b = np.full(3, size).astype(dtype)
    x, info = getattr(solvers, name)(cvrarray.CVRArray(np.eye(3, dtype=dtype), device="cpu"), b)
    assert info == 0
    assert (x == b).all()


def test_minres_makes_a_named_preconditioner_beside_a_shift():
    D = np.diag(np.arange(3.0, 15))
    x, info = solvers.minres(cvrarray.CVRArray(D, device="cpu"), np.ones(12), shift=0.5, M="jacobi")
    assert info == 0
    assert np.allclose(D @ x - 0.5 * x, 1, atol=1e-3)
