"""Calls after the first of their kind take a shorter way: what it must not change, and what must not take it."""

from __future__ import annotations

import weakref
from fractions import Fraction

import numpy as np
import pytest
import zoo
from checks import ONE_OF_EACH, assert_same_bits, get, in_threads, in_turn, put

from cvrarray.array import kept
from cvrarray.core import devices

BUILD = pytest.mark.parametrize("build", ONE_OF_EACH, ids=str)
SHAPES = [((),), ((1,),), ((2,),), ((16,),), ((33,),)]


def operand(n, columns, dtype="float64", seed=4):
    return zoo.float_vector(n * int(np.prod(columns, dtype=int)), dtype, seed).reshape(n, *columns)


@in_turn("columns, build, dtype, transposed", SHAPES, ONE_OF_EACH, ["float32", "complex128"], [False, True], times=2)
def test_later_calls_have_the_bits_of_the_first(build, columns, dtype, transposed, device):
    csr = zoo.floats("rows_of_mixed_length", dtype)
    A = build(csr, device).T if transposed else build(csr, device)
    x, before = operand(A.shape[1], columns, dtype), put(operand(A.shape[0], columns, dtype, seed=5), device)
    given, multiply = put(x, device), A.matmat if columns else A.matvec
    first, scaled = A @ given, multiply(given, out=before.copy(), alpha=2, beta=-3)
    for _ in range(2):
        out = before.copy()
        for found in (A @ given, A.dot(given), np.matmul(A, given), multiply(given, out=out), np.matmul(A, given, out=out)):
            assert_same_bits(found, first)
        assert_same_bits(multiply(given, out=before.copy(), alpha=2, beta=-3), scaled)
        in_memory = put(np.zeros(x.size + 1, dtype), device)
        shifted = in_memory[1:].reshape(x.shape)  # does not begin where loads of several numbers may
        shifted[...] = given
        np.testing.assert_allclose(get(A @ shifted), get(first), rtol=1e-4, atol=1e-4)
        apart = put(np.zeros((*x.shape, 2), dtype), device)[..., 1]
        apart[...] = given
        assert_same_bits(A @ apart, first)
        apart = put(np.zeros((*before.shape, 2), dtype), device)
        assert_same_bits(multiply(given, out=apart[..., 1]), first)
        assert not get(apart[..., 0]).any()


@BUILD
@pytest.mark.parametrize(("columns",), SHAPES, ids=str)
def test_operands_that_do_not_fit(build, columns, device):
    """The same errors, and the same care for memory that is shared, as the first time."""
    csr = zoo.integers("banded_stencil", np.float64)
    A, n = build(csr, device), csr.shape[1]
    assert csr.shape[0] == n
    x = zoo.vector(2 * n * int(np.prod(columns, dtype=int))).reshape(2 * n, *columns)
    multiply, other = (A.matmat, A.matvec) if columns else (A.matvec, A.matmat)
    for _ in range(2):
        both = put(x.copy(), device)
        multiply(both[:n], out=both[n // 2 : n // 2 + n])
        np.testing.assert_array_equal(get(both[n // 2 : n // 2 + n]), csr.toarray() @ x[:n])
        both = put(x.copy(), device)
        assert_same_bits(multiply(both[:n], out=both[:n]), csr.toarray() @ x[:n])
        given = both[n:]
        with pytest.raises(ValueError, match="out must have"):
            multiply(given, out=both[: n - 1])
        with pytest.raises(TypeError, match="out must have a dtype"):
            multiply(given, out=put(np.zeros(given.shape, np.int8), device))
        with pytest.raises(ValueError, match="beta = 2"):
            multiply(given, beta=2)
        with pytest.raises(TypeError, match="alpha must be a scalar"):
            multiply(given, out=both[:n], alpha=1j)
        if columns != (1,):
            with pytest.raises(TypeError, match="x must be a"):
                other(given)
        multiply(given)


@in_turn("scalar, columns, build", [np.ones(1), np.ones(2), np.empty(0), 1 + 0j, Fraction(1), "device"], SHAPES, ONE_OF_EACH)
def test_scalars_that_are_refused(build, columns, scalar, device):
    """As the first time: of an array == is an array, and what equals 1 need not be a number that is taken."""
    csr = zoo.integers("banded_stencil", np.float64)
    A, x, out = build(csr, device), *(put(operand(csr.shape[0], columns), device) for _ in range(2))
    scalar, multiply = put(np.ones(1), device) if isinstance(scalar, str) else scalar, A.matmat if columns else A.matvec
    for _ in range(2):
        for given in ({}, {"out": out}):
            for name in ("alpha", "beta") if given else ("alpha",):
                with pytest.raises(TypeError, match=f"{name} must be a scalar"):
                    multiply(x, **given, **{name: scalar})
        A @ x


@BUILD
def test_few_are_kept(build, device):
    csr = zoo.floats("rows_of_mixed_length")
    for A in (build(csr, device), build(csr, device).T):
        for k in range(2, kept.Few.most + 5):
            x = put(operand(A.shape[1], (k,)), device)
            assert_same_bits(A @ x, A @ x)
            assert 0 < len(A._products.ready) <= kept.Few.most


@BUILD
def test_new_values_count(build, device):
    csr = zoo.floats("rows_of_mixed_length")
    A, x = build(csr, device), {t: put(operand(csr.shape[1 - t], (5,)), device) for t in (0, 1)}
    A = A.with_values(put(csr.data, device))
    plain = [get(A @ x[0]), get(A.T @ x[1])]
    for factor in (2, 4):
        A.with_values(put(factor * csr.data, device), out=A)
        for _ in range(2):
            for found, expected in zip((A @ x[0], A.T @ x[1]), plain, strict=True):
                np.testing.assert_allclose(get(found), factor * expected, rtol=1e-12, atol=1e-12)


@BUILD
def test_an_array_goes_when_nobody_has_it(build, device):
    csr = zoo.floats("rows_of_mixed_length")
    A = build(csr, device)
    known = weakref.ref(A)
    for array in (A, A.T):
        for columns in ((), (5,)):
            x = put(operand(array.shape[1], columns), device)
            for _ in range(2):
                array @ x
    del A, array
    assert known() is None


@BUILD
def test_threads_at_once(build, device):
    """Each with its own operands, of one shape; on a GPU on streams of their own too."""
    csr = zoo.floats("one_dense_row")
    A = build(csr, device)
    xs = [put(operand(csr.shape[1], (9,), seed=seed), device) for seed in range(4)]
    expected, wrong, target = [A @ x for x in xs], [], devices.of(xs[0])
    target.wait()

    def work(x, y):
        with target.xp.cuda.Stream(non_blocking=True) if target.kind == "cuda" else target.use():
            found = [A @ x for _ in range(50)]
            target.wait()
            wrong.extend(one for one in found if not (one == y).all())

    in_threads(work, xs, expected)
    assert not wrong


def test_arrays_that_share_memory(device):
    target = devices.parse(device)
    whole = put(np.zeros((6, 8)), device)
    share = target.may_share_memory
    assert share(whole, whole)
    assert share(whole, whole[5:])
    assert share(whole[:, ::2], whole[:1])
    assert share(whole[::-1], whole[2:3])
    assert not share(whole[:3], whole[3:])
    assert not share(whole[:3, ::2], whole[3:, 1:])
    assert not share(whole, whole[:0])
    assert not share(whole, put(np.zeros((6, 8)), device))
