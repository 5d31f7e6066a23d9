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


FEW, OTHERS = ["bins, few", "bins, fewer"], ["bins, at once", "bins, plain", "bins, near"]


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int8"])
@pytest.mark.parametrize(
    ("matrix", "is_shared", "expected"),
    [
        (anywhere(333, 100_000, 67), True, FEW[:1]),
        (anywhere(333, 100_000, 67), False, FEW + OTHERS),
        (uneven(333, 100_000, 0), True, OTHERS),  # half is padding
        (anywhere(900, 200_000, 8), True, OTHERS),  # short rows
        (anywhere(5_000, 60_000, 70), True, OTHERS),  # narrow bins
        (zoo.floats("rows_of_mixed_length", np.float64), True, OTHERS),
        (scipy.sparse.csr_array((100, 200_000)), True, ["bins"]),
    ],
    ids=["shared", "wide", "padded", "short", "narrow", "mixed", "without entries"],
)
def test_candidates_give_the_same_bits(matrix, is_shared, expected, dtype, gpu, monkeypatch):
    """Every layout of ``A @ x``; each also starts with the last rows, every second time."""
    from cvrarray.core import sharing
    from cvrarray.gpu import bbcsr

    if not is_shared:
        monkeypatch.setattr(sharing, "MOST_BINS", 0)
    dtype = np.dtype(dtype)
    csr = (matrix * 9).astype(dtype) if dtype == "int8" else matrix.astype(dtype)
    t = cvrarray.BBCSRArray(csr, block_size=1, device=gpu)._tables
    layouts = bbcsr.layouts(t, dtype)
    assert list(layouts) == [name for name in expected if name != "bins, at once" or dtype.itemsize <= 8]
    x = np.random.default_rng(5).integers(-8, 9, csr.shape[1]).astype(dtype)
    found = []
    for layout in layouts.values():
        run = bbcsr._product(t, dtype, layout)
        for _ in range(2):
            found.append(put(np.full(csr.shape[0], 77, dtype), gpu))
            run(put(x, gpu), found[-1], dtype.type(1), dtype.type(0))
    first = get(found[0])
    assert {get(y).tobytes() for y in found} == {first.tobytes()}
    eps = 0 if dtype == "int8" else np.finfo(dtype).eps
    wide = np.result_type(dtype, np.int8 if dtype == "int8" else np.float64)
    error = np.abs(first - (csr.astype(wide) @ x.astype(wide)))
    assert np.all(error <= 70 * eps * (abs(matrix) @ np.abs(x).astype(float)))


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
