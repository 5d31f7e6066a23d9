"""Gram matrices, moments, singular vectors and principal components: beside NumPy's, from arrays, stores and Dask's chunks."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
import zoo
from checks import ONE_OF_EACH, assert_same_bits, get, in_pairs, in_turn, put
from scipy.sparse import csr_array

import cvrarray
from cvrarray import linalg
from cvrarray.core import devices
from cvrarray.core.tables import CSR
from cvrarray.input import partition

DTYPES = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
SHAPES = [[60, 20], [20, 60], [1, 7], [7, 1], [33, 33]]


def matrix(shape=(300, 40), dtype="float64", density=0.2, seed=0, full=True) -> np.ndarray:
    """Dense, with an empty column, where there are three, and one with every entry and a large mean."""
    rng = np.random.default_rng(seed)
    dense = (rng.random(shape) < density) * (20 * rng.standard_normal(shape)).round(2)
    if np.dtype(dtype).kind == "c":
        dense = dense + 1j * (rng.random(shape) < density) * rng.standard_normal(shape)
    if shape[1] > 2:
        dense[:, 1] = 0
        dense[:, 2] = 100 + rng.random(shape[0]) if full else dense[:, 2]
    return (dense if np.dtype(dtype).kind in "fci" else abs(dense)).astype(dtype)


def wide(dense: np.ndarray) -> np.ndarray:
    return dense.astype(np.result_type(dense.dtype, np.float64))


def array(dense, device, build=ONE_OF_EACH[0]):
    return build(csr_array(dense) if dense.dtype != np.float16 else dense, device=device)


def sources(A, path):
    """The same matrix as a store, and as dask arrays, cut in different ways."""
    for k, chunks in enumerate((A.nbytes // 7 + 1, A.nbytes // 3 + 1)):
        cvrarray.to_store(A, f"{path}/{k}", chunks=chunks, device=A.device)
        yield cvrarray.Stored(f"{path}/{k}", device=A.device)
    for chunks in (A.shape[0] // 5 + 1, A.shape[0] // 2 + 3):
        yield cvrarray.to_dask(A, chunks=chunks, device=A.device)


def assert_close(found, wanted, rtol=1e-12):
    found, wanted = get(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * max(1, abs(wanted).max(initial=0)))


# ------------------------------------------------------------------------------------------------------------------ gram


@pytest.mark.small
@in_turn("dtype, shape, build", DTYPES, SHAPES, ONE_OF_EACH, times=2)
def test_gram(dtype, shape, build, device):
    """NumPy's dtype; integers wrap and bool is a disjunction, as in ``D.T @ D``; the same bits each time, with `out` too."""
    dense = matrix(shape, dtype, full=dtype != "float16")
    A = array(dense, device, build)
    found, wanted = linalg.gram(A), dense.conj().T @ dense
    assert found.dtype == wanted.dtype
    assert devices.of(found) == A._target
    if dense.dtype.kind in "biu":
        np.testing.assert_array_equal(get(found), wanted)
    else:
        bound = len(dense) * np.finfo(dense.dtype).eps * (abs(wide(dense)).T @ abs(wide(dense)))
        assert (abs(get(found) - wide(dense).conj().T @ wide(dense)) <= bound).all()
        np.testing.assert_array_equal(get(found), get(found).conj().T)  # its diagonal is real
    out = A._target.xp.full_like(found, 7)
    assert linalg.gram(A, out=out) is out
    assert_same_bits(get(out), get(found))
    assert_same_bits(get(linalg.gram(A)), get(found))


@in_turn("name, dtype", sorted(zoo.ZOO), ["float32", "float64"])
def test_gram_of_the_zoo(name, dtype, device):
    csr = zoo.integers(name).astype(dtype)
    if csr.shape[1] > 3000:
        pytest.skip("a dense result of its columns is large")
    np.testing.assert_array_equal(get(linalg.gram(cvrarray.CVRArray(csr, device=device))), (csr.T @ csr).toarray())


@in_turn("dtype, scale", DTYPES, [None, "std", "array"])
def test_covariance(dtype, scale, device):
    """As numpy.cov, also of columns with every entry and a mean far from 0; a column of zeros gives 0."""
    dense = matrix(dtype=dtype)
    exact = wide(dense) - wide(dense).mean(axis=0)
    divisor = np.ones(40) if scale is None else np.where(exact.any(axis=0), exact.std(axis=0), 1)
    if scale == "array":
        divisor = np.arange(1.0, 41)
    wanted = (exact / divisor).conj().T @ (exact / divisor) / (len(dense) - 1)
    given = put(divisor, device) if scale == "array" else scale
    found = linalg.gram(array(dense, device), center=True, scale=given, dtype=wanted.dtype)
    assert_close(found, wanted, 1e-12)
    narrow = linalg.gram(array(dense, device), center=True, scale=given)
    assert narrow.dtype == (dense.dtype if dense.dtype.kind in "fc" else np.float64)
    assert_close(narrow.astype(wanted.dtype), wanted, max(1e-12, float(np.finfo(narrow.dtype).eps)))
    assert not get(found)[1].any() and not get(found)[:, 1].any()


def test_large_means_are_no_loss(device):
    """1e8 plus or minus 1 in every row: the variance is right to eight digits, where sums of squares would have none."""
    dense = np.zeros((1000, 3))
    dense[:, 0] = 1e8 + np.tile([1.0, -1.0], 500)
    dense[::2, 1] = 1e8
    A = array(dense, device)
    assert_close(linalg.gram(A, center=True), np.cov(dense, rowvar=False), 1e-8)
    assert_close(linalg.mean_var(A, 0)[1], dense.var(axis=0), 1e-12)


def test_gram_in_float64_of_float32(device):
    dense = matrix((500, 30), "float32")
    assert_close(linalg.gram(array(dense, device), dtype="float64"), wide(dense).T @ wide(dense), 1e-14)


@in_pairs("dtype, build", ["float32", "float64", "complex64"], ONE_OF_EACH)
def test_bits_do_not_depend_on_panels(dtype, build, device, tmp_path):
    """Of arrays and stores; of Dask's chunks, which are summed in groups, among themselves."""
    A = array(matrix((9000, 30), dtype, 0.1), device, build)
    calls = [
        lambda A: [linalg.gram(A)],
        lambda A: [linalg.gram(A, center=True, scale="std")],
        lambda A: linalg.mean_var(A, 0),
        lambda A: linalg.mean_var(A, 1),
    ]
    *stores, first, second = sources(A, tmp_path)
    for call in calls:
        for other in stores:
            for one, two in zip(call(A), call(other), strict=True):
                assert_same_bits(get(one), get(two))
        for one, two, three in zip(call(first), call(second), call(A), strict=True):
            assert_same_bits(one, two)
            assert_close(one, get(three), 1e-5 if dtype in ("float32", "complex64") else 1e-12)


@pytest.mark.parametrize("height", [1, 7, 1000])
def test_sums_go_on_from_panel_to_panel(height, device):
    """The device's function, on any cut of the rows, and with tiles of columns on a GPU."""
    target = devices.parse(device)
    module = target.backend("gram")
    n = 6000 if target.kind == "cuda" else 50
    rng = np.random.default_rng(0)
    csr = csr_array((rng.random((40, n)) < 0.1) * rng.standard_normal((40, n)))
    with target.use():
        moved = CSR(*(target.xp.asarray(part) for part in (csr.indptr, csr.indices, csr.data)), csr.shape)
        total, whole = (target.xp.zeros((n, n)) for _ in range(2))
        module.add(moved, whole)
        for first in range(0, 40, height):
            module.add(partition.rows(moved, first, min(first + height, 40)), total)
    assert_same_bits(get(total), get(whole))
    np.testing.assert_allclose(np.triu(get(whole)), np.triu((csr.T @ csr).toarray()), rtol=1e-12, atol=1e-12)


def test_few_entries_are_held_at_a_time(device, tmp_path, monkeypatch):
    """Of arrays, their transposes, stores and chunks: as many as the device's module says, but for rows that are longer."""
    A = array(matrix((9000, 30), density=0.1), device)
    module = devices.parse(device).backend("gram")
    add, seen = module.add, []

    def counted(csr, out):
        seen.append(csr.nnz)
        add(csr, out)

    monkeypatch.setattr(module, "PANEL", 2000)
    monkeypatch.setattr(module, "add", counted)
    for source in (A, A.T.copy().T, *sources(A, tmp_path)):
        seen.clear()
        linalg.gram(source)
        assert sum(seen) == A.nnz
        assert max(seen) < 3000


def test_threads_do_not_change_bits(device):
    if device != "cpu":
        pytest.skip("of a CPU")
    A = array(matrix((3000, 200), "float32"), device)
    found = []
    try:
        for n in (1, 2, 3):
            cvrarray.set_num_threads(n)
            found.append([linalg.gram(A), *linalg.mean_var(A, 0)])
    finally:
        cvrarray.set_num_threads(None)
    for others in found[1:]:
        for one, two in zip(found[0], others, strict=True):
            assert_same_bits(one, two)


# --------------------------------------------------------------------------------------------------------------- mean_var


@pytest.mark.small
@in_pairs("dtype, axis", DTYPES, [0, 1, -1])
def test_mean_var(dtype, axis, device):
    dense = matrix(dtype=dtype)
    for A in (array(dense, device), array(np.ascontiguousarray(dense.T), device).T):
        mean, variance = linalg.mean_var(A, axis)
        assert (mean.dtype, variance.dtype) == (np.result_type(dense.dtype, np.float64), np.float64)
        assert_close(mean, wide(dense).mean(axis=axis))
        assert_close(variance, wide(dense).var(axis=axis))


def test_mean_var_as_scikit_learn_has_it(device):
    sparsefuncs = pytest.importorskip("sklearn.utils.sparsefuncs")
    csr = csr_array(matrix())
    for axis in (0, 1):
        for one, two in zip(
            linalg.mean_var(cvrarray.CVRArray(csr, device=device), axis),
            sparsefuncs.mean_variance_axis(csr, axis),
            strict=True,
        ):
            assert_close(one, two)


# ------------------------------------------------------------------------------------------------------------------- svds


def assert_triplets(found, dense, k, tol):
    """Singular values beside NumPy's, orthonormal to 100 eps, residuals as they say, signs by right vectors."""
    U, s, Vt = map(get, found)
    eps, exact = float(np.finfo(s.dtype).eps), np.linalg.svd(dense, compute_uv=False)
    largest = max(exact[0], 1e-300)
    assert found.converged
    assert found.residuals.shape == (k,)
    assert (abs(s - exact[:k]) <= max(tol, 8 * eps) * largest).all()
    assert (np.diff(s) <= 0).all()
    for vectors in (U.T, Vt):
        np.testing.assert_allclose(vectors.conj() @ vectors.T, np.eye(k), rtol=0, atol=100 * eps)
    U, s, V = wide(U), wide(s), wide(Vt).conj().T
    for residual in (dense @ V - U * s, dense.conj().T @ U - V * s):
        assert (np.linalg.norm(residual, axis=0) <= (tol + 8 * eps) * largest).all()
    top = V[abs(V).argmax(axis=0), np.arange(k)]
    assert (top.real > 0).all() and np.allclose(top.imag, 0)


@pytest.mark.small
@in_turn("dtype, shape, center", DTYPES, [[300, 40], [40, 300], [50, 50], [9, 1]], [False, True], times=2)
def test_svds(dtype, shape, center, device):
    dense = matrix(shape, dtype)
    k = min(6, *shape)
    found = linalg.svds(array(dense, device), k, center)
    assert found.s.dtype == np.dtype({"float32": "f4", "float16": "f4", "complex64": "f4"}.get(dtype, "f8"))
    assert devices.of(found.s).kind == devices.parse(device).kind
    single = found.s.dtype == np.float32
    assert_triplets(found, wide(dense) - wide(dense).mean(axis=0) * center, k, 1e-5 if single else 1e-10)


@pytest.mark.parametrize("force", [True, False], ids=["iterated", "direct"])
@pytest.mark.parametrize("columns", [0, 100], ids=["products", "gram"])
def test_ways_of_svds(columns, force, device, monkeypatch):
    """With products or the Gram matrix, iterated or not: the same triplets, whole spectra and multiple values among them."""
    from importlib import import_module

    module = import_module("cvrarray.linalg.svds")
    monkeypatch.setattr(module, "MOST_COLUMNS", columns)
    monkeypatch.setattr(module, "SMALL", 0 if force else 2048)
    monkeypatch.setattr(module, "SPACES", 3)
    for dense in (matrix(), matrix(full=False), np.diag(np.repeat([3.0, 2, 1], 12)), np.diag(10.0 ** -np.arange(24))):
        for k in (1, 5, 12):
            found = linalg.svds(array(dense, device), k)
            assert_triplets(found, dense, k, 1e-10)
            assert_same_bits(get(found.U), get(linalg.svds(array(dense, device), k).U))
    assert_triplets(linalg.svds(array(matrix(), device), 40), matrix(), 40, 1e-10)


def test_small_singular_values(device):
    """Those below the root of the precision, which the normal matrix does not know, from what is left of A."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 12)))[0] for n in (80, 30))
    dense = (left * 10.0 ** -np.arange(12)) @ right.T
    found = linalg.svds(array(dense, device), 12, tol=1e-13)
    assert found.converged
    np.testing.assert_allclose(get(found.s), 10.0 ** -np.arange(12), rtol=1e-3)


@pytest.mark.parametrize(
    "dense", [np.zeros((30, 9)), np.outer(np.arange(30.0), np.ones(9)), np.ones((1, 1))], ids=["0", "1", "one"]
)
def test_rank_deficient(dense, device):
    k = min(5, *dense.shape)
    assert_triplets(linalg.svds(array(dense, device), k), dense, k, 1e-10)


def test_scaled_columns_as_standard_scaler(device):
    """A column of zeros gives 0, not nan."""
    dense = matrix()
    deviation = dense.std(axis=0)
    scaled = (dense - dense.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    assert_triplets(linalg.svds(array(dense, device), 5, center=True, scale="std"), scaled, 5, 1e-10)


def test_a_deviation_of_rounding_alone_is_none(device):
    """As of scikit-learn: such a column is noise, which its deviation would make as large as the others."""
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    dense = matrix()
    dense[:, 3] = np.where(dense[:, 5] > 0, 0.1, np.nextafter(0.1, 1))
    dense[:, 4] = 1e8 + 1e-3 * dense[:, 5]
    deviation = preprocessing.StandardScaler().fit(dense).scale_
    assert deviation[3] == 1
    assert deviation[4] < 1
    found = linalg.gram(array(dense, device), center=True, scale="std").diagonal()
    assert_close(found, dense.var(axis=0) / deviation**2 * (300 / 299), 1e-6)


@in_pairs("factor, left", [1e-200, 1e-160, 1e160, 1e300], [True, False])
def test_squares_out_of_range_are_refused(factor, left, device, tmp_path):
    """Singular values would be 0 or inf, or few of their digits right, with residuals that do not tell."""
    dense = matrix((9000, 30), density=0.1, full=False)
    A = array(dense * factor, device)
    for source in (A, *sources(A, tmp_path)):
        with pytest.raises(ValueError, match=r"between 1e-140 and 1e\+140 .*; got (\S+)\. Use svds\(A / \1,"):
            linalg.svds(source, 3, return_singular_vectors=left)
    assert_triplets(linalg.svds(A / factor, 3), dense, 3, 1e-10)


def test_svds_from_stores_and_dask(device, tmp_path):
    dense = matrix((9000, 30), density=0.1)
    A = array(dense, device)
    for other in sources(A, tmp_path):
        for keywords in ({}, {"center": True}):
            found = linalg.svds(other, 5, **keywords)
            assert_triplets(found, dense - dense.mean(axis=0) * bool(keywords), 5, 1e-10)
            again = linalg.svds(other, 5, **keywords)
            for one, two in zip(found, again, strict=True):
                assert_same_bits(get(one), get(two))


@pytest.mark.parametrize("wanted", [True, False, "u", "vh"])
@pytest.mark.parametrize("shape", [(300, 40), (40, 300)])
def test_which_vectors(wanted, shape, device):
    dense = matrix(shape)
    U, s, Vt = linalg.svds(array(dense, device), 4, return_singular_vectors=wanted)
    assert (U is not None, Vt is not None) == (wanted in (True, "u"), wanted in (True, "vh"))
    exact = np.linalg.svd(dense)
    assert_close(s, exact.S[:4], 1e-10)
    for vectors, theirs in ((U, exact.U[:, :4].T), (Vt, exact.Vh[:4])):
        if vectors is not None:
            ours = get(vectors).T if vectors is U else get(vectors)
            np.testing.assert_allclose(abs((ours * theirs).sum(axis=1)), 1, rtol=1e-8)
    assert Vt is None or (get(Vt)[np.arange(4), abs(get(Vt)).argmax(axis=1)] > 0).all()


def test_progress_is_told(device, monkeypatch):
    """The number of products, which grows from one round to the next."""
    from contextlib import contextmanager
    from importlib import import_module

    module, told = import_module("cvrarray.linalg.svds"), []

    @contextmanager
    def shown(what, total, unit):
        told.append((what, total, unit))
        yield lambda done: told.append(done)

    monkeypatch.setattr(module, "shown", shown)
    monkeypatch.setattr(module, "MOST_COLUMNS", 0)
    found = linalg.svds(array(np.diag(10.0 ** -np.arange(24)), device), 12, maxiter=200)
    assert told[0] == ("singular vectors", 200, "iterations")
    assert told[1:] == list(range(1, found.iterations + 1))


def test_iterations_end_at_the_limit(device, monkeypatch):
    """What is not converged says so, and how far it got."""
    from importlib import import_module

    monkeypatch.setattr(import_module("cvrarray.linalg.svds"), "MOST_COLUMNS", 0)
    dense = np.random.default_rng(0).standard_normal((300, 200))
    found = linalg.svds(array(dense, device), 3, maxiter=2)
    assert (found.iterations, found.converged) == (2, False)
    assert 1e-10 < found.residuals.max() < 1
    assert linalg.svds(array(dense, device), 3).converged
    with pytest.raises(ValueError, match="maxiter must be a whole number from 1; got 0"):
        linalg.svds(array(dense, device), 3, maxiter=0)


def test_memory_of_iterations(device):
    """As it is documented, in blocks of vectors."""
    if device != "cpu":
        pytest.skip("of NumPy's memory")
    n, width = 20_000, 20
    rng = np.random.default_rng(0)
    at = rng.integers(0, 100, 4000), rng.integers(0, n, 4000)
    A = cvrarray.CVRArray(csr_array((rng.standard_normal(4000), at), shape=(100, n)), device="cpu")
    linalg.svds(A, width - 10, center=True, maxiter=1)  # which compiles, and makes tables
    tracemalloc.start()
    try:
        assert linalg.svds(A, width - 10, center=True, tol=0, maxiter=12).iterations == 12
        assert tracemalloc.get_traced_memory()[1] < 20 * n * width * 8
    finally:
        tracemalloc.stop()


# -------------------------------------------------------------------------------------------------------------------- pca


@pytest.mark.parametrize("scale", [None, "std"])
def test_pca(scale, device, tmp_path):
    dense = matrix((9000, 30), density=0.1)
    A = array(dense, device)
    centred = dense - dense.mean(axis=0)
    if scale:
        centred = centred / np.where(centred.any(axis=0), centred.std(axis=0), 1)
    s = np.linalg.svd(centred, compute_uv=False)
    for source in (A, *sources(A, tmp_path)):
        for scores in (True, False):
            found = linalg.pca(source, 4, scale, scores=scores)
            assert_close(found.explained_variance, s[:4] ** 2 / 8999, 1e-9)
            assert_close(found.explained_variance_ratio, s[:4] ** 2 / (s**2).sum(), 1e-9)
            assert_close(found.mean, dense.mean(axis=0))
            if scores:
                assert_close(found.scores, centred @ get(found.components).T, 1e-9)
            else:
                assert found.scores is None


# -------------------------------------------------------------------------------------------------------------- bad input


CALLS = [
    lambda A, **k: linalg.gram(A, **k),
    lambda A, **k: linalg.gram(A, center=True, **k),
    lambda A, **k: linalg.mean_var(A, 0, **k),
    lambda A, **k: linalg.svds(A, 2, **k),
    lambda A, **k: linalg.pca(A, 2, **k),
]


@in_pairs("call, value", CALLS, [np.nan, np.inf])
def test_what_is_not_finite_is_named(call, value, device, tmp_path):
    """The first place, by rows, from every source; unless nobody looks."""
    dense = matrix((9000, 30), density=0.1, full=False)
    dense[4321, 7] = dense[4321, 9] = dense[8000, 0] = value
    A = array(dense, device)
    for source in (A, *sources(A, tmp_path)):
        with pytest.raises(ValueError, match=rf"finite; A\[4321, 7\] is {value}\. Replace it"):
            call(source)
    call(A, check_finite=False)


def test_what_is_not_finite_is_named_by_products(device, monkeypatch):
    from importlib import import_module

    monkeypatch.setattr(import_module("cvrarray.linalg.svds"), "MOST_COLUMNS", 0)
    dense = matrix(full=False)
    dense[17, 3] = np.nan
    with pytest.raises(ValueError, match=r"A\[17, 3\] is nan"):
        linalg.svds(array(dense, device), 2)


def test_sums_that_overflow_are_inf(device):
    """As in products: every entry is finite, so nothing is refused."""
    dense = np.full((4, 2), 1e30, np.float32)
    assert np.isinf(get(linalg.gram(array(dense, device)))).all()


@pytest.mark.parametrize("k", [0, 31, -1, 2.0, True, None])
def test_k_out_of_range(k, device):
    with pytest.raises(ValueError, match=rf"k must be an integer from 1 to 30, .* shape \(50, 30\); got {k}"):
        linalg.svds(array(matrix((50, 30)), device), k)
    with pytest.raises(ValueError, match="k must be"):
        linalg.pca(array(matrix((50, 30)), device), k)


def test_no_rows(device):
    """Sums over nothing are 0; what has no value is named."""
    A = cvrarray.CVRArray(np.zeros((0, 3)), device=device)
    assert_close(linalg.gram(A), np.zeros((3, 3)))
    assert_close(linalg.gram(A.T), np.zeros((0, 0)))
    for call, message in (
        (lambda: linalg.gram(A, center=True), "a covariance needs two rows"),
        (lambda: linalg.gram(A, scale="std"), "means need a row"),
        (lambda: linalg.mean_var(A, 0), "a mean needs an entry"),
        (lambda: linalg.svds(A, 1), "must have a row and a column"),
        (lambda: linalg.pca(A, 1), "variances need two rows"),
        (lambda: linalg.pca(cvrarray.CVRArray(np.ones((1, 3)), device=device), 1), "variances need two rows"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    mean, variance = linalg.mean_var(A, 1)
    assert mean.shape == variance.shape == (0,)


def test_arguments(device):
    A = array(matrix(), device)
    xp = A._target.xp
    with pytest.raises(ValueError, match="scale must be None, 'std'"):
        linalg.gram(A, scale="mad")
    with pytest.raises(ValueError, match="finite and not 0"):
        linalg.svds(A, 2, scale=xp.zeros(40))
    for wrong in (xp.ones(3), xp.ones(40) * 1j):
        with pytest.raises(ValueError, match="a real divisor for each of 40 columns"):
            linalg.gram(A, scale=wrong)
    with pytest.raises(ValueError, match=r"out must be contiguous, of shape \(40, 40\)"):
        linalg.gram(A, out=xp.empty((3, 3)))
    with pytest.raises(TypeError, match="dtype must be one that float64 casts to"):
        linalg.gram(A, dtype="int32")
    with pytest.raises(ValueError, match="tol must be"):
        linalg.svds(A, 2, tol=-1)
    with pytest.raises(ValueError, match="return_singular_vectors must be"):
        linalg.svds(A, 2, return_singular_vectors="both")
    with pytest.raises(np.exceptions.AxisError):
        linalg.mean_var(A, 2)
    with pytest.raises((TypeError, ValueError)):
        linalg.gram("nothing")


def test_memory_that_is_not_there_is_told(device):
    A = cvrarray.CVRArray(csr_array(([1.0], ([0], [0])), shape=(2, 30_000_000)), device=device)
    with pytest.raises(
        MemoryError, match=r"a Gram matrix of 30000000 columns needs 7\.2e\+06 GB.*Take fewer columns, or use svds"
    ):
        linalg.gram(A)
    assert get(linalg.svds(A, 1).s).tolist() == [1.0]


def test_memory_is_told_before_it_is_taken(monkeypatch):
    """A system promises more than a container has, and ends the process that uses it."""
    from cvrarray.input import limits

    monkeypatch.setattr(limits, "installed", lambda: 40 * 40 * 8 - 1)
    with pytest.raises(MemoryError, match=r"40 columns needs 1\.28e-05 GB.*there are 1\.28e-05 GB"):
        linalg.gram(array(matrix(), "cpu"))
    linalg.gram(array(matrix(dtype="float32"), "cpu"))


def test_matrices_of_others_are_converted():
    dense = matrix()
    for given in (csr_array(dense), dense, csr_array(dense).tocsc()):
        assert_close(linalg.gram(given), dense.T @ dense)
        assert_close(linalg.svds(given, 3).s, np.linalg.svd(dense, compute_uv=False)[:3], 1e-10)


def test_chunks_of_others_are_refused():
    da = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match=r"Use cvrarray\.to_dask on it first"):
        linalg.gram(da.ones((6, 3)))


# ------------------------------------------------------------------------------------------------------------ interrupted


def test_an_interrupt_leaves_a_store_whole(device, tmp_path, monkeypatch):
    """Ctrl-C in the middle of a sweep: the next call has the same bits, and no thread is left behind."""
    cvrarray.to_store(matrix((9000, 30)), tmp_path / "s", chunks=50_000, device=device)
    stored = cvrarray.Stored(tmp_path / "s", device=device)
    before, n_threads = get(linalg.gram(stored)), threading.active_count()
    module = devices.parse(device).backend("gram")
    add, calls = module.add, []

    def interrupted(csr, out):
        calls.append(csr.shape)
        if len(calls) == 2:
            raise KeyboardInterrupt
        add(csr, out)

    monkeypatch.setattr(module, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        linalg.gram(stored)
    monkeypatch.undo()
    assert threading.active_count() <= n_threads
    assert_same_bits(get(linalg.gram(stored)), before)
    stored.check()
