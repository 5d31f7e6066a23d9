"""Ufuncs of sparse arrays against NumPy on the dense array: values, dtypes, structure, and what is refused."""

from __future__ import annotations

import checks
import numpy as np
import pytest
import scipy.sparse
import zoo
from scipy.sparse import csr_array

import cvrarray

BUILDS = [checks.Build("cvr", {}), checks.cvr(4, 5, "nnz"), checks.cvr(3, 1), checks.bbcsr(1), checks.bbcsr(6)]
CONFIGURATIONS = pytest.mark.parametrize("build", BUILDS, ids=str)
ONE_OF_EACH = pytest.mark.parametrize("build", checks.ONE_OF_EACH, ids=str)
DTYPES = [np.bool_, np.int8, np.uint8, np.int64, np.uint64, np.float32, np.float64, np.complex64, np.complex128]
SHAPE = (11, 19)
ULPS = 16  # of CUDA's elementary functions and NumPy's, and of complex ones out of several of these


def matrix(dtype=np.float64, seed=0, scale=1) -> csr_array:
    """About 70 of 209 places stored, every seventh an explicit zero; values -7 to 7 over `scale`."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(-7, 8, SHAPE) * (rng.random(SHAPE) < 0.4)
    dense[4], dense[:, 7] = 0, 0
    row, col = np.int32(np.nonzero(dense))  # of int64 test_inputs has some: conversions are compiled for each
    val = (abs(dense) if np.dtype(dtype).kind in "bu" else dense)[row, col] / scale
    val = (val * (1 - 0.5j) if np.dtype(dtype).kind == "c" else val).astype(dtype)
    val[::7] = 0
    return csr_array((val, (row, col)), shape=SHAPE)


def reference(ufunc, *operands, **kwargs):
    """What NumPy gives."""
    with np.errstate(all="ignore"):
        return ufunc(*operands, **kwargs)


def assert_dense(found, expected: np.ndarray, exact: bool = False) -> None:
    """`found`, an array of ours, holds `expected`: dtype, nan and inf, and values to rounding."""
    found.check()
    found = checks.get(found.todense())
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if exact or expected.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    bound = ULPS * np.finfo(expected.dtype).eps * abs(expected[finite])
    assert (abs(found[finite] - expected[finite]) <= bound).all()


def assert_same_kind(found, A) -> None:
    """The result is an array of A's format, parameters and device."""
    assert type(found) is type(A)
    assert found._parameters() == A._parameters()
    assert found.device == A.device


def assert_same_structure(found, A) -> None:
    assert_same_kind(found, A)
    found, A = found._canonical_csr(), A._canonical_csr()
    np.testing.assert_array_equal(checks.get(found.indptr), checks.get(A.indptr))
    np.testing.assert_array_equal(checks.get(found.indices), checks.get(A.indices))


# ---------------------------------------------------------------------------------------------------- one array


@CONFIGURATIONS
def test_unary_dtype(build, device):
    csr = matrix(np.int8)
    found = np.sqrt(build(abs(csr), device=device), dtype=np.float32)
    assert_dense(found, np.sqrt(abs(csr).toarray(), dtype=np.float32))
    with pytest.raises(TypeError, match="Cannot cast"):
        np.sqrt(build(matrix(np.complex128), device=device), dtype=np.float32)


@CONFIGURATIONS
def test_special_values(build, device):
    """nan, inf and -0.0 among the stored values go through as NumPy has them."""
    val = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0])
    csr = csr_array((val, ([0, 0, 1, 2, 3, 3], [0, 3, 1, 1, 0, 4])), shape=(4, 5))
    A = build(csr, device=device)
    with np.errstate(all="ignore"):
        for ufunc in (np.sin, np.sqrt, np.sign, np.isnan, np.isinf, np.absolute, np.arctan, np.trunc):
            assert_dense(ufunc(A), ufunc(csr.toarray()))
        for ufunc, scalar in ((np.multiply, 2), (np.divide, 4), (np.power, 2), (np.greater, 0), (np.not_equal, 0)):
            assert_dense(ufunc(A, scalar), ufunc(csr.toarray(), scalar))
        assert_dense(np.maximum(A, A), csr.toarray())
        assert_dense(np.subtract(A, A), csr.toarray() - csr.toarray())


def test_keywords_that_are_refused(device):
    A, keywords = cvrarray.CVRArray(matrix(), device=device), {"where": True}
    for operands in ((A,), (A, 2), (A, A)):
        with pytest.raises(TypeError, match=r"takes no where|must be left out"):
            (np.sin if len(operands) == 1 else np.multiply)(*operands, **keywords)


# ---------------------------------------------------------------------------------------------------- with a scalar

SCALARS = {
    np.multiply: (3, -2, 0, True, 2.5, 1 - 2j, np.float32(0.5), np.float64(0.1), np.int16(2), np.array(1.5)),
    np.divide: (3, -0.75, np.inf, np.float32(4)),
    np.floor_divide: (3, 1.5),
    np.remainder: (3, -2.5),
    np.fmod: (3,),
    np.power: (2, 3.0),
    np.float_power: (2,),
    np.add: (0,),
    np.subtract: (0,),
    np.greater: (1, 0.5, 1000),
    np.greater_equal: (2,),
    np.less: (0, -1, -1000),
    np.less_equal: (-0.5,),
    np.not_equal: (0,),
    np.equal: (3, 1000),
    np.maximum: (-1, 0),
    np.minimum: (0, 2.5),
    np.fmin: (2,),
    np.logical_and: (True, 0),
    np.logical_or: (0,),
    np.logical_xor: (False,),
    np.bitwise_and: (3,),
    np.left_shift: (1,),
    np.right_shift: (1,),
    np.arctan2: (1.5,),
    np.hypot: (0,),
    np.ldexp: (2,),
    np.copysign: (1.0,),
}
DENSE_SCALARS = {
    np.add: (1,),
    np.subtract: (1,),
    np.power: (0, 0.0),
    np.divide: (0,),
    np.floor_divide: (0,),
    np.remainder: (0,),
    np.multiply: (np.inf, np.nan),
    np.equal: (0,),
    np.less_equal: (0,),
    np.greater_equal: (0,),
    np.less: (1, 1000),
    np.not_equal: (1,),
    np.maximum: (1, np.nan),
    np.minimum: (-1,),
    np.logical_or: (1,),
    np.hypot: (1,),
    np.logaddexp: (0,),
}


def cases(table):
    """A case for each scalar of each ufunc."""
    pairs = [(ufunc, scalar) for ufunc, scalars in table.items() for scalar in scalars]
    return pytest.mark.parametrize("case", pairs, ids=lambda case: f"{case[0].__name__}-{case[1]!r}")


@ONE_OF_EACH
@cases(SCALARS)
def test_scalar(build, case, device):
    ufunc, scalar = case
    for dtype in (np.bool_, np.int8, np.uint8, np.float32, np.float64, np.complex64):
        csr = matrix(dtype)
        A = build(csr, device=device)
        try:
            expected = reference(ufunc, csr.toarray(), scalar)
        except (TypeError, OverflowError):
            with pytest.raises((TypeError, OverflowError)):
                ufunc(A, scalar)
            continue
        with np.errstate(all="ignore"):
            found = ufunc(A, scalar)
        assert_same_structure(found, A)
        assert_dense(found, expected)


@CONFIGURATIONS
@cases(DENSE_SCALARS)
def test_scalar_that_would_make_it_dense(build, case, device):
    ufunc, scalar = case
    A = build(matrix(), device=device)
    with pytest.raises(TypeError, match=r"numpy\.\w+.*todense\(\)"):
        ufunc(A, scalar)
    if ufunc in (np.add, np.subtract, np.maximum, np.minimum):
        with pytest.raises(TypeError, match=r"todense\(\)"):
            ufunc(scalar, A)


def test_scalars_that_are_no_numbers(device):
    A = cvrarray.CVRArray(matrix(), device=device)
    for scalar in ("2", None, object(), np.datetime64("2020-01-01")):
        with pytest.raises(TypeError):
            np.multiply(A, scalar)
    with pytest.raises(OverflowError):
        np.multiply(cvrarray.CVRArray(matrix(np.int8), device=device), 300)
    with pytest.raises(ValueError, match="negative integer powers"):
        np.power(cvrarray.CVRArray(matrix(np.int8), device=device), -1)
    with pytest.raises(TypeError, match="values must be"):
        np.multiply(A, np.longdouble(2))


# ---------------------------------------------------------------------------------------------------- two sparse arrays


@checks.in_turn("left, right", DTYPES, DTYPES, times=2)
def test_promotion(left, right, device):
    """dtypes and values of all pairs are NumPy's."""
    a, b = matrix(left), matrix(right, seed=1)
    A, B = cvrarray.CVRArray(a, device=device), cvrarray.CVRArray(b, device=device)
    dense = checks.put(b.toarray(), device)
    for ufunc in (np.add, np.multiply, np.maximum):
        expected = ufunc(a.toarray(), b.toarray())
        assert_dense(ufunc(A, B), expected)
        if ufunc is np.multiply:
            assert_dense(ufunc(A, dense), expected)
            assert_dense(ufunc(dense, A), ufunc(b.toarray(), a.toarray()))
            scalar = b.data[1]
            assert_dense(ufunc(A, scalar), reference(ufunc, a.toarray(), scalar))


@ONE_OF_EACH
def test_equal_arrays_differ_nowhere(build, device):
    """SciPy users ask ``(A != B).nnz == 0``."""
    A = build(matrix(), device=device)
    B = checks.bbcsr(2)(matrix(), device=device)
    assert np.not_equal(A, B).nnz == 0
    assert np.subtract(A, A).nnz == 0


@CONFIGURATIONS
def test_formats_mix_and_the_first_decides(build, device):
    left, right = matrix(), matrix(seed=1)
    expected = left.toarray() + right.toarray()
    A, B = build(left, device=device), checks.bbcsr(2)(right, device=device)
    assert_same_kind(np.add(A, B), A)
    assert_same_kind(np.add(B, A), B)
    assert_dense(np.add(A, B), expected, exact=True)
    assert_dense(np.add(B, A), expected, exact=True)


def test_cupyx_operand(gpu):
    from cupyx.scipy.sparse import csr_matrix

    left, right = matrix(), matrix(seed=1)
    A = cvrarray.BBCSRArray(left, device=gpu)
    found = np.add(A, csr_matrix(scipy.sparse.csr_matrix(right)))
    assert_dense(found, left.toarray() + right.toarray(), exact=True)
    with pytest.raises(TypeError, match="one device"):
        np.add(A, right)
    with pytest.raises(TypeError, match="one device"):
        np.add(A, cvrarray.BBCSRArray(right, device="cpu"))
    with pytest.raises(TypeError, match="one device"):
        np.multiply(A, np.ones(SHAPE))


@CONFIGURATIONS
def test_sparse_broadcasts(build, device):
    rng = np.random.default_rng(4)
    whole, row, column, one = (rng.integers(0, 3, shape).astype(float) for shape in (SHAPE, (1, 19), (11, 1), (1, 1)))
    for a, b in ((whole, row), (row, whole), (whole, column), (column, row), (one, whole), (row, column), (one, row)):
        for ufunc in (np.multiply, np.add):
            found = ufunc(build(a, device=device), build(b, device=device))
            assert_dense(found, ufunc(a, b), exact=True)
    for shape in ((11, 18), (10, 1), (10, 19)):
        with pytest.raises(ValueError, match="could not be broadcast together with shapes"):
            np.add(build(whole, device=device), build(np.ones(shape), device=device))


@CONFIGURATIONS
def test_product_takes_the_intersection(build, device):
    """A stored inf or nan beside nothing gives nothing, as in SciPy; two stored values multiply as NumPy's."""
    A = build(csr_array((np.array([np.inf, np.nan, np.inf]), ([0, 1, 2], [0, 1, 2])), shape=(3, 3)), device=device)
    B = build(csr_array((np.array([0.0, 2.0]), ([2, 1], [2, 1])), shape=(3, 3)), device=device)
    with np.errstate(invalid="ignore"):
        found = np.multiply(A, B).to_scipy()
    np.testing.assert_array_equal(found.toarray(), [[0, 0, 0], [0, np.nan, 0], [0, 0, np.nan]])
    assert found.nnz == 2


@pytest.mark.parametrize("build", [checks.cvr(4, 3, "nnz")], ids=str)  # test_indexing has both
def test_widest_shape(build, device):
    """Places are compared without a single number a place, which 64 bits would not hold."""
    from cvrarray.input import coercion

    wide = 2**62 - 1
    a = coercion.from_triplets(np.array([0, 0, 4]), np.array([5, wide - 1, 2**61]), np.array([1.0, 2.0, 3.0]), (5, wide))
    b = coercion.from_triplets(np.array([0, 2, 4]), np.array([wide - 1, 7, 2**61]), np.array([10.0, 20.0, -3.0]), (5, wide))
    found = np.add(build(a, device=device), build(b, device=device)).to_scipy()
    np.testing.assert_array_equal(found.indptr, [0, 2, 2, 3, 3, 3])
    np.testing.assert_array_equal(found.indices, [5, wide - 1, 7])
    np.testing.assert_array_equal(found.data, [1, 12, 20])


@pytest.mark.parametrize("name", zoo.ZOO)
def test_zoo(name, device):
    """The sum and the product with the rows and columns backwards, against SciPy, entry by entry; a scalar keeps zeros."""
    csr = zoo.integers(name)
    other = csr[::-1, ::-1]
    build = checks.TYPICAL[len(name) % 4]
    A, B = build(csr, device=device), build(other, device=device)
    for ufunc, expected in ((np.add, csr + other), (np.multiply, csr * other)):
        expected.eliminate_zeros()
        expected.sort_indices()
        checks.assert_same_csr(ufunc(A, B).to_scipy(), expected)
    checks.assert_same_csr(np.multiply(A, 3).to_scipy(), csr * np.int8(3))
    doubled = np.multiply(A, 2)
    doubled.check()
    sums = checks.get(doubled.matvec(checks.put(np.ones(csr.shape[1], np.int8), device)))
    np.testing.assert_array_equal(sums, (2 * csr.astype(int).sum(axis=1)).astype(np.int8))


# ---------------------------------------------------------------------------------------------------- sparse with dense

DENSE_SHAPES = [SHAPE, (19,), (1, 19), (11, 1), (1, 1), (1,), ()]


@ONE_OF_EACH
@pytest.mark.parametrize("shape", DENSE_SHAPES, ids=str)
def test_dense(build, shape, device):
    csr = matrix()
    A = build(csr, device=device)
    rng = np.random.default_rng(6)
    values = rng.integers(1, 5, shape).astype(float)
    for ufunc, right in (
        (np.multiply, values - 2),
        (np.divide, values),
        (np.floor_divide, values),
        (np.remainder, values),
        (np.power, values),
        (np.greater, values - 1),
        (np.less, 1 - values),
        (np.maximum, -values),
        (np.minimum, values),
        (np.logical_and, values - 2),
    ):
        on_device = checks.put(np.asarray(right), device)
        expected = ufunc(csr.toarray(), right)
        found = ufunc(A, on_device)
        assert_same_structure(found, A)
        assert_dense(found, expected)
    found = np.multiply(checks.put(np.asarray(values), device), A)
    assert_same_structure(found, A)
    assert_dense(found, values * csr.toarray())


@ONE_OF_EACH
def test_dense_of_other_layouts(build, device):
    csr = matrix(np.float32)
    A = build(csr, device=device)
    values = np.arange(1.0, 1 + 11 * 19).reshape(SHAPE)
    for strided in (np.asfortranarray(values), np.repeat(values, 2, 1)[:, ::2], values[::-1, ::-1]):
        assert_dense(np.multiply(A, checks.put(strided, device)), csr.toarray() * strided)
    assert_dense(np.multiply(A, list(range(19))), csr.toarray() * np.arange(19))
    half = np.full(19, 1.5, np.float16)
    assert_dense(
        np.multiply(build(csr.astype(np.int8), device=device), checks.put(half, device)),
        csr.toarray().astype(np.int8) * half,
    )


@ONE_OF_EACH
def test_dense_makes_a_larger_array(build, device):
    """A single row or column is repeated."""
    rng = np.random.default_rng(4)
    for shape, other in (((1, 19), (11, 1)), ((1, 19), SHAPE), ((11, 1), (19,)), ((1, 1), SHAPE)):
        sparse_part, dense = rng.integers(0, 3, shape).astype(float), rng.integers(1, 4, other).astype(float)
        found = np.multiply(build(sparse_part, device=device), checks.put(dense, device))
        assert_dense(found, sparse_part * dense, exact=True)


@CONFIGURATIONS
def test_what_is_not_stored_stays_zero(build, device):
    """inf, nan and 0 in a dense factor or divisor meet stored values only, as in SciPy."""
    csr = csr_array((np.array([2.0, 0.0, -1.0]), ([0, 1, 2], [0, 1, 2])), shape=(3, 4))
    A = build(csr, device=device)
    special = checks.put(np.array([np.inf, np.nan, 0.0, np.nan]), device)
    np.testing.assert_array_equal(np.multiply(A, special).to_scipy().data, [np.inf, np.nan, 0])
    with np.errstate(all="ignore"):
        found = np.divide(A, special).to_scipy()
    np.testing.assert_array_equal(found.data, [0, np.nan, -np.inf])
    assert found.nnz == 3


def test_dense_of_wrong_shape(device):
    A = cvrarray.CVRArray(matrix(), device=device)
    for shape in ((18,), (11, 18), (11,), (12, 1), (0, 19)):
        with pytest.raises(ValueError, match="could not be broadcast together"):
            np.multiply(A, checks.put(np.ones(shape), device))
    with pytest.raises(ValueError, match="at most 2 dimensions"):
        np.multiply(A, checks.put(np.ones((1, 11, 19)), device))
    with pytest.raises(TypeError, match="masked"):
        np.multiply(A, np.ma.masked_equal(np.ones(SHAPE), 2))


# --------------------------------------------------------------------------------------------------- power, clip, round


@CONFIGURATIONS
def test_power(build, device):
    csr = abs(matrix())
    A = build(csr, device=device)
    for exponent in (1, 2, 3, 0.5):
        assert_dense(A.power(exponent), csr.toarray() ** exponent)
    integers = abs(matrix(np.int8))
    found = build(integers, device=device).power(2, dtype=np.float64)
    assert_dense(found, np.power(integers.toarray(), 2, dtype=np.float64))


@CONFIGURATIONS
@pytest.mark.parametrize("bounds", [(-2, 3), (0, 3), (-2.5, 0), (None, 1), (-1, None), (0, 0), (-np.inf, np.inf), (-500, 500)])
def test_clip(build, bounds, device):
    for dtype in (np.int8, np.uint8, np.float32, np.float64):
        csr = matrix(dtype)
        A = build(csr, device=device)
        found = np.clip(A, *bounds)
        assert_same_structure(found, A)
        assert_dense(found, np.clip(csr.toarray(), *bounds))


def test_clip_by_arrays_and_without_bounds(device):
    csr = matrix()
    A = cvrarray.BBCSRArray(csr, device=device)
    low, high = -np.arange(19.0), np.arange(11.0)[:, None]
    assert_dense(np.clip(A, checks.put(low, device), checks.put(high, device)), np.clip(csr.toarray(), low, high))
    assert A.clip() is A


@pytest.mark.parametrize("bounds", [(1, 3), (-3, -1), (1, None), (None, -1), (np.nan, 1)])
def test_clip_away_from_zero(bounds, device):
    with pytest.raises(TypeError, match=r"bounds must have 0 between them.*todense\(\)"):
        np.clip(cvrarray.CVRArray(matrix(), device=device), *bounds)
    with pytest.raises(TypeError, match="immutable"):
        np.clip(cvrarray.CVRArray(matrix(), device=device), -1, 1, out=np.zeros(SHAPE))


@CONFIGURATIONS
@pytest.mark.parametrize("decimals", [0, 1, -1, 2])
def test_round(build, decimals, device):
    for dtype in (np.bool_, np.int8, np.float32, np.float64, np.complex128):
        if dtype is np.bool_ and decimals:
            continue
        csr = matrix(dtype, scale=3 if np.dtype(dtype).kind in "fc" else 1)
        A = build(csr, device=device)
        expected = np.round(csr.toarray(), decimals)
        found = np.round(A, decimals)
        assert_same_structure(found, A)
        assert_dense(found, expected)
    with pytest.raises(TypeError, match="immutable"):
        np.round(A, decimals, out=np.zeros(SHAPE))


# ---------------------------------------------------------------------------------------------------- transposed views


@CONFIGURATIONS
def test_transposed_views(build, device):
    """A view takes part as any array; what keeps its structure is a view again, anything else has the base's format."""
    csr = matrix()
    A, dense = build(csr, device=device), csr.toarray()
    for found in (A.T * 2, np.tanh(A.T), abs(A.T)):
        assert type(found) is type(A.T)
        assert_same_kind(found.T, A)
    assert_dense(A.T * 2, dense.T * 2)
    assert_dense(np.tanh(A.T), np.tanh(dense.T))
    square = build(csr[:, :11], device=device)
    for found, expected in (
        (square + square.T, dense[:, :11] + dense[:, :11].T),
        (square.T * square, dense[:, :11] * dense[:, :11].T),
        (A.T * checks.put(np.arange(11.0), device), dense.T * np.arange(11.0)),
        (A.T * checks.put(np.arange(19.0)[:, None], device), dense.T * np.arange(19.0)[:, None]),
    ):
        assert_same_kind(found, A)
        assert_dense(found, expected)


@ONE_OF_EACH
@pytest.mark.parametrize("ufunc", [np.add, np.subtract])
def test_sums_of_complex_infinities(build, ufunc, device):
    """The other part of a number stays what it is: a product by 1 or -1 makes it nan."""
    inf = np.inf
    left = np.array([[complex(inf, 0), 0, complex(1, -inf), 2, complex(3, 4)]])
    right = np.array([[complex(1, 1), complex(-inf, 2), 0, complex(inf, 1), complex(2, inf)]])
    found = ufunc(build(left, device), build(right, device))
    np.testing.assert_array_equal(checks.get(found.todense()), ufunc(left, right))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int64])
def test_threads_change_no_bits(dtype):
    """Long vectors are computed in ranges, in the caller's numpy.errstate."""
    rng = np.random.default_rng(0)
    csr = csr_array(rng.integers(0, 9, (1700, 1301)).astype(dtype))
    array, columns = cvrarray.CVRArray(csr, device="cpu"), rng.random(1301)
    functions = (np.sqrt, lambda A: A * columns, lambda A: np.multiply(A, 3), lambda A: A / np.full(1301, 2))
    found = {}
    try:
        for n_threads in (1, 2, 5):
            cvrarray.set_num_threads(n_threads)
            found[n_threads] = [function(array).tocsr().data for function in functions]
            with np.errstate(all="raise"), pytest.raises(FloatingPointError):
                array / np.zeros(1301)
    finally:
        cvrarray.set_num_threads(None)
    assert csr.nnz > 16 * 65536
    for k, function in enumerate(functions):
        checks.assert_same_bits(found[1][k], found[2][k])
        checks.assert_same_bits(found[1][k], found[5][k])
        np.testing.assert_array_equal(found[1][k], function(csr.toarray())[csr.toarray() != 0])
