"""Products of dense matrices at stored places, against NumPy's product of all entries."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import DEFAULTS, ONE_OF_EACH, assert_same_bits, bbcsr, cvr, get, in_pairs, in_turn, put

import cvrarray
from cvrarray.core.threads import set_num_threads

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
VIEW = pytest.mark.parametrize("view", [False, True], ids=["plain", "transposed"])
NAMES = [name for name in zoo.ZOO if np.prod(zoo.ZOO[name]().shape) < 100_000]


def made(build, csr, device, view=False):
    """An array of this matrix: a format's, or a transposed view."""
    return build(csr.T.tocsr(), device).T if view else build(csr, device)


def factors(shape, k, dtype, seed=3):
    """X and Y; small integers for dtypes that hold no fractions."""
    of = zoo.vector if np.dtype(dtype).kind in "biu" else zoo.float_vector
    return [of(n * k, dtype, seed + n).reshape(n, k) for n in shape]


def exact(csr, X, Y):
    """``X @ Y.T`` at the entries, in double precision, and a bound of what rounding may do to sums of k terms."""
    row, col = csr.tocoo().coords
    terms = X[row].astype(np.result_type(X.dtype, np.float64)) * Y[col]
    dtype = np.result_type(X.dtype, Y.dtype)
    return terms.sum(axis=1), 8 * max(X.shape[1], 1) * np.finfo(dtype).eps * abs(terms).sum(axis=1)


@in_turn("name, build, view", NAMES, [*DEFAULTS, cvr(4, 5, "nnz"), bbcsr(3)], [False, True])
def test_entries_of_the_zoo(name, build, view, device):
    """Small integers, so that nothing is rounded: the array's structure, explicit zeros too, and its values times those."""
    csr = zoo.integers(name, np.float64)
    A = made(build, csr, device, view)
    row, col = csr.tocoo().coords
    X, Y = (np.rint(4 * x) for x in factors(csr.shape, 5, np.float64))
    for values in (True, False):
        found = cvrarray.sddmm(A, put(X, device), put(Y, device), values=values)
        assert type(found) is type(A)
        products = (X[row] * Y[col]).sum(axis=1)
        np.testing.assert_array_equal(get(found.tocsr().data), csr.data * products if values else products)
        np.testing.assert_array_equal(get(found.tocsr().indices), csr.indices)


@in_pairs(
    "k, dtype, build", [1, 2, 3, 4, 5, 7, 8, 16, 31, 33, 64, 65, 130, 256],
    ["float32", "float64", "complex64", "complex128"], [*ONE_OF_EACH, bbcsr(1)],
)  # fmt: skip
def test_any_number_of_columns(k, dtype, build, device):
    """Within the bound of rounding, the same bits every time, from operands that begin anywhere and on any threads."""
    csr = zoo.floats("power_law", dtype)
    A = build(csr, device)
    X, Y = factors(csr.shape, k, dtype)
    expected, bound = exact(csr, X, Y)
    found = get(cvrarray.sddmm(A, put(X, device), put(Y, device), values=False).tocsr().data)
    assert found.dtype == dtype
    assert (abs(found - expected) <= bound).all()
    shifted = [put(np.concatenate([x.reshape(-1)[:1], x.reshape(-1)]), device)[1:].reshape(x.shape) for x in (X, Y)]
    try:
        set_num_threads(1)
        assert_same_bits(cvrarray.sddmm(A, *shifted, values=False).tocsr().data, found)
    finally:
        set_num_threads(None)


@VIEW
@in_turn(
    "of_values, of_x, of_y, build",
    [
        ("bool", "bool", "bool"), ("int8", "int8", "int8"), ("uint8", "int8", "uint16"), ("uint64", "uint64", "uint64"),
        ("float16", "float16", "float16"), ("float32", "float64", "float32"), ("int64", "float32", "float16"),
        ("float64", "complex64", "float32"), ("float32", ">f8", "<i2"),
    ],
    DEFAULTS,
)  # fmt: skip
def test_dtypes_are_numpys(view, of_values, of_x, of_y, build, device):
    """Integers wrap, bool is a disjunction, and float16 is rounded once."""
    csr = zoo.integers("rows_of_mixed_length")
    A, data = made(build, csr, device, view).astype(of_values), csr.data.astype(of_values)
    X, Y = (zoo.vector(n * 6, np.int8, 4).reshape(n, 6).astype(of) for n, of in zip(csr.shape, (of_x, of_y), strict=True))
    row, col = csr.tocoo().coords
    if device != "cpu":  # CuPy knows native bytes alone
        X, Y = (x.astype(x.dtype.newbyteorder("=")) for x in (X, Y))
    for values in (True, False):
        dtype = np.result_type(*([data] if values else []), X, Y)
        wide = np.result_type(dtype, np.float32) if dtype.kind in "fc" else dtype
        expected = np.einsum("ek,ek->e", X[row].astype(wide), Y[col].astype(wide))
        expected = (data.astype(wide) * expected if values else expected).astype(dtype)
        found = cvrarray.sddmm(A, put(X, device), put(Y, device), values=values)
        assert found.dtype == dtype
        np.testing.assert_array_equal(get(found.data), expected)


@VIEW
@BUILD
def test_vectors_strides_and_orders(view, build, device):
    csr = zoo.floats("rows_of_mixed_length")
    A = made(build, csr, device, view)
    X, Y = factors(csr.shape, 6, np.float64)
    expected = cvrarray.sddmm(A, put(X, device), put(Y, device)).tocsr().data
    assert_same_bits(cvrarray.sddmm(A, put(np.asfortranarray(X), device), put(Y[::-1].copy(), device)[::-1]).data, expected)
    row, col = csr.tocoo().coords
    x, y = put(X, device)[:, 2], put(Y, device)[:, 1]
    np.testing.assert_array_equal(get(cvrarray.sddmm(A, x, y).data), csr.data * (X[row, 2] * Y[col, 1]))


@VIEW
@BUILD
def test_out_is_written(view, build, device):
    csr = zoo.floats("rows_of_mixed_length")
    A = made(build, csr, device, view)
    X, Y = (put(x, device) for x in factors(csr.shape, 6, np.float64))
    expected = get(cvrarray.sddmm(A, X, Y).tocsr().data)
    out = A.with_values(A.data * np.nan)
    before = get(out.data)
    assert np.isnan(before).all()
    assert cvrarray.sddmm(A, X, Y, out) is out
    assert_same_bits(out.tocsr().data, expected)
    x = put(np.ones(csr.shape[1]), device)
    y = get(out @ x)
    assert cvrarray.sddmm(A, X, Y, out=A) is A
    assert_same_bits(get(A @ x), y)  # products that were prepared see it


@BUILD
def test_nothing_to_add_up(build, device):
    csr = zoo.floats("rows_of_mixed_length")
    X, Y = (put(x, device) for x in factors(csr.shape, 0, np.float64))
    found = cvrarray.sddmm(build(csr, device), X, Y, values=False)
    assert found.nnz == csr.nnz
    assert not get(found.data).any()
    for shape in ((0, 5), (5, 0), (0, 0), (3, 4)):
        found = cvrarray.sddmm(build(np.zeros(shape), device), *(put(np.ones((n, 2)), device) for n in shape))
        assert (found.shape, found.nnz) == (shape, 0)


@BUILD
def test_nan_and_inf_stay_with_their_entries(build, device):
    csr = zoo.floats("rows_of_mixed_length")
    X, Y = factors(csr.shape, 33, np.float64)
    row, col = csr.tocoo().coords
    X[row[0], 32], Y[col[-1], 0] = np.nan, np.inf
    found = get(cvrarray.sddmm(build(csr, device), put(X, device), put(Y, device)).data)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite((X[row] * Y[col]).sum(axis=1)))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda A, X, Y: (A.tocsr(), X, Y), TypeError, "A must be an array of ours; got csr"),
        (lambda A, X, Y: (A, X[1:], Y), ValueError, r"X must have shape \(9,\) or \(9, k\).*got \(8, 2\)"),
        (lambda A, X, Y: (A, X, Y.T), ValueError, "Y must have shape"),
        (lambda A, X, Y: (A, X[:, :1], Y), ValueError, r"as many columns; got shapes \(9, 1\)"),
        (lambda A, X, Y: (A, X[None], Y), ValueError, "X must have shape"),
        (lambda A, X, Y: (A.T, Y[1:], X), ValueError, r"X must have shape \(5,\) or \(5, k\) for this A, of shape \(5, 9\)"),
        (lambda A, X, Y: (A, A, Y), TypeError, "X must be dense"),
        (lambda A, X, Y: (A, X, Y, X), TypeError, "out must be a CVRArray"),
        (lambda A, X, Y: (A.T, Y, X, A), TypeError, r"out must be a transposed view.*out\.T"),
        (lambda A, X, Y: (A, X * 1j, Y, A), TypeError, "float64, can hold; got complex128"),
        (lambda A, X, Y: (A, X, Y, 2 * A[:, ::-1]), ValueError, "out must have the structure"),
    ],
)
def test_what_does_not_fit_says_why(change, error, match):
    dense = np.tri(9, 5)
    A = cvrarray.CVRArray(dense, device="cpu")
    given = change(A, np.ones((9, 2)), np.ones((5, 2)))
    with pytest.raises(error, match=match):
        cvrarray.sddmm(*given)


def test_operands_of_dasks():
    da = pytest.importorskip("dask.array", reason="Dask is not installed")
    A, X, Y = cvrarray.CVRArray(np.tri(9, 5), device="cpu"), np.ones((9, 2)), np.ones((5, 2))
    with pytest.raises(TypeError, match=r"Y must be in memory.*Y\.compute"):
        cvrarray.sddmm(A, X, da.asarray(Y))
    with pytest.raises(TypeError, match=r"A must be an array of ours; got PanelArray.*A\.compute"):
        cvrarray.sddmm(cvrarray.to_dask(A), X, Y)


def test_values_are_true_or_false():
    A = cvrarray.CVRArray(np.tri(3), device="cpu")
    with pytest.raises(TypeError, match=r"values must be True or False; got ndarray.*with_values"):
        cvrarray.sddmm(A, np.ones(3), np.ones(3), values=A.data)


@pytest.mark.small
@pytest.mark.parametrize("k", [1, 3, 12, 40])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_each_way_once_with_cuda(k, dtype, gpu, monkeypatch):
    """What a sanitizer looks at: one lane an entry to many, rows that no load of 16 bytes fits, several rounds of a block."""
    from cvrarray.gpu import sampled

    for name, value in (("BLOCKS", 1), ("ROUNDS", 3), ("processors", lambda: 2)):
        monkeypatch.setattr(sampled, name, value)
    csr = zoo.floats("power_law", dtype)
    X, Y = factors(csr.shape, k, dtype)
    A = cvrarray.CVRArray(csr, device=gpu)
    found = get(cvrarray.sddmm(A, put(X, gpu), put(Y, gpu), values=False).data)
    expected, bound = exact(csr, X, Y)
    assert (abs(found - expected) <= bound).all()
    monkeypatch.undo()
    assert_same_bits(cvrarray.sddmm(A, put(X, gpu), put(Y, gpu), values=False).data, found)
