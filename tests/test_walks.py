"""``A @ X`` with blocks of 1 on a GPU, where thread blocks walk over neighbouring rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import assert_product, assert_same_bits, captured, get, put
from test_matmat import matrix

import cvrarray

FLOATS = pytest.mark.parametrize("dtype", ["float32", "float64"])


def near_diagonal(n, dtype, longest=8, n_cols=None):
    """Rows of up to so many entries near the diagonal; some bins, and some rows of others, have none."""
    rng = np.random.default_rng(longest)
    n_cols = n if n_cols is None else n_cols
    lengths = rng.integers(0, longest + 1, n)
    lengths[64:128] = 0
    row = np.repeat(np.arange(n), lengths)
    col = (row * n_cols // n + rng.integers(-150, 150, row.size)).clip(0, n_cols - 1)
    csr = scipy.sparse.coo_array((np.ones(row.size, dtype), (row, col)), shape=(n, n_cols)).tocsr()
    csr.sum_duplicates()
    csr.data = zoo.float_vector(csr.nnz, dtype)
    return csr


def far_apart(n, dtype):
    """Rows of up to 8 entries whose columns are far apart in half of the bins, and near the diagonal in the others."""
    near = near_diagonal(n, dtype, n_cols=6 * n)
    row = np.repeat(np.arange(n), np.diff(near.indptr))
    col = np.where(row // 64 % 2, near.indices, (row * 7919 + near.indices * 104_729) % (6 * n))
    csr = scipy.sparse.coo_array((near.data, (row, col)), shape=near.shape).tocsr()
    csr.sum_duplicates()
    return csr


def array(csr, gpu, values="plain"):
    return cvrarray.BBCSRArray(csr, block_size=1, device=gpu, values=values)


def columns(dtype, vectors):
    return vectors * 16 // np.dtype(dtype).itemsize


@pytest.fixture
def walked(gpu, monkeypatch):
    """What each kernel that walks is compiled for."""
    from cvrarray.gpu import bbcsr_matmat, properties

    if not properties.has_copy_engine():
        pytest.skip("needs compute capability 9.0")
    made, kernel = [], bbcsr_matmat.MATMAT_WALK
    monkeypatch.setattr(bbcsr_matmat, "MATMAT_WALK", lambda *of: made.append(of) or kernel(*of))
    return made


@pytest.fixture
def walking(walked, monkeypatch):
    """Everything walks that the kernel takes."""
    from cvrarray.gpu import bbcsr_matmat

    monkeypatch.setattr(bbcsr_matmat, "ENOUGH_THREADS", (0, 0))
    monkeypatch.setenv("CVRARRAY_KERNEL", "walk")
    return walked


def stop(monkeypatch):
    """Nothing walks."""
    monkeypatch.setenv("CVRARRAY_KERNEL", "-walk")


@pytest.mark.parametrize("shape", [(1, 40), (32, 32), (33, 50), (1_000, 1_000), (70_001, 70_001), (20_000, 300_000)])
@FLOATS
def test_products(dtype, shape, gpu, walking):
    """One bin and many, uneven and empty rows, and sums that are scaled and added to Y."""
    csr = near_diagonal(shape[0], dtype, 20, shape[1])
    csr.data = zoo.vector(csr.nnz, dtype)
    A, counts = array(csr, gpu), [columns(dtype, vectors) for vectors in (8, 16, 48)]
    for k in counts:
        x = matrix(csr.shape[1], k, dtype)
        x[np.diff(csr.tocsc().indptr) == 0] = np.nan  # no product may touch them
        right = csr @ x
        out = put(np.full(right.shape, np.nan, dtype), gpu)
        np.testing.assert_array_equal(get(A.matmat(put(x, gpu), out=out)), right, f"{k} columns")
        out.fill(3)
        A.matmat(put(x, gpu), out=out, alpha=-2, beta=2)
        np.testing.assert_array_equal(get(out), -2 * right + 6, f"{k} columns")
    assert len(walking) == len(counts)


@FLOATS
def test_rounding_and_bits(dtype, gpu, walking, monkeypatch):
    """Within the bound, the same in every run, and what the kernel of lanes gives; what is infinite stays in its rows."""
    csr = near_diagonal(100_000, dtype, 26)
    k = columns(dtype, 64)
    x = zoo.float_vector(csr.shape[1] * k, dtype).reshape(-1, k)
    A = array(csr, gpu)
    y = A @ put(x, gpu)
    assert_product(y[:, :3], csr, x[:, :3])
    for _ in range(5):
        assert_same_bits(A @ put(x, gpu), y)
    assert len(walking) == 1
    stop(monkeypatch)
    assert_same_bits(array(csr, gpu) @ put(x, gpu), y)
    assert len(walking) == 1
    x[csr.indices[3], 2], x[csr.indices[-1], 5] = np.inf, np.nan
    np.testing.assert_array_equal(np.isfinite(get(A @ put(x, gpu))[:, :8]), np.isfinite(csr @ x[:, :8]))


@pytest.mark.parametrize("values", ["few", "one", "plain"])
@FLOATS
def test_stored_values_and_wide_bins(dtype, values, gpu, walking, monkeypatch):
    """Values as numbers of a table, and bins whose columns are stored whole: the bits of the kernel of lanes."""
    from cvrarray.gpu import distinct

    monkeypatch.setattr(distinct, "LEAST_BYTES", 0)
    for csr in (near_diagonal(30_000, dtype), far_apart(30_000, dtype)):
        if values != "plain":
            csr.data = (np.arange(csr.nnz) % (1 if values == "one" else 90) + 0.7).astype(dtype)
        of_values = "plain" if values == "plain" else "auto"
        for k in (columns(dtype, 8), columns(dtype, 32)):
            x = zoo.float_vector(csr.shape[1] * k, dtype).reshape(-1, k)
            with monkeypatch.context() as patch:
                stop(patch)
                right = array(csr, gpu, of_values) @ put(x, gpu)
            A = array(csr, gpu, of_values)
            assert distinct.is_coded(A._tables.distinct) == (values != "plain")
            y = A @ put(x, gpu)
            assert_product(y[:, :2], csr, x[:, :2])
            assert_same_bits(y, right)
    assert [of[-1] for of in walking] == [False, False, True, True]
    assert all((getattr(of[0], "kind", "") in ("Few", "One")) == (values != "plain") for of in walking)


def test_captured_and_on_streams(gpu, walking):
    """Each stream and each graph counts pieces for itself, and all counters are 0 after a product."""
    import cupy

    csr = near_diagonal(50_000, np.float32)
    A = array(csr, gpu)
    xs = [put(zoo.float_vector(csr.shape[1] * 128, np.float32, seed).reshape(-1, 128), gpu) for seed in range(3)]
    expected = [A @ x for x in xs]
    outs = [cupy.empty_like(y) for y in expected]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in xs]
    cupy.cuda.Device().synchronize()

    def multiply(begin):
        origin = cupy.cuda.get_current_stream()
        for stream, x, out in zip(streams, xs, outs, strict=True):
            with stream:
                stream.wait_event(begin)
                A.matmat(x, out=out)
                origin.wait_event(stream.record())

    graph = captured(lambda: multiply(cupy.cuda.get_current_stream().record()))
    for repeat in range(10):
        for out in outs:
            out.fill(np.nan)
        if repeat % 2:
            graph.launch()
        else:
            multiply(cupy.cuda.get_current_stream().record())
        for out, y in zip(outs, expected, strict=True):
            assert_same_bits(out, y)
    assert len(walking) == 1


def test_what_does_not_walk(gpu, walking, monkeypatch):
    """Other numbers of columns, other values, blocks, and long rows."""
    csr = near_diagonal(40_000, np.float32)
    x = zoo.float_vector(csr.shape[1] * 96, np.float32).reshape(-1, 96)
    for k in (16, 33, 66, 96):
        assert_product((array(csr, gpu) @ put(x[:, :k].copy(), gpu))[:, -2:], csr, x[:, k - 2 : k])
    integers = csr.copy()
    integers.data = zoo.vector(csr.nnz, np.int16)
    long = scipy.sparse.csr_array(scipy.sparse.vstack([np.ones((1, 40_000), np.float32), csr], format="csr"))
    for matrix_of, size in ((integers, 1), (csr, 2), (csr.astype(complex), 1), (long, 1)):
        x = zoo.float_vector(matrix_of.shape[1] * 64, np.float32).reshape(-1, 64)
        y = cvrarray.BBCSRArray(matrix_of, block_size=size, device=gpu, values="plain") @ put(x, gpu)
        assert_product(y[:, :2], matrix_of, x[:, :2])
    assert not walking


def test_neighbouring_rows_walk(gpu, walked):
    """By themselves where they are many."""
    one, several = (8, 1, 8, False), (8, 2, 4, False)
    for n, walks in ((60, {32: one, 64: several, 128: several, 256: several}), (24, {})):
        csr = cvrarray.generate.poisson7(n, np.float32)
        A, x = array(csr, gpu), zoo.float_vector(csr.shape[1] * 256, np.float32).reshape(-1, 256)
        for k in (32, 64, 128, 256):
            walked.clear()
            assert_product((A @ put(x[:, :k].copy(), gpu))[:, :2], csr, x[:, :2])
            assert [of[2:] for of in walked] == ([walks[k]] if k in walks else []), (n, k)


def test_pieces_are_even():
    """Of few bins pieces are such that the last round of them is not for a few multiprocessors alone."""
    bbcsr_matmat = pytest.importorskip("cvrarray.gpu.bbcsr_matmat", reason="needs CuPy")
    for n_bins, own, size in ((4427, 16, 12), (4427, 4, 5), (3988, 16, 16), (1340, 4, 4), (100_000, 16, 16), (1, 16, 8)):
        assert bbcsr_matmat.even_pieces(n_bins, own, n_blocks=132) == size, n_bins
    assert bbcsr_matmat.even_pieces(1340, 4, n_blocks=66) == 7
