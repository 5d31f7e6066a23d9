"""Multigrid by smoothed aggregation: its parts against dense algebra, whole solves against pyamg's, and every bad input."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse
from checks import assert_same_bits, get, put

import cvrarray
from asv_bench.record import multigrid as record
from asv_bench.record.multigrid import diffusion, elasticity, graph, pressure
from cvrarray import linalg
from cvrarray.core import devices
from cvrarray.cpu.runtime import threads
from cvrarray.linalg import aggregation
from cvrarray.linalg.multigrid import rigid_body_modes


def systems():
    """Matrix, keywords, and the most iterations to 1e-8."""
    body, places = elasticity(6)
    return {
        "stencil": (diffusion((16, 16, 16)), {}, 14),
        "jump": (diffusion((16, 16, 16), jump=1e4), {}, 21),
        "anisotropy": (diffusion((16, 16, 16), (1.0, 1.0, 1e-3)), {}, 14),
        "graph": (graph(4000), {}, 18),
        "pressure": (pressure(12), {}, 18),
        "elasticity": (body, {"near_nullspace": rigid_body_modes(places), "block_size": 3}, 19),
    }


SYSTEMS = systems()
EVERY = pytest.mark.parametrize("name", SYSTEMS)


def system(name, device, **more):
    csr, keywords, most = SYSTEMS[name]
    keywords = {key: put(value, device) if key == "near_nullspace" else value for key, value in keywords.items()}
    A = cvrarray.asarray(csr, device=device)
    b = np.random.default_rng(1).standard_normal(csr.shape[0])
    return csr, A, linalg.multigrid(A, **keywords | {"max_coarse": 60} | more), b, most


def dense(array):
    return get(array.todense())


def expected_prolongator(A, how, largest):
    """``(I - omega / rho D^-1 A) T`` by dense algebra, A without weak entries, which are added to the diagonal."""
    basis, aggregate = get(how.basis), get(how.aggregate)
    n, height, k = basis.shape
    T = np.zeros((n, height, how.n_coarse, k))
    for node in range(n):
        if aggregate[node] >= 0:
            T[node, :, aggregate[node]] = basis[node]
    T = T.reshape(n * height, -1)
    if how.strong is not None:
        ptr, idx, _, near = map(get, how.strong)
        kept = scipy.sparse.csr_array((np.ones(idx.size), idx, ptr), shape=(n, n)).toarray()[:, None, :, None] > 0
        blocks, ratio = A.reshape(n, height, n, height), (near / near[:, None])[:, None, :, None]
        diagonal = A.diagonal().reshape(n, height)
        A, lumped = np.where(kept, blocks, 0.0), np.where(kept, 0.0, blocks * ratio).sum(axis=2)
        after = diagonal + np.diagonal(lumped, axis1=1, axis2=2)
        lumped[(after < aggregation.LEAST_LUMPED * diagonal).any(axis=1)] = 0
        A[np.arange(n), :, np.arange(n)] += lumped
        A = A.reshape(n * height, -1)
    return T, T - aggregation.OMEGA / largest * (A / A.diagonal()[:, None]) @ T


# ----------------------------------------------------------------------------------------------------------- the setup


@pytest.mark.small
@EVERY
def test_levels_are_what_the_papers_say(name, device):
    csr, _A, M, _, _ = system(name, device)
    below, candidates = csr.toarray(), get(M._hierarchy._candidates)
    assert len(M.levels) >= 2
    for level, how in zip(M.levels, M._hierarchy._coarsenings, strict=True):
        matrix = dense(level.A)
        np.testing.assert_allclose(matrix, below, atol=1e-12 * abs(below).max())
        largest = aggregation.spectrum(level.A, put(1 / matrix.diagonal(), device), level.A._target)[0]
        T, P = expected_prolongator(matrix, how, largest)
        np.testing.assert_allclose(dense(level.P), P, atol=1e-13)
        assert_same_bits(dense(level.R), dense(level.P).T)
        # orthonormal, and the candidates of nodes in aggregates are in T's range
        square = T.T @ T
        np.testing.assert_allclose(square, np.diag((square.diagonal() > 0.5).astype(float)), atol=1e-13)
        inside = np.repeat(get(how.aggregate) >= 0, candidates.shape[1])
        flat = candidates.reshape(len(matrix), -1)[inside]
        np.testing.assert_allclose(T[inside] @ (T[inside].T @ flat), flat, atol=1e-11 * abs(flat).max())
        below = dense(level.P).T @ matrix @ dense(level.P)
        empty = below.diagonal() <= 1e-13 * matrix.diagonal().max()
        below[empty, empty] = 1
        candidates = (T.T @ candidates.reshape(len(matrix), -1)).reshape(how.n_coarse, T.shape[1] // how.n_coarse, -1)
    inverse = dense(M.coarsest)
    np.testing.assert_allclose(inverse @ below @ inverse, inverse, atol=1e-8 * abs(inverse).max())


def kernels(device):
    return aggregation._kernels(devices.parse(device))


def raw(csr, device):
    data = csr.data.astype(np.float64).reshape(-1, 1, 1)
    return [put(part, device) for part in (csr.indptr.astype(np.int64), csr.indices.astype(np.int32), data)]


@pytest.mark.small
@pytest.mark.parametrize("theta", [0.0, 0.1])
@pytest.mark.parametrize("name", ["stencil", "anisotropy", "graph"])
def test_aggregates(name, theta, device):
    """Roots are more than two edges apart, all nodes are within two edges of one, and a GPU finds those of a CPU."""
    csr = SYSTEMS[name][0]
    graph = kernels(device).strength(*raw(csr, device), theta)
    found, n = kernels(device).aggregate(*graph)
    ptr, idx, weight = map(get, graph)
    entries = csr.tocoo()
    scale = abs(entries.data) / np.sqrt(csr.diagonal()[entries.row] * csr.diagonal()[entries.col])
    kept = scale >= theta * (1 - 1e-15)
    assert_same_bits(idx, entries.col[kept].astype(np.int32))
    np.testing.assert_allclose(weight, np.where(entries.row == entries.col, 0, scale**2)[kept], rtol=1e-14)
    label = get(found)
    assert set(label) == set(range(n)) | ({-1} if (np.diff(ptr) == 1).any() else set())
    assert ((label < 0) == (np.diff(ptr) == 1)).all()
    edges = scipy.sparse.csr_array((np.ones(idx.size), idx, ptr), shape=csr.shape)
    for a in range(0, n, 7):  # connected, and no longer than four edges
        nodes = np.flatnonzero(label == a)
        inside = edges[nodes][:, nodes].toarray()
        assert (np.linalg.matrix_power(inside, 4) > 0).all()
    assert n < 0.3 * csr.shape[0]
    again = kernels("cpu").aggregate(*kernels("cpu").strength(*raw(csr, "cpu"), theta))
    assert n == again[1]
    assert_same_bits(label, again[0])


@pytest.mark.small
@pytest.mark.parametrize("n_cols", [40, 700])
@pytest.mark.parametrize("in_panels", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 3, 6), (6, 3, 6), (2, 5, 3)])
def test_products_of_blocks(shape, in_panels, n_cols, device, monkeypatch):
    """Rows of 700 columns are more than a table of a GPU's holds."""
    rng, backend = np.random.default_rng(0), kernels(device)
    if in_panels:  # a GPU sorts the places of so many terms at a time
        monkeypatch.setattr(backend, "MOST_TERMS", 100, raising=False)
    height, depth, width = shape
    left, right = (scipy.sparse.random_array(part, density=0.05, rng=rng, format="csr") for part in ((70, 90), (90, n_cols)))
    long = scipy.sparse.csr_array((np.ones(90), (np.full(90, 3), np.arange(90))), shape=(70, 90))
    left = scipy.sparse.csr_array(left + long)
    blocks = [rng.standard_normal((part.nnz, *size)) for part, size in ((left, (height, depth)), (right, (depth, width)))]
    whole = []
    for part, data in zip((left, right), blocks, strict=True):
        shape = tuple(n * size for n, size in zip(part.shape, data.shape[1:], strict=True))
        whole.append(scipy.sparse.bsr_array((data, part.indices, part.indptr), shape=shape))
    args = [put(part, device) for m, data in zip((left, right), blocks, strict=True)
            for part in (m.indptr.astype(np.int64), m.indices.astype(np.int32), data)]  # fmt: skip
    ptr, idx = backend.product_structure(*args[:2], *args[3:5], n_cols)
    data = backend.product(*args, ptr, idx, n_cols)
    exact = whole[0].toarray() @ whole[1].toarray()
    csr_ptr, csr_idx = backend.entries_structure(ptr, idx, height, width)
    found = scipy.sparse.csr_array((get(backend.entries(ptr, data)), get(csr_idx), get(csr_ptr)), shape=exact.shape)
    found.check_format(full_check=True)
    assert found.has_canonical_format
    np.testing.assert_allclose(found.toarray(), exact, atol=1e-12)
    t_ptr, t_idx, order = backend.transposed(ptr, idx, n_cols)
    turned = (get(backend.taken(data, order)), get(t_idx), get(t_ptr))
    np.testing.assert_allclose(scipy.sparse.bsr_array(turned, shape=exact.shape[::-1]).toarray(), exact.T, atol=1e-12)


@pytest.mark.small
def test_blocks_with_holes(device):
    csr = scipy.sparse.random_array((60, 60), density=0.1, rng=np.random.default_rng(0), format="csr")
    indptr, indices, _ = raw(csr, device)
    ptr, idx, place = (get(part) for part in kernels(device).blocks_structure(indptr, indices, 3))
    data = np.zeros(idx.size * 9)
    data[place] = csr.data
    found = scipy.sparse.bsr_array((data.reshape(-1, 3, 3), idx, ptr), shape=csr.shape)
    np.testing.assert_array_equal(found.toarray(), csr.toarray())
    assert idx.size == scipy.sparse.bsr_array(csr, blocksize=(3, 3)).indices.size


# ------------------------------------------------------------------------------------------------------------- solves


@EVERY
def test_iterations_beside_pyamg(name, device):
    pyamg = pytest.importorskip("pyamg")
    csr, A, M, b, most = system(name, device)
    keywords, matrix = SYSTEMS[name][1], scipy.sparse.csr_matrix(csr)
    theta = 0.0 if "near_nullspace" in keywords else 0.08
    how = {"max_coarse": 60, "strength": [("symmetric", {"theta": theta / 2**k}) for k in range(20)]}
    if "near_nullspace" in keywords:
        matrix, how["B"] = matrix.tobsr((3, 3)), keywords["near_nullspace"]
    theirs = linalg.multigrid(pyamg.smoothed_aggregation_solver(matrix, **how), device=device)
    found = [linalg.CG(A, M=one, rtol=1e-8).solve(put(b, device)) for one in (M, theirs)]
    assert all(one.converged for one in found)
    assert found[0].iterations <= min(most, 1.3 * found[1].iterations)


def checkerboard(n, side, jump):
    """The 5-point Laplacian of squares with coefficients 1 and `jump` in turn, and a little more on the diagonal."""
    coefficient = np.where((np.indices((n, n)) // side).sum(axis=0) % 2, jump, 1.0).ravel()
    number = np.arange(n * n).reshape(n, n)
    a, b = (
        np.concatenate([part.ravel() for part in pair]) for pair in ((number[1:], number[:, 1:]), (number[:-1], number[:, :-1]))
    )
    weight = 2 / (1 / coefficient[a] + 1 / coefficient[b])
    edges = scipy.sparse.coo_array((weight, (a, b)), shape=(n * n, n * n))
    edges = scipy.sparse.csr_array(edges + edges.T)
    return scipy.sparse.csr_array(scipy.sparse.diags_array(edges.sum(axis=1) + 0.01) - edges)


@pytest.mark.parametrize("jump", [1.0, 1e4, 1e8])
def test_iterations_do_not_depend_on_jumps(jump, device):
    """Of 1e8 they were 60: weak entries were added to the diagonal as if candidates of coarse levels were constant."""
    csr = checkerboard(90, 23, jump)
    A = cvrarray.asarray(csr, device=device)
    found = linalg.CG(A, M=linalg.multigrid(A, max_coarse=60), rtol=1e-6).solve(put(np.cos(np.arange(8100)), device))
    assert found.converged
    assert found.iterations <= 15


@pytest.mark.parametrize("method", ["cg", "minres", "gmres", "bicgstab"])
@pytest.mark.parametrize("columns", [None, 3])
def test_methods(method, columns, device):
    csr, A, M, _, _ = system("stencil", device)
    b = put(np.random.default_rng(2).standard_normal((csr.shape[0], columns) if columns else csr.shape[0]), device)
    x, info = getattr(linalg, method)(A, b, rtol=1e-9, M=M)
    assert np.all(info == 0)
    assert np.linalg.norm(get(b) - csr @ get(x)) <= 1.1e-9 * np.linalg.norm(get(b)) * 2


@pytest.mark.parametrize(
    "keywords", [{"cycle": "W"}, {"smoother": "jacobi"}, {"degree": 4}, {"dtype": "float32"}, {"max_coarse": 4000}]
)
def test_keywords(keywords, device):
    csr, A, _, b, _ = system("stencil", device)
    M = linalg.multigrid(A, **{"max_coarse": 60} | keywords)
    found = linalg.CG(A, M=M, rtol=1e-10).solve(put(b, device))
    assert found.converged
    assert found.iterations <= (30 if "smoother" in keywords else 17)
    r, s = (put(np.random.default_rng(seed).standard_normal(csr.shape[0]), device) for seed in (1, 2))
    assert float(s @ M.matvec(r)) == pytest.approx(float(r @ M.matvec(s)), rel=1e-4 if "dtype" in keywords else 1e-8)
    assert M.dtype == keywords.get("dtype", "float64")


def test_a_spot_with_the_largest_eigenvalue(device):
    """A start vector has next to nothing of it: with few Lanczos steps the bound is too small, and a cycle indefinite."""
    spot = np.array([1.0, -1, 1, -1])
    local = 6.1 * (0.45 * np.eye(4) + 0.55 * np.outer(spot, spot))
    bulk = diffusion((64, 64, 64))
    csr = scipy.sparse.block_diag([bulk, scipy.sparse.csr_array(local)], format="csr")
    A, u = cvrarray.asarray(csr, device=device), put(np.r_[np.zeros(bulk.shape[0]), spot], device)
    for M in (linalg.chebyshev(A, 2), linalg.multigrid(A)):
        assert float(u @ M.matvec(u)) > 0
        assert (M if hasattr(M, "largest") else M.levels[0].smoother).largest > 2.65


def test_short_iterations_wake_no_helpers(monkeypatch):
    """Python is called in each iteration, after which helpers would have to be woken again."""
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", "2")
    monkeypatch.setattr(threads, "Loan", None)
    csr = diffusion((70, 70))
    A = cvrarray.asarray(csr, device="cpu")
    x, info = linalg.cg(A, csr @ np.ones(4900), rtol=1e-10, M=linalg.multigrid(A))
    assert info == 0 and abs(x - 1).max() < 1e-6


@EVERY
def test_the_same_bits(name, device, monkeypatch):
    _, _A, M, b, _ = system(name, device)
    r = put(b, device)
    before = get(M.matvec(r))
    assert_same_bits(get(system(name, device)[2].matvec(r)), before)
    if device == "cpu":
        try:
            for n in (1, 2, 3):
                cvrarray.set_num_threads(n)
                monkeypatch.setattr("cvrarray.cpu.runtime.threads.SMALL", 64)
                assert_same_bits(system(name, device)[2].matvec(r), before)
        finally:
            cvrarray.set_num_threads(None)


@EVERY
def test_update(name, device):
    """New values give what a new setup with the old aggregates would: 4 A has the bits of A's, quartered."""
    csr, A, M, b, _ = system(name, device)
    r = put(b, device)
    before, frozen = get(M.matvec(r)), M.frozen()
    M.update(A.with_values(4 * get_data(A)))
    assert_same_bits(get(M.matvec(r)), before / 4)
    assert_same_bits(get(frozen.matvec(r)), before)  # a solve that runs goes on with the old ones
    scale = 1 + np.arange(csr.shape[0]) / csr.shape[0]
    entries = csr.tocoo()
    new = A.with_values(put(csr.data * scale[entries.row] * scale[entries.col], device))
    M.update(new)
    found = linalg.CG(new, M=M, rtol=1e-8).solve(r)
    assert found.converged
    assert found.iterations < 80
    with pytest.raises(ValueError, match="positive definite"):
        M.update(A.with_values(-get_data(A)))
    assert_same_bits(get(linalg.CG(new, M=M, rtol=1e-8).solve(r).x), get(found.x))
    turned = np.roll(np.arange(csr.shape[0]), 1)
    for others in (scipy.sparse.eye_array(csr.shape[0], format="csr"), csr[turned][:, turned]):
        with pytest.raises(ValueError, match="where those from before were"):
            M.update(cvrarray.asarray(others, device=device))
    with pytest.raises(ValueError, match="must have shape"):
        M.update(cvrarray.asarray(np.eye(3), device=device))


def test_update_of_other_kinds(device):
    _, A, M, b, _ = system("stencil", device)
    before = get(M.matvec(put(b, device)))
    for wrong, error in ((A.astype("complex128"), TypeError), ([1, 2], (TypeError, ValueError)), (None, TypeError)):
        with pytest.raises(error):
            M.update(wrong)
    M.update(SYSTEMS["stencil"][0].astype(np.float32))
    np.testing.assert_allclose(get(M.matvec(put(b, device))), before, atol=1e-5 * abs(before).max())


def get_data(A):
    return A.tocsr().data


def test_copies(device):
    _, A, M, b, _ = system("elasticity", device)
    r = put(b, device)
    for other in (copy.copy(M), pickle.loads(pickle.dumps(M))):
        assert_same_bits(get(other.matvec(r)), get(M.matvec(r)))
    narrow = M.astype("float32")
    np.testing.assert_allclose(get(narrow.matvec(r)), get(M.matvec(r)), atol=1e-4 * abs(get(M.matvec(r))).max())
    before = get(narrow.matvec(r))
    narrow.update(A)
    assert narrow.dtype == np.float32
    for wrong in ("int32", "float16"):  # of which the levels were 0
        with pytest.raises(TypeError, match="float32 or float64"):
            M.astype(wrong)
    np.testing.assert_allclose(get(narrow.matvec(r)), before, atol=1e-4 * abs(before).max())


def test_repr(device):
    _, _, M, _, _ = system("elasticity", device)
    text = repr(M)
    assert text.startswith("<Multigrid 1008 x 1008, float64, V-cycle, smoothed aggregation, ")
    for part in ("rows", "nonzeros", "complexity", "ms: ", "aggregates", "products", "34,650"):
        assert part in text


def test_rigid_body_modes(device):
    """No forces follow from them but where the body is held."""
    body, places = elasticity(4)
    modes = get(rigid_body_modes(put(places, device)))
    assert modes.shape == (body.shape[0], 6)
    free = places[:, 0] > 1.5 / 4
    assert abs((body @ modes).reshape(-1, 3, 6)[free]).max() < 1e-12
    flat = get(rigid_body_modes(put(places[:, :2], device)))
    assert flat.shape == (2 * len(places), 3)


# ---------------------------------------------------------------------------------------------------------- bad input


def converges(csr, device, b=None, **keywords):
    A = cvrarray.asarray(csr, device=device)
    M = linalg.multigrid(A, **keywords)
    b = np.random.default_rng(0).standard_normal(csr.shape[0]) if b is None else b
    found = linalg.CG(A, M=M, rtol=1e-8).solve(put(b, device))
    assert found.converged, found.reason
    assert np.isfinite(get(found.x)).all()
    return M, found


@pytest.mark.parametrize("parts", [1, 3])
def test_singular(parts, device):
    """Pure Neumann problems, each part of which leaves a constant free."""
    one = diffusion((12, 12, 12), fixed=False)
    csr = scipy.sparse.block_diag([one] * parts, format="csr")
    b = np.random.default_rng(0).standard_normal(csr.shape[0]).reshape(parts, -1)
    _, found = converges(csr, device, (b - b.mean(axis=1, keepdims=True)).ravel(), max_coarse=20)
    assert found.iterations < 25
    A = cvrarray.asarray(csr, device=device)
    found = linalg.CG(A, M=linalg.multigrid(A, max_coarse=20), rtol=1e-8, maxiter=200).solve(put(np.ones(csr.shape[0]), device))
    assert not found.converged
    assert np.isfinite(get(found.x)).all()


PAIR = scipy.sparse.csr_array(np.array([[2.0, -1], [-1, 2]]))


def test_disconnected_parts(device):
    """Parts of very different sizes, single rows among them, and pairs."""
    parts = [diffusion((20, 20)), diffusion((3, 3)), *[PAIR] * 30, *[0.5 * PAIR[:1, :1]] * 50]
    converges(scipy.sparse.csr_array(scipy.sparse.block_diag(parts)), device, max_coarse=10)
    converges(scipy.sparse.csr_array(scipy.sparse.block_diag([PAIR] * 300)), device, max_coarse=10)
    pair = scipy.sparse.csr_array(scipy.sparse.block_diag([PAIR - scipy.sparse.eye_array(2)] * 300))  # singular each
    converges(pair, device, np.tile([1.0, -1.0], 300), max_coarse=10)


def test_rows_without_neighbours(device):
    """Unknowns that are held, as rows of the identity."""
    csr = diffusion((24, 24)).tolil()
    held = np.arange(0, 576, 5)
    csr[held, :] = 0
    csr[:, held] = 0
    csr[held, held] = 1
    converges(scipy.sparse.csr_array(csr), device, max_coarse=10)
    M, _ = converges(scipy.sparse.csr_array(scipy.sparse.diags_array(np.arange(1.0, 601.0))), device)
    assert not M.levels


@pytest.mark.parametrize("n", [0, 1, 2])
def test_small(n, device):
    csr = scipy.sparse.csr_array(2.0 * scipy.sparse.eye_array(n))
    M = linalg.multigrid(cvrarray.asarray(csr, device=device))
    np.testing.assert_array_equal(get(M.matvec(put(np.ones(n), device))), 0.5)
    assert f"{n} x {n}" in repr(M)


@pytest.mark.parametrize("build", ["int", "float32", "scipy", "dense", "bbcsr", "zeros", "few"])
def test_kinds_of_matrices(build, device):
    csr = diffusion((16, 16))
    csr.data = np.round(csr.data)
    given = {
        "int": lambda: cvrarray.asarray(csr.astype(np.int32), device=device),
        "float32": lambda: cvrarray.asarray(csr.astype(np.float32), device=device),
        "scipy": lambda: csr.tocoo(),
        "dense": lambda: csr.toarray(),
        "bbcsr": lambda: cvrarray.BBCSRArray(scipy.sparse.kron(csr, np.array([[2.0, 1], [1, 2]])), block_size=2, device=device),
        "zeros": lambda: cvrarray.asarray(with_zeros(csr), device=device),
        "few": lambda: cvrarray.asarray(csr, device=device, values="auto"),
    }[build]()
    M = linalg.multigrid(given, max_coarse=20, device=device)
    assert M.dtype == ("float32" if build == "float32" else "float64")
    assert len(M.levels) >= 1
    assert (M._made.sizes[0][2] == 2) == (build == "bbcsr")
    A = cvrarray.asarray(given, device=device, dtype=M.dtype)
    rtol = 1e-5 if build == "float32" else 1e-8
    assert linalg.CG(A, M=M, rtol=rtol).solve(put(np.ones(M.shape[0], M.dtype), device)).converged


@pytest.mark.parametrize(("scale", "dtype"), [(1e130, "float64"), (1e-130, "float64"), (1e30, "float32"), (1e-30, "float32")])
def test_scales(scale, dtype, device):
    A = cvrarray.asarray((STENCIL * scale).astype(dtype), device=device)
    found = linalg.CG(A, M=linalg.multigrid(A), rtol=1e-4).solve(put(np.ones(900, dtype), device))
    assert found.converged
    assert found.iterations < 12


def nearly_singular():
    """Condition 1e11."""
    return scipy.sparse.csr_array(diffusion((5, 5), fixed=False) + 1e-10 * scipy.sparse.eye_array(25))


def with_zeros(csr):
    """With stored zeros far from the diagonal, which connect nothing."""
    n = csr.shape[0]
    far = scipy.sparse.coo_array((np.zeros(n), (np.arange(n), np.arange(n)[::-1])), shape=(n, n))
    entries = csr.tocoo()
    row, col = (np.concatenate([getattr(part, name) for part in (entries, far)]) for name in ("row", "col"))
    made = scipy.sparse.csr_array((np.concatenate([entries.data, far.data]), (row, col)), shape=(n, n))
    assert made.nnz > csr.nnz
    return made


STENCIL = diffusion((30, 30))
HOLE = scipy.sparse.csr_array(STENCIL - scipy.sparse.diags_array(np.where(np.arange(900) == 7, STENCIL.diagonal(), 0)))
BAD = {
    "not symmetric": (ValueError, "symmetric part", lambda: scipy.sparse.triu(STENCIL, format="csr"), {}),
    "zero on the diagonal": (ValueError, r"entry \[7, 7\] of A is 0.0", lambda: HOLE, {}),
    "negative": (ValueError, r"entry \[0, 0\] of A is -", lambda: -STENCIL, {}),
    "tiny": (ValueError, "scale A", lambda: STENCIL * 1e-200, {}),
    "huge": (ValueError, "scale A", lambda: STENCIL * 1e200, {}),
    "indefinite": (ValueError, "positive definite", lambda: STENCIL - 0.1 * scipy.sparse.eye_array(900), {}),
    "nan": (ValueError, "must be finite", lambda: STENCIL * np.nan, {}),
    "inf": (ValueError, "must be finite", lambda: STENCIL * np.inf, {}),
    "negative, one level": (ValueError, r"entry \[0, 0\] of A is -1", lambda: -scipy.sparse.eye_array(50, format="csr"), {}),
    "tiny for float32": (ValueError, "levels of float32", lambda: STENCIL * 1e-60, {"dtype": "float32"}),
    "huge for float32": (ValueError, "levels of float32", lambda: STENCIL * 1e60, {"dtype": "float32"}),
    "inverse for float32": (ValueError, "too large for float32", lambda: nearly_singular() * 1e-30, {"dtype": "float32"}),
    "no progress": (ValueError, "Lower strength", lambda: diffusion((70, 70)), {"strength": 0.9}),
    "complex": (TypeError, "real numbers", lambda: STENCIL.astype(complex), {}),
    "not square": (ValueError, "square", lambda: STENCIL[:10], {}),
    "cycle": (ValueError, "'V' or 'W'", lambda: STENCIL, {"cycle": "F"}),
    "cycles": (ValueError, "'V' or 'W'", lambda: STENCIL, {"cycle": ["V"]}),
    "smoother": (ValueError, "'chebyshev' or 'jacobi'", lambda: STENCIL, {"smoother": "ilu"}),
    "degree": (ValueError, "degree", lambda: STENCIL, {"degree": 0}),
    "strength": (ValueError, "strength", lambda: STENCIL, {"strength": 1.0}),
    "strength text": (ValueError, "strength", lambda: STENCIL, {"strength": "0.1"}),
    "strength nan": (ValueError, "strength", lambda: STENCIL, {"strength": np.nan}),
    "max_coarse": (ValueError, "max_coarse", lambda: STENCIL, {"max_coarse": 5000}),
    "block_size": (ValueError, "divide", lambda: STENCIL, {"block_size": 7}),
    "dtype": (TypeError, "float32 or float64", lambda: STENCIL, {"dtype": "float16"}),
    "vectors": (ValueError, "near_nullspace must be real", lambda: STENCIL, {"near_nullspace": np.ones(3)}),
    "no vectors": (ValueError, "near_nullspace must be real", lambda: STENCIL, {"near_nullspace": np.ones((900, 0))}),
    "vectors nan": (ValueError, "near_nullspace must be finite", lambda: STENCIL, {"near_nullspace": np.full(900, np.nan)}),
    "vectors zero": (ValueError, "not 0", lambda: STENCIL, {"near_nullspace": np.zeros(900)}),
    "nothing": (TypeError, "a int only multiplies", lambda: 3, {}),
    "no levels": (TypeError, "hierarchy of pyamg's", lambda: [], {}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, device):
    error, message, make, keywords = BAD[case]
    given = make()
    if hasattr(given, "tocsr"):
        given = cvrarray.asarray(given, device=device)
    keywords = {key: put(value, device) if isinstance(value, np.ndarray) else value for key, value in keywords.items()}
    with pytest.raises(error, match=message), np.errstate(all="ignore"):
        linalg.multigrid(given, **keywords)


@pytest.mark.parametrize("scale", [1e200, 1e-310, 3.0])
def test_scales_of_vectors(scale, device):
    """Squares of the first are inf, and of the second 0: they gave prolongators that were 0."""
    A, r = cvrarray.asarray(diffusion((20, 20)), device=device), put(np.ones(400), device)
    vectors = np.stack([np.ones(400), np.arange(400.0) - 200], axis=1)
    M, scaled = (linalg.multigrid(A, put(part * vectors, device), max_coarse=20) for part in (1.0, scale))
    assert M._made.sizes == scaled._made.sizes
    np.testing.assert_allclose(get(scaled.matvec(r)), get(M.matvec(r)), rtol=1e-6)


def test_hubs(device, monkeypatch):
    """Few nodes with very many neighbours: coarser levels would be dense, and are not made."""
    n, rng = 3000, np.random.default_rng(0)
    row = np.repeat(np.arange(1, n), 3)
    edges = scipy.sparse.coo_array((np.ones(row.size), (row, (row * rng.random(row.size) ** 3).astype(int))), shape=(n, n))
    edges = scipy.sparse.csr_array(((edges + edges.T).tocsr() > 0).astype(float))
    csr = scipy.sparse.csr_array(scipy.sparse.diags_array(edges.sum(axis=1) + 0.01) - edges)
    converges(csr, device)
    monkeypatch.setattr(aggregation, "MOST_GROWTH", 3)
    monkeypatch.setattr(aggregation, "MOST_DENSE", 200)
    with pytest.raises(ValueError, match="not sparse"):
        linalg.multigrid(cvrarray.asarray(csr, device=device))


def test_too_many_vectors_stop_the_coarsening(device):
    """As many as unknowns of an aggregate: the next level would be no smaller."""
    rng = np.random.default_rng(0)
    A = cvrarray.asarray(diffusion((80, 80)), device=device)
    with pytest.raises(ValueError, match="fewer near_nullspace"):
        linalg.multigrid(A, put(rng.standard_normal((6400, 20)), device))


def test_dependent_vectors(device):
    """Twice the same, and one that is 0: their coarse unknowns have no energy."""
    csr = diffusion((20, 20))
    ones = np.ones(400)
    vectors = put(np.stack([ones, ones, 0 * ones], axis=1), device)
    _, found = converges(csr, device, max_coarse=20, near_nullspace=vectors)
    assert found.iterations < 20


def test_bad_coordinates():
    for wrong in (np.ones(3), np.ones((4, 4)), np.ones((4, 3), complex)):
        with pytest.raises(ValueError, match="coordinates must be real"):
            rigid_body_modes(wrong)
    with pytest.raises(ValueError, match="finite"):
        rigid_body_modes(np.array([[np.nan, 0.0]]))


def test_a_hierarchy_of_pyamgs_is_told(device):
    from types import SimpleNamespace

    M = linalg.multigrid([SimpleNamespace(A=2 * np.eye(3))], device=device)
    assert "pyamg's hierarchy" in repr(M)
    with pytest.raises(TypeError, match="hierarchy of pyamg's belongs"):
        M.update(cvrarray.asarray(np.eye(3), device=device))


def test_the_record(capsys, device):
    record.main(["stencil7", "elasticity", "--sizes", "small", "--device", device])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[2:]] == ["stencil7", "elasticity"]
    assert all(0 < int(row[4]) < int(row[8]) for row in rows[2:])  # iterations, and Jacobi's; neither has failed
