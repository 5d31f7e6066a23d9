"""Attributes and methods that users of other arrays know: what an array is, copies, casts, formats, representations."""

from __future__ import annotations

import copy
import math
import pickle
import sys

import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from checks import DEFAULTS, TYPICAL, assert_same_csr, assert_same_tables, get, in_turn, put

import cvrarray
from cvrarray.core import devices

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
TYPICAL_BUILDS = pytest.mark.parametrize("build", TYPICAL, ids=str)
DTYPES = ["bool", "int8", "int64", "float32", "float64", "complex64", "complex128"]
VARIED = ["rows_of_mixed_length", "explicit_zeros_beside_holes", "many_empty_rows_between", "all_rows_empty"]


@in_turn("dtype, build", DTYPES, DEFAULTS)
def test_what_it_is(build, dtype, device):
    csr = zoo.integers("explicit_zeros_beside_holes", dtype)
    A = build(csr, device)
    assert (A.shape, A.ndim, A.size, A.nnz) == (csr.shape, 2, csr.shape[0] * csr.shape[1], csr.nnz)
    assert A.dtype == np.dtype(dtype)
    assert A.density == csr.nnz / A.size
    assert A.fill_value == 0
    assert type(A.fill_value) is np.dtype(dtype).type
    assert A.device == device
    assert len(A) == csr.shape[0]
    assert A.plan is None
    tables = [table for table in A._tables if hasattr(table, "nbytes")]
    assert A.nbytes == sum(table.nbytes for table in tables)
    assert sys.getsizeof(A) > A.nbytes


def test_attributes_are_read_only():
    A = cvrarray.asarray(np.eye(3), device="cpu")
    for attribute in ("shape", "ndim", "size", "nnz", "nbytes", "dtype", "device", "plan", "T", "density"):
        with pytest.raises(AttributeError):
            setattr(A, attribute, None)
    assert math.isnan(cvrarray.CVRArray(np.zeros((0, 5))).density)


def test_plan_is_kept():
    A = cvrarray.asarray(np.eye(3), device="cpu")
    assert isinstance(A.plan, str)
    assert pickle.loads(pickle.dumps(A)).plan == A.plan
    assert A.copy().plan == A.plan


@in_turn("dtype, build", DTYPES, DEFAULTS)
def test_real_imag_conj(build, dtype, device):
    csr = zoo.integers("explicit_zeros_beside_holes", dtype)
    A, dense = build(csr, device), csr.toarray()
    for found, expected in (
        (A.real, dense.real), (A.imag, dense.imag), (A.conj(), dense.conj()),
        (np.real(A), dense.real), (np.imag(A), dense.imag), (np.conj(A), np.conj(dense)), (np.conjugate(A), np.conj(dense)),
    ):  # fmt: skip
        assert found.dtype == expected.dtype
        assert found.nnz == A.nnz
        found.check()
        np.testing.assert_array_equal(get(found.todense()), expected)
        np.testing.assert_array_equal(get(found @ put(np.ones(csr.shape[1], found.dtype), device)),
                                      expected @ np.ones(csr.shape[1], found.dtype))  # fmt: skip
    assert np.iscomplexobj(A) == np.iscomplexobj(dense)
    assert np.isrealobj(A) == np.isrealobj(dense)


@in_turn("to, dtype, build", DTYPES, ["bool", "int8", "float64", "complex64"], DEFAULTS)
def test_astype(build, dtype, to, device):
    csr = zoo.integers("explicit_zeros_beside_holes", dtype)
    A, dense = build(csr, device), csr.toarray()
    if np.dtype(dtype).kind == "c" and np.dtype(to).kind not in "cb":
        dense, A = dense.real, A.real  # a cast that drops imaginary parts warns, here as in NumPy
    for found in (A.astype(to), A.astype(dtype=to, order="C", casting="unsafe", subok=False, copy=True), np.astype(A, to)):
        assert found is not A
        assert (type(found), found.dtype, found.nnz, found.device) == (type(A), np.dtype(to), csr.nnz, device)
        found.check()
        np.testing.assert_array_equal(get(found.todense()), dense.astype(to))
    assert (A.astype(to, copy=False) is A) == (A.dtype == to)


@BUILD
def test_astype_refuses(build, device):
    A = build(np.eye(3), device)
    with pytest.raises(TypeError, match=r"float64 to float32.*safe.*unsafe"):
        A.astype("float32", casting="safe")
    with pytest.raises(TypeError, match="object"):
        A.astype(object)
    with pytest.raises(TypeError, match="values must be"):
        A.astype("longdouble")


@TYPICAL_BUILDS
def test_copies(build, device):
    A = build(zoo.integers("rows_of_mixed_length", np.float32), device)
    for made in (A.copy(), copy.copy(A), copy.deepcopy(A), np.copy(A), A.astype(A.dtype)):
        assert made is not A
        assert type(made) is type(A)
        assert_same_tables(made._tables, A._tables)
        made.check()
        xp = devices.parse(device).xp
        assert not xp.may_share_memory(A._values(A._tables), made._values(made._tables))
    made = pickle.loads(pickle.dumps(A))
    assert_same_tables(made._tables, A._tables)


@in_turn("build, duplicate", TYPICAL, [copy.copy, copy.deepcopy])
def test_a_copy_keeps_its_values_when_others_are_written_in_place(build, duplicate, device):
    A = build(zoo.integers("rows_of_mixed_length", np.float32), device)
    before = get(A.todense())
    made, view = duplicate(A), duplicate(A.T)
    A.with_values(A.data * 5, out=A)
    np.testing.assert_array_equal(get(made.todense()), before)
    np.testing.assert_array_equal(get(view.todense()), before.T)
    np.testing.assert_array_equal(get(A.todense()), before * 5)


@TYPICAL_BUILDS
def test_tables_begin_at_cache_lines(build):
    """What is made from values stays as fast as what is converted."""
    A = build(zoo.integers("full", np.float64))
    for made in (A, A.copy(), A.astype("float32"), -A, A * 2, A.with_values(np.ones(A.nnz)), A.T.copy(), (A * 1j).imag):
        assert made._values(made._tables).ctypes.data % 64 == 0
        assert made._values(made._tables).flags.c_contiguous


@BUILD
def test_asformat(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A = build(csr, device)
    assert A.asformat(A.format) is A
    other = A.asformat("bbcsr", block_size=3)
    assert isinstance(other, cvrarray.BBCSRArray)
    assert (other.block_size, other.device) == (3, device)
    assert A.asformat("cvr", n_lanes=4).n_lanes == 4
    assert type(A.T.asformat(A.format)) is type(A)
    for made in (other, A.asformat("cvr", n_lanes=4), A.T.asformat("cvr").T):
        assert_same_csr(made.to_scipy(), csr)
    for format in ("csr", "csc") if device != "cpu" else ("csr", "csc", "bsr", "dia", "lil"):
        found = A.asformat(format)
        assert found.format == format
        np.testing.assert_array_equal(get(found.toarray()), csr.toarray())
    for format in ("coo", "gcxs", "dok"):
        np.testing.assert_array_equal(A.asformat(format).todense(), csr.toarray())
    assert isinstance(A.asformat("coo"), sparse.COO)
    with pytest.raises(ValueError, match=r"format must be cvr, bbcsr, csr.*'ell'"):
        A.asformat("ell")
    with pytest.raises(TypeError, match=r"'csr' takes no parameters; got block_size"):
        A.asformat("csr", block_size=3)


@BUILD
def test_eliminate_zeros(build, device):
    csr = zoo.integers("explicit_zeros_beside_holes", np.float64)
    A = build(csr, device)
    assert not csr.data.all()
    found = A.eliminate_zeros()
    assert (type(found), A.nnz) == (type(A), csr.nnz)
    expected = csr.copy()
    expected.eliminate_zeros()
    assert_same_csr(found.to_scipy(), expected)


@BUILD
@pytest.mark.parametrize("name", VARIED)
def test_nonzero(build, name, device):
    csr = zoo.integers(name, np.float64)
    A = build(csr, device)
    for found in (A.nonzero(), np.nonzero(A), np.where(A)):
        for ours, theirs in zip(found, np.nonzero(csr.toarray()), strict=True):
            np.testing.assert_array_equal(get(ours), theirs)
            assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(get(np.argwhere(A)), np.argwhere(csr.toarray()))
    assert A.count_nonzero() == np.count_nonzero(csr.toarray())


@BUILD
def test_iteration_and_length(build, device):
    csr = zoo.integers("growing_rows", np.float64)
    A = build(csr, device)
    rows = [get(row) for row in A]
    np.testing.assert_array_equal(np.stack(rows), csr.toarray())
    assert len(A) == len(rows)


@BUILD
def test_one_truth_of_many(build, device):
    A = build(np.eye(2), device)
    with pytest.raises(ValueError, match=r"any\(\) or A\.all\(\)"):
        bool(A)
    with pytest.raises(TypeError, match=r"any\(\)"):
        1.0 in A  # noqa: B015
    with pytest.raises(TypeError, match="unhashable"):
        hash(A)
    for convert in (int, float, complex):
        with pytest.raises(TypeError):
            convert(A)


@BUILD
def test_immutable(build, device):
    A = build(np.eye(3), device)
    with pytest.raises(TypeError, match=r"immutable.*with_values"):
        A[0, 0] = 2
    with pytest.raises(TypeError, match="immutable"):
        del A[0]
    before = A
    A *= 2
    np.testing.assert_array_equal(get(before.todense()), np.eye(3))
    np.testing.assert_array_equal(get(A.todense()), 2 * np.eye(3))


@BUILD
def test_repr(build, device):
    A = build(zoo.integers("rows_of_mixed_length", np.float32), device)
    rows, cols = A.shape
    for text in (repr(A), str(A), np.array_repr(A), np.array_str(A)):
        for part in (type(A).__name__, f"{rows} x {cols}", "float32", f"nnz={A.nnz}", f"device={device}", "MB"):
            assert part in text


# New values in the old structure


@BUILD
def test_with_values_refuses(build, device):
    A = build(np.eye(3), device)
    for data, error, words in (
        (np.ones(2), ValueError, r"data.*\(3,\).*\(2,\)"),
        (np.ones((3, 1)), ValueError, r"data.*\(3,\).*\(3, 1\)"),
        (np.ones(3, bool)[:2], ValueError, r"data.*\(3,\).*\(2,\)"),
    ):
        with pytest.raises(error, match=words):
            A.with_values(put(data, device))
    with pytest.raises(TypeError, match="data"):
        A.with_values(np.ones(3, object))


# Inputs


def test_subclasses_are_taken(device):
    """A class of the user's that derives from SciPy's, pydata's or NumPy's is what it derives from."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    coo = sparse.COO.from_scipy_sparse(csr)

    class MyCSR(scipy.sparse.csr_array):
        pass

    class MyMatrix(scipy.sparse.csc_matrix):
        pass

    class MyCOO(sparse.COO):
        pass

    class MyArray(np.ndarray):
        pass

    for obj in (MyCSR(csr), MyMatrix(csr), MyCOO(coo.coords, coo.data, shape=coo.shape), csr.toarray().view(MyArray)):
        for build in DEFAULTS:
            assert_same_csr(build(obj, device).eliminate_zeros().to_scipy(), csr)


def test_negative_zero_of_dense():
    """Documented in as_csr: 0 is 0 in a dense array; a sparse one keeps the sign of what it stores."""
    dense = np.array([[-0.0, 1.0]])
    assert cvrarray.CVRArray(dense).nnz == 1
    stored = cvrarray.CVRArray(scipy.sparse.csr_array((np.array([-0.0]), [0], [0, 1]), shape=(1, 2)))
    assert stored.nnz == 1
    assert np.signbit(stored.todense()[0, 0])


def test_chunk_numbers_are_integers():
    A = cvrarray.CVRArray(np.eye(4), n_lanes=2, n_chunks=2)
    assert A.chunk(np.int8(1)).val.shape == A.chunk(1).val.shape
    for k in (1.0, "1", None, np.array([1, 2])):
        with pytest.raises(TypeError):
            A.chunk(k)
