"""``A @ X`` where columns of X are contiguous: X is copied to C order."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import TYPICAL, get, put
from test_matmat import matrix

import cvrarray
from cvrarray.array.transposed import TransposedArray

EACH = pytest.mark.parametrize("build", TYPICAL, ids=str)
NAMES = ["rows_of_mixed_length", "blocks_with_holes", "many_empty_rows_between", "one_dense_row", "banded_stencil"]


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
def test_views(build, name, device):
    """Of every view the same numbers as in C order; what lies between its columns is not read."""
    csr = zoo.integers(name, np.float32)
    A = build(csr, device)
    for k in (2, 3, 8, 19):
        x = matrix(csr.shape[1], k, np.float32)
        for what, view in views(x, device).items():
            y = A @ view
            assert y.flags.c_contiguous
            np.testing.assert_array_equal(get(y), csr.toarray() @ x, f"{what}, {k} columns")


def test_a_structure_is_looked_at_once(gpu, monkeypatch):
    """By products with a vector and with matrices in either order, and by arrays that differ in their values."""
    from cvrarray.gpu import bbcsr_lengths

    looked, aside = [], bbcsr_lengths.aside
    monkeypatch.setattr(bbcsr_lengths, "aside", lambda: looked.append("lengths") or aside())
    csr = cvrarray.generate.stencil27(16)
    x = put(matrix(csr.shape[1], 4), gpu)
    A = cvrarray.BBCSRArray(csr, block_size=1, device=gpu)
    for array in (A, A.with_values(put(2 * csr.data, gpu))):
        for given in (x[:, 0].copy(), x, put(get(x).T.copy(), gpu).T):
            array @ given
    assert looked == ["lengths"]


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
