"""NumPy's protocols and Python's operators: every ufunc, a long list of functions, and what stands on the other side.

Each call gives what NumPy gives for the dense array, sparse where that is sparse, or a TypeError that names the remedy.
"""

from __future__ import annotations

import itertools
import operator
import warnings

import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from checks import DEFAULTS, get, in_pairs, in_turn, put

import cvrarray
from cvrarray.array import base, borrowed, names, protocol
from cvrarray.core import devices
from cvrarray.input import coercion

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
UFUNCS = sorted({getattr(np, name) for name in dir(np) if isinstance(getattr(np, name), np.ufunc)}, key=lambda f: f.__name__)
DTYPES = ["bool", "int8", "int64", "float32", "float64", "complex64", "complex128"]
VARIED = ["rows_of_mixed_length", "explicit_zeros_beside_holes", "many_empty_rows_between"]
REMEDY = r"todense|tocsr|with_values|to_scipy|tocoo|cvrarray\.save|scipy\.sparse|vstack"


def dense_of(found):
    """A result on the host, and dense where it is sparse."""
    return get(found.todense() if hasattr(found, "todense") else found)


def assert_like_numpy(found, expected, dtype=True):
    """One or several results are NumPy's: values, shapes and dtypes."""
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert_like_numpy(ours, theirs, dtype)
        return
    found = dense_of(found) if hasattr(found, "dtype") else found
    expected = np.asarray(expected)
    assert np.shape(found) == expected.shape
    if dtype:
        assert np.asarray(found).dtype == expected.dtype
    exact = expected.dtype.kind in "biu"
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:  # NumPy's transcendental functions round differently in another memory layout; CuPy's are others
        eps = np.finfo(expected.dtype).eps
        np.testing.assert_allclose(found, expected, rtol=16 * eps, atol=64 * eps)


# Every ufunc

#: Of two floats: none of these has a second operand with which 0 stays 0, or they are for integers.
NEVER = {np.logaddexp, np.logaddexp2, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift, np.gcd,
         np.lcm}  # fmt: skip


def test_every_ufunc_stands_in_one_set():
    sets = [protocol.KEEPS_ZERO, protocol.DENSIFIES, protocol.BINARY, protocol.UNSUPPORTED, set(protocol.CONTRACTIONS)]
    for ufunc in UFUNCS:
        assert sum(ufunc in each for each in sets) == 1, ufunc
    assert set.union(*sets) == set(UFUNCS)
    assert {ufunc.nin for ufunc in protocol.KEEPS_ZERO | protocol.DENSIFIES} == {1}
    assert {ufunc.nin for ufunc in protocol.BINARY} == {2}


@in_turn("ufunc, dtype", [ufunc for ufunc in UFUNCS if ufunc.nin == 1], DTYPES, times=2)
def test_sets_say_what_ufuncs_do_to_zero(ufunc, dtype):
    """KEEPS_ZERO holds just those that turn 0 into 0 for each dtype that they take."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            results = ufunc(np.zeros(1, dtype))
        except TypeError:
            return
    kept = all((result == 0).all() for result in (results if isinstance(results, tuple) else (results,)))
    if ufunc in protocol.KEEPS_ZERO:
        assert kept
    else:
        assert not kept or dtype in ("bool", "int8", "int64"), "it could be offered"


@in_turn("ufunc, dtype, build", [ufunc for ufunc in UFUNCS if ufunc.nin == 1], DTYPES, DEFAULTS)
def test_unary_ufuncs(build, ufunc, dtype, device):
    """Either NumPy's values, as an array of the same format, or a TypeError."""
    csr = zoo.integers("explicit_zeros_beside_holes", dtype)
    csr.data = (csr.data / 8).astype(dtype) if np.dtype(dtype).kind in "fc" else csr.data
    A, dense = build(csr, device), csr.toarray()
    with np.errstate(all="ignore"):
        try:
            expected = ufunc(dense)
        except TypeError:
            expected = None
        if expected is None or ufunc not in protocol.KEEPS_ZERO:
            with pytest.raises(TypeError):
                ufunc(A)
            return
        found = ufunc(A)
    for each in found if isinstance(found, tuple) else (found,):
        assert (type(each), each.device, each.nnz) == (type(A), device, A.nnz)
        each.check()
    assert_like_numpy(found, expected)


@in_pairs(
    "ufunc, dtype, build",
    sorted(protocol.BINARY, key=lambda f: f.__name__),
    ["bool", "int64", "float64", "complex128"],
    DEFAULTS,
)
def test_binary_ufuncs(build, ufunc, dtype, device):
    """With a sparse array, a vector of the row's length, a dense array and scalars, on either side.

    Of two sparse arrays no zeros are stored; with another operand the structure stays.
    """
    csr, other = zoo.integers("explicit_zeros_beside_holes", dtype), zoo.integers("blocks_with_holes", dtype)
    A, dense = build(csr, device), csr.toarray()
    row, full = zoo.vector(csr.shape[1], dtype), zoo.integers("blocks_with_holes", dtype).toarray()
    if ufunc is np.divide:  # by 0, what is not stored stays 0, as in SciPy
        row[row == 0] = full[full == 0] = 1
    offered = 0
    for value in (build(other, device), row, full, 2, 0, np.float64(3)):
        on_device = put(value, device) if isinstance(value, np.ndarray) else value
        plain = other.toarray() if isinstance(value, base.SparseArray) else value
        for swapped in (False, True):
            with np.errstate(all="ignore"):
                try:
                    expected = ufunc(plain, dense) if swapped else ufunc(dense, plain)
                except (TypeError, ValueError):  # integers to negative powers
                    expected = None
                try:
                    found = ufunc(on_device, A) if swapped else ufunc(A, on_device)
                except (TypeError, ValueError) as error:
                    assert expected is None or "todense" in str(error) or "stored" in str(error) or "astype" in str(error), (
                        error
                    )
                    continue
            assert expected is not None
            offered += 1
            for each in found if isinstance(found, tuple) else (found,):
                assert isinstance(each, base.SparseArray)
                each.check()
                if value is not full and value is not row and not np.isscalar(value):
                    assert each.nnz == each.count_nonzero()
                else:
                    assert each.nnz == A.nnz
            assert_like_numpy(found, expected)
    assert offered or dtype != "float64" or ufunc in NEVER


@in_turn("ufunc, method, build", UFUNCS, ["reduce", "accumulate", "outer", "reduceat", "at"], DEFAULTS, times=2)
def test_methods_of_ufuncs(build, ufunc, method):
    """reduce where it is a reduction that is offered; no other method."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A = build(csr)
    arguments = {"reduceat": (A, [0, 2]), "at": (A, [0], 1.0), "outer": (A, np.ones(2))}.get(method, (A,))
    if method == "reduce" and ufunc in protocol.REDUCTIONS:
        for axis in (0, 1, None, -1):
            assert_like_numpy(ufunc.reduce(A, axis=axis), ufunc.reduce(csr.toarray(), axis=axis))
        assert_like_numpy(ufunc.reduce(A), ufunc.reduce(csr.toarray()))
        every = (0, None, None, True)  # axis, dtype, out, keepdims
        assert_like_numpy(ufunc.reduce(A, *every), ufunc.reduce(csr.toarray(), *every))
        if ufunc not in (np.add, np.multiply):
            with pytest.raises(TypeError, match=rf"^numpy.{ufunc.__name__}.reduce of \w+ takes no dtype. Call astype"):
                ufunc.reduce(A, dtype=np.float32)
        return
    with pytest.raises((TypeError, ValueError, RuntimeError)):  # NumPy itself refuses some before it asks
        getattr(ufunc, method)(*arguments)


@BUILD
def test_what_ufuncs_take(build, device):
    A = build(np.eye(3), device)
    xp = devices.parse(device).xp
    assert np.sin(A, dtype=np.float32).dtype == np.float32
    for call in (
        lambda: np.sin(A, where=np.ones((3, 3), bool)),
        lambda: np.multiply(A, A, out=A),
        lambda: np.matmul(A, xp.ones(3), dtype=np.float32),
        lambda: np.matmul(A, A, out=xp.ones((3, 3))),
        lambda: np.modf(A, out=(xp.ones((3, 3)), None)),
    ):
        with pytest.raises(TypeError, match=r"out|where|dtype"):
            call()


@BUILD
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_contractions_of_two_sparse_arrays(build, dtype, device):
    csr = zoo.integers("rows_of_mixed_length", dtype)
    A, dense = build(csr, device), csr.toarray()
    for call in (
        np.matvec,
        np.vecdot,
        np.linalg.vecdot,
        np.inner,
        np.vdot,
        lambda a, b: np.tensordot(a, b, 2),
        lambda a, b: np.tensordot(a, b, ([1, 0], [1, 0])),
        lambda a, b: np.tensordot(a, b, ([0], [0])),
    ):
        assert_like_numpy(call(A, A), call(dense, dense))
    x = zoo.vector(csr.shape[1], dtype)
    assert_like_numpy(np.tensordot(A, put(x, device), 0), np.tensordot(dense, x, 0))
    with pytest.raises(ValueError, match="axes"):
        np.tensordot(A, put(zoo.vector(csr.shape[0], dtype), device), 1)


OF_TWO = {
    "dot": np.dot,
    "A.dot": lambda a, b: a.dot(b),
    "matmul": np.matmul,
    "inner": np.inner,
    "tensordot": lambda a, b: np.tensordot(a, b, 1),
    "tensordot last": lambda a, b: np.tensordot(a, b, ([-1], [-1])),
    "tensordot first": lambda a, b: np.tensordot(a, b, ([0], [0])),
    "tensordot both": lambda a, b: np.tensordot(a, b, ([0, 1], [1, 0])),
    "vdot": np.vdot,
    "vecdot": np.vecdot,
    "vecdot columns": lambda a, b: np.vecdot(a, b, axis=0),
    "outer": np.outer,
    "kron": np.kron,
    "einsum": lambda a, b: np.einsum("...ij,...jk->...ik", a, b),
} | {name: getattr(np, name) for name in ("matvec", "vecmat") if hasattr(np, name)}

#: What takes a dense operand of more than two dimensions
DEEP = OF_TWO.keys() - {"vdot", "vecdot", "vecdot columns"}


@BUILD
@pytest.mark.parametrize("name", OF_TWO)
def test_a_contraction_has_the_axes_of_numpy_or_raises(build, name, device):
    """For dense operands of 0 to 4 dimensions, on either side, square and not: most shapes fit in several ways."""
    call, taken = OF_TWO[name], set()
    for dtype, shape, is_view in (("float64", (2, 2), False), ("complex128", (2, 3), False), ("float64", (3, 2), True)):
        dense = (zoo.vector(shape[0] * shape[1], dtype) * (np.arange(shape[0] * shape[1]) != 1)).reshape(shape)
        A = build(np.ascontiguousarray(dense.T), device).T if is_view else build(dense, device)
        for lengths in (s for n in range(5) for s in itertools.product(sorted({*shape, 1}), repeat=n)):
            X = zoo.vector(max(1, int(np.prod(lengths))), dtype).reshape(lengths)
            for first in (True, False) if name != "A.dot" else (True,):
                operands = (A, put(X, device)) if first else (put(X, device), A)
                try:
                    found = call(*operands)
                except (TypeError, ValueError):
                    continue
                assert_like_numpy(found, call(*((dense, X) if first else (X, dense))))
                taken.add((X.ndim, first))
    first = name != "vecmat"
    assert (2, first) in taken
    assert ((3, first) in taken) == ((4, first) in taken) == (name in DEEP)


EMPTY = [(5, 0), (0, 5), (0, 0)]


@BUILD
@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float64", "complex64"])
def test_norms_are_those_of_numpy(build, dtype, device):
    """Of the smallest integer, whose absolute value its dtype does not have, and of matrices without an entry."""
    least = np.iinfo(dtype).min if np.dtype(dtype).kind in "iu" else 1
    for dense in (np.array([[least, 0, 3], [least, 1, 0]]).astype(dtype), *(np.zeros(shape, dtype) for shape in EMPTY)):
        A = build(dense, device)
        for axis, ord in itertools.product((None, 0, 1), (None, 1, -1, np.inf, -np.inf)):
            if (axis is not None and ord == -1) or (not dense.size and ord is not None and ord < 0):
                continue
            try:
                expected = np.linalg.norm(dense, ord, axis)
            except ValueError:  # what older NumPys say of no entries
                expected = np.zeros(()) if axis is None else np.zeros(dense.shape[1 - axis])
            found = get(np.linalg.norm(A, ord, axis))
            assert np.shape(found) == np.shape(expected)
            np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "float16" else 1e-6)


@BUILD
@pytest.mark.parametrize("shape", [(3, 4), (4, 2**40)])
def test_equality_of_arrays_with_other_entries_stored(build, shape, device):
    def made(*entries):
        row, col, val = zip(*entries, strict=True)
        return build(scipy.sparse.coo_array((np.array(val), (np.array(row), np.array(col))), shape=shape), device)

    A = made((0, 1, 1.0), (2, 0, 0.0), (2, 3, 2.0))
    for B, equal, close in (
        (made((0, 1, 1.0), (2, 0, 0.0), (2, 3, 2.0)), True, True),
        (made((0, 1, 1.0), (1, 1, 0.0), (2, 3, 2.0)), True, True),
        (made((0, 1, 1.0), (2, 3, 2.0 + 1e-9)), False, True),
        (made((0, 1, 1.0), (2, 2, 2.0)), False, False),
        (made((0, 1, 1.0), (1, 0, np.nan), (2, 3, 2.0)), False, False),
        (made((0, 1, 1.0), (2, 3, np.inf)), False, False),
    ):
        for ours, theirs in ((A, B), (B, A)):
            assert np.array_equal(ours, theirs) is equal
            assert np.allclose(ours, theirs) is close


@pytest.mark.parametrize("shape", EMPTY)
def test_contractions_without_an_entry(shape, device):
    dense = np.zeros(shape)
    A, X, Y = cvrarray.CVRArray(dense, device=device), np.ones((shape[1], 3)), np.ones((2, 3, shape[0]))
    assert_like_numpy(np.tensordot(A, put(X, device), 1), np.tensordot(dense, X, 1))
    assert_like_numpy(np.tensordot(put(Y, device), A, 1), np.tensordot(Y, dense, 1))
    assert_like_numpy(np.inner(put(Y, device), A.T), np.inner(Y, dense.T))
    assert_like_numpy(np.einsum("ij,jk->ki", A, put(X, device)), np.einsum("ij,jk->ki", dense, X))


EINSUMS_1 = "...->...;...j->...;ij->ij;ij->ji;ij->i;ij->j;ij->;ab->ba;ij;ji;ii->i;ii;xy -> x".split(";")
EINSUMS_2 = [
    ("ij,j->i", "Ax"), ("ij,j", "Ax"), ("ab,b->a", "Ax"), ("ji,i", "Ax"), ("j,ij->i", "xA"), ("ij,i->j", "Ax"),
    ("ij,jk->ik", "AX"), ("ij,jk", "AX"), ("ij,kj->ik", "AX"), ("ij,jk->ki", "AX"), ("ki,ij->kj", "XA"), ("ij,ik->jk", "AX"),
    ("ij,ij->ij", "AA"), ("ij,ji->ij", "AA"), ("ij,ij->", "AA"), ("ij,ij->i", "AA"), ("ij,ij", "AX"), ("ij,jk->ik", "AA"),
    ("ij,j->ij", "Ax"), ("ij,i->ij", "Ax"), ("i,ij->ij", "xA"), ("ij,j->", "Ax"), ("ij,j->j", "Ax"), ("ij,i->i", "Ax"),
    ("ij,jk,k->i", "AXx"), ("i,ij,j->", "xAx"), ("ij,jk,kl->il", "AAA"), ("...j,j->...", "Ax"),
    ("ii,i->i", "Ax"), ("ij,kk->ij", "AX"), ("ij,ij,ij->i", "AXA"), ("ij,i,j->ij", "Axx"), ("ij,ik->jk", "AA"),
    ("ij,jk,ki->", "AAX"),
]  # fmt: skip


@BUILD
def test_einsum(build, device):
    rng = np.random.default_rng(3)
    dense = rng.integers(-3, 4, (9, 9)) * (rng.random((9, 9)) < 0.4) * 1.0
    x, X = rng.integers(-3, 4, 9) * 1.0, rng.integers(-3, 4, (9, 9)) * 1.0
    ours = {"A": build(dense, device), "x": put(x, device), "X": put(X, device)}
    theirs = {"A": dense, "x": x, "X": X}
    for subscripts in EINSUMS_1:
        assert_like_numpy(np.einsum(subscripts, ours["A"]), np.einsum(subscripts, dense))
    for subscripts, operands in EINSUMS_2:
        found = np.einsum(subscripts, *(ours[name] for name in operands))
        assert_like_numpy(found, np.einsum(subscripts, *(theirs[name] for name in operands)))
        assert_like_numpy(np.einsum(subscripts, *(ours[name] for name in operands), optimize=True), get(dense_of(found)))
    for subscripts, operands in (("ij,k->ijk", "Ax"), ("ij,jk->ijk", "AA")):
        found = np.einsum(subscripts, *(ours[name] for name in operands))
        assert_like_numpy(found, np.einsum(subscripts, *(theirs[name] for name in operands)))
    for subscripts, operands in (("iij->i", "A"), ("ij->ik", "A"), ("ij,j->i", "A"), ("ij->ii", "A")):
        with pytest.raises((TypeError, ValueError)):
            np.einsum(subscripts, *(ours[name] for name in operands))
    with pytest.raises(ValueError, match="j"):
        np.einsum("ij,j->i", ours["A"], put(np.ones(4), device))


# Functions: name -> call(module, array); the result is NumPy's for the dense array


def _ones(a, *shape):
    return (a._target.xp if hasattr(a, "_target") else np).ones(shape, "int8")


#: Called with the array alone, and with it twice
ALONE = """
    sum mean max amin any count_nonzero trace linalg.diagonal linalg.norm linalg.matrix_norm real imag conj round fix
    nan_to_num abs transpose matrix_transpose copy zeros_like flip flipud fliplr tril nonzero argwhere where
    atleast_1d atleast_2d shape ndim size iscomplexobj isrealobj square squeeze diff nanmin argmax unique iscomplex
    angle linalg.vector_norm sort
""".split()
TWICE = """
    dot inner vdot matmul linalg.matmul array_equal
""".split()
WORKING = {
    **{name: lambda m, a, call=operator.attrgetter(name): call(m)(a) for name in ALONE},
    **{name: lambda m, a, call=operator.attrgetter(name): call(m)(a, a) for name in TWICE},
    "tensordot": lambda m, a: m.tensordot(a, a, 1),
    "einsum": lambda m, a: m.einsum("ij,jk", a, a),
    "linalg.tensordot": lambda m, a: m.linalg.tensordot(a, a, axes=1),
    "sum axis": lambda m, a: m.sum(a, axis=0),
    "sum keepdims": lambda m, a: m.sum(a, 1, keepdims=True),
    "mean axis": lambda m, a: m.mean(a, axis=1),
    "amax": lambda m, a: m.amax(a, axis=0),
    "min": lambda m, a: m.min(a, axis=1),
    "all": lambda m, a: m.all(a, axis=0),
    "count_nonzero axis": lambda m, a: m.count_nonzero(a, axis=1),
    "diagonal": lambda m, a: m.diagonal(a, 1),
    "diag": lambda m, a: m.diag(a, k=-1),
    "linalg.trace": lambda m, a: m.linalg.trace(a, offset=1),
    "linalg.norm 1": lambda m, a: m.linalg.norm(a, 1),
    "linalg.norm inf": lambda m, a: m.linalg.norm(a, np.inf, keepdims=True),
    "around": lambda m, a: m.around(a, decimals=1),
    "clip": lambda m, a: m.clip(a, -1, 2),
    "astype": lambda m, a: m.astype(a, "complex64"),
    "array_equal other": lambda m, a: m.array_equal(a, a * 2),
    "allclose": lambda m, a: m.allclose(a, a * (1 + 1e-9)),
    "allclose other": lambda m, a: m.allclose(a, a * 1.1),
    "permute_dims": lambda m, a: m.permute_dims(a, axes=(1, 0)),
    "swapaxes": lambda m, a: m.swapaxes(a, 0, -1),
    "zeros_like shape": lambda m, a: m.zeros_like(a, dtype="int8", shape=(2, 5)),
    "full_like": lambda m, a: m.full_like(a, 0),
    "take": lambda m, a: m.take(a, [2, 0, 2], axis=0),
    "take axis 1": lambda m, a: m.take(a, np.array([1, 3]), axis=1),
    "flip axis": lambda m, a: m.flip(a, axis=1),
    "triu": lambda m, a: m.triu(a, k=2),
    "concatenate": lambda m, a: m.concatenate([a, a], axis=1),
    "vstack": lambda m, a: m.vstack([a, a]),
    "hstack": lambda m, a: m.hstack((a, a)),
    "block": lambda m, a: m.block([[a, a], [a, a]]),
    "size axis": lambda m, a: m.size(a, 0),
    "result_type": lambda m, a: m.result_type(a, np.float32),
    "can_cast": lambda m, a: m.can_cast(a.dtype, "int8"),
    "matmul 3-D": lambda m, a: m.matmul(a, _ones(a, 2, a.shape[1], 3)),
    "reshape": lambda m, a: m.reshape(a, (-1, 2 * a.shape[1])),
    "reshape F": lambda m, a: m.reshape(a, (a.shape[0] // 2, -1), order="F"),
    "squeeze a row": lambda m, a: m.squeeze(a[3:4]),
    "moveaxis": lambda m, a: m.moveaxis(a, 0, 1),
    "roll": lambda m, a: m.roll(a, 7),
    "roll axis": lambda m, a: m.roll(a, (3, -2), axis=(0, 1)),
    "rot90": lambda m, a: m.rot90(a[:, :7]),
    "rot90 back": lambda m, a: m.rot90(a[:, :7], -1),
    "tile": lambda m, a: m.tile(a[:9], (2, 3)),
    "tile to nothing": lambda m, a: m.tile(a, (0, 2)),
    "repeat": lambda m, a: m.repeat(a, 2, axis=0),
    "repeat some": lambda m, a: m.repeat(a[:, :3], [1, 0, 3], axis=1),
    "pad": lambda m, a: m.pad(a, ((1, 2), (0, 3))),
    "broadcast_to": lambda m, a: m.broadcast_to(a[3:4], (5, a.shape[1])),
    "diff axis": lambda m, a: m.diff(a, 2, axis=0),
    "compress": lambda m, a: m.compress([True, False, True], a, axis=1),
    "delete": lambda m, a: m.delete(a, slice(2, 9), axis=0),
    "append": lambda m, a: m.append(a, a, axis=1),
    "split": lambda m, a: tuple(m.split(a, 2)),
    "hsplit": lambda m, a: tuple(m.hsplit(a, [3, 5])),
    "array_split": lambda m, a: tuple(m.array_split(a, 5, axis=1)),
    "kron": lambda m, a: m.kron(a[:5, :7], a[:3, :4]),
    "outer": lambda m, a: m.outer(a[:5, :7], a[:3, :4]),
    "matrix_power": lambda m, a: m.linalg.matrix_power(a, 3),
    "where 3": lambda m, a: m.where(a > 1, a, a * 2),
    "where with numbers": lambda m, a: m.where(a > 1, 3, 0),
    "prod": lambda m, a: m.prod(a, axis=1),
    "var": lambda m, a: m.var(a, ddof=1),
    "var axis": lambda m, a: m.var(a, axis=0),
    "std": lambda m, a: m.std(a, axis=1, keepdims=True),
    "nansum": lambda m, a: m.nansum(a, axis=0),
    "nanprod": lambda m, a: m.nanprod(a[:4, :4], axis=1),  # more numbers overflow
    "nanmean": lambda m, a: m.nanmean(a, axis=0),
    "nanmax": lambda m, a: m.nanmax(a, axis=1),
    "argmax axis": lambda m, a: m.argmax(a, axis=0),
    "argmin": lambda m, a: m.argmin(a, axis=1, keepdims=True),
    "unique counts": lambda m, a: m.unique(a, return_counts=True),
    "linalg.norm axis": lambda m, a: m.linalg.norm(a, axis=0),
    "linalg.norm axis 1": lambda m, a: m.linalg.norm(a, 1, axis=1, keepdims=True),
    "linalg.norm axis inf": lambda m, a: m.linalg.norm(a, np.inf, axis=-1),
    "linalg.norm axis 0": lambda m, a: m.linalg.norm(a, 0, axis=0),
    # not of two dimensions, or with another fill value: pydata's
    "reshape to 1-D": lambda m, a: m.reshape(a, (-1,)),
    "reshape to 3-D": lambda m, a: m.reshape(a, (1, *a.shape)),
    "where dense": lambda m, a: m.where(a, 1, 2),
    "where with a dense condition": lambda m, a: m.where(_ones(a, *a.shape), a, 2),
    "tile 3-D": lambda m, a: m.tile(a[:5, :7], (1, 2, 3)),
    "expand_dims": lambda m, a: m.expand_dims(a, 0),
    "broadcast_to 3-D": lambda m, a: m.broadcast_to(a[:5, :7], (2, 5, 7)),
    "einsum outer": lambda m, a: m.einsum("ij,kl->ijkl", a[:5, :7], a[:3, :4]),
    "unique_counts": lambda m, a: tuple(m.unique_counts(a)),
}


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
@in_turn("name, dtype, build", WORKING, ["int64", "float64", "complex128"], DEFAULTS)
def test_functions(build, name, dtype, device):
    csr = zoo.integers("banded_stencil", dtype)
    A, call = build(csr, device), WORKING[name]
    try:
        expected = call(np, csr.toarray())
    except TypeError as error:  # NumPy's own no, as for rounding down complex numbers
        with pytest.raises(TypeError):
            call(np, A)
        assert "complex" in str(error) or "ufunc" in str(error)
        return
    if device != "cpu" and dtype == "int64" and name in ("dot", "tensordot", "einsum", "inner", "matmul", "linalg.matmul",
                                                         "linalg.tensordot", "matrix_power"):  # fmt: skip
        with pytest.raises(TypeError, match="CuPy"):
            call(np, A)
        return
    if dtype == "complex128" and name == "sort":
        with pytest.raises(TypeError, match="todense"):
            call(np, A)
        return
    found = call(np, A)
    if isinstance(expected, (np.dtype, tuple, bool, int)) and not isinstance(expected, tuple):
        assert found == expected
    else:
        assert_like_numpy(found, expected, dtype=name not in ("shape",))


REFUSED = {
    "append flat": lambda a: np.append(a, a),
    "delete flat": lambda a: np.delete(a, 0),
    "repeat flat": lambda a: np.repeat(a, 2),
    "compress flat": lambda a: np.compress([1], a),
    "pad with 1": lambda a: np.pad(a, 1, constant_values=1),
    "matrix_power 0": lambda a: np.linalg.matrix_power(a, 0),
    "unique with indices": lambda a: np.unique(a, return_index=True),
    "norm 3 of rows": lambda a: np.linalg.norm(a, 3, axis=1),
    "vector_norm 1": lambda a: np.linalg.vector_norm(a, ord=1),
    "add 1": lambda a: a + 1,
    "1 - a": lambda a: 1 - a,
    "a == 0": lambda a: a == 0,
    "a <= 1": lambda a: a <= 1,
    "a ** 0": lambda a: a**0,
    "a ** -1": lambda a: a**-1,
    "1 / a": lambda a: 1 / a,
    "a / 0": lambda a: a / 0,
    "~a": lambda a: ~a,
    "exp": np.exp,
    "cos": np.cos,
    "log": np.log,
    "isfinite": np.isfinite,
    "logical_not": np.logical_not,
    "asarray": np.asarray,
    "array": np.array,
    "asanyarray": np.asanyarray,
    "ascontiguousarray": np.ascontiguousarray,
    "ones_like": np.ones_like,
    "full_like": lambda a: np.full_like(a, 3),
    "stack": lambda a: np.stack([a, a]),
    "median": np.median,
    "take flat": lambda a: np.take(a, [0]),
    "save": lambda a: np.save("never", a),
    "inv": np.linalg.inv,
    "norm 2": lambda a: np.linalg.norm(a, 2),
    "sum where": lambda a: np.sum(a, where=True),
    "sum initial": lambda a: np.sum(a, initial=1),
    "max initial": lambda a: np.max(a, initial=0),
    "busday": lambda a: np.lcm.reduce(a),
    "allclose dense": lambda a: np.allclose(a, np.ones(a.shape)),
    "array_equal dense": lambda a: np.array_equal(a, np.ones(a.shape)),
}


@in_turn("name, build", REFUSED, DEFAULTS)
def test_refused(build, name, device):
    """Each raises, and says what to do: nothing becomes dense, or a 0-d array of an object, by itself."""
    A = build(zoo.integers("banded_stencil", np.float64), device)
    with pytest.raises(ValueError if name == "stack" else TypeError, match=REMEDY):
        REFUSED[name](A)


def test_no_function_of_numpy_gives_something_wrong():
    """Every public function that asks the protocol, called with an array alone, answers from a rule or as NumPy does, by
    pydata/sparse, or raises TypeError.
    """
    A = cvrarray.CVRArray(zoo.integers("tridiagonal_31", np.float64))
    asked = [getattr(module, name) for module in (np, np.linalg, np.fft) for name in dir(module)]
    asked = {f for f in asked if hasattr(f, "_implementation")}
    assert len(asked) > 250
    assert set(protocol.FUNCTIONS) <= asked | {np.permute_dims}
    assert set(protocol.REMEDIES) <= asked
    for function in asked - set(protocol.FUNCTIONS):
        if borrowed.offers(function):
            try:
                found = A.__array_function__(function, (type(A),), (A,), {})
            except TypeError as error:
                assert "todense" in str(error)
            else:
                assert_like_numpy(found, function(A.todense()))
            continue
        with pytest.raises(TypeError, match=REMEDY):
            A.__array_function__(function, (type(A),), (A,), {})


@BUILD
def test_unknown_arguments_name_the_remedy(build):
    A = build(np.eye(3))
    with pytest.raises(TypeError, match=r"numpy\.sum of .*Array: .*where.*todense"):
        np.sum(A, where=np.ones((3, 3), bool))
    with pytest.raises(TypeError, match=r"numpy\.linalg\.inv is not offered"):
        np.linalg.inv(A)


# Values that need a closer look


@BUILD
def test_comparison_as_a_whole(build, device):
    A = build(np.array([[1.0, 0.0], [np.nan, np.inf]]), device)
    stored = scipy.sparse.csr_array((np.array([1.0, 0.0, np.nan, np.inf]), [0, 1, 0, 1], [0, 2, 4]), shape=(2, 2))
    B = build(stored, device)
    assert (A.nnz, B.nnz) == (3, 4)
    assert not np.array_equal(A, B)
    assert np.array_equal(A, B, equal_nan=True)
    assert not np.allclose(A, B)
    assert np.allclose(A, B, equal_nan=True)
    assert not np.array_equal(A, build(np.eye(3), device))
    with pytest.raises(ValueError, match=r"\(2, 2\) and \(3, 3\)"):
        np.allclose(A, build(np.eye(3), device))
    small = build(np.array([[1e-9, 0.0], [0.0, 0.0]]), device)
    assert np.allclose(small, np.zeros_like(small))
    assert not np.allclose(small, np.zeros_like(small), atol=0)
    assert np.array_equal(build(np.eye(3), device), cvrarray.CVRArray(np.eye(3), device=device))


@BUILD
def test_arrays_of_one_structure_are_compared_by_their_tables(build, device, monkeypatch):
    """What a comparison of canonical CSRs costs is not to be paid for them, but where tables are larger than CSRs."""
    dense = np.arange(1.0, 96 * 96 + 1).reshape(96, 96)
    A, B, C = build(dense, device), build(dense, device), build(dense * 2, device)
    monkeypatch.setattr(type(A), "_canonical_csr", None)
    assert np.array_equal(A, B)
    assert np.allclose(A, B)
    assert not np.array_equal(A, C)
    assert not np.allclose(A, C)


def test_arrays_with_padding_keep_the_csrs_that_are_compared():
    A, B = (cvrarray.BBCSRArray(np.eye(99), block_size=3) for _ in range(2))
    assert np.array_equal(A, B)
    assert A._origin.csr(0).nnz == B._origin.csr(0).nnz == 99


@BUILD
def test_zeros_like_keeps_the_format(build, device):
    A = build(zoo.integers("diagonal", np.float32), device)
    for found in (np.zeros_like(A), np.empty_like(A), np.full_like(A, 0), np.zeros_like(A, dtype="int8", shape=(4, 5))):
        assert (type(found), found.nnz, found.device) == (type(A), 0, device)
        found.check()
    assert (found.dtype, found.shape) == (np.int8, (4, 5))


# Operators and what stands on the other side

SYMMETRIC = [operator.add, operator.sub, operator.mul, operator.ne, operator.lt, operator.gt]


@BUILD
@pytest.mark.parametrize("name", VARIED)
def test_operators_with_sparse(build, name, device):
    csr = zoo.integers(name, np.float64)
    other = zoo.integers(name, np.float32) * 2
    other.data[::2] = 0
    A = build(csr, device)
    others = [build(other, device), cvrarray.CVRArray(other, device=device).T.copy().T]
    if device == "cpu":
        coo = sparse.COO.from_scipy_sparse(other)
        others += [other, other.tocsc(), scipy.sparse.csr_matrix(other), coo, coo.asformat("gcxs")]
    else:
        others += [others[0].tocsr()]
    for B in others:
        for op in SYMMETRIC:
            found = op(A, B)
            assert type(found) is type(A)
            assert_like_numpy(found, op(csr.toarray(), other.toarray()))


@BUILD
def test_products_with_labelled_values(build):
    """Pandas' series and frames have rules of their own for operators; a product takes their values, as SciPy's does."""

    class Labelled:
        __module__ = "pandas.core.series"
        __array_ufunc__ = None

        def __init__(self, values):
            self.values = values

        def to_numpy(self):
            return self.values

        def __rmatmul__(self, other):
            raise AssertionError("labels count")

    csr = zoo.integers("rows_of_mixed_length", np.float64)
    for x in (np.arange(csr.shape[1]), np.ones((csr.shape[1], 2))):
        found = build(csr) @ Labelled(x)
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, csr @ x)


@BUILD
def test_operators_with_scipy_on_the_left(build):
    """+ and - are left to us; * and the comparisons ask for a dense array and get our error. COO leaves all to us but
    @.
    """
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A, dense = build(csr), csr.toarray()
    for kind in (scipy.sparse.csr_array, scipy.sparse.csr_matrix, scipy.sparse.csc_array):
        assert_like_numpy(kind(csr) + A, 2 * dense)
        assert_like_numpy(kind(csr) - A, 0 * dense)
        for op in (operator.mul, operator.matmul, operator.ne, operator.lt):
            with pytest.raises(TypeError, match=r"todense.*tocsr"):
                op(kind(csr), A.T if op is operator.matmul else A)
    coo = sparse.COO.from_scipy_sparse(csr)
    for op in (operator.add, operator.sub, operator.mul, operator.ne):
        assert_like_numpy(op(coo, A), op(dense, dense))
    with pytest.raises(Exception):  # noqa: B017  # whatever it raises inside itself, it gives no answer
        coo @ A.T


@BUILD
def test_operators_with_scalars_and_dense(build, device):
    csr = zoo.integers("explicit_zeros_beside_holes", np.float64)
    A, dense = build(csr, device), csr.toarray()
    row, column = zoo.vector(csr.shape[1]) + 4, zoo.vector(csr.shape[0])[:, None] + 4
    on_row, on_column = put(row, device), put(column, device)
    for found, expected in (
        (A * 2, dense * 2), (2 * A, 2 * dense), (A / 2, dense / 2), (A // 2, dense // 2), (A % 3, dense % 3), (A**2, dense**2),
        (np.float32(2) * A, np.float32(2) * dense), (A * np.array(2.0), dense * 2), (-A, -dense), (+A, dense),
        (abs(A), abs(dense)),
        (A > 1, dense > 1), (A != 0, dense != 0), (A < 0, dense < 0), (1 < A, 1 < dense), (A * on_row, dense * row),
        (on_row * A, row * dense), (A * on_column, dense * column), (A / on_row, dense / row),
        (A.multiply(on_row), dense * row),
        (A.power(2), dense**2), (A.maximum(A * 2), np.maximum(dense, dense * 2)), (A.minimum(0), np.minimum(dense, 0)),
        (A.round(), dense.round()), (A.clip(-1, 2), dense.clip(-1, 2)), (A.clip(max=1), dense.clip(max=1)),
    ):  # fmt: skip
        assert type(found) is type(A)
        found.check()
        assert_like_numpy(found, expected)
    for found, expected in zip(divmod(A, 2), divmod(dense, 2), strict=True):
        assert_like_numpy(found, expected)
    for refused in (lambda: A + 1, lambda: 1 + A, lambda: A - on_row, lambda: on_row + A, lambda: A == 0, lambda: A >= 0):
        with pytest.raises(TypeError, match="todense"):
            refused()


@BUILD
def test_integer_operators(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.int64)
    A, dense = build(csr, device), csr.toarray()
    for op in (operator.and_, operator.or_, operator.xor):
        assert_like_numpy(op(A, A * 3), op(dense, dense * 3))
    for found, expected in ((A & 1, dense & 1), (A << 2, dense << 2), (A >> 1, dense >> 1), (A // 2, dense // 2)):
        assert_like_numpy(found, expected)


@BUILD
def test_in_place_operators_make_new_arrays(build, device):
    A = B = build(np.eye(3), device)
    B += A
    assert B is not A
    np.testing.assert_array_equal(get(B.todense()), 2 * np.eye(3))
    if device != "cpu":  # CuPy's own operators take no other arrays
        return
    x = np.full((3, 3), 2.0)
    x *= A
    np.testing.assert_array_equal(get(x), 2 * np.eye(3))
    x += A
    x -= A + A
    np.testing.assert_array_equal(get(x), np.eye(3))
    x @= 2 * A
    y = np.ones(3)
    y @= A
    np.testing.assert_array_equal(get(x), 2 * np.eye(3))
    np.testing.assert_array_equal(get(y), np.ones(3))


@BUILD
def test_a_dense_out_asks_for_a_dense_result(build, device):
    dense = np.array([[4.0, 0, 9], [0, 1, 0]])
    A, out = build(dense, device), put(np.full((2, 3), 7.0), device)
    for call in (
        lambda m, a, **k: m.sqrt(a, **k),
        lambda m, a, **k: m.cos(a, **k),
        lambda m, a, **k: m.add(a, 1, **k),
        lambda m, a, **k: m.multiply(a, 3, **k),
        lambda m, a, **k: m.subtract(a, a, **k),
        lambda m, a, **k: m.greater(a, 1, **k),
    ):
        assert call(np, A, out=out) is out
        np.testing.assert_array_equal(get(out), call(np, dense).astype(float))
    with pytest.raises(ValueError, match="shape"):
        np.sqrt(A, out=out[:1])


@BUILD
@pytest.mark.parametrize("dtype", ["bool", "int8", "float32"])
def test_sums_of_products_have_the_dtype_of_matmul(build, dtype, device):
    """Narrow integers wrap, and bool is a disjunction, as in `@`; NumPy's sum alone counts in int64."""
    dense = (np.arange(30).reshape(5, 6) * (np.arange(30).reshape(5, 6) % 3 == 0)).astype(dtype)
    square = np.ascontiguousarray(dense[:, :5])
    A, S = build(dense, device), build(square, device)
    for call, a in (
        (np.vdot, A),
        (np.vecdot, A),
        (lambda a, b: np.tensordot(a, b, 2), A),
        (lambda a, b: np.einsum("ij,ij->i", a, b), A),
        (lambda a, b: np.einsum("ij,ij", a, b), A),
        (lambda a, b: np.einsum("ij->j", a), A),
        (lambda a, b: np.einsum("ij->", a), A),
        (lambda a, b: np.einsum("ii", a), S),
        (lambda a, b: np.vecdot(a, b, axis=0), A),
        (lambda a, b: np.einsum("ij,j->", a, b[0]), A),
    ):
        plain = dense if a is A else square
        with np.errstate(over="ignore"):
            found, expected = call(a, a), call(plain, plain)
        assert get(found).dtype == expected.dtype
        np.testing.assert_allclose(get(found), expected, rtol=1e-2 if dtype == "float16" else 1e-6)


@BUILD
def test_a_number_in_dot_has_its_own_dtype(build, device):
    """As in NumPy, which makes an array of it, and unlike ``A * 2``."""
    A, dense = build(np.eye(3, dtype=np.float32), device), np.eye(3, dtype=np.float32)
    for number in (2, 2.0, np.float32(2)):
        assert np.dot(A, number).dtype == A.dot(number).dtype == np.dot(dense, number).dtype
        assert np.inner(number, A).dtype == np.inner(number, dense).dtype


@BUILD
def test_data_is_the_stored_values_in_canonical_order(build, device):
    csr = zoo.integers("explicit_zeros_beside_holes", np.float64)
    A = build(csr, device)
    for array, expected in ((A, csr), (A.T, csr.T.tocsr()), (A.with_values(A.data), csr)):
        np.testing.assert_array_equal(get(array.data), expected.data)
        assert array.data.shape == (A.nnz,)
    if device == "cpu":
        with pytest.raises(ValueError, match="read-only"):
            A.data[0] = 1


@BUILD
def test_names_that_cannot_be_name_the_way(build):
    A = build(np.eye(3))
    for name, way in names.WAYS.items():
        assert not hasattr(A, name), name
        with pytest.raises(AttributeError, match="has no attribute") as error:
            getattr(A, name)
        assert way in str(error.value)
    with pytest.raises(AttributeError, match=r"no attribute 'sin'. Use numpy.sin\(A\)"):
        A.sin()
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        A.nonsense  # noqa: B018


@BUILD
def test_comparison_with_none(build):
    A = build(np.eye(3))
    assert (A == None) is False  # noqa: E711
    assert (A != None) is True  # noqa: E711
    assert (A == "text") is False


@BUILD
def test_what_has_nan(build, device):
    """Reductions of lines with nan, infinity, and nothing else."""
    nan = np.nan
    dense = np.array([[1, nan, 0, 2], [nan, nan, nan, nan], [0, 0, 0, 0], [np.inf, -1, 0, 3], [-1.0, -2, nan, -3]])
    A = build(dense, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for axis in (None, 0, 1):
            for name in "nansum nanmean nanmax nanmin nanprod prod var argmax argmin max min".split():
                assert_like_numpy(getattr(np, name)(A, axis=axis), getattr(np, name)(dense, axis=axis))
    with pytest.warns(RuntimeWarning, match="All-NaN"):
        A.nanmax(axis=1)
    with pytest.warns(RuntimeWarning, match="empty slice"):
        np.nanmean(A, axis=1)


@BUILD
def test_stored_entries_alone(build, device):
    """SciPy's `explicit`: what is not stored is left out."""
    dense = np.array([[0, -2.0, 0], [0, 0, 0], [-1, 0, -3]])
    A, S = build(dense, device), scipy.sparse.csr_array(dense)
    assert (int(A.argmax(explicit=True)), int(A.argmin(explicit=True))) == (6, 8)  # where SciPy numbers stored entries
    for name, axis in itertools.product(("max", "min", "argmax", "argmin"), (None, 0, 1)):
        if axis is not None or not name.startswith("arg"):
            expected = getattr(S, name)(axis=axis, explicit=True)
            expected = expected.toarray() if scipy.sparse.issparse(expected) else expected
            np.testing.assert_array_equal(get(getattr(A, name)(axis=axis, explicit=True)), expected)


@BUILD
def test_indices_that_broadcast(build, device):
    dense = np.arange(30.0).reshape(5, 6)
    A, i, j = build(dense, device), np.array([[0, 4], [2, -1]]), np.array([[1, 5], [0, 3]])
    for key in ((i, j), (i, 2), (1, j), (i, [0, 1]), ([1, 2], j), (i, j[:1])):
        found = A[key]
        assert isinstance(found, type(A))
        assert_like_numpy(found, dense[key])
    assert_like_numpy(A[dense > 3, ...], dense[dense > 3])
    with pytest.raises(IndexError, match="broadcast"):
        A[i, [0, 1, 2]]


@BUILD
def test_where_with_dense_operands(build, device):
    dense = np.array([[4.0, 0, -9], [0, 1, 0]])
    A, full = build(dense, device), np.arange(6.0).reshape(2, 3)
    on = put(full, device)
    for found, expected in (
        (np.where(A > 0, on, 0), np.where(dense > 0, full, 0)),
        (np.where(A > 0, on, A), np.where(dense > 0, full, dense)),
        (np.where(on > 2, A, 0), np.where(full > 2, dense, 0)),
        (np.where(on[0] > 1, A, 2 * A), np.where(full[0] > 1, dense, 2 * dense)),
        (np.where(A > 0, 1, A), np.where(dense > 0, 1, dense)),
    ):
        assert isinstance(found, type(A))
        assert_like_numpy(found, expected)


@BUILD
def test_classes_with_rules_of_their_own_are_asked(build):
    class Other:
        __array_ufunc__ = None

        def __radd__(self, other):
            return "radd"

        def __rmatmul__(self, other):
            return "rmatmul"

        def __mul__(self, other):
            return "mul"

    A = build(np.eye(3))
    assert (A + Other(), A @ Other(), Other() * A) == ("radd", "rmatmul", "mul")
    for op in (operator.add, operator.matmul, operator.mul):
        with pytest.raises(TypeError):
            op(A, object())
    with pytest.raises(TypeError):
        A < "text"  # noqa: B015


def test_on_two_devices(gpu):
    A = cvrarray.CVRArray(np.eye(3))
    for op in (operator.add, operator.mul, operator.ne, np.array_equal):
        with pytest.raises(TypeError, match="one device"):
            op(A, A.to_device(gpu))


@BUILD
def test_cupy_on_the_left(build, gpu):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A, x = build(csr, gpu), put(zoo.vector(csr.shape[0]), gpu)
    np.testing.assert_array_equal(get(x @ A), get(x) @ csr.toarray())
    np.testing.assert_array_equal(get((x[:, None] * A).todense()), get(x)[:, None] * csr.toarray())


def test_packages_are_found_by_base_classes():
    class Mine(scipy.sparse.csr_array):
        pass

    assert coercion.package(Mine(np.eye(2))) == "scipy"
    assert coercion.package(scipy.sparse.linalg.aslinearoperator(np.eye(2))) == ""
    assert coercion.package(np.ones(2)) == "numpy"
    assert coercion.package(sparse.COO.from_numpy(np.eye(2))) == "sparse"
    assert coercion.package(cvrarray.CVRArray(np.eye(2)).T) == "cvrarray"
    assert coercion.package(object()) == coercion.package("text") == ""


@BUILD
def test_matvec_and_vecmat_take_a_matrix_on_their_own_side(build, device):
    A = build(np.eye(3), device)
    x = A._target.xp.ones(3)
    with pytest.raises(TypeError, match=r"x1 of matvec must be a matrix \(2-D\); got shape \(3,\)"):
        np.matvec(x, A)
    with pytest.raises(TypeError, match=r"x2 of vecmat must be a matrix \(2-D\); got shape \(3,\)"):
        np.vecmat(A, x)


@BUILD
def test_sequences_in_contractions(build, device):
    dense = np.arange(4.0).reshape(2, 2)
    A, rows = build(dense, device), [[1.0, 2.0], [3.0, 4.0]]
    calls = (np.vdot, np.vecdot, np.matvec, np.vecmat)
    for call in calls:
        for operands in ((A, rows), (rows, A)):
            if device != "cpu":
                with pytest.raises(TypeError, match="on the array's device"):
                    call(*operands)
            else:
                expected = call(*(dense if operand is A else operand for operand in operands))
                np.testing.assert_array_equal(call(*operands), expected)


def test_device_argument_of_numpy_is_heeded(gpu):
    A = cvrarray.CVRArray(np.eye(3), device=gpu)
    for made in (np.zeros_like(A, device="cpu"), np.full_like(A, 0, device="cpu"), np.astype(A, np.float32, device="cpu")):
        assert made.device == "cpu"


def test_device_argument_of_numpy_must_name_one(device):
    A = cvrarray.CVRArray(np.eye(3), device=device)
    assert np.zeros_like(A, device=device).device == A.device
    for call in (np.zeros_like, np.empty_like, lambda A, **kwargs: np.full_like(A, 0, **kwargs)):
        with pytest.raises(ValueError, match="device must be 'cpu', 'cuda' or 'cuda:N'; got 'tpu'"):
            call(A, device="tpu")


def test_what_pydata_sparse_has_otherwise(device):
    """Arguments and results of NumPy's that pydata/sparse does not have, or has with another meaning."""
    dense = np.array([[1.0, 0, 2], [0, -3, 0]], np.float32)
    A, none = cvrarray.CVRArray(dense, device=device), cvrarray.CVRArray(np.zeros((0, 3)), device=device)
    np.testing.assert_array_equal(get(dense_of(np.sort(A, axis=None))), np.sort(dense, axis=None))
    assert np.sort(none, axis=0).shape == (0, 3)
    np.testing.assert_array_equal(get(dense_of(np.pad(A, 1, constant_values=0))), np.pad(dense, 1))
    assert np.nanmean(A, axis=0).dtype == np.float32
    for function in (np.nanmax, np.nanmin):
        with pytest.raises(ValueError, match="zero-size"):
            function(none, axis=0)
    with pytest.raises(ValueError, match=r"todense\(\)"):
        np.sort(A, stable=True)
    with pytest.raises(ValueError, match="shape"):
        np.std(A, axis=0, out=put(np.zeros((5, 3), np.float32), device))
