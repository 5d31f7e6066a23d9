"""``A @ X`` where columns of X are contiguous: BBCSR on a GPU reads few of them as they are, and all else is copied."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import TYPICAL, assert_same_bits, bbcsr, captured, extended_but, get, put, rarely
from test_matmat import assert_columns, matrix

import cvrarray
from cvrarray.array.transposed import TransposedArray

SIZES = pytest.mark.parametrize("build", extended_but([bbcsr(1), bbcsr(6)], [bbcsr(size) for size in (1, 3, 6, 12)]), ids=str)
EACH = pytest.mark.parametrize("build", TYPICAL, ids=str)
NAMES = ["rows_of_mixed_length", "blocks_with_holes", "many_empty_rows_between", "one_dense_row", "banded_stencil"]


@pytest.fixture
def reads_columns(monkeypatch):
    """The kernel that reads columns is taken wherever it can be."""
    columns = pytest.importorskip("cvrarray.gpu.bbcsr_columns", reason="needs CuPy")
    monkeypatch.setattr(columns, "pays", lambda *of: True)
    return columns


def views(x, device):
    """Arrays on the device that equal x, with contiguous columns that lie differently; what lies between is nan."""
    n, k = x.shape
    apart = np.full((2 * k, n + 5), np.nan, x.dtype) if x.dtype.kind in "fc" else np.ones((2 * k, n + 5), x.dtype)
    apart[::2, 3 : n + 3] = x.T
    return {
        "Fortran order": put(x.T.copy(), device).T,
        "every second column, some rows": put(apart, device)[::2, 3 : n + 3].T,
        "reversed": put(x[:, ::-1].T.copy(), device).T[:, ::-1],
        "one after the other": put(x.T.copy().reshape(-1), device).reshape(k, n).T,
    }


@pytest.mark.small
@EACH
@pytest.mark.parametrize("name", NAMES)
def test_views(build, name, device, request):
    """Of every view the same numbers as in C order; what lies between its columns is not read."""
    if device != "cpu":
        request.getfixturevalue("reads_columns")
    csr = zoo.integers(name, np.float32)
    A = build(csr, device)
    for k in (2, 3, 8, 19):
        x = matrix(csr.shape[1], k, np.float32)
        for what, view in views(x, device).items():
            y = A @ view
            assert y.flags.c_contiguous
            np.testing.assert_array_equal(get(y), csr.toarray() @ x, f"{what}, {k} columns")


@SIZES
@pytest.mark.parametrize(
    ("dtype", "x_dtype"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        *rarely(("bool", "int64"), ("float32", "complex64")),
    ],
)
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, 0), (1, 1), (-1, 3), (0, 2)])
@pytest.mark.each_pair
def test_out_in_either_order(build, dtype, x_dtype, alpha, beta, gpu, reads_columns):
    csr = zoo.integers("blocks_with_holes", dtype)
    A = build(csr, gpu)
    for k in (2, 4, 5, 12):
        x, before = matrix(csr.shape[1], k, x_dtype), matrix(csr.shape[0], k, x_dtype, seed=9)
        expected = alpha * (csr.toarray() @ x) + beta * before
        for out in (put(before.copy(), gpu), put(before.T.copy(), gpu).T):
            assert A.matmat(put(x.T.copy(), gpu).T, out=out, alpha=alpha, beta=beta) is out
            np.testing.assert_array_equal(get(out), expected, f"{k} columns")


@SIZES
@pytest.mark.parametrize("sharers", [1, 4])
def test_rounding_and_bits(build, sharers, gpu, reads_columns, monkeypatch):
    """Within the bound of rounding, and the same bits in every run, into either order and in a graph."""
    import cupy

    from cvrarray.gpu import bbcsr as module

    monkeypatch.setattr(module, "schedule", lambda *of: module.Schedule(sharers, 0, False))
    for name in NAMES:
        csr = zoo.floats(name, np.float64)
        A, x = build(csr, gpu), zoo.float_vector(csr.shape[1] * 11).reshape(-1, 11)
        given = put(x.T.copy(), gpu).T
        y = A @ given
        assert_columns(y, csr, x)
        columns = cupy.empty(y.shape[::-1]).T
        for _ in range(3):
            assert_same_bits(A.matmat(given, out=columns), y)
        again = cupy.empty_like(y)
        captured(lambda A=A, given=given, again=again: A.matmat(given, out=again)).launch()
        assert_same_bits(again, y)


def test_what_is_not_stored_is_not_multiplied(gpu, reads_columns):
    """Infinite and nan entries of X beside those that a row needs, in padding and in holes, do not reach its sum."""
    csr = zoo.integers("blocks_with_holes", np.float64)
    x = matrix(csr.shape[1], 6)
    x[0], x[1::7] = np.nan, np.inf
    expected = np.asarray(csr @ x)
    for size in (1, 3, 6):
        y = cvrarray.BBCSRArray(csr, block_size=size, device=gpu) @ put(x.T.copy(), gpu).T
        np.testing.assert_array_equal(np.isfinite(get(y)), np.isfinite(expected))


def test_which_matrices_are_read_by_columns(gpu):
    """Those whose rows read neighbours, with few columns; others are copied, and all give the sums of C order."""
    from cvrarray.generate import stencil27, uniform

    for csr, pays in ((stencil27(16), True), (uniform(4_000, 27), False)):
        A = cvrarray.BBCSRArray(csr, block_size=1, device=gpu)
        assert (A._product_by_columns(np.dtype("float64"), 4) is not None) == pays
        assert A._product_by_columns(np.dtype("float64"), 64) is None
    few = cvrarray.BBCSRArray(uniform(4_000, 8)[:150], block_size=1, device=gpu)
    for k, pays in ((8, True), (16, False)):
        assert (few._product_by_columns(np.dtype("float64"), k) is not None) == pays


def test_a_structure_is_looked_at_once(gpu, monkeypatch):
    """By products with a vector and with matrices in either order, and by arrays that differ in their values."""
    from cvrarray.gpu import bbcsr_lengths, bbcsr_reads

    looked, kernel, aside = [], bbcsr_reads.SAMPLED_COLUMNS, bbcsr_lengths.aside
    monkeypatch.setattr(bbcsr_reads, "SAMPLED_COLUMNS", lambda *of: looked.append("columns") or kernel(*of))
    monkeypatch.setattr(bbcsr_lengths, "aside", lambda: looked.append("lengths") or aside())
    csr = cvrarray.generate.stencil27(16)
    x = put(matrix(csr.shape[1], 4), gpu)
    A = cvrarray.BBCSRArray(csr, block_size=1, device=gpu)
    for array in (A, A.with_values(put(2 * csr.data, gpu))):
        for given in (x[:, 0].copy(), x, put(get(x).T.copy(), gpu).T):
            array @ given
    assert sorted(looked) == ["columns", "lengths"]


def test_views_of_few_columns_of_the_transpose(device):
    """``A.T @ X`` of a view without tables of its own multiplies the columns of X one by one, as they are."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    x = matrix(csr.shape[0], 5)
    for build in TYPICAL:
        view = TransposedArray.once(build(csr, device))
        for given in (put(x, device), *views(x, device).values()):
            np.testing.assert_array_equal(get(view @ given), csr.toarray().T @ x)
        out = put(np.full((5, csr.shape[1]), np.nan), device).T
        view.matmat(put(x.T.copy(), device).T, out=out)
        np.testing.assert_array_equal(get(out), csr.toarray().T @ x)


COLUMNS = {(2, 2): (2, 2), (3, 1): (3, 1), (4, 4): (4, 4), (8, 4): (8, 4), (9, 1): (5, 1), (10, 2): (6, 2), (12, 4): (6, 2)}


@pytest.mark.parametrize(("k", "width"), COLUMNS)
def test_columns_at_a_time(k, width):
    columns = pytest.importorskip("cvrarray.gpu.bbcsr_columns", reason="needs CuPy")
    assert columns.columns_at_a_time(k, width) == COLUMNS[k, width]
