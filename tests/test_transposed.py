"""``A.T`` as a view: products from the left and with the transpose, and every other use of the view."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import zoo
from checks import DEFAULTS, assert_same_csr, get, in_turn, put
from scipy.sparse import coo_array
from test_matmat import matrix

import cvrarray
from cvrarray.array import base
from cvrarray.array.transposed import CONVERT_FROM

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
SMALL = [name for name in zoo.ZOO if np.prod(zoo.ZOO[name]().shape) < 100_000]


def transposed(csr):
    """csr.T as a canonical CSR."""
    return csr.T.tocsr()


# Products


@BUILD
@pytest.mark.parametrize("dtype", ["float64", "complex128", "bool"])
def test_from_the_left(build, dtype, device):
    csr = zoo.integers("rows_of_mixed_length", dtype)
    dense, A = csr.toarray(), build(csr, device)
    x, many = zoo.vector(csr.shape[0], dtype), matrix(5, csr.shape[0], dtype)
    on_device, many_on_device = put(x, device), put(many, device)
    for y in (on_device @ A, np.matmul(on_device, A), np.dot(on_device, A), np.einsum("i,ij->j", on_device, A)):
        np.testing.assert_array_equal(get(y), x @ dense)
    for y in (many_on_device @ A, np.matmul(many_on_device, A), np.tensordot(many_on_device, A, 1)):
        np.testing.assert_array_equal(get(y), many @ dense)
    stack = np.stack([many, many])
    np.testing.assert_array_equal(get(put(stack, device) @ A), stack @ dense)
    if device == "cpu":
        np.testing.assert_array_equal(x.tolist() @ A, x @ dense)
    out = put(np.zeros((5, csr.shape[1]), np.result_type(x, dense)), device)
    assert np.matmul(many_on_device, A, out=out) is out
    np.testing.assert_array_equal(get(out), many @ dense)


@in_turn("dtype, x_dtype, build", [("float64", "float64"), ("complex64", "complex128")], DEFAULTS)
def test_adjoint(build, dtype, x_dtype, device):
    csr = zoo.integers("rows_of_mixed_length", dtype)
    dense, A = csr.toarray(), build(csr, device)
    x, many = zoo.vector(csr.shape[0], x_dtype), matrix(csr.shape[0], 3, x_dtype)
    for y in (A.rmatvec(put(x, device)), A.H @ put(x, device)):
        np.testing.assert_array_equal(get(y), dense.conj().T @ x)
    for y in (A.rmatmat(put(many, device)), A.H @ put(many, device)):
        np.testing.assert_array_equal(get(y), dense.conj().T @ many)
    np.testing.assert_array_equal(get(A.T.rmatvec(put(zoo.vector(csr.shape[1], x_dtype), device))),
                                  dense.conj() @ zoo.vector(csr.shape[1], x_dtype))  # fmt: skip


@BUILD
@pytest.mark.parametrize("k", [0, 1, 3, CONVERT_FROM - 1, CONVERT_FROM, CONVERT_FROM + 5])
@pytest.mark.parametrize("limit", ["1 GiB", "0"])
def test_matrices(build, k, limit, device, monkeypatch):
    """By tables of the transpose; without room for them column by column, and from CONVERT_FROM columns on by panels."""
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", limit)
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    x = matrix(csr.shape[0], k)
    A = build(csr, device)
    np.testing.assert_array_equal(get(A.T @ put(x, device)), csr.toarray().T @ x)
    np.testing.assert_array_equal(get(A.T @ put(np.asfortranarray(x), device)), csr.toarray().T @ x)
    before = matrix(csr.shape[1], k, seed=7)
    out = put(before.copy(), device)
    assert A.T.matmat(put(x, device), out=out, alpha=2, beta=-3) is out
    np.testing.assert_array_equal(get(out), 2 * (csr.toarray().T @ x) - 3 * before)


# The view


@BUILD
@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "complex128"])
def test_attributes(build, dtype, device):
    csr = zoo.integers("rows_of_mixed_length", dtype)
    A = build(csr, device)
    view = A.T
    assert isinstance(view, base.SparseArray)
    assert view.shape == csr.shape[::-1]
    assert (view.dtype, view.nnz, view.device, view.format) == (A.dtype, A.nnz, A.device, A.format)
    assert view.nbytes == A.nbytes  # nothing was copied
    assert view.T is A
    assert A.mT.T is A
    assert view.base is A
    view.check()
    np.testing.assert_array_equal(get(view.todense()), csr.toarray().T)
    assert_same_csr(view.to_scipy(), transposed(csr))
    assert "TransposedArray" in repr(view)
    assert type(A).__name__ in repr(view)


@BUILD
@pytest.mark.parametrize("name", SMALL[::8])
def test_conversions_of_the_view(build, name, device, tmp_path):
    """To its own format, by a file, and to others."""
    csr = zoo.integers(name, np.float32)
    A = build(csr, device)
    cvrarray.save(tmp_path / "view.cvra", A.T)
    for made in (A.T.copy(), cvrarray.load(tmp_path / "view.cvra", device=device), type(A)(A.T)):
        assert type(made) is type(A)
        made.check()
        assert_same_csr(made.to_scipy(), transposed(csr))
    for convert in (cvrarray.CVRArray, cvrarray.BBCSRArray, cvrarray.asarray):
        assert_same_csr(convert(A.T, device=device).to_scipy(), transposed(csr))


@BUILD
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_long_row_after_31_short_ones(build, dtype, device):
    """cuSPARSE gives some of its entries to the rows after it."""
    rng = np.random.default_rng(1)
    row = np.concatenate([np.full(52_243, 31), rng.integers(0, 93, 186)])
    col = np.concatenate([np.arange(52_243), rng.integers(0, 52_243, 186)])
    csr = coo_array((rng.integers(1, 9, row.size).astype(dtype), (row, col)), shape=(93, 52_243)).tocsr()
    A, expected = build(csr, device), transposed(csr)
    assert_same_csr(A.T.copy().tocsr(), expected)
    csc = A.tocsc()
    assert csc.format == "csc"
    assert_same_csr(csc.T, expected)
    assert_same_csr(cvrarray.CVRArray(csc, device=device).tocsr(), csr)
    x = matrix(93, 16, dtype)
    np.testing.assert_array_equal(get(A.T @ put(x, device)), expected @ x)


@BUILD
def test_conjugate_transpose(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.complex64)
    A = build(csr, device)
    assert_same_csr(A.H.to_scipy(), transposed(csr.conj()))
    assert_same_csr(A.H.H.to_scipy(), csr)
    real = build(zoo.integers("rows_of_mixed_length", np.float64), device)
    assert real.H.T is real


@BUILD
def test_spellings_of_transpose(build, device):
    A = build(zoo.integers("rows_of_mixed_length", np.float64), device)
    for view in (np.transpose(A), np.transpose(A, (1, 0)), np.transpose(a=A, axes=[-1, -2]), np.matrix_transpose(A),
                 np.permute_dims(A, (1, 0)), np.swapaxes(A, 0, 1), A.transpose(), A.transpose(1, 0), A.transpose((1, 0)),
                 np.linalg.matrix_transpose(A)):  # fmt: skip
        assert view.T is A
    np.testing.assert_array_equal(get(np.einsum("ij->ji", A).todense()), get(A.todense()).T)
    assert np.transpose(A, (0, 1)) is A
    for axes in ((0, 0), (0,), (0, 1, 2), (0, 3)):
        with pytest.raises(ValueError, match="axes"):
            np.transpose(A, axes)


@BUILD
def test_elementwise_on_the_view(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    dense, view = csr.toarray().T, build(csr, device).T
    for found, expected in ((-view, -dense), (view * 2, dense * 2), (abs(view), abs(dense)), (view + view, dense * 2)):
        np.testing.assert_array_equal(get(found.todense()), expected)
    assert (-view).T.shape == csr.shape
    assert view.astype("float32").dtype == np.float32
    assert view.astype("float64", copy=False) is view


@BUILD
def test_pickle_and_copies(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    view = build(csr, device).T
    for other in (pickle.loads(pickle.dumps(view)), copy.copy(view), copy.deepcopy(view), view.to_device(device)):
        assert_same_csr(other.to_scipy(), transposed(csr))
    assert view.to_device(device) is view


@BUILD
def test_errors_name_the_view_s_shape(build, device):
    view = build(np.ones((3, 4)), device).T
    with pytest.raises(ValueError, match=r"length 3.*\(4, 3\)"):
        view @ put(np.ones(4), device)
    with pytest.raises(ValueError, match=r"length 3.*\(4, 3\)"):
        view.T.rmatvec(put(np.ones(4), device))
    with pytest.raises(ValueError, match=r"3 columns.*\(3, 4\).*\(2, 4\)"):
        put(np.ones((2, 4)), device) @ view.T
