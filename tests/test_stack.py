"""Stacks: elements have the bits of single arrays, whatever the rest; solves side by side; what a stack cannot do."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
import zoo
from checks import assert_same_bits, bbcsr, cvr, get, put

import cvrarray
from cvrarray import BBCSRArray, CVRArray, linalg

STRUCTURES = [
    "one_by_one", "hypersparse", "one_dense_row", "rows_of_mixed_length", "power_law", "banded_stencil", "blocks_with_holes",
    "perfect_blocks_3", "blocks_over_the_edge", "explicit_zeros", "narrow_and_wide_tiles",
]  # fmt: skip
BUILDS = [cvr(32, 7, "rows"), bbcsr(1), bbcsr(3), bbcsr(6)]


def values_of(batch: int, nnz: int, dtype: str, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, (batch, nnz)) + 0.37 * rng.random((batch, nnz))
    return (values * (1 - 2j) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def operand(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return values_of(1, int(np.prod(shape)), dtype, seed=4).reshape(shape)


@pytest.mark.small
@pytest.mark.parametrize("build", BUILDS, ids=str)
@pytest.mark.parametrize(("dtype", "of_x"), [("float64", "float64"), ("float32", "float64"), ("complex64", "complex64")])
def test_elements_have_the_bits_of_arrays(build, dtype, of_x, device):
    for name in STRUCTURES:
        csr = zoo.integers(name, np.float64)
        A, V = build(csr, device), values_of(3, csr.nnz, dtype)
        S = A.stack(put(V, device))
        (n_rows, n_cols), batch = csr.shape, 3
        x, X, X3, y = (put(operand(s, of_x), device) for s in ((n_cols,), (batch, n_cols), (batch, n_cols, 5), (batch, n_rows)))
        found = [S @ x, S @ X, S @ X3, S.T @ y]
        assert [part.shape for part in found] == [(3, n_rows), (3, n_rows), (3, n_rows, 5), (3, n_cols)]
        for i in range(batch):
            own = A.with_values(put(V[i], device))
            for part, expected in zip(found, (own @ x, own @ X[i], own @ X3[i], own.T @ y[i]), strict=True):
                assert_same_bits(part[i], expected)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex128"])
@pytest.mark.parametrize("build", BUILDS[:2], ids=str)
def test_every_dtype(build, dtype, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A, V = build(csr, device), values_of(2, csr.nnz, dtype)
    S, x = A.stack(put(V, device)), put(operand((2, csr.shape[1]), dtype), device)
    assert S.dtype == dtype
    assert (S @ x).dtype == np.dtype(dtype)
    for i in range(2):
        assert_same_bits((S @ x)[i], A.with_values(put(V[i], device)) @ x[i])


@pytest.mark.parametrize("rows", [700, 70_000])
@pytest.mark.parametrize("most", [5, 16, 17, 300])
def test_rows_of_every_length(rows, most, device):
    """On a GPU: as many slots for every row, bins that a warp has, and bins that warps share."""
    rng = np.random.default_rng(most)
    lengths = np.minimum(rng.integers(0, most + 1, rows), 40 if rows > 1000 else most)
    lengths[0] = min(most, rows)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.sort(rng.choice(min(rows, 400), n, replace=False)) for n in lengths]).astype(np.int64)
    csr = sp.csr_array((np.ones(indices.size), indices, indptr), shape=(rows, rows))
    for A in (BBCSRArray(csr, block_size=1, device=device), CVRArray(csr, device=device)):
        V, x = (put(values_of(11, k, "float64"), device) for k in (csr.nnz, rows))
        found = A.stack(V) @ x
        for i in (0, 7, 8, 10):
            assert_same_bits(found[i], A.with_values(V[i]) @ x[i])


@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_parts_of_a_stack(build, device):
    csr = zoo.integers("blocks_with_holes", np.float64)
    V = values_of(4, csr.nnz, "float32")
    S = build(csr, device).stack(put(V, device))
    assert S.shape == (4, *csr.shape)
    assert (S.ndim, len(S), S.device, S.dtype, S.nnz) == (3, 4, device, np.float32, 4 * csr.nnz)
    assert_same_bits(S.data, put(V, device))
    assert_same_bits(S[1:3].data, put(V[1:3], device))
    assert_same_bits(S[::-2].data, put(V[::-2], device))
    assert_same_bits(S[-1].data, put(V[3], device))
    assert_same_bits(S.todense()[2], S[2].todense())
    assert [element.shape for element in S] == [csr.shape] * 4
    assert S.T.T is S
    assert S.T.shape == (4, *csr.shape[::-1])
    assert_same_bits(S.T[1].todense(), S[1].todense().T.copy())
    assert S.nbytes < sum(element.nbytes for element in S)
    before = get(S.data)
    element = S[0]
    element.with_values(put(V[1], device), out=element)  # which has values of its own
    assert np.array_equal(get(S.data), before)


def test_copies_and_devices(device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    S, x = BBCSRArray(csr, block_size=1, device=device).stack(put(values_of(3, csr.nnz, "float64"), device)), csr.shape[1]
    expected = get(S @ put(np.ones(x), device))
    for other in (pickle.loads(pickle.dumps(S)), copy.deepcopy(S), S.to_device("cpu"), S.to_device("cpu").to_device(device)):
        assert_same_bits(other.data, put(get(S.data), other.device))
        assert np.allclose(get(other @ put(np.ones(x), other.device)), expected)
    assert S.to_device(device) is S


def test_of_a_transposed_view(device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A = CVRArray(csr, device=device).T
    V = values_of(3, csr.nnz, "float64")
    S, x = A.stack(put(V, device)), put(operand((A.shape[1],), "float64"), device)
    assert_same_bits(S.data, put(V, device))
    for i in range(3):
        assert_same_bits((S @ x)[i], A.with_values(put(V[i], device)) @ x)


@pytest.mark.parametrize("values", [np.ones(6), np.array([1.0, 2, 1, 2, 1, 2])], ids=["one", "few"])
def test_of_an_array_of_few_values(values, device):
    A = BBCSRArray(sp.csr_array((values, [0, 2, 1, 0, 1, 2], [0, 2, 3, 6]), shape=(3, 3)), block_size=1, device=device)
    V = values_of(2, 6, "float64")
    S, x = A.stack(put(V, device)), put(np.arange(3.0), device)
    for i in range(2):
        assert_same_bits((S @ x)[i], A.with_values(put(V[i], device)) @ x)


def test_values_of_any_strides(device):
    A = CVRArray(np.diag([1.0, 2, 3]), device=device)
    V = put(values_of(4, 3, "float64"), device)
    for given in (V[::2], V.T.copy().T, V[:, ::-1], A._target.xp.broadcast_to(V[0], (5, 3))):
        assert_same_bits(A.stack(given).data, given.copy())
    x = put(operand((2, 3), "float64"), device)
    S = A.stack(V[:2])
    assert_same_bits(S @ x[:, ::-1], S @ x[:, ::-1].copy())
    assert_same_bits(S @ A._target.xp.broadcast_to(x[0], (2, 3)), S @ x[0])


@pytest.mark.parametrize(("size", "format"), [(1, "cvr"), (1, "bbcsr"), (2, "bbcsr"), (2, "cvr")])
def test_of_an_assembly(size, format, device):
    rng = np.random.default_rng(2)
    rows, cols = (put(rng.integers(0, 20, 90), device) for _ in range(2))
    plan = cvrarray.Assembly(rows, cols, block_size=size, shape=(20 * size,) * 2, format=format, device=device)
    values = put(values_of(3, 90 * size**2, "float64").reshape(3, 90, *[size] * (2 * (size > 1))), device)
    S, x = plan.stack(values), put(operand((20 * size,), "float64"), device)
    for i in range(3):
        assert_same_bits((S @ x)[i], plan(values[i]) @ x)
    with pytest.raises(ValueError, match="a batch of 0"):
        plan.stack(values[:0])
    with pytest.raises(ValueError, match="values must have shape"):
        plan.stack(values[:, 1:])


def test_matrices_without_entries_rows_or_columns(device):
    for shape in ((3, 4), (0, 4), (3, 0), (0, 0)):
        S = CVRArray(np.zeros(shape), device=device).stack(put(np.zeros((2, 0)), device))
        assert_same_bits(S @ put(np.ones(shape[1]), device), put(np.zeros((2, shape[0])), device))
        S = BBCSRArray(np.zeros(shape), block_size=1, device=device).stack(put(np.zeros((2, 0)), device))
        assert_same_bits(S @ put(np.ones((2, shape[1])), device), put(np.zeros((2, shape[0])), device))


def test_bad_input(device):
    A = CVRArray(np.diag([1.0, 2, 3]), device=device)
    V = put(np.ones((2, 3)), device)
    for bad in (V[:, :2], V[0], V[None]):
        with pytest.raises(ValueError, match=r"V must have shape \(batch, 3\)"):
            A.stack(bad)
    with pytest.raises(ValueError, match="a batch of 0"):
        A.stack(V[:0])
    if device == "cpu":
        for bad in (np.array([["a", "b", "c"]]), np.array([[None, 1, 2]]), np.ones((1, 3), "M8[s]")):
            with pytest.raises(TypeError, match="V must be numeric"):
                A.stack(bad)
        with pytest.raises(TypeError, match="values must be bool"):
            A.stack(np.ones((1, 3), np.longdouble))
    S = A.stack(V)
    for bad in (np.ones(4), np.ones((3, 3)), np.ones((2, 2)), np.ones((1, 3, 2)), np.ones((2, 3, 2, 1)), np.ones(())):
        with pytest.raises(ValueError, match=r"x must have shape \(3,\), \(2, 3\) or \(2, 3, k\)"):
            S @ put(bad, device)
    for bad in (sp.eye_array(3), A):
        with pytest.raises(TypeError, match="x must be"):
            S @ bad
    with pytest.raises(TypeError, match=r"S\.T @ x"):
        put(np.ones(3), device) @ S
    with pytest.raises(IndexError, match="out of range"):
        S[2]
    with pytest.raises(ValueError, match="a slice must leave an element"):
        S[2:]
    with pytest.raises(TypeError, match="a number or a slice"):
        S[0, 1]
    with pytest.raises(AttributeError, match=r"S\[i\]\.tocsr"):
        S.tocsr()
    with pytest.raises(AttributeError, match=r"use S\[i\]"):
        S.max()
    with pytest.raises(AttributeError, match="no attribute"):
        S.nothing  # noqa: B018
    with pytest.raises(TypeError, match="not made dense unasked"):
        np.asarray(S)
    with pytest.raises(ValueError, match="the truth"):
        bool(S)
    with pytest.raises(TypeError):
        S + 1


def test_values_on_another_device(gpu):
    A = CVRArray(np.diag([1.0, 2, 3]))
    with pytest.raises(TypeError, match="V must be on the array's device"):
        A.stack(put(np.ones((2, 3)), gpu))
    B = A.to_device(gpu)
    with pytest.raises(TypeError, match="V must be a cupy"):
        B.stack(np.ones((2, 3)))
    with pytest.raises(TypeError, match="x must be a cupy"):
        B.stack(put(np.ones((2, 3)), gpu)) @ np.ones(3)


def test_bad_out(device):
    S = CVRArray(np.diag([1.0, 2, 3]), device=device).stack(put(np.arange(6.0).reshape(2, 3), device))
    x = put(np.ones((2, 3)), device)
    out = S._target.xp.empty((2, 3))
    assert S.multiply(x, out) is out
    assert_same_bits(out, S @ x)
    with pytest.raises(ValueError, match="out must not share memory with x"):
        S.multiply(x, x)
    for bad in (out.T, out[:1], out.astype("float32")):
        with pytest.raises(ValueError, match=r"out must be contiguous and writeable, of shape \(2, 3\) and dtype float64"):
            S.multiply(x, bad)
    with pytest.raises(TypeError, match="out must be a"):
        S.multiply(x, [[0.0] * 3] * 2)
    if device == "cpu":
        out.flags.writeable = False
        with pytest.raises(ValueError, match="writeable"):
            S.multiply(x, out)


@pytest.mark.parametrize("build", BUILDS[:2], ids=str)
def test_memory_is_given_back_at_once(build, device):
    """No stack waits for the garbage collector, nor do those that a solve makes; CVR with one long row has no copy in bins."""
    dense = np.diag(np.arange(1.0, 301))
    dense[0] = dense[:, 0] = 0.001
    dense[0, 0] = 10
    A = build(dense, device)
    V, b = put(np.tile(get(A.data), (2, 1)), device), put(np.ones((2, 300)), device)
    gc.disable()
    try:
        S = A.stack(V)
        found = S.T @ b
        assert_same_bits(found, A.stack(V).T @ b)
        assert linalg.cg(S, b, M="jacobi")[1].tolist() == [0, 0]
        of_stack = weakref.ref(S)
        del S
        if device != "cpu":  # an engine and its CUDA graphs know each other
            gc.collect()
        assert of_stack() is None
    finally:
        gc.enable()


def test_transposes_of_a_stack_that_is_gone(device):
    csr = zoo.integers("blocks_with_holes", np.float64)
    V = put(values_of(2, csr.nnz, "float64"), device)
    A, x = BBCSRArray(csr, block_size=3, device=device), put(operand((csr.shape[1],), "float64"), device)
    assert_same_bits(A.stack(V).T.T @ x, A.stack(V) @ x)
    assert isinstance(A.T.stack(V).T[0], BBCSRArray)


def test_no_room_for_transposes(device, monkeypatch):
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", "0")
    S = CVRArray(np.diag([1.0, 2, 3]), device=device).stack(put(np.ones((2, 3)), device))
    with pytest.raises(MemoryError, match="CVRARRAY_TRANSPOSED_MEMORY"):
        S.T  # noqa: B018


# ------------------------------------------------------------------------------------------------------------ solves


def stencil(m: int, batch: int, seed: int = 0) -> tuple[sp.csr_array, np.ndarray]:
    """A 5-point stencil of m * m rows, and values of `batch` definite matrices of its structure."""
    rng = np.random.default_rng(seed)
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(m, m))
    csr = sp.csr_array(sp.kron(line, sp.eye_array(m)) + sp.kron(sp.eye_array(m), line))
    csr.sort_indices()
    diagonal = csr.indices == np.repeat(np.arange(m * m), np.diff(csr.indptr))
    V = np.tile(csr.data, (batch, 1)) * rng.uniform(0.5, 2, (batch, 1))
    V[:, diagonal] += rng.uniform(0.01, 1, (batch, m * m))
    return csr, V


#: M, and formats that have it: CVR has no block size.
SYSTEMS = [(cvr(32, 7, "rows"), None), (cvr(32, 7, "rows"), "jacobi")]
SYSTEMS += [(bbcsr(size), M) for size in (1, 2, 3) for M in (None, "jacobi", "block_jacobi")]


@pytest.mark.small
@pytest.mark.parametrize(("build", "M"), SYSTEMS, ids=str)
@pytest.mark.parametrize(("dtype", "m"), [("float64", 12), ("float32", 13)])
def test_cg(build, m, dtype, M, device):
    csr, V = stencil(m, 7)
    A, V = build(csr, device), V.astype(dtype)
    b = operand((7, m * m), dtype)
    b[3] = 0
    S, rtol = A.stack(put(V, device)), 1e-10 if dtype == "float64" else 1e-5
    x, info = linalg.cg(S, put(b, device), rtol=rtol, M=M)
    assert x.shape == b.shape
    assert x.dtype == dtype
    assert info.tolist() == [0] * 7
    for i in range(7):
        own = sp.csr_array((V[i], csr.indices, csr.indptr), shape=csr.shape).astype(np.float64)
        assert np.linalg.norm(b[i] - own @ get(x)[i]) <= 1.01 * rtol * np.linalg.norm(b[i])
        alone, _ = linalg.cg(A.stack(put(V[i : i + 1], device)), put(b[i : i + 1], device), rtol=rtol, M=M)
        assert_same_bits(x[i], alone[0])  # whatever the others are
        if device == "cpu":
            assert_same_bits(x[i], linalg.cg(S[i], b[i], rtol=rtol, M=M)[0])


@pytest.mark.parametrize(
    ("m", "batch"), [pytest.param(70, 3, marks=pytest.mark.small), (30, 300), (70, 20), (200, 9), (330, 5)]
)
@pytest.mark.parametrize("M", [None, "jacobi"])
def test_cg_of_systems_of_every_size(m, batch, M, gpu):
    """A block a system, several, and more than a device has at once; each has the bits of every other batch."""
    csr, V = stencil(m, batch)
    A, V, b = BBCSRArray(csr, block_size=1, device=gpu), put(V, gpu), put(operand((batch, m * m), "float64"), gpu)
    found = linalg.CG(A.stack(V), M=M, rtol=1e-9).solve(b)
    assert found.converged.all()
    assert len(set(found.iterations)) > 1
    part = linalg.CG(A.stack(V[1:3]), M=M, rtol=1e-9).solve(b[1:3])
    assert_same_bits(found.x[1:3], part.x)
    assert found.iterations[1:3].tolist() == part.iterations.tolist()
    counted = linalg.CG(A.stack(V), M=M, iterations=5, history=True).solve(b)
    assert counted.history.shape == (6, batch)
    assert bool((counted.history[-1] < counted.history[0]).all())
    for i in (0, batch - 1):
        own = sp.csr_array((get(V)[i], csr.indices, csr.indptr), shape=csr.shape)
        assert np.linalg.norm(get(b)[i] - own @ get(found.x)[i]) <= 1.01e-9 * np.linalg.norm(get(b)[i])


@pytest.mark.parametrize(("build", "M"), SYSTEMS[:5], ids=str)
def test_one_system_that_fails_leaves_the_others(build, M, device):
    csr, V = stencil(12, 8)
    A, b = build(csr, device), operand((8, 144), "float64")
    good = linalg.CG(A.stack(put(V, device)), M=M, rtol=1e-9).solve(put(b, device))
    V[1], V[3, 5], V[5] = 0, np.nan, -V[5]
    b[6, 2] = np.inf
    found = linalg.CG(A.stack(put(V, device)), M=M, rtol=1e-9, history=True).solve(put(b, device))
    x, info = linalg.cg(A.stack(put(V, device)), put(b, device), M=M, rtol=1e-9)
    assert_same_bits(x, found.x)
    failed = {1, 3, 5, 6}
    for i in range(8):
        assert found.converged[i] == (i not in failed)
        if i in failed:
            assert info[i] < 0
        else:
            assert (info[i], found.reason[i]) == (0, "converged")
            assert_same_bits(x[i], good.x[i])
    singular = "not positive definite" if M is None else "M not finite"
    negative = {None: "not positive definite", "jacobi": "M not positive definite", "block_jacobi": "M not finite"}[M]
    assert found.reason[1] == singular
    assert "not finite" in found.reason[3]
    assert found.reason[5] == negative
    assert found.reason[6] == "b not finite"


def test_each_ends_by_its_own_tolerance(device):
    csr, V = stencil(12, 4)
    V[1] *= 1e-3
    b = operand((4, 144), "float64")
    b *= np.array([1, 1e-9, 1e200, 1e-200])[:, None]
    A = BBCSRArray(csr, block_size=1, device=device)
    found = linalg.CG(A.stack(put(V, device)), rtol=1e-8).solve(put(b, device))
    assert found.converged.all()
    assert (found.residual <= 1e-8).all()
    cut = linalg.CG(A.stack(put(V, device)), rtol=1e-8, maxiter=int(found.iterations.min())).solve(put(b, device))
    assert cut.converged.tolist() == (found.iterations == found.iterations.min()).tolist()
    assert set(cut.reason) <= {"converged", "maxiter"}
    again = linalg.CG(A.stack(put(V, device)), rtol=1e-8).solve(put(b, device), x0=found.x)
    assert (again.iterations <= 1).all()


def test_a_solver_of_stacks(device):
    csr, V = stencil(12, 4)
    A, b = BBCSRArray(csr, block_size=2, device=device), put(operand((4, 144), "float64"), device)
    for M in (None, "jacobi", "block_jacobi"):
        solver = linalg.CG(A.stack(put(V, device)), M=M, rtol=1e-9, history=True)
        first = solver.solve(b)
        assert first.history.shape == (first.iterations.max() + 1, 4)
        assert bool((first.history[-1] <= 1e-8).all())
        assert_same_bits(solver.solve(b).x, first.x)
        solver.update(A.stack(put(2 * V, device)))
        second = solver.solve(b)
        assert np.allclose(2 * get(second.x), get(first.x), rtol=1e-7, atol=1e-7)
        out = A._target.xp.empty_like(b)
        assert solver.solve(b, out=out).x.base is out or solver.solve(b, out=out).x is out
        assert_same_bits(out, second.x)
        counted = linalg.CG(A.stack(put(V, device)), M=M, iterations=3).solve(b)
        assert counted.reason == ["iterations"] * 4
        assert counted.iterations.tolist() == [3] * 4


def test_complex_systems(device):
    csr, V = stencil(12, 3)
    coo = csr.tocoo()
    phase = np.exp(0.3j * (coo.col - coo.row))  # Hermitian
    A, b = CVRArray(csr, device=device), put(operand((3, 144), "complex128"), device)
    S = A.stack(put(V * phase, device))
    for M in (None, "jacobi"):
        x, info = linalg.cg(S, b, rtol=1e-9, M=M)
        assert info.tolist() == [0] * 3
        assert np.abs(get(S @ x - b)).max() < 1e-7


def test_bad_solves(device):
    csr, V = stencil(4, 2)
    S = CVRArray(csr, device=device).stack(put(V, device))
    b = put(np.ones((2, 16)), device)
    for bad in (b[0], b[:1], b[:, :3], b[..., None]):
        with pytest.raises(ValueError, match=r"b must have shape \(2, 16\)"):
            linalg.cg(S, bad)
    with pytest.raises(ValueError, match="x0 must have b's shape"):
        linalg.cg(S, b, x0=b[0])
    with pytest.raises(TypeError, match="M must be None, 'jacobi' or 'block_jacobi'"):
        linalg.cg(S, b, M=linalg.jacobi(S[0]))
    with pytest.raises(ValueError, match="M must be None, 'jacobi'"):
        linalg.cg(S, b, M="chebyshev")
    with pytest.raises(ValueError, match="block size"):
        linalg.cg(S, b, M="block_jacobi")
    with pytest.raises(ValueError, match="callback must be left out"):
        linalg.cg(S, b, callback=print)
    with pytest.raises(TypeError, match="precision='mixed'"):
        linalg.CG(S, precision="mixed")
    with pytest.raises(TypeError, match="A must be a Stack"):
        linalg.CG(S).update(S[0])
    with pytest.raises(ValueError, match="A must have shape"):
        linalg.CG(S).update(S[:1])
    with pytest.raises(ValueError, match="square"):
        linalg.cg(CVRArray(np.ones((2, 3)), device=device).stack(put(np.ones((2, 6)), device)), b)
    for method in (linalg.minres, linalg.gmres, linalg.bicgstab):
        with pytest.raises(TypeError, match=r"a Stack, which only cg solves with. Use S\[i\]"):
            method(S, b)
