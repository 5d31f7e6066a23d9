"""float16 is stored and moved bit by bit, computed with in float32 and rounded once: both formats, both devices."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import sparse
import zoo
from checks import DEFAULTS, ONE_OF_EACH, assert_same_bits, from_csr, get, put
from scipy.sparse import bsr_array, coo_array, csr_array

import cvrarray
from cvrarray import files
from cvrarray.input import coercion

HALF = np.dtype(np.float16)
LARGEST = np.finfo(HALF).max
SUBNORMAL = np.finfo(HALF).smallest_subnormal
K = 8  # of the oracle's bound
BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
MATRICES = ["rows_of_mixed_length", "power_law", "explicit_zeros_beside_holes", "one_dense_row", "one_dense_column",
            "many_empty_rows_between", "narrow_and_wide_tiles", "shape_without_entries_0_5", "one_by_one"]  # fmt: skip
#: -0, subnormals, the largest, inf, nan, a nan with a payload and a signalling one
SPECIAL = np.array([0x8000, 1, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFE2A, 0x7D01], np.uint16).view(HALF)


def halves(name: str) -> tuple[csr_array, np.ndarray]:
    """A zoo matrix as float32, and its values, which float16 holds: SciPy has none."""
    csr = zoo.floats(name, np.float32)
    data = np.clip(csr.data, -1000, 1000).astype(HALF)
    csr.data = data.astype(np.float32)
    return csr, data


def make(build, csr, data, device):
    """The matrix of CSR's places and `data`."""
    cls = cvrarray.CVRArray if build.format == "cvr" else cvrarray.BBCSRArray
    parts = (put(array, device) for array in (csr.indptr, csr.indices, data))
    return from_csr(cls, *parts, csr.shape, **build.keywords)


def assert_holds(A, csr, data) -> None:
    """A's CSR has these places and these bits."""
    A.check()
    assert A.dtype == HALF
    found = A._canonical_csr()
    np.testing.assert_array_equal(get(found.indptr), csr.indptr)
    np.testing.assert_array_equal(get(found.indices), csr.indices)
    assert_same_bits(found.data, data)


def assert_near(found, expected, size, length) -> None:
    """Within float32's rounding of sums of `length` terms of total `size`, and float16's of the result."""
    found = get(found)
    assert found.dtype == HALF
    assert found.shape == expected.shape
    sums = K * np.maximum(length, 1) * np.finfo(np.float32).eps * size
    rounding = np.maximum((abs(expected) + sums) * np.finfo(HALF).eps / 2, float(SUBNORMAL) / 2)
    assert (abs(found.astype(np.float64) - expected) <= sums + rounding).all()


@pytest.mark.parametrize("build", ONE_OF_EACH, ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_bits_are_kept(name, build, device):
    """By a conversion and the way back, of every kind of value."""
    csr, data = halves(name)
    data[: SPECIAL.size] = SPECIAL[: data.size]
    A = make(build, csr, data, device)
    assert_holds(A, csr, data)
    assert_holds(A.copy(), csr, data)
    assert_holds(A.T.copy().T.copy(), csr, data)
    assert_holds(A.to_device("cpu"), csr, data)
    assert_holds(A.asformat("cvr").asformat("bbcsr"), csr, data)
    assert_holds(pickle.loads(pickle.dumps(A)), csr, data)
    assert_holds(make(build, csr, np.zeros_like(data), device).with_values(put(data, device)), csr, data)
    if csr.shape[0] * csr.shape[1] <= zoo.DENSE_SIZE:
        row = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
        assert_same_bits(get(A.todense())[row, csr.indices], data)


@pytest.mark.parametrize("build", ONE_OF_EACH, ids=str)
@pytest.mark.parametrize("name", ["rows_of_mixed_length", "explicit_zeros_beside_holes", "one_dense_row", "one_by_one"])
def test_products_accumulate_in_float32(name, build, device):
    csr, data = halves(name)
    A = make(build, csr, data, device)
    exact, size, ones = csr.astype(np.float64), abs(csr).astype(np.float64), csr.astype(bool).astype(np.float64)
    ones.data[:] = 1
    for k in (None, 4):
        for view, wide, sizes, count in ((A, exact, size, ones), (A.T, exact.T, size.T, ones.T)):
            n_rows, n_cols = wide.shape
            shape = (n_cols,) if k is None else (n_cols, k)
            x = zoo.float_vector(n_cols * (k or 1), np.float64).reshape(shape).clip(-30, 30).astype(HALF)
            x64 = x.astype(np.float64)
            length = count @ np.ones(shape)
            y = view @ put(x, device)
            assert_near(y, wide @ x64, sizes @ abs(x64), length)
            y = (put(np.ascontiguousarray(x.T), device) @ view.T).T
            assert_near(y, wide @ x64, sizes @ abs(x64), length)
            before = zoo.float_vector(n_rows * (k or 1), np.float64, 4).reshape((n_rows, *shape[1:])).clip(-9, 9).astype(HALF)
            out = put(before.copy(), device)
            product = view.matvec if k is None else view.matmat
            assert product(put(x, device), out=out, alpha=0.5, beta=-2) is out
            total = 0.5 * (wide @ x64) - 2 * before.astype(np.float64)
            assert_near(out, total, 0.5 * (sizes @ abs(x64)) + 2 * abs(before.astype(np.float64)), length + 1)


@BUILD
def test_a_product_is_that_in_float32_rounded_once(build, device):
    """Also where float16 could not hold a partial sum: 2048 + 1 is 2048 there."""
    csr = csr_array(np.array([[2048.0] + [1.0] * 100, [60000.0, 60000.0, -60000.0] + [0.0] * 98], np.float32))
    A = make(build, csr, csr.data.astype(HALF), device)
    x = put(np.ones(101, HALF), device)
    np.testing.assert_array_equal(get(A @ x), [2148, 60000])
    np.testing.assert_array_equal(get(A.sum(axis=1)), [2148, 60000])
    for dtype in (HALF, np.int8, np.bool_):  # of which NumPy's product with float16 is float16
        assert (A @ x.astype(dtype)).dtype == HALF


@BUILD
def test_wider_products_are_those_of_the_widened_matrix(build, device):
    """Bit by bit: widening is exact."""
    csr, data = halves("explicit_zeros_beside_holes")
    data[:2] = SUBNORMAL, -SUBNORMAL
    A = make(build, csr, data, device)
    dtype, x_dtype = np.dtype(np.float64), "int32"
    wide = make(build, csr, data.astype(dtype.type(0).real.dtype), device)
    for view, other in ((A, wide), (A.T, wide.T)):
        x = put(zoo.vector(view.shape[1], x_dtype), device)
        X = put(zoo.vector(view.shape[1] * 3, x_dtype).reshape(-1, 3), device)
        assert (view @ x).dtype == dtype
        assert_same_bits(view @ x, other @ x)
        assert_same_bits(view @ X, other @ X)


@BUILD
def test_overflow_subnormals_and_special_values(build, device):
    """As the dense product rounds: to inf, to subnormals, to nothing."""
    rows = [[LARGEST, LARGEST], [-LARGEST, -LARGEST], [SUBNORMAL, 0], [SUBNORMAL, SUBNORMAL], [np.inf, 1], [np.inf, -np.inf],
            [np.nan, 1], [LARGEST, 15.984375], [LARGEST, 16]]  # fmt: skip
    dense = np.array(rows, HALF)
    A = make(build, csr_array(dense.astype(np.float32)), dense[dense != 0], device)
    for x in (np.ones(2), np.array([1, 0.5]), np.array([0.5, 0.25]), np.array([SUBNORMAL, 1])):
        x = x.astype(HALF)
        with np.errstate(all="ignore"):
            expected = (dense.astype(np.float64) @ x.astype(np.float64)).astype(HALF)
            nothing = np.flatnonzero((dense == 0).any(axis=1))
        found = get(A @ put(x, device))
        np.testing.assert_array_equal(found, expected)
        assert not np.isnan(found[nothing]).any()
    assert get(A @ put(np.ones(2, HALF), device))[[0, 1, 7, 8]].tolist() == [np.inf, -np.inf, LARGEST, np.inf]


@BUILD
def test_duplicates_are_summed_in_float32(build, device):
    """100 times 1 after 2048, and two that overflow."""
    row = np.array([1] * 101 + [0, 0, 2])
    col = np.array([1] * 101 + [0, 0, 2])
    val = np.array([2048.0] + [1.0] * 100 + [LARGEST, LARGEST, SUBNORMAL], HALF)
    expected = np.array([np.inf, 2148, SUBNORMAL], HALF)
    csr = coercion.from_triplets(*(put(array, device) for array in (row, col, val)), (3, 3))
    assert_same_bits(csr.data, expected)
    assert_same_bits(build(csr).todense(), np.diag(expected))


@BUILD
def test_inputs(build, device):
    dense = np.array([[0, 1.5, 0], [-2, 0, SUBNORMAL]], HALF)
    assert_same_bits(build(put(dense, device)).todense(), dense)
    assert_same_bits(build(put(dense.astype(">f2"), "cpu"), device).todense(), dense)
    assert_same_bits(cvrarray.asarray(put(dense, device)).todense(), dense)
    wide = csr_array(dense.astype(np.float32))
    for matrix in (wide, wide.tocsc(), bsr_array(wide, blocksize=(1, 3)), coo_array(wide), wide.todia()):
        matrix.data = matrix.data.astype(HALF)  # SciPy cannot compute with it
        assert_same_bits(build(matrix, device).todense(), dense)


def test_pydata_holds_it(device):
    dense = np.array([[0, 1.5, 0], [-2, 0, SUBNORMAL]], HALF)
    A = cvrarray.CVRArray(sparse.COO.from_numpy(dense), device=device)
    assert_same_bits(A.todense(), dense)
    assert_same_bits(A.tocoo().todense(), dense)
    assert A.asformat("dok").dtype == HALF
    with pytest.raises(TypeError, match=r"GCXS.*float16.*astype"):
        A.asformat("gcxs")


@BUILD
def test_scipy_and_cupy_hold_none(build, device):
    A = build(put(np.eye(3, dtype=HALF), device))
    for export in (A.to_scipy, A.tocsr, lambda: A.asformat("csc"), lambda: A.dot(A, format="csr")):
        with pytest.raises(TypeError, match=r"float16.*astype\('float32'\)"):
            export()
    assert_same_bits(A.astype("float32").to_scipy().toarray(), np.eye(3, dtype=np.float32))


@BUILD
def test_astype(build, device):
    wide = np.array([[1e6, 1.00048828125, 0], [-3e-8, 2e-8, -0.1]], np.float64)
    with np.errstate(over="ignore"):
        expected = wide.astype(HALF)
        A = build(put(wide, device)).astype("float16")
    A.check()
    assert_same_bits(A.todense(), expected)
    for dtype in ("float32", "float64", "complex64"):
        assert_same_bits(A.astype(dtype).todense(), expected.astype(dtype))
    with pytest.raises(TypeError, match="safe"):
        build(put(wide, device)).astype("float16", casting="safe")


@BUILD
def test_products_of_sparse_arrays(build, device):
    csr, data = halves("rows_of_mixed_length")
    data = data / HALF.type(64)  # the product of such values stays below float16's largest
    csr.data = data.astype(np.float32)
    A = make(build, csr, data, device)
    B = A @ A.T
    assert type(B) is type(A)
    exact, length = csr.astype(np.float64).toarray(), max(np.diff(csr.indptr))
    assert_near(B.todense(), exact @ exact.T, abs(exact) @ abs(exact.T), length)
    assert (A @ A.astype("float32").T).dtype == np.float32
    large = build(put(np.full((2, 2), LARGEST), device))
    assert np.isposinf(get((large @ large).todense())).all()


def assert_like(found, expected) -> None:
    """NumPy's dtype, and its values to a rounding of each of two steps; CuPy's functions are not NumPy's."""
    found = get(found.todense() if hasattr(found, "todense") else found)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-3 if expected.dtype == HALF else 0, atol=0)


@BUILD
def test_elementwise(build, device):
    rng = np.random.default_rng(1)
    dense = (rng.integers(-7, 8, (11, 19)) * (rng.random((11, 19)) < 0.4) / 4).astype(HALF)
    A = build(put(dense, device))
    for function in (
        np.sin, np.sqrt, abs, np.negative, np.isnan, np.sign, np.square, np.cbrt, np.trunc,
        lambda v: v * 2.5, lambda v: v / 3, lambda v: v * np.float16(3), lambda v: v * np.float32(3), lambda v: v != 0,
        lambda v: v**2, lambda v: v + v, lambda v: v * v, lambda v: v > 1, lambda v: np.round(v, 1),
        lambda v: v.clip(-1, 1), lambda v: np.modf(v)[0], lambda v: v.astype(np.float64) - v, np.real, np.imag,
    ):  # fmt: skip
        with np.errstate(all="ignore"):
            assert_like(function(A), np.asarray(function(dense)))
    row = put(dense[:1] + HALF.type(1), device)
    assert_like(A * row, dense * get(row))
    narrow = build(put(dense.astype(np.int8), device))
    assert_like(np.sin(narrow), np.sin(dense.astype(np.int8)))


@BUILD
def test_reductions(build, device):
    """NumPy's dtypes; sums in float32, of which a mean is taken before it is rounded."""
    rng = np.random.default_rng(2)
    dense = (rng.integers(-7, 8, (40, 30)) * (rng.random((40, 30)) < 0.4) / 4).astype(HALF)
    A = build(put(dense, device))
    for name in ("sum", "mean", "max", "min", "any", "all"):
        for axis in (None, 0, 1):
            assert_like(np.asarray(get(getattr(A, name)(axis=axis))), np.asarray(getattr(dense, name)(axis=axis)))
    assert_like(np.asarray(get(A.trace())), np.asarray(dense[:, :30].trace()))
    assert_like(np.asarray(get(np.linalg.norm(A))), np.asarray(np.linalg.norm(dense)))
    large = build(put(np.full((3, 4), LARGEST), device))
    assert get(large.mean()) == LARGEST
    assert get(large.mean(axis=0, dtype=HALF)).tolist() == [LARGEST] * 4
    assert get(large.sum(dtype=np.float32)) == 12 * np.float32(LARGEST)


@BUILD
def test_indexing_and_joining(build, device):
    csr, data = halves("rows_of_mixed_length")
    data[: SPECIAL.size] = SPECIAL
    A = make(build, csr, data, device)
    dense = get(A.todense())
    for key in (3, (slice(None), 2), (2, 1), slice(1, 20, 3), (slice(None), slice(None, None, -2)), [5, 1, 5],
                (slice(None), [3, 0]), dense[:, 0] != 0):  # fmt: skip
        found = A[key]
        found = get(found.todense() if hasattr(found, "todense") else found)
        assert_same_bits(found, np.asarray(dense[key]))
    assert_same_bits(np.vstack([A, A[:5]]).todense(), np.vstack([dense, dense[:5]]))
    assert_same_bits(np.hstack([A, A]).todense(), np.hstack([dense, dense]))
    assert np.hstack([A, A.astype("float32")]).dtype == np.float32


@BUILD
def test_files(build, device, tmp_path):
    csr, data = halves("explicit_zeros_beside_holes")
    data[: SPECIAL.size] = SPECIAL
    A = make(build, csr, data, device)
    cvrarray.save(tmp_path / "a.cvra", A)
    assert_holds(cvrarray.load(tmp_path / "a.cvra", device=device), csr, data)
    assert_holds(cvrarray.read(tmp_path / "a.cvra"), csr, data)
    np.testing.assert_array_equal(files.read_csr(tmp_path / "a.cvra").data, data.astype(np.float32))  # SciPy has no float16
    sparse.save_npz(tmp_path / "a.npz", A.tocoo())
    assert_holds(cvrarray.read(tmp_path / "a.npz", device=device), csr, data)


def test_store(device, tmp_path):
    """Panels of a transposed product add up in float32: in float16, 1 would not be added to 2048."""
    dense = np.ones((96, 3), HALF)
    dense[0] = 2048
    A = cvrarray.CVRArray(dense)
    cvrarray.to_store(A, tmp_path / "store", chunks=300, format="cvr", device=device)
    stored = cvrarray.Stored(tmp_path / "store", device=device)
    assert len(stored._manifest) > 1
    x = put(np.ones(96, HALF), device)
    assert_same_bits(stored.rmatvec(x), np.full(3, 2048 + 95, HALF))
    assert_same_bits(stored @ put(np.ones(3, HALF), device), dense.sum(axis=1))
