"""``A @ x``, ``A @ X`` and those of ``A.T`` against the oracle: format x device x matrix x dtype, and everything that
``matvec`` and ``matmat`` take.
"""

from __future__ import annotations

import operator

import numpy as np
import pytest
import zoo
from checks import (
    BUILDS,
    DEFAULTS,
    TYPICAL,
    assert_product,
    assert_same_bits,
    at_home,
    bbcsr,
    cvr,
    get,
    in_pairs,
    in_turn,
    put,
)
from scipy.sparse import csr_array

from cvrarray.core import devices

#: Products: whether of a transpose, and the columns of x.
KINDS = {"A @ x": (False, ()), "A @ X": (False, (6,)), "A.T @ x": (True, ()), "A.T @ X": (True, (3,))}
PAIRS = [  # dtypes of A and x; every pair compiles a kernel of its own, so there are no more than the rules need
    ("bool", "bool"),
    ("int8", "int8"),
    ("int8", "float32"),
    ("int64", "int64"),
    ("float32", "float32"),
    ("float32", "float64"),
    ("float64", "float32"),
    ("float64", "complex64"),
    ("complex64", "complex64"),
    ("complex128", "complex128"),
]
#: Builds, dtypes and products: fewer where more is compiled.
COMPILED = [
    (*case, kind)
    for kind, pairs in {"A @ x": PAIRS, "A @ X": PAIRS[::2], "A.T @ x": PAIRS[1::4], "A.T @ X": PAIRS[3::4]}.items()
    for case in at_home(pairs)
]
HOLED = ["explicit_zeros", "explicit_zeros_beside_holes", "blocks_with_holes", "rows_of_mixed_length", "one_dense_row",
         "power_law", "blocks_over_the_edge", "tridiagonal_97", "narrow_and_wide_tiles"]  # fmt: skip
VARIED = ["rows_of_mixed_length", "explicit_zeros_beside_holes", "one_dense_row", "many_empty_rows_between"]
TYPICAL_BUILDS = pytest.mark.parametrize("build", TYPICAL, ids=str)
EVERY_KIND = in_pairs("kind, build", KINDS, TYPICAL)
#: Every build with a vector, and those that much is compiled for with all.
MADE = [(kind, build) for kind in KINDS for build in (BUILDS if kind == "A @ x" else TYPICAL)]
SINGLE = [("A @ x", build) for build in TYPICAL] + [(kind, build) for kind in KINDS for build, _ in at_home(["float32"])]


def made(kind, build, csr, device):
    """An array or a view that holds `csr`, its product, and the columns of what it multiplies."""
    is_view, columns = KINDS[kind]
    A = build(csr.T.tocsr(), device).T if is_view else build(csr, device)
    return A, A.matmat if columns else A.matvec, columns


def operand(n, columns, dtype=np.float64, seed=2, of=zoo.vector):
    """A vector, or a matrix with `columns`, of small integers or of the numbers that `of` gives."""
    return of(n * int(np.prod(columns, dtype=int)), dtype, seed).reshape(n, *columns)


# The zoo


@in_turn("name, kind, build", zoo.ZOO, MADE, times=4)
def test_zoo_in_integers(name, kind, build, device):
    """Small integers in float64: every sum is exact, so the product is equal whatever its order."""
    csr = zoo.integers(name, np.float64)
    A, _, columns = made(kind, build, csr, device)
    x = operand(csr.shape[1], columns)
    np.testing.assert_array_equal(get(A @ put(x, device)), csr @ x)


@in_turn("name, kind, build", zoo.ZOO, SINGLE, times=2)
def test_zoo_in_floats(name, kind, build, device):
    csr = zoo.floats(name, np.float32)
    A, _, columns = made(kind, build, csr, device)
    x = operand(csr.shape[1], columns, np.float32, of=zoo.float_vector)
    assert_product(A @ put(x, device), csr, x)


@pytest.mark.small
@pytest.mark.parametrize("name", [name for name in zoo.ZOO if max(zoo.ZOO[name]().shape) < 1000][::3])
def test_small(name, device):
    """Conversion, product into a poisoned out, and the way back: what compute-sanitizer watches."""
    for build in (cvr(4, 3, "nnz"), cvr(32, 5, "rows"), bbcsr(1), bbcsr(6)):
        for dtype in (np.float64, np.float32):
            csr = zoo.integers(name, dtype)
            x = zoo.vector(csr.shape[1], dtype)
            A = build(csr, device)
            out = put(np.full(csr.shape[0], np.nan, dtype), device)
            assert_product(A.matvec(put(x, device), out=out, alpha=2), csr, x, alpha=2)
            assert A.to_scipy().nnz == csr.nnz


# Number types


@in_turn("build, dtype, x_dtype, kind, name", COMPILED, [*VARIED, "narrow_and_wide_tiles"], times=2)
def test_dtypes(build, dtype, x_dtype, kind, name, device):
    """NumPy's result_type, and its wrapping of integers: exact in every dtype."""
    csr = zoo.integers(name, dtype)
    A, _, columns = made(kind, build, csr, device)
    assert A.dtype == dtype
    x = operand(csr.shape[1], columns, x_dtype)
    y = A @ put(x, device)
    assert_product(y, csr, x)
    if max(csr.shape) < 2000:
        np.testing.assert_array_equal(get(y), csr.toarray() @ x)


@in_turn(
    "build, dtype, x_dtype, kind", [case for case in COMPILED if np.result_type(*case[1:3]).kind in "fc" and case[1] != "int8"]
)
def test_rounding(build, dtype, x_dtype, kind, device):
    """Random values of many sizes stay within the bound: sums are made in the product's dtype, not in a smaller one."""
    for name in VARIED:
        csr = zoo.floats(name, dtype)
        A, _, columns = made(kind, build, csr, device)
        x = operand(csr.shape[1], columns, x_dtype, of=zoo.float_vector)
        assert_product(A @ put(x, device), csr, x)


@in_turn("build, dtype", at_home(["int8", "int64"]))
def test_integers_wrap(build, dtype, device):
    """Overflow wraps silently, as in NumPy."""
    csr = zoo.integers("one_dense_row", dtype)
    csr.data[:] = np.iinfo(dtype).max - csr.data
    x = zoo.vector(csr.shape[1], dtype)
    assert_product(build(csr, device) @ put(x, device), csr, x)


@pytest.mark.parametrize(
    ("build", "dtype"),
    [(TYPICAL[1], "float32"), (TYPICAL[3], "float32"), (TYPICAL[0], "complex64"), (TYPICAL[2], "complex64")],
    ids=str,
)
def test_denormals_are_kept(build, dtype, device):
    """No flush to zero, on any device; nor where the imaginary part of a value is negated."""
    csr, tiny = zoo.integers("tridiagonal_33", dtype), np.float32(2) ** -140
    x = zoo.vector(csr.shape[1], dtype)
    for small, vector in ((csr * tiny, x), (csr, x * tiny)):
        x = vector.astype(dtype)
        X = np.stack([x, -x, (1j * x).astype(dtype) if csr.dtype.kind == "c" else x], axis=1)
        A, dense = build(csr_array(small.astype(dtype)), device), small.toarray().astype(dtype)
        assert (dense @ x).any()
        np.testing.assert_array_equal(get(A @ put(x, device)), dense @ x)
        np.testing.assert_array_equal(get(A @ put(X, device)), dense @ X)
        np.testing.assert_array_equal(get(A.T @ put(x, device)), dense.T @ x)


# inf and nan


@in_turn(
    "kind, build, dtype, name",
    [*((*made, "float64") for made in MADE), *((*made, "float32") for made in SINGLE)],
    HOLED,
    times=2,
)
def test_inf_and_nan_touch_only_their_rows(kind, build, name, dtype, device):
    """Each stored entry meets its x, explicit zeros too; pads, holes and absent entries meet none."""
    csr = zoo.integers(name, dtype)
    A, _, columns = made(kind, build, csr, device)
    for special in (np.inf, -np.inf, np.nan):
        x = operand(csr.shape[1], columns, dtype)
        x[:: max(2, csr.shape[1] // 7)] = special
        assert_product(A @ put(x, device), csr, x)


@in_turn("kind, build", MADE)
def test_all_x_nan(kind, build, device):
    """Rows without an entry stay 0 even when all of x is nan."""
    for name in ("many_empty_rows_between", "all_rows_empty", "empty_first_and_last_rows", "nonzeros_33"):
        csr = zoo.integers(name, np.float64)
        A, _, columns = made(kind, build, csr, device)
        y = get(A @ put(np.full((csr.shape[1], *columns), np.nan), device))
        assert np.isnan(y[np.diff(csr.indptr) > 0]).all()
        assert not y[np.diff(csr.indptr) == 0].any()


@TYPICAL_BUILDS
def test_inf_in_the_matrix(build, device):
    """inf and nan among the values, where x is 0 as well."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    csr.data[::50], csr.data[7::90] = np.inf, np.nan
    x = zoo.vector(csr.shape[1])
    assert_product(build(csr, device) @ put(x, device), csr, x)


# out, alpha and beta


@in_pairs(
    "kind, alpha, beta, build, name",
    KINDS,
    [(1, 0), (2.5, 0), (0, 0), (1, 1), (-1, 0.5), (0.5, -3), (0, 2)],
    TYPICAL,
    VARIED,
)
def test_alpha_and_beta(kind, alpha, beta, build, name, device):
    csr = zoo.floats(name, np.float64)
    _A, multiply, columns = made(kind, build, csr, device)
    x, before = (operand(n, columns, seed=9, of=zoo.float_vector) for n in csr.shape[::-1])
    for order in "CCF":  # the second call takes the short path
        out = put(before.T.copy(), device).T if order == "F" else put(before.copy(), device)
        assert multiply(put(x, device), out=out, alpha=alpha, beta=beta) is out
        assert_product(out, csr, x, alpha, beta, before)


@in_turn(
    "dtype, columns, alpha, beta, split",
    [("int8", ()), ("float32", ()), ("float64", ()), ("complex128", ()), ("float32", (3,)), ("float64", (64,)),
     ("float32", (130,)), ("float64", (3,))],
    [(1, 0), (3, 2)],
    ["rows", "nnz"],
    times=2,
)  # fmt: skip
def test_rows_in_many_chunks(dtype, columns, alpha, beta, split, device):
    """More parts of a row than a warp takes at once, again and again: nothing of one product is left for the next."""
    lengths, n_cols = [9000, 0, 3, 20000, 1], 20000
    indices = np.concatenate([np.arange(length) for length in lengths])
    csr = csr_array((zoo.vector(indices.size, dtype), indices, np.append(0, np.cumsum(lengths))), shape=(5, n_cols))
    A = cvr(32, 600, split)(csr, device)
    for seed in range(3):
        x, before = (operand(n, columns, dtype, seed) for n in (n_cols, 5))
        out = put(before.copy(), device)
        multiply = A.matmat if columns else A.matvec
        assert_product(multiply(put(x, device), out=out, alpha=alpha, beta=beta), csr, x, alpha, beta, before)


@in_turn("kind, build", MADE)
def test_out_is_not_read(kind, build, device):
    """A poisoned out leaves no trace when beta is 0, in empty and in cut rows alike."""
    for name in ("many_empty_rows_between", "one_dense_row", "all_rows_empty", "one_column", "blocks_with_holes"):
        csr = zoo.integers(name, np.float64)
        _A, multiply, columns = made(kind, build, csr, device)
        x, out = operand(csr.shape[1], columns), put(np.full((csr.shape[0], *columns), np.nan), device)
        assert multiply(put(x, device), out=out) is out
        np.testing.assert_array_equal(get(out), csr @ x)
        out[...] = np.nan
        np.testing.assert_array_equal(get(multiply(put(x, device), out=out, alpha=3, beta=0.0)), 3 * (csr @ x))


@EVERY_KIND
def test_out_nan_spreads_with_beta(kind, build, device):
    """With beta, nan in out stays in its own rows."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    _A, multiply, columns = made(kind, build, csr, device)
    x, before = (operand(n, columns) for n in csr.shape[::-1])
    before[::3] = np.nan
    assert_product(multiply(put(x, device), out=put(before.copy(), device), beta=2), csr, x, 1, 2, before)


@EVERY_KIND
def test_out_not_contiguous(kind, build, device):
    """Only the entries of the view are written."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    _A, multiply, columns = made(kind, build, csr, device)
    x, whole = operand(csr.shape[1], columns), operand(csr.shape[0], (*columns, 3))
    for beta in (0, 2):
        target = put(whole.copy(), device)
        assert multiply(put(x, device), out=(view := target[..., 1]), beta=beta) is view
        assert_product(get(target)[..., 1], csr, x, 1, beta, whole[..., 1])
        np.testing.assert_array_equal(get(target)[..., ::2], whole[..., ::2])
        backwards = put(whole[..., 0].copy(), device)[::-1]
        before = get(backwards).copy()
        multiply(put(x, device), out=backwards, beta=beta)
        assert_product(get(backwards), csr, x, 1, beta, before)


@EVERY_KIND
def test_out_is_x(kind, build, device):
    """An out that overlaps x gives what a separate one gives."""
    csr = zoo.integers("banded_stencil", np.float64)
    _A, multiply, columns = made(kind, build, csr, device)
    x = operand(csr.shape[1], columns)
    for beta in (0, 1):
        shared = put(x.copy(), device)
        assert_product(multiply(shared, out=shared, beta=beta), csr, x, 1, beta, x)
    memory = put(np.concatenate([x, x[:1]]), device)
    assert_product(get(multiply(memory[:-1], out=memory[1:])), csr, x)


@in_turn("dtype, x_dtype, build", [("float64", "float32"), ("complex128", "float32"), ("float64", "complex64")], DEFAULTS)
def test_denormals_of_x_are_widened(build, dtype, x_dtype, device):
    """x becomes float64, in which its denormal numbers are normal; out may be wider than the product, too."""
    csr = zoo.floats("rows_of_mixed_length", dtype)
    x = (zoo.float_vector(csr.shape[1], x_dtype) * 1e-40).astype(x_dtype)
    X = np.stack([x, 2 * x, 3 * x], axis=1)
    A = build(csr, device)
    for operand in (x, X, np.asfortranarray(X)):
        np.testing.assert_allclose(get(A @ put(operand, device)), csr @ operand, rtol=1e-12)
    narrow = build(csr.astype({"float64": "float32", "complex128": "complex64"}[dtype]), device)
    out = put(np.zeros(csr.shape[0], np.result_type(dtype, x_dtype)), device)
    narrow.matvec(put(zoo.float_vector(csr.shape[1], x_dtype), device), out=out, alpha=1e-40)
    assert (get(out)[np.diff(csr.indptr) > 0] != 0).all()


@TYPICAL_BUILDS
def test_out_is_x_in_another_array(build, gpu):
    """Arrays that came by DLPack know nothing of one another; from the second product on, a call looks for little."""
    import cupy

    n = 100_000
    A = build(csr_array((np.ones(n), np.arange(n)[::-1], np.arange(n + 1)), shape=(n, n)), gpu)
    A @ cupy.zeros(n)
    for shift in (0, 1):
        memory = cupy.arange(n + 1.0)
        x, out = (cupy.from_dlpack(memory[at : at + n]) for at in (0, shift))
        A.matvec(x, out=out)
        np.testing.assert_array_equal(out.get(), np.arange(n)[::-1])


@TYPICAL_BUILDS
def test_out_of_a_wider_dtype(build, device):
    """As with a NumPy ufunc, the product is cast into an out that can hold it."""
    csr = zoo.integers("rows_of_mixed_length", np.float32)
    x = zoo.vector(csr.shape[1], np.float32)
    out = put(np.full(csr.shape[0], np.nan), device)
    assert build(csr, device).matvec(put(x, device), out=out) is out
    np.testing.assert_array_equal(get(out), csr.toarray() @ x)


@in_turn(
    "build, dtype, alpha, beta",
    at_home([("float32", 0.5, 2), ("complex64", 1j, 2 - 1j), ("complex128", 0.5, 1j), ("int64", 3, -2), ("int8", 3, 2)]),
)
def test_alpha_and_beta_in_dtypes(build, dtype, alpha, beta, device):
    """Python scalars do not widen the product."""
    csr = zoo.integers("rows_of_mixed_length", dtype)
    x, before = zoo.vector(csr.shape[1], dtype), zoo.vector(csr.shape[0], dtype, seed=8)
    out = put(before.copy(), device)
    y = build(csr, device).matvec(put(x, device), out=out, alpha=alpha, beta=beta)
    assert_product(y, csr, x, alpha, beta, before)


# x


@TYPICAL_BUILDS
def test_x_of_any_stride_and_byte_order(build, device):
    csr = zoo.integers("power_law", np.float64)
    A, n = build(csr, device), csr.shape[1]
    for stride in (2, -1, -3):
        x = put(zoo.vector(n * abs(stride)), device)[::stride]
        assert_product(A @ x, csr, get(x).copy())
    if device == "cpu":
        frozen = zoo.vector(n)
        frozen.flags.writeable = False
        for x in (np.broadcast_to(2.5, n), frozen, *(zoo.vector(n, dtype) for dtype in (">f8", ">f4", ">i4", ">c8"))):
            assert_product(A @ x, csr, x.astype(x.dtype.newbyteorder("=")))


@in_turn("build, dtype", at_home(["float32", "float64", "complex128", "int8"]))
def test_x_and_out_at_any_offset(build, dtype, device):
    """Views that begin inside a buffer: loads of several elements at once may not assume more than their alignment."""
    csr = zoo.integers("rows_of_mixed_length", dtype)
    A = build(csr, device)
    for offset in (1, 2, 3):
        x = put(zoo.vector(csr.shape[1] + offset, dtype), device)[offset:]
        buffer = put(zoo.vector(csr.shape[0] + 7, dtype), device)
        before = get(buffer).copy()
        out = buffer[offset : offset + csr.shape[0]]
        assert_product(A.matvec(x, out=out), csr, get(x))
        around = np.r_[0:offset, offset + csr.shape[0] : buffer.size]
        np.testing.assert_array_equal(get(buffer)[around], before[around])


@TYPICAL_BUILDS
def test_x_is_left_alone(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    x = zoo.vector(csr.shape[1])
    on_device = put(x.copy(), device)
    build(csr, device) @ on_device
    np.testing.assert_array_equal(get(on_device), x)


@pytest.mark.parametrize("build", DEFAULTS, ids=str)
def test_x_as_a_sequence(build):
    """On the CPU a list, tuple, memoryview or range is taken as NumPy takes it."""
    csr = zoo.integers("tridiagonal_31", np.float64)
    expected = csr.toarray() @ np.arange(31.0)
    A = build(csr)
    for x in ([float(i) for i in range(31)], tuple(range(31)), list(range(31)), [np.float32(i) for i in range(31)]):
        np.testing.assert_array_equal(A @ x, expected)
    np.testing.assert_array_equal(A.matvec(range(31)), expected)
    np.testing.assert_array_equal(A.matvec(memoryview(np.arange(31.0))), expected)


# Ways to write it


@TYPICAL_BUILDS
def test_every_spelling(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    x = put(zoo.vector(csr.shape[1]), device)
    A = build(csr, device)
    y = A.matvec(x)
    assert devices.of(y) == devices.parse(device) == A._target
    assert y.flags.c_contiguous
    expected = get(y)
    for product in (operator.matmul, np.matmul, np.dot):
        assert_same_bits(product(A, x), expected)
    xp = devices.parse(device).xp
    out = xp.full(csr.shape[0], np.nan)
    assert np.matmul(A, x, out=out) is out
    assert_same_bits(out, expected)


# Streams


@TYPICAL_BUILDS
def test_runs_on_the_current_stream_without_waiting(build, gpu):
    """Behind a kernel that takes half a second, the call returns at once; its result follows in the stream's order."""
    import cupy

    csr = zoo.integers("one_dense_row", np.float64)
    A = build(csr, gpu)
    x, out = put(zoo.vector(csr.shape[1]), gpu), cupy.zeros(csr.shape[0])
    A.matvec(x, out=out)  # compiles
    wait = cupy.RawKernel(
        'extern "C" __global__ void wait() { for (long long t = clock64(); clock64() - t < 800000000;) {} }', "wait"
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        out.fill(np.nan)
        wait((1,), (1,), ())
        A.matvec(x, out=out)
        assert not stream.done, "matvec waited for the stream"
    stream.synchronize()
    assert_product(out, csr, get(x))
