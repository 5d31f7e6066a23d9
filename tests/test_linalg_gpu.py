"""The GPU engine of conjugate gradients: every way it runs, preconditioners, ends, graphs and streams."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import cvrarray
from cvrarray import BBCSRArray, CVRArray, linalg
from cvrarray.core import devices
from cvrarray.linalg import solution
from cvrarray.linalg.system import System

OTHERS = ("float32", "complex64", "complex128")  # than float64
LOOPS = ("persistent", "graph", "launches")
TOLERANCE = {"float32": 2e-5, "complex64": 2e-5, "float64": 1e-11, "complex128": 1e-11}


def definite(n: int, dtype: str, seed: int = 0, per_row: int = 8) -> sp.csr_array:
    """A Hermitian positive definite matrix with eigenvalues between about 1 and 30 times that."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    S = sp.random_array((n, n), density=min(1.0, per_row / max(n, 1)), rng=rng, format="csr")
    if dtype.kind == "c":
        S = S + 1j * sp.random_array((n, n), density=min(1.0, per_row / max(n, 1)), rng=rng, format="csr")
    S = S + S.conj().T
    weight = np.asarray(abs(S).sum(axis=1)).ravel()
    return sp.csr_array(S + sp.diags_array(weight * rng.uniform(1.02, 3, n) + 0.1)).astype(dtype)


def right_side(shape, dtype: str, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    b = rng.standard_normal(shape)
    return (b + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else b).astype(dtype)


class Inverse:
    """A preconditioner: M by its diagonal, by its diagonal blocks, or as a function that kernels cannot look into."""

    def __init__(self, S: sp.csr_array, size: int, dtype: str, opaque: bool = False) -> None:
        import cupy

        n = S.shape[0]
        self.shape, self.dtype, self.block_size = S.shape, np.dtype(dtype), size
        dense = S.toarray().astype(complex)
        blocks = np.zeros((-(-n // size), size, size), complex)
        for k, start in enumerate(range(0, n, size)):
            part = dense[start : start + size, start : start + size]
            blocks[k, : len(part), : len(part)] = np.linalg.inv(part)
        values = blocks if np.dtype(dtype).kind == "c" else blocks.real
        self.inverse = cupy.asarray((values.reshape(-1)[:n] if size == 1 else values).astype(dtype))
        full = sp.csr_array(sp.block_diag([sp.coo_array(part) for part in values], format="csr"))[:n, :n]
        self._matrix = CVRArray(sp.csr_array(full).astype(dtype), device="cuda:0")
        self.capturable = True
        if opaque:
            self._kept, self.inverse = self.inverse, None

    def apply(self, r, out):
        return (self._matrix.matvec if r.ndim == 1 else self._matrix.matmat)(r, out=out)


def preconditioner(name: str, S, dtype: str):
    size = {"none": 0, "jacobi": 1, "blocks": 6, "opaque": 3}[name]
    return Inverse(S, size, dtype, name == "opaque") if size else None


def engine_for(A, M=None, columns=None, loop="fastest", dtype=None, **how):
    from cvrarray.linalg.gpu.cg import Engine

    dtype = np.dtype(A.dtype if dtype is None else dtype)
    return Engine(System(A, M, A.shape[0], columns, dtype, devices.parse("cuda:0"), **how), loop)


def solve(engine, b, tolerance=1e-6, limit=1000, x0=None):
    """x and the outcome, with a tolerance relative to b."""
    import cupy

    x = cupy.zeros(b.shape, b.dtype) if x0 is None else cupy.asarray(x0)
    norms = np.atleast_1d(np.linalg.norm(b.reshape(len(b), -1), axis=0)).astype(float)
    outcome = engine.run(cupy.asarray(b), x, None if tolerance is None else tolerance * norms, limit)
    return x.get(), outcome


def error(S, x, b):
    return np.linalg.norm(b - S.astype(complex) @ x, axis=0).max() / max(np.linalg.norm(b), 1e-300)


#: dtype, format, loop, preconditioner: each kind of number in each kernel of its own, and float64 with everything.
SOLVES = [
    *(("float64", "bbcsr", loop, M) for loop in LOOPS for M in ("none", "jacobi", "blocks", "opaque")),
    *(("float64", "cvr", loop, M) for loop in LOOPS[:2] for M in ("jacobi", "blocks")),
    *((dtype, "bbcsr", loop, M) for dtype in OTHERS for loop in LOOPS[:2] for M in ("none", "blocks")),
    *((dtype, "cvr", "persistent", "jacobi") for dtype in OTHERS),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "format", "loop", "M"), SOLVES)
def test_solves_as_dense(dtype, format, loop, M, gpu):
    for n in (1, 97, 700):
        S = definite(n, dtype)
        A = BBCSRArray(S, block_size=3 if n == 97 else 1, device=gpu) if format == "bbcsr" else CVRArray(S, device=gpu)
        b = right_side(n, dtype)
        x, outcome = solve(engine_for(A, preconditioner(M, S, dtype), loop=loop), b, TOLERANCE[dtype])
        assert outcome.reasons == [solution.CONVERGED], (n, outcome)
        assert error(S, x, b) <= TOLERANCE[dtype] * (1 + 1e-6 if dtype in ("float64", "complex128") else 1.01)
        exact = np.linalg.solve(S.toarray().astype(complex), b)
        assert np.linalg.norm(x - exact) <= 40 * TOLERANCE[dtype] * np.linalg.norm(exact)
        assert 0 < outcome.iterations[0] < 200


@pytest.mark.parametrize(
    ("make", "k", "M"),
    [
        (CVRArray, 1, "none"),
        (BBCSRArray, 3, "jacobi"),
        (CVRArray, 16, "blocks"),
        (BBCSRArray, 16, "blocks"),
        (BBCSRArray, 300, "opaque"),
    ],
)
def test_columns_stop_by_their_own_tolerance(make, k, M, gpu):
    S = definite(200, "float64")
    A, b = make(S, device=gpu), right_side((200, k), "float64")
    b[:, 0] = 0
    engine = engine_for(A, preconditioner(M, S, "float64"), columns=k)
    x, outcome = solve(engine, b, np.logspace(-3, -11, k))
    assert outcome.reasons == [solution.CONVERGED] * k
    residuals = np.linalg.norm(b - S @ x, axis=0)
    np.testing.assert_allclose(outcome.residual, residuals, atol=1e-13, rtol=1e-2)
    assert (residuals <= np.logspace(-3, -11, k) * np.linalg.norm(b, axis=0) * (1 + 1e-6)).all()
    assert outcome.iterations[0] == 0
    if k > 1:
        assert outcome.iterations[1] < outcome.iterations[-1]


#: For each kernel of an iteration, and each way through it, a small system: loop, format, block size, preconditioner, columns,
#: and what is changed. ``compute-sanitizer --tool racecheck`` runs these.
EACH_KERNEL = {
    "bbcsr": ("persistent", "bbcsr", 3, "jacobi", None, None),
    "bbcsr, blocks of M across bins": ("persistent", "bbcsr", 6, "blocks", None, None),
    "bbcsr, tables in global memory": ("persistent", "bbcsr", 3, "blocks", None, "little shared memory"),
    "cvr": ("persistent", "cvr", 1, "blocks", None, None),
    "advance": ("graph", "bbcsr", 3, "jacobi", 16, None),
    "advance, blocks": ("graph", "bbcsr", 3, "blocks", 5, None),
    "three kernels": ("graph", "bbcsr", 3, "blocks", 5, "no advance"),
    "operator": ("graph", "bbcsr", 3, "opaque", None, None),
}


@pytest.mark.small
@pytest.mark.parametrize("case", EACH_KERNEL)
def test_each_kernel_once(case, monkeypatch, gpu):
    import cupy

    from cvrarray.linalg.gpu import cg, persistent

    loop, format, size, M, k, change = EACH_KERNEL[case]
    if change == "little shared memory":
        most = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
        monkeypatch.setattr(persistent, "RESERVED", most - 6144)
    elif change == "no advance":
        monkeypatch.setattr(cg, "advance", lambda *_: None)
    S = definite(330, "float64")
    A = BBCSRArray(S, block_size=size, device=gpu) if format == "bbcsr" else CVRArray(S, device=gpu)
    b = right_side(330 if k is None else (330, k), "float64")
    engine = engine_for(A, preconditioner(M, S, "float64"), columns=k, loop=loop, iterations=4)
    assert isinstance(engine._loop, persistent.Persistent if loop == "persistent" else cg.Batches)
    x, _ = solve(engine, b, None)
    start = np.linalg.norm(b)
    assert np.linalg.norm(b - S @ x) < 0.5 * start
    assert x.tobytes() == solve(engine, b, None)[0].tobytes()


@pytest.mark.small
@pytest.mark.parametrize("format", ["bbcsr", "cvr"])
@pytest.mark.parametrize("method", ["minres", "bicgstab", "gmres", "lsmr"])
def test_each_kernel_once_of_the_other_methods(method, format, gpu):
    """Few iterations on little: a GPU takes the steps that a CPU takes, and the same ones again."""
    import cupy

    S = definite(330, "float64")
    b = right_side(330, "float64")
    how = {"gmres": {"rtol": 0.0, "restart": 5, "maxiter": 1}, "lsmr": {"atol": 0, "btol": 0, "conlim": 0, "maxiter": 4}}
    how = how.get(method, {"rtol": 0.0, "maxiter": 4})
    A = BBCSRArray(S, block_size=3, device=gpu) if format == "bbcsr" else CVRArray(S, device=gpu)
    found, again = (getattr(linalg, method)(A, cupy.asarray(b), **how)[0] for _ in range(2))
    expected = getattr(linalg, method)(CVRArray(S, device="cpu"), b, **how)[0]
    np.testing.assert_allclose(found.get(), expected, rtol=1e-9, atol=1e-12)
    assert found.get().tobytes() == again.get().tobytes()


@pytest.mark.parametrize("loop", LOOPS)
def test_same_bits_in_every_run(loop, gpu):
    S = sp.csr_array(cvrarray.generate.shell6(6))
    S = sp.csr_array(S + sp.diags_array(np.asarray(abs(S).sum(axis=1)).ravel() * 1.01))
    A, b = BBCSRArray(S, block_size=6, device=gpu), right_side(S.shape[0], "float64")
    engine = engine_for(A, preconditioner("jacobi", S, "float64"), loop=loop)
    found = {solve(engine, b, 1e-9)[0].tobytes() for _ in range(20)}
    found.add(solve(engine_for(A, preconditioner("jacobi", S, "float64"), loop=loop), b, 1e-9)[0].tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("loop", LOOPS)
def test_exact_number_of_iterations(loop, gpu):
    """The iterates of the textbook, and no more of them."""
    S, dtype = definite(150, "float64"), "float64"
    b, M = right_side(150, dtype), preconditioner("jacobi", S, dtype)
    inverse, x = M.inverse.get(), np.zeros(150)
    r = b.copy()
    p = z = inverse * r
    for _ in range(7):
        q = S @ p
        alpha = (r @ z) / (p @ q)
        x, before = x + alpha * p, r @ z
        r = r - alpha * q
        z = inverse * r
        p = z + (r @ z) / before * p
    engine = engine_for(BBCSRArray(S, block_size=1, device=gpu), M, loop=loop, iterations=7, history=True)
    found, outcome = solve(engine, b, None)
    np.testing.assert_allclose(found, x, rtol=1e-10, atol=1e-12)
    assert outcome.reasons == [solution.ITERATIONS]
    assert float(outcome.residual[0]) == pytest.approx(np.linalg.norm(r), rel=1e-6)
    history = outcome.history.get()
    assert history.shape == (8, 1)
    assert history[0, 0] == pytest.approx(np.linalg.norm(b))
    assert history[7, 0] == float(outcome.residual[0])


@pytest.mark.parametrize("loop", LOOPS)
def test_the_same_arrays_again_and_again(loop, gpu):
    """From the third time on a solve is one graph, which reads what then lies in the arrays."""
    import cupy

    S = definite(150, "float64")
    M = preconditioner("jacobi", S, "float64")
    engine = engine_for(BBCSRArray(S, block_size=1, device=gpu), M, loop=loop, iterations=30)
    b, x = cupy.zeros(150), cupy.zeros(150)
    for seed in range(5):
        b.set(right_side(150, "float64", seed))
        x.fill(seed)
        outcome = engine.run(b, x, None, 30)
        assert error(S, x.get(), b.get()) < 1e-12
        assert float(outcome.residual[0]) < 1e-12
    assert (engine._replays._kept[1] is not None) == (loop != "launches")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("M", ["jacobi", "blocks"])
def test_history_and_start(loop, M, gpu):
    S, b = definite(300, "float64"), right_side(300, "float64")
    engine = engine_for(BBCSRArray(S, block_size=3, device=gpu), preconditioner(M, S, "float64"), loop=loop, history=True)
    x, outcome = solve(engine, b, 1e-10)
    history = outcome.history.get()
    assert history.shape == (outcome.iterations[0] + 1, 1)
    assert history[-1, 0] <= 1e-10 * history[0, 0]
    again, restarted = solve(engine, b, 1e-10, x0=x)
    assert restarted.iterations[0] == 0
    np.testing.assert_array_equal(again, x)
    _, cut = solve(engine, b, 1e-10, limit=3)
    assert cut.reasons == [solution.MAXITER]
    assert cut.iterations[0] == 3
    assert cut.residual[0] == pytest.approx(history[3, 0], rel=1e-6)
    _, none = solve(engine, b, 1e-10, limit=0)
    assert none.reasons == [solution.MAXITER]
    assert none.iterations[0] == 0


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("A indefinite", solution.NOT_DEFINITE),
        ("A nan", solution.A_NOT_FINITE),
        ("M negative", solution.M_NOT_DEFINITE),
        ("M zero", solution.M_SINGULAR),
        ("M nan", solution.M_NOT_FINITE),
        ("tolerance", solution.STAGNATION),
        ("b zero", solution.CONVERGED),
    ],
)
def test_ends(change, reason, loop, gpu):
    S, b, tolerance = definite(120, "float32"), right_side(120, "float32"), 1e-4
    M = preconditioner("jacobi", S, "float32")
    if change == "A indefinite":
        S = sp.csr_array(S - 3 * sp.diags_array(S.diagonal()))
    elif change == "A nan":
        S.data[17] = np.nan
    elif change == "tolerance":
        tolerance = 1e-10
    elif change == "b zero":
        b[:] = 0
    elif change == "M negative":
        M.inverse *= -1
    elif change == "M zero":
        M.inverse[:] = 0
    elif change == "M nan":
        M.inverse[5] = np.nan
    engine = engine_for(BBCSRArray(S.astype(np.float32), block_size=1, device=gpu), M, loop=loop)
    _, outcome = solve(engine, b, tolerance)
    assert outcome.reasons == [reason]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("M", ["jacobi", "opaque"])
def test_in_a_users_graph(loop, M, gpu):
    import cupy

    S = definite(400, "float64")
    A = BBCSRArray(S, block_size=1, device=gpu)
    engine = engine_for(A, preconditioner(M, S, "float64"), loop=loop, iterations=30)
    first, second = right_side(400, "float64", 5), right_side(400, "float64", 6)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        b, x = cupy.asarray(first), cupy.zeros(400)
        engine.run(b, x, None, 30)
        stream.begin_capture()
        x.fill(0)
        engine.run(b, x, None, 30)
        graph = stream.end_capture()
        for values in (first, second, first):
            b.set(values)
            x.fill(np.nan)
            graph.launch()
            assert error(S, x.get(), values) < 1e-8


def test_a_tolerance_cannot_be_captured(gpu):
    import cupy

    engine = engine_for(BBCSRArray(definite(40, "float64"), block_size=1, device=gpu))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        b, x = cupy.ones(40), cupy.zeros(40)
        stream.begin_capture()
        try:
            with pytest.raises(RuntimeError, match="iterations=N"):
                engine.run(b, x, np.ones(1), 10)
        finally:
            stream.end_capture()


@pytest.mark.parametrize("loop", LOOPS)
def test_two_solvers_on_two_streams(loop, gpu):
    import cupy

    systems = [definite(2000 + 500 * k, "float64", k) for k in range(2)]
    sides = [right_side(S.shape[0], "float64", k) for k, S in enumerate(systems)]
    engines = [
        engine_for(BBCSRArray(S, block_size=1, device=gpu), preconditioner("jacobi", S, "float64"), loop=loop, iterations=40)
        for S in systems
    ]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in systems]
    b, x = [cupy.asarray(side) for side in sides], [cupy.zeros(len(side)) for side in sides]
    cupy.cuda.Device().synchronize()
    for _ in range(5):
        for k, stream in enumerate(streams):
            with stream:
                x[k].fill(0)
                engines[k].run(b[k], x[k], None, 40)
    for stream in streams:
        stream.synchronize()
    for S, side, found in zip(systems, sides, x, strict=True):
        assert error(S, found.get(), side) < 1e-9


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("k", [None, 4])
def test_new_values(loop, k, gpu):
    S = definite(250, "float64")
    b = right_side(250 if k is None else (250, k), "float64")
    M = preconditioner("jacobi", S, "float64")
    engine = engine_for(BBCSRArray(S, block_size=1, device=gpu), M, columns=k, loop=loop)
    assert error(S, solve(engine, b, 1e-10)[0], b) < 1e-9
    new = sp.csr_array(S * 3 + sp.diags_array(S.diagonal()))
    M.inverse[:] = 1 / M.inverse.dtype.type(1)
    engine.update(BBCSRArray(new, block_size=1, device=gpu), M)
    x, outcome = solve(engine, b, 1e-10)
    assert outcome.reasons == [solution.CONVERGED] * (k or 1)
    assert error(new, x, b) < 1e-9
    before = engine._loop
    engine.update(2 * engine._matrix, M)
    assert (engine._loop is before) == (loop == "persistent" and k is None)
    assert error(2 * new, solve(engine, b, 1e-10)[0], b) < 1e-9


def test_the_structure_chooses_the_loop(monkeypatch, gpu):
    """The loops add in other orders, so no measurement may choose: engines of all threads give the same bits."""
    from cvrarray.linalg.gpu import cg, persistent

    S, b = definite(250, "float64"), right_side(250, "float64")
    for most, of_cvr in ((cg.MOST_BYTES, persistent.Persistent), (0, cg.Batches)):
        monkeypatch.setattr(cg, "MOST_BYTES", most)
        for make, expected in ((BBCSRArray, persistent.Persistent), (CVRArray, of_cvr)):
            engine = engine_for(make(S, device=gpu), preconditioner("jacobi", S, "float64"))
            assert isinstance(engine._loop, expected)
            assert error(S, solve(engine, b, 1e-10)[0], b) < 1e-9
    n = 70_000
    far = sp.diags_array(
        [4.0, -1, -1], offsets=[0, n - 20, 20 - n], shape=(n, n)
    )  # bins at either end are wide, all others empty
    assert isinstance(engine_for(BBCSRArray(far, block_size=1, device=gpu))._loop, persistent.Persistent)  # most are narrow
    anywhere = sp.eye_array(n) * 50 + sp.random_array((n, n), density=4 / n, rng=np.random.default_rng(1))
    wide = BBCSRArray(sp.csr_array(anywhere + anywhere.T), block_size=1, device=gpu)
    assert isinstance(engine_for(wide)._loop, cg.Batches)


def test_operators_without_a_matrix(gpu):
    """What any function may do cannot be captured, so it is launched iteration by iteration."""
    import cupy

    S = definite(100, "float64")
    dense = cupy.asarray(S.toarray())
    A = SimpleNamespace(shape=S.shape, dtype=S.dtype, matvec=lambda x, out: cupy.matmul(dense, x, out=out))
    b = right_side(100, "float64")
    x, outcome = solve(engine_for(A), b, 1e-10)
    assert outcome.reasons == [solution.CONVERGED]
    assert error(S, x, b) < 1e-9


def test_wide_bins_and_uneven_rows(gpu):
    """Columns that need more than 16 bits, bins without entries, rows of very different lengths."""
    n = 150_000
    rng = np.random.default_rng(3)
    far = sp.random_array((n, n), density=2 / n, rng=rng, format="csr")
    hub = sp.csr_array((rng.standard_normal(3000), (np.zeros(3000, int), rng.integers(0, n, 3000))), shape=(n, n))
    S = far + far.T + hub + hub.T
    S = sp.csr_array(S + sp.diags_array(np.asarray(abs(S).sum(axis=1)).ravel() + 1))
    b = right_side(n, "float64")
    arrays = [make(S, device=gpu) for make in (BBCSRArray, CVRArray) for _ in LOOPS[:2]]
    for loop in LOOPS[:2] * 2:
        A = arrays.pop()
        x, outcome = solve(engine_for(A, preconditioner_of_diagonal(S), loop=loop), b, 1e-9)
        assert outcome.reasons == [solution.CONVERGED], loop
        assert np.linalg.norm(b - S @ x) <= 1.001e-9 * np.linalg.norm(b)


def preconditioner_of_diagonal(S):
    import cupy

    inverse = cupy.asarray(1 / S.diagonal())
    return SimpleNamespace(
        inverse=inverse, block_size=1, shape=S.shape, apply=lambda r, out: cupy.multiply(inverse, r, out=out)
    )


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("shape", [(1,), (5000,), (700, 3), (20, 300)])
def test_vectors(dtype, shape, gpu):
    """Sums and combinations against NumPy's, the same bits again, and nothing of what is multiplied by 0."""
    import cupy

    from cvrarray.linalg.gpu.vectors import DeviceVectors

    v = DeviceVectors(devices.parse(gpu), shape, np.dtype(dtype))
    x, y = right_side(shape, dtype, 1), right_side(shape, dtype, 2)
    X, Y = cupy.asarray(x), cupy.asarray(y)
    wide = [part.reshape(shape[0], -1).astype(complex) for part in (x, y)]
    products = (wide[0].conj() * wide[1]).sum(axis=0)
    close = {"rtol": 1e-6, "atol": 1e-6 * shape[0]} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(v.dot(X, Y).get(), products if dtype == "complex128" else products.real, **close)
    np.testing.assert_allclose(v.real_dot(X, Y).get(), products.real, **close)
    np.testing.assert_allclose(v.norm(X).get(), np.linalg.norm(wide[0], axis=0), rtol=close["rtol"])
    assert v.norm(X).get().tobytes() == v.norm(X).get().tobytes()
    a, b = np.linspace(0.5, 2, v.columns), np.linspace(-1, 1.5, v.columns)
    out = cupy.empty_like(X)
    v.combine(cupy.asarray(a), X, cupy.asarray(b), Y, out)
    np.testing.assert_allclose(out.get(), (a * x + b * y).astype(dtype), rtol=1e-5, atol=1e-5)
    v.combine(cupy.zeros(v.columns), cupy.full_like(X, np.nan), v.constant(1), Y, Y)
    np.testing.assert_array_equal(Y.get(), y)


@pytest.mark.parametrize("dtypes", [("float64", "float64"), ("float32", "float64"), ("float64", "complex64")])
@pytest.mark.parametrize(("size", "columns"), [(1, None), (3, None), (6, 16), (7, 3), (40, 300)])
def test_blocks_times_vectors(size, columns, dtypes, gpu):
    """Any size of blocks, the last of them cut, of numbers other than the vector's, and in place."""
    import cupy

    from cvrarray.linalg.gpu.vectors import times_blocks

    n, n_blocks = 5 * size - size // 2, 5
    blocks = right_side((n_blocks, size, size), dtypes[0], 1)
    x = right_side(n if columns is None else (n, columns), dtypes[1], 2)
    found = cupy.full(x.shape, np.nan, x.dtype)
    times_blocks(cupy.asarray(blocks), cupy.asarray(x), found)
    expected = sp.block_diag([sp.coo_array(block) for block in blocks], format="csr")[:n, :n].astype(complex) @ x
    rtol = 1e-5 if dtypes[1] == "complex64" else 1e-12
    np.testing.assert_allclose(found.get(), expected, rtol=rtol, atol=rtol * size)
    there = cupy.asarray(x)
    times_blocks(cupy.asarray(blocks), there, there)
    assert there.get().tobytes() == found.get().tobytes()


@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.parametrize("M", ["block_jacobi", "chebyshev", "multigrid"])
@pytest.mark.parametrize("method", ["minres", "bicgstab", "gmres"])
def test_preconditioners_in_graphs(method, M, columns, monkeypatch, gpu):
    """What applies itself is captured too, and the graph does the same as launches one by one."""
    import cupy

    from cvrarray.linalg.gpu import gmres, steps

    if M == "multigrid":
        pyamg = pytest.importorskip("pyamg")
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(30, 30))
    S = sp.csr_array(sp.kron(line, sp.eye_array(30)) + sp.kron(sp.eye_array(30), line))
    A = BBCSRArray(S, block_size=2, device=gpu)
    make = {
        "block_jacobi": lambda: linalg.block_jacobi(A),
        "chebyshev": lambda: linalg.chebyshev(A, 2),
        "multigrid": lambda: linalg.multigrid(pyamg.smoothed_aggregation_solver(sp.csr_matrix(S), max_coarse=20), device=gpu),
    }
    b = cupy.asarray(right_side(S.shape[0] if columns is None else (S.shape[0], columns), "float64"))
    graphs = []
    for module in (gmres, steps):
        captured = module.captured
        monkeypatch.setattr(module, "captured", lambda work, captured=captured: graphs.append(captured(work)) or graphs[-1])
    how = {"restart": 4} if method == "gmres" else {}
    preconditioner = make[M]()
    found = getattr(linalg, method)(A, b, rtol=1e-11, M=preconditioner, **how)
    assert found[1] == 0
    assert graphs
    assert error(S, found[0].get(), b.get()) < 1e-10
    for module in (gmres, steps):
        monkeypatch.setattr(module, "can_be_captured", lambda *_: False)
    again = getattr(linalg, method)(A, b, rtol=1e-11, M=preconditioner, **how)
    assert again[0].get().tobytes() == found[0].get().tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize(("columns", "restart"), [(1, 7), (1, 20), (3, 18), (2, 30), (300, 5)])
def test_an_orthonormal_basis(columns, restart, dtype, gpu):
    """Also where w is nearly in the span of the basis, as eigenvalues of 1 with few others make it."""
    import cupy

    from cvrarray.linalg.gpu.gmres import Basis

    n = 600
    eigenvalues = np.ones(n)
    eigenvalues[: restart + 8] += np.geomspace(1e-2 if dtype == "float32" else 1e-5, 3, restart + 8)
    S = sp.csr_array(sp.diags_array(eigenvalues.astype(dtype)))
    for matrix in (S, sp.csr_array(cvrarray.generate.shell6(6).astype(dtype))[:n, :n]):
        A = CVRArray(sp.csr_array(matrix), device=gpu)
        shape = (n,) if columns == 1 else (n, columns)
        system = System(A, None, n, None if columns == 1 else columns, np.dtype(dtype), devices.parse(gpu))
        vectors, w, z = (cupy.zeros(s, dtype) for s in ((restart + 1, n, columns), shape, shape))
        basis = Basis(system, vectors, w, z)
        start = right_side((n, columns), dtype)
        vectors[0] = cupy.asarray(start / np.linalg.norm(start, axis=0))
        h = np.zeros((restart + 1, restart, columns), complex)
        for step in range(restart):
            h[: step + 2, step] = basis.extend(step)
        V = vectors.get().astype(complex)
        eps = 1.2e-7 if dtype == "float32" else 2.3e-16
        for j in range(columns):
            of = V[:, :, j]
            size = np.abs(np.linalg.norm(of, axis=1) - 1).max()
            assert size < 100 * eps
            assert np.abs(of.conj() @ of.T - np.eye(restart + 1)).max() < 100 * eps
            product = matrix.astype(complex) @ of[:-1].T
            np.testing.assert_allclose(product, of.T @ h[:, :, j], atol=100 * eps * abs(product).max() * n**0.5)


def test_a_change_that_is_no_number_is_left_out(gpu):
    import cupy

    from cvrarray.linalg.gpu.gmres import Basis

    n = 50
    A = CVRArray(sp.eye_array(n, format="csr"), device=gpu)
    vectors, x = cupy.ones((4, n, 2)), cupy.zeros((n, 2))
    vectors[1, 3, 1] = cupy.inf
    basis = Basis(System(A, None, n, 2, np.dtype("float64"), devices.parse(gpu)), vectors, x.copy(), x.copy())
    basis.add(np.array([[1.0, 2.0], [3.0, 4.0]]), x)
    expected = np.tile([4.0, 6.0], (n, 1))
    expected[3, 1] = 0
    np.testing.assert_array_equal(x.get(), expected)
