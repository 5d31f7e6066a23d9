"""Reductions against NumPy on the dense array: values in the rounding bound, dtypes, shapes, nan and empty axes."""

from __future__ import annotations

import itertools

import checks
import numpy as np
import oracle
import pytest
import zoo
from scipy.sparse import csr_array

import cvrarray
from cvrarray.input import coercion

BUILDS = [checks.Build("cvr", {}), checks.cvr(4, 5, "nnz"), checks.cvr(3, 1), checks.bbcsr(1), checks.bbcsr(6)]
CONFIGURATIONS = pytest.mark.parametrize("build", BUILDS, ids=str)
ONE_OF_EACH = pytest.mark.parametrize("build", checks.ONE_OF_EACH, ids=str)
AXES = [None, 0, 1, -1, -2, (0, 1), (-1, 0), (1,)]
DTYPES = [np.bool_, np.int8, np.uint8, np.int32, np.uint64, np.float32, np.float64, np.complex64, np.complex128]
SHAPE = (13, 21)
NAMES = ["sum", "mean", "max", "min", "any", "all", "count_nonzero"]
EXACT = ["max", "min", "any", "all", "count_nonzero"]


def reduce(name, A, **kwargs):
    return getattr(A, name)(**kwargs)


def matrix(dtype=np.float64) -> csr_array:
    """Full rows and columns, empty ones, explicit zeros; a row of negative values only."""
    rng = np.random.default_rng(8)
    dense = rng.integers(-9, 10, SHAPE) * (rng.random(SHAPE) < 0.4)
    dense[2] = -rng.integers(1, 9, 21)
    dense[5], dense[:, 3] = 0, 0
    dense[2, 3] = -1
    dense[:, 4] = -rng.integers(1, 9, 13)
    dense[7, 9] = 5
    stored = dense != 0
    stored[7, 9] = True
    dense[7, 9] = 0
    row, col = np.int32(np.nonzero(stored))
    if np.dtype(dtype).kind in "bu":
        dense = abs(dense)
    val = dense[row, col] * (1 - 2j) if np.dtype(dtype).kind == "c" else dense[row, col]
    return csr_array((val.astype(dtype), (row, col)), shape=SHAPE)


def assert_reduced(found, expected, A, keepdims_or_axis=True) -> None:
    """`found` is NumPy's result, on A's device: a scalar (0-d on a GPU) or a dense array."""
    if np.ndim(expected) or A.device != "cpu":
        assert isinstance(found, A._target.xp.ndarray)
    else:
        assert isinstance(found, np.generic)
    found = checks.get(found)
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@checks.in_pairs(
    "name, build, dtype, keepdims",
    NAMES,
    [*((build, np.float64) for build in BUILDS), *checks.at_home([np.bool_, np.int8, np.float32, np.complex64, np.complex128])],
    [False, True],
)
def test_small_integers(build, name, keepdims, dtype, device):
    """Sums of small integers are exact in every dtype, so nothing may differ."""
    csr = matrix(dtype)
    A = build(csr, device=device)
    for axis in AXES:
        expected = getattr(np, name)(csr.toarray(), axis=axis, keepdims=keepdims)
        found = reduce(name, A, axis=axis, keepdims=keepdims)
        if name == "mean" and expected.dtype.kind in "fc":  # one division, which may be a multiplication on a GPU
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            np.testing.assert_array_max_ulp(abs(checks.get(found)), abs(np.asarray(expected)), maxulp=2)
        else:
            assert_reduced(found, expected, A)


@CONFIGURATIONS
@pytest.mark.parametrize("name", NAMES)
def test_transposed_view(build, name, device):
    csr = matrix()
    A = build(csr, device=device)
    for axis in (None, 0, 1):
        expected = getattr(np, name)(csr.toarray().T, axis=axis)
        found = checks.get(reduce(name, A.T, axis=axis))
        np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(float).eps)


@ONE_OF_EACH
@pytest.mark.parametrize("name", EXACT)
def test_zoo_exact(build, name, device):
    for key in zoo.ZOO:
        csr = zoo.integers(key, np.int16)
        if csr.shape[0] * csr.shape[1] > zoo.DENSE_SIZE:
            continue
        A, dense = build(csr, device=device), csr.toarray()
        for axis in (None, 0, 1):
            if name in ("max", "min") and (dense.size if axis is None else dense.shape[axis]) == 0:
                with pytest.raises(ValueError, match="zero-size array to reduction operation"):
                    reduce(name, A, axis=axis)
            else:
                assert_reduced(reduce(name, A, axis=axis), getattr(np, name)(dense, axis=axis), A)


@checks.in_turn("key, dtype", zoo.ZOO, [np.float32, np.float64, np.complex64, np.complex128], times=2)
def test_zoo_sums(key, dtype, device):
    """Sums of values of very different sizes, in the bound of one summation of any order."""
    csr = zoo.floats(key, dtype)
    A = checks.TYPICAL[len(key) % 4](csr, device=device)
    wide = csr.astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
    for axis in (None, 0, 1):
        count = np.diff(csr.indptr).sum() if axis is None else max(csr.shape[axis], 1)
        size = np.asarray(abs(wide).sum(axis=axis))
        bound = oracle.K * max(count, 1) * np.finfo(dtype).eps * size
        found = checks.get(A.sum(axis=axis))
        assert found.dtype == dtype
        assert (abs(found - np.asarray(wide.sum(axis=axis))) <= bound).all()


@ONE_OF_EACH
def test_sums_of_integers_wrap_as_numpy(build, device):
    values = np.full((3, 40), 2**62 - 1, np.int64)
    A = build(values, device=device)
    for axis in (None, 0, 1):
        with np.errstate(over="ignore"):
            assert_reduced(reduce("sum", A, axis=axis), values.sum(axis=axis), A)
    small = np.full((3, 40), 100, np.int8)
    B = build(small, device=device)
    for axis in (None, 0, 1):
        assert_reduced(reduce("sum", B, axis=axis, dtype=np.int8), small.sum(axis=axis, dtype=np.int8), B)


def casts():
    """A reduction, the dtype of the values and that of the sum."""
    for stored, dtype in itertools.product("bdF", "bldFD"):
        kinds = np.dtype(stored).kind + np.dtype(dtype).kind
        # complex to real has a test of its own; of a negative float as an unsigned number devices differ
        if kinds not in ("cb", "ci", "cu", "cf", "fu"):
            for name in ("sum", "mean") if kinds[1] in "fc" else ("sum",):
                yield name, stored, dtype


@checks.in_turn("name, stored, dtype, build", casts(), checks.ONE_OF_EACH)
def test_dtype(build, name, stored, dtype, device):
    """Values are cast before they are added, as NumPy does."""
    csr = matrix(stored)
    if stored in "fd":
        csr = csr * np.dtype(stored).type(0.25)
    A = build(csr, device=device)
    for axis in (None, 0, 1):
        expected = np.asarray(getattr(np, name)(csr.toarray(), axis=axis, dtype=dtype))
        found = checks.get(reduce(name, A, axis=axis, dtype=dtype))
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(dtype).eps if np.dtype(dtype).kind in "fc" else 0)


@ONE_OF_EACH
def test_imaginary_part_is_not_dropped_in_silence(build, device):
    A = build(matrix(np.complex128), device=device)
    with pytest.warns(np.exceptions.ComplexWarning):
        found = reduce("sum", A, axis=1, dtype=np.float64)
    np.testing.assert_array_equal(checks.get(found), matrix(np.complex128).toarray().real.sum(axis=1))


@CONFIGURATIONS
@pytest.mark.parametrize("name", NAMES)
def test_special_values(build, name, device):
    """nan and inf where NumPy has them; complex infinities stay infinite in their part alone."""
    val = np.array([np.nan, 1.0, np.inf, 2.0, -np.inf, np.inf, -np.inf, -0.0, 0.0])
    places = ([0, 0, 1, 1, 2, 4, 4, 5, 5], [0, 3, 1, 2, 1, 0, 3, 1, 2])
    for unit in (1, 1j):
        csr = csr_array((val * 1, places), shape=(6, 4))
        dense = csr.toarray()
        if unit == 1j:
            dense = np.stack([np.zeros_like(dense), dense], -1).view(np.complex128)[..., 0]
            row, col = places
            csr = csr_array((dense[row, col], places), shape=(6, 4))
        A = build(csr, device=device)
        for axis in (None, 0, 1):
            with np.errstate(invalid="ignore"):
                expected = getattr(np, name)(dense, axis=axis)
                found = checks.get(reduce(name, A, axis=axis))
            assert found.dtype == expected.dtype
            if name in ("max", "min") and unit == 1j:
                np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
                np.testing.assert_array_equal(found[~np.isnan(found)], expected[~np.isnan(expected)])
            elif name != "mean" or unit == 1:  # NumPy's complex division by the count makes nan of inf
                np.testing.assert_array_equal(found, expected)


@ONE_OF_EACH
@pytest.mark.parametrize("name", [name for name in NAMES if name != "count_nonzero"])
def test_out(build, name, device):
    csr = matrix(np.float32)
    A, xp = build(csr, device=device), build(csr, device=device)._target.xp
    for axis, shape in ((None, ()), (0, (21,)), (1, (13,))):
        dtype = np.bool_ if name in ("any", "all") else np.float64
        out = xp.full(shape, 99, dtype)
        assert reduce(name, A, axis=axis, out=out) is out
        expected = getattr(np, name)(csr.toarray(), axis=axis)
        np.testing.assert_allclose(checks.get(out), expected, rtol=1e-6)
        kept = tuple(1 if axis in (None, k) else n for k, n in enumerate(SHAPE))
        out = xp.full(kept, 99, dtype)
        assert reduce(name, A, axis=axis, out=out, keepdims=True) is out
        np.testing.assert_allclose(checks.get(out).ravel(), np.ravel(expected), rtol=1e-6)
    with pytest.raises(ValueError, match="out must have the result's shape"):
        reduce(name, A, axis=0, out=xp.zeros(13))
    with pytest.raises(TypeError, match="out must be a dense array"):
        reduce(name, A, axis=1, out=[0] * 13)
    if name in ("max", "min"):
        with pytest.raises(TypeError, match="out must have a dtype that float32 casts to"):
            reduce(name, A, axis=1, out=xp.zeros(13, np.int64))


@pytest.mark.parametrize("name", NAMES)
def test_wrong_axes(name, device):
    A = cvrarray.CVRArray(matrix(), device=device)
    for axis in (2, -3, (0, 2)):
        with pytest.raises(np.exceptions.AxisError, match="out of bounds for array of dimension 2"):
            reduce(name, A, axis=axis)
    with pytest.raises(ValueError, match="duplicate value"):
        reduce(name, A, axis=(0, -2))
    with pytest.raises(ValueError, match="would reduce nothing"):
        reduce(name, A, axis=())
    for axis in (0.5, True):
        with pytest.raises(TypeError):
            reduce(name, A, axis=axis)


@ONE_OF_EACH
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty(build, shape, device):
    A, dense = build(np.zeros(shape), device=device), np.zeros(shape)
    for axis in (None, 0, 1):
        for name in ("sum", "any", "all", "count_nonzero"):
            assert_reduced(reduce(name, A, axis=axis), getattr(np, name)(dense, axis=axis), A)
        length = dense.size if axis is None else shape[axis]
        for name in ("max", "min"):
            if length:
                assert_reduced(reduce(name, A, axis=axis), getattr(np, name)(dense, axis=axis), A)
            else:
                with pytest.raises(ValueError, match=f"reduction operation {name}imum which has no identity"):
                    reduce(name, A, axis=axis)
        if length:
            assert reduce("mean", A, axis=axis).shape == np.mean(dense, axis=axis).shape
        else:
            with pytest.warns(RuntimeWarning, match="Mean of empty slice"):
                found = checks.get(reduce("mean", A, axis=axis))
            assert np.isnan(found).all()
            assert found.shape == (() if axis is None else (shape[1 - axis],))


@CONFIGURATIONS
def test_same_bits_in_every_run(build, device):
    A = build(zoo.floats("power_law", np.float32), device=device)
    for axis in (None, 0, 1):
        first = checks.get(A.sum(axis=axis))
        for _ in range(3):
            checks.assert_same_bits(np.asarray(A.sum(axis=axis).tolist()), np.asarray(first.tolist()))


@pytest.mark.parametrize("build", [checks.cvr(4, 3, "nnz")], ids=str)  # test_indexing has both
def test_widest_shape(build, device):
    """Rows of 2^62 - 1 columns are reduced without a vector of that length, and so are their transposes."""
    wide = 2**62 - 1
    row, col = np.array([0, 0, 2, 4]), np.array([5, wide - 1, 2**61, 0])
    A = build(coercion.from_triplets(row, col, np.array([1.0, 2.0, -3.0, 4.0]), (5, wide)), device=device)
    rows = {
        "sum": [3, 0, -3, 0, 4],
        "max": [2, 0, 0, 0, 4],
        "min": [0, 0, -3, 0, 0],
        "any": [True, False, True, False, True],
        "all": [False] * 5,
        "count_nonzero": [2, 0, 1, 0, 1],
        "mean": [3 / wide, 0, -3 / wide, 0, 4 / wide],
    }
    for name, expected in rows.items():
        np.testing.assert_array_equal(checks.get(reduce(name, A, axis=1)), expected)
        np.testing.assert_array_equal(checks.get(reduce(name, A.T, axis=0)), expected)
    for name, expected in {"sum": 4, "max": 4, "min": -3, "count_nonzero": 4, "any": True, "all": False}.items():
        assert reduce(name, A).item() == expected


@CONFIGURATIONS
@pytest.mark.parametrize("offset", [0, 1, -1, 5, -7, 12, 20, -12, 21, -13, 100, -100])
def test_diagonal_and_trace(build, offset, device):
    for dtype in (np.int8, np.float64, np.complex64):
        csr = matrix(dtype)
        A, dense = build(csr, device=device), csr.toarray()
        for axes in ({}, {"axis1": 1, "axis2": 0}, {"axis1": -2, "axis2": -1}):
            found = np.diagonal(A, offset, **axes)
            assert isinstance(found, A._target.xp.ndarray)
            checks.assert_same_bits(found, dense.diagonal(offset, **axes))
            found = checks.get(A.trace(offset, **axes))
            assert found.dtype == dense.trace(offset, **axes).dtype
            assert found == dense.trace(offset, **axes)
        assert checks.get(A.trace(offset, dtype=np.complex128)).dtype == np.complex128


def test_diagonal_of_wrong_axes(device):
    A = cvrarray.CVRArray(matrix(), device=device)
    with pytest.raises(ValueError, match="axis1 and axis2 must differ"):
        np.diagonal(A, 0, 0, -2)
    with pytest.raises(np.exceptions.AxisError):
        A.trace(0, 0, 2)


@ONE_OF_EACH
def test_out_neither_narrows_what_is_added_nor_truncates_it(build, device):
    """NumPy adds in what the dtypes of both promote to, and refuses to put fractions into integers."""
    csr = csr_array(np.array([[2.0**24, 1, 1, 1], [0.5, 0.75, 0, 0]]))
    A = build(csr, device)
    xp = A._target.xp
    out = xp.zeros(2, np.float32)
    checks.assert_same_bits(A.sum(axis=1, out=out), np.array([2.0**24 + 4, 1.25], np.float32))
    for axis, shape in ((1, 2), (None, ())):
        with pytest.raises(TypeError, match="out must have a dtype that float64 casts to; got int64"):
            A.sum(axis=axis, out=xp.zeros(shape, np.int64))
    with pytest.raises(TypeError, match="out must have a dtype that int8 casts to; got bool"):
        build(csr_array(np.array([[-1, 1]], np.int8)), device).sum(axis=1, out=xp.ones(1, bool))
