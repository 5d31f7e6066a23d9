"""BBCSR on a GPU where columns of a bin are far apart: how such products are scheduled, and that they are right."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import cvrarray


def anywhere(n_rows, n_cols, length, seed=1):
    """Rows of `length` columns anywhere."""
    rng = np.random.default_rng(seed)
    columns = np.sort(rng.integers(0, n_cols - length, (n_rows, length)), axis=1) + np.arange(length)
    return of_columns(columns, n_cols)


def of_columns(columns, n_cols):
    values = np.random.default_rng(2).standard_normal(columns.size)
    offsets = np.arange(columns.shape[0] + 1) * columns.shape[1]
    return scipy.sparse.csr_array((values, columns.ravel(), offsets), shape=(columns.shape[0], n_cols))


def in_band(n_rows, width, length):
    """Rows of `length` columns anywhere within `width` of their own."""
    local = anywhere(n_rows, width, length).indices.reshape(n_rows, length)
    return of_columns(local + np.arange(n_rows)[:, None] * 40, n_rows * 40 + width)


def in_diagonals(n_rows, apart, length):
    return of_columns(np.arange(n_rows)[:, None] + np.arange(length) * apart, n_rows + apart * length)


def uneven(n_rows, n_cols, least):
    """Rows anywhere of `least` to 70 columns."""
    csr = anywhere(n_rows, n_cols, 70)
    kept = np.arange(70)[None, :] < np.random.default_rng(3).integers(least, 71, n_rows)[:, None]
    csr.data[~kept.ravel()] = 0
    csr.eliminate_zeros()
    return csr


@pytest.mark.small
@pytest.mark.parametrize(
    ("matrix", "alike"),
    [
        (anywhere(900, 200_000, 40), True),
        (uneven(900, 200_000, 60), True),
        (uneven(900, 200_000, 0), False),  # half is padding
        (anywhere(900, 200_000, 8), False),  # short rows
        (anywhere(900, 60_000, 40), False),  # narrow bins
        (in_band(20_000, 80_000, 24), False),
        (in_diagonals(5_000, 9_000, 20), False),
        (scipy.sparse.csr_array((100, 200_000)), False),
        (scipy.sparse.csr_array((0, 0)), False),
    ],
    ids=["anywhere", "uneven", "padded", "short", "narrow", "band", "diagonals", "without entries", "without rows"],
)
def test_what_warps_read_of_x(matrix, alike, gpu):
    import cupy

    from cvrarray.gpu import bbcsr_reads

    A = cvrarray.BBCSRArray(matrix, block_size=1, device="cuda")
    assert bbcsr_reads.reads_alike(A._tables) == alike
    x = np.random.default_rng(4).standard_normal(matrix.shape[1])
    y = (A @ cupy.asarray(x)).get()
    assert np.abs(y - matrix @ x).max(initial=0) < 1e-12
    assert np.array_equal((A @ cupy.asarray(x)).get(), y)


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(("warps", "small_x", "expected"), [(48, 0, (16, 4)), (1e-9, 1 << 30, (1, 3)), (1e-9, 0, (1, 2))])
def test_products_of_far_rows(warps, small_x, expected, dtype, gpu, monkeypatch):
    """Few bins, which many warps share; as many as fill the device; and more, whose x is larger than L1."""
    import cupy

    from cvrarray.gpu import bbcsr

    monkeypatch.setattr(bbcsr, "ALIKE_WARPS", warps)
    monkeypatch.setattr(bbcsr, "SMALL_X", small_x)
    rng = np.random.default_rng(5)
    for matrix in (anywhere(333, 100_000, 67), uneven(333, 100_000, 66)):
        A = cvrarray.BBCSRArray(matrix.astype(dtype), block_size=1, device="cuda")
        schedule = bbcsr.schedule(A._tables, np.dtype(dtype).itemsize)
        assert schedule == (*expected, True)
        x = rng.integers(-8, 9, matrix.shape[1]).astype(dtype)
        y = A @ cupy.asarray(x)
        error = np.abs(y.get() - matrix @ x.astype("complex128"))
        assert np.all(error <= 70 * np.finfo(dtype).eps * (abs(matrix) @ np.abs(x).astype(float)))
        assert bool((y == A @ cupy.asarray(x)).all())


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(
    ("matrix", "near"),
    [
        (anywhere(700, 60_000, 5), True),
        (anywhere(5_000, 60_000, 70), True),  # bins that warps share
        (in_band(700, 5_000, 5), True),
        (in_diagonals(700, 9_000, 20), False),
        (scipy.sparse.csr_array(scipy.sparse.kron(scipy.sparse.eye_array(100), np.ones((5, 5)))), False),
        (scipy.sparse.csr_array((100, 200_000)), False),
    ],
    ids=["anywhere", "long", "band", "diagonals", "near", "without entries"],
)
def test_neighbouring_bins_whose_rows_read_other_sectors(matrix, near, dtype, gpu):
    """They are on one multiprocessor."""
    import cupy

    from cvrarray.gpu import bbcsr

    A = cvrarray.BBCSRArray(matrix.astype(dtype), block_size=1, device="cuda")
    assert bbcsr.schedule(A._tables, np.dtype(dtype).itemsize).near == near
    x = np.random.default_rng(7).integers(-8, 9, matrix.shape[1]).astype(dtype)
    y = A @ cupy.asarray(x)
    error = np.abs(y.get() - matrix @ x.astype("complex128"))
    assert np.all(error <= 70 * np.finfo(dtype).eps * (abs(matrix) @ np.abs(x).astype(float)))
    assert bool((y == A @ cupy.asarray(x)).all())


def test_the_first_product_may_be_captured(gpu):
    """The sample is taken aside. Kernels are compiled before, by the product of another array."""
    import cupy

    matrix = anywhere(333, 100_000, 67)
    A, B = (cvrarray.BBCSRArray(matrix, block_size=1, device="cuda") for _ in range(2))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, out = cupy.asarray(np.random.default_rng(6).standard_normal(100_000)), cupy.empty(333)
        expected = A @ x
        stream.synchronize()
        stream.begin_capture()
        B.matvec(x, out=out)
        graph = stream.end_capture()
        out.fill(np.nan)
        graph.launch()
        assert bool((out == expected).all())
