"""BBCSR on a GPU where columns of a bin are far apart: all layouts of such products give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import get, put

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


def uneven(n_rows, n_cols, least):
    """Rows anywhere of `least` to 70 columns."""
    csr = anywhere(n_rows, n_cols, 70)
    kept = np.arange(70)[None, :] < np.random.default_rng(3).integers(least, 71, n_rows)[:, None]
    csr.data[~kept.ravel()] = 0
    csr.eliminate_zeros()
    return csr


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int8"])
@pytest.mark.parametrize(
    ("matrix", "is_shared", "n_wide"),
    [
        (anywhere(333, 100_000, 67), True, 0),
        (uneven(333, 100_000, 66), False, 2),
        (anywhere(5_000, 60_000, 70), True, 0),  # narrow bins
        (zoo.floats("rows_of_mixed_length", np.float64), True, 0),
        (scipy.sparse.csr_array((100, 200_000)), False, 0),
    ],
    ids=["shared", "wide", "narrow", "mixed", "without entries"],
)
def test_candidates_give_the_same_bits(matrix, is_shared, n_wide, dtype, gpu, monkeypatch):
    """Every layout of ``A @ x``; each also starts with the last rows, every second time."""
    from cvrarray.core import sharing
    from cvrarray.gpu import bbcsr

    if not is_shared:
        monkeypatch.setattr(sharing, "MOST_BINS", 0)

    dtype, csr = np.dtype(dtype), (matrix if dtype != "int8" else matrix * 9).astype(dtype)
    t = cvrarray.BBCSRArray(csr, block_size=1, device=gpu)._tables
    x = np.random.default_rng(5).integers(-8, 9, csr.shape[1]).astype(dtype)
    found = {}
    for name, layout in bbcsr.layouts(t, dtype).items():
        run = bbcsr._product(t, dtype, layout)
        for turn in range(2):
            found[name, turn] = put(np.full(csr.shape[0], 77, dtype), gpu)
            run(put(x, gpu), found[name, turn], dtype.type(1), dtype.type(0))
    first = get(found["bins", 0])
    for name, y in found.items():
        assert get(y).tobytes() == first.tobytes(), name
    at_once = csr.nnz and dtype.itemsize <= 8
    assert len(found) == 2 * (1 + at_once + bool(csr.nnz) + (n_wide if at_once else 0))
    error = np.abs(first - (csr.astype("complex128") @ x).astype(dtype))
    assert np.all(error <= 70 * (0 if dtype == "int8" else np.finfo(dtype).eps) * (abs(matrix) @ np.abs(x).astype(float)))


def test_the_first_product_may_be_captured(gpu):
    """Lengths are read aside. Kernels are compiled before, by the product of another array."""
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
