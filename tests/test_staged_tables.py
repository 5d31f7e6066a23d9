"""``A @ X`` with larger blocks on a GPU, whose tables go through shared memory."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import assert_same_bits, get, put
from test_matmat import assert_columns, matrix

import cvrarray
from cvrarray.core import matmat_kernels


def whole_blocks(size, dtype, n_block_cols=60, last=60):
    """Blocks without holes, 2 to 5 a block row; the last block row lacks two rows, and bins have parts of block rows.

    From row 40 on there is a block column from `last` on. Odd block columns before are empty.
    """
    rng = np.random.default_rng(size)
    pattern = np.zeros((75, 60), bool)
    for row in pattern:
        row[2 * rng.choice(30, rng.integers(2, 6), replace=False)] = True
    row, col = pattern.nonzero()
    far = row >= 40
    col[far] += last - 60
    places = scipy.sparse.csr_array((np.ones(row.size), (row, col)), shape=(75, n_block_cols))
    csr = scipy.sparse.csr_array(scipy.sparse.kron(places, np.ones((size, size)), format="csr")[: 75 * size - 2])
    csr.data = zoo.vector(csr.nnz, dtype, 5)
    return csr


@pytest.fixture
def staged(monkeypatch):
    """The layouts that were staged: block size, lanes, vectors, groups a block row."""
    from cvrarray.gpu import bbcsr_matmat

    made, kernel = [], bbcsr_matmat.MATMAT_STAGED
    monkeypatch.setattr(bbcsr_matmat, "MATMAT_STAGED", lambda *of: made.append((of[3], of[4], of[6], of[7])) or kernel(*of))
    return made


@pytest.mark.parametrize(
    ("size", "dtype", "columns"),
    [
        (6, "float64", (8, 18, 64)),
        (7, "complex64", (12,)),
        (8, "uint64", (16,)),
    ],
)
def test_products(size, dtype, columns, gpu, staged):
    """X has entries that no product may touch: those of columns without a nonzero."""
    csr = whole_blocks(size, dtype)
    A = cvrarray.BBCSRArray(csr, block_size=size, device=gpu, values="plain")
    for k in columns:
        x = matrix(csr.shape[1], k, dtype)
        if x.dtype.kind in "fc":
            x[np.diff(csr.tocsc().indptr) == 0] = np.nan
        out = put(np.full((csr.shape[0], k), 3, dtype), gpu)
        A.matmat(put(x, gpu), out=out, beta=2)
        np.testing.assert_array_equal(get(out), (csr @ x).astype(dtype) + np.asarray(6, dtype), f"{k} columns")
    assert [found[0] for found in staged] == [size] * len(columns)


@pytest.mark.parametrize("sharing", ["groups share block rows", "a group each"])
def test_narrow_and_wide_bins(sharing, gpu, staged, monkeypatch):
    """A warp may have rows of both. What is infinite or nan stays in the rows that need it."""
    if sharing == "a group each":
        monkeypatch.setattr(matmat_kernels, "sharers", lambda *of: 1)
    csr = whole_blocks(6, np.float64, 70_000, 70_000)
    assert np.ptp(csr.indices) > 6 << 16
    csr.data = zoo.float_vector(csr.nnz, np.float64)
    x = zoo.float_vector(csr.shape[1] * 16, np.float64).reshape(-1, 16)
    A = cvrarray.BBCSRArray(csr, block_size=6, device=gpu, values="plain")
    y = A @ put(x, gpu)
    assert_columns(y, csr, x)
    for _ in range(3):
        assert_same_bits(A @ put(x, gpu), y)
    x[csr.indices[3], 2], x[csr.indices[-1], 5] = np.inf, np.nan
    np.testing.assert_array_equal(np.isfinite(get(A @ put(x, gpu))), np.isfinite(csr @ x))
    assert [found[0] for found in staged] == [6]
    assert (staged[0][3] > 1) == (sharing == "groups share block rows")


@pytest.mark.small
def test_small(gpu, staged):
    """What compute-sanitizer watches."""
    csr = whole_blocks(6, np.float64)[:100]
    for k in (16, 33):
        x = matrix(csr.shape[1], k, np.float64)
        out = put(np.full((csr.shape[0], k), np.nan, np.float64), gpu)
        y = cvrarray.BBCSRArray(csr, block_size=6, device=gpu, values="plain").matmat(put(x, gpu), out=out)
        np.testing.assert_array_equal(get(y), csr @ x)
    assert len(staged) == 2


def test_what_is_not_staged(gpu, staged):
    """Smaller blocks, other values, holes, narrow X, and rows that differ much."""
    x = put(matrix(60 * 6, 16, np.float64), gpu)
    full = whole_blocks(6, np.float64)
    holes = full.copy()
    holes.data[::7] = 0
    holes.eliminate_zeros()
    uneven = scipy.sparse.csr_array(scipy.sparse.vstack([np.ones((6, 360)), full], format="csr"))
    for csr, size, k in ((full, 3, 16), (full.astype(np.float32), 6, 16), (holes, 6, 16), (full, 6, 4), (uneven, 6, 16)):
        y = cvrarray.BBCSRArray(csr, block_size=size, device=gpu, values="plain") @ x[:, :k]
        np.testing.assert_array_equal(get(y), csr @ get(x)[:, :k])
    assert not staged
