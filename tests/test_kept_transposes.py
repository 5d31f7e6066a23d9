"""The tables that an array keeps of its transpose: when they are made, what they are good for, when they go."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zoo
from checks import DEFAULTS, TYPICAL, assert_product, assert_same_bits, captured, get, put, rarely
from test_matmat import matrix

import cvrarray
from cvrarray.array import transposed
from cvrarray.array.format import FormatArray
from cvrarray.array.transposed import TransposedArray

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
NAME = "rows_of_mixed_length"


def array(build, dtype=np.float64):
    csr = zoo.floats(NAME, dtype)
    return csr, build(csr, "cpu"), zoo.float_vector(csr.shape[0], dtype)


@BUILD
def test_the_first_product_makes_them(build):
    csr, A, x = array(build)
    assert "products by" not in repr(A.T)
    assert A.T.nbytes == A.nbytes
    y = A.T @ x
    assert_product(y, csr.T.tocsr(), x)
    assert "products by" in repr(A.T)
    assert A.T.nbytes > A.nbytes
    kept = A._transpose
    for other in (A.T @ x, x @ A, A.rmatvec(x), A.T.copy().T.T @ x):
        assert_product(other, csr.T.tocsr(), x)
    for other in (A.T @ x, x @ A, A.rmatvec(x), np.matmul(x, A)):
        assert_same_bits(other, y)
    assert A._transpose is kept


@BUILD
@pytest.mark.parametrize("k", [1, 5, 33, *rarely(2, 16, 64)])
def test_matrices(build, k):
    csr = zoo.integers(NAME, np.float64)
    A, X = build(csr, "cpu"), matrix(csr.shape[0], k)
    for found in (A.T @ X, A.rmatmat(X), (X.T @ A).T, A.T @ np.asfortranarray(X)):
        np.testing.assert_array_equal(found, csr.toarray().T @ X)


@BUILD
@pytest.mark.parametrize("k", [3, 64])
def test_they_suit_the_columns_that_they_are_made_for(build, k, device):
    csr = zoo.floats(NAME, np.float64)
    A = build(csr, device)
    A.T @ put(matrix(csr.shape[0], k), device)
    assert A._transpose.plan == cvrarray.asarray(csr.T.tocsr(), columns=k, device=device).plan
    assert f"with {k} columns" in A._transpose.plan
    kept = A._transpose
    A.T @ put(matrix(csr.shape[0], 2 * k), device)
    assert A._transpose is kept
    other = build(csr, device)
    transposed.with_values(other, put(csr.data, device), True, k)
    assert other._transpose.plan == kept.plan


@BUILD
def test_matrices_on_a_gpu(build, gpu):
    """A product with a vector scatters there; one with a matrix makes the tables, and every later one uses them."""
    csr = zoo.integers(NAME, np.float64)
    A, X = build(csr, gpu), put(matrix(csr.shape[0], 5), gpu)
    A.T @ X[:, 0].copy()
    assert A._transpose is None
    first = A.T @ X
    assert A._transpose.device == A.device
    np.testing.assert_array_equal(get(first), csr.toarray().T @ get(X))
    assert_same_bits(get(A.T @ X), get(first))
    assert_same_bits(get((X.T @ A).T), get(first))


def soon(monkeypatch, calls=3):
    """Tables of the transpose pay after so many products with a vector on a GPU."""
    monkeypatch.setattr(transposed, "CONVERSION", (float(calls), 0.0))
    monkeypatch.setattr(transposed, "SAVED", (1.0, 0.0))


def test_calls_until_tables_pay(monkeypatch):
    """Small arrays, whose conversion is the device's waits, pay later; counting starts again with other values."""
    _, A, _ = array(DEFAULTS[0])
    large = type("Array", (), {"nnz": 1 << 30})
    assert 10 < transposed.pays_after(large) < transposed.pays_after(A) < 1000
    soon(monkeypatch)
    assert [transposed._is_due(A) for _ in range(5)] == [False, False, False, True, True]
    A._values_changed()
    assert [transposed._is_due(A) for _ in range(4)] == [False, False, False, True]
    assert transposed.keep(A) is not None
    assert transposed._is_due(A)
    A._transpose = False
    assert not transposed._is_due(A)


@BUILD
@pytest.mark.parametrize("dtype", [np.float32, np.float64, *rarely(np.complex64, np.int32)])
def test_vectors_on_a_gpu(build, dtype, gpu, monkeypatch):
    """The first products scatter; then tables are made, and the same calls give the same bits in every array."""
    soon(monkeypatch)
    csr = zoo.floats(NAME, dtype)
    x, runs = put(zoo.float_vector(csr.shape[0], dtype), gpu), []
    for _ in range(2):
        A, found = build(csr, gpu), []
        for k in range(6):
            found.append(get(A.T @ x if k % 2 else x @ A))
            assert (A._transpose is None) == (k < 3)
            assert ("products by" in repr(A.T)) == (k >= 3)
        runs.append(found)
    for y, other in zip(*runs, strict=True):
        assert_product(y, csr.T.tocsr(), get(x))
        assert_same_bits(y, other)
    for k in (1, 2):
        assert_same_bits(runs[0][0], runs[0][k])
    for k in (4, 5):
        assert_same_bits(runs[0][3], runs[0][k])
    assert_same_bits(runs[0][3], A._transpose @ x)


@BUILD
def test_where_memory_is_short_vectors_scatter(build, gpu, monkeypatch):
    soon(monkeypatch)
    csr = zoo.floats(NAME, np.float64)
    x = put(zoo.float_vector(csr.shape[0]), gpu)
    memory = build(csr, gpu)._target.backend("memory")

    def none(*args, **keywords):
        raise MemoryError

    for patch in (
        lambda patched: patched.setenv("CVRARRAY_TRANSPOSED_MEMORY", "0"),
        lambda patched: patched.setattr(memory, "free", lambda device: 0),
    ):
        with monkeypatch.context() as patched:
            patch(patched)
            A = build(csr, gpu)
            first = A.T @ x
            for _ in range(5):
                assert_same_bits(A.T @ x, first)
            assert A._transpose is False
            assert_product(A.T @ x, csr.T.tocsr(), get(x))


@BUILD
def test_new_values_wait_on_a_gpu(build, gpu, monkeypatch):
    """Tables that are kept wait for a few products before they get new values, which those products have already."""
    soon(monkeypatch, 1)
    monkeypatch.setattr(transposed, "RENEWED_AFTER", 2)
    csr = zoo.floats(NAME, np.float64)
    x = put(zoo.float_vector(csr.shape[0]), gpu)
    A = build(csr, gpu).with_values(put(csr.data, gpu))
    for _ in range(3):
        A.T @ x
    kept = A._transpose
    for factor in (2.5, -3.0, 0.0):
        values = put(csr.data * factor, gpu)
        A.with_values(values, out=A)
        for _ in range(4):
            assert_product(A.T @ x, (factor * csr).T.tocsr(), get(x))
        assert A._transpose is kept
        assert not A._transpose_is_old
        assert_same_bits(A.T @ x, kept @ x)


@BUILD
def test_a_graph_scatters(build, gpu, monkeypatch):
    """Nothing is converted in a capture; and a graph that was captured later sees values that are written to A."""
    import cupy

    soon(monkeypatch)
    csr = zoo.floats(NAME, np.float64)
    A = build(csr, gpu).with_values(put(csr.data, gpu))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()  # the stream does not wait for the default one
    with stream:
        x, out = put(zoo.float_vector(csr.shape[0]), gpu), cupy.empty(csr.shape[1])
        for calls in (3, 2):  # tables are due in the capture; they are there before it
            for _ in range(calls):
                A.T.matvec(x, out=out)
            stream.begin_capture()
            A.T.matvec(x, out=out)
            graph = stream.end_capture()
            assert (A._transpose is None) == (calls == 3)
            out.fill(np.nan)
            graph.launch(stream)
            assert_product(out.get(), csr.T.tocsr(), x.get())
        A.with_values(put(2 * csr.data, gpu), out=A)
        graph.launch(stream)
        assert_product(out.get(), (2 * csr).T.tocsr(), x.get())


@BUILD
def test_solvers_on_a_gpu(build, gpu, monkeypatch):
    """They multiply by tables of the transpose from the first step on, if that pays for so many steps as they may take."""
    from cvrarray import linalg

    soon(monkeypatch, 20)
    csr = zoo.floats(NAME, np.float64)
    b = put(zoo.float_vector(csr.shape[0]), gpu)
    A = build(csr, gpu)
    linalg.lsmr(A, b, maxiter=20)
    assert A._transpose is None
    first = linalg.lsmr(A, b, maxiter=40)
    assert A._transpose is not None
    assert_same_bits(linalg.lsmr(A, b, maxiter=40).x, first.x)
    view = A.T
    assert transposed.for_many(view, 20) is view
    assert transposed.for_many(view, 40) is A._transpose
    assert transposed.for_many(A, 40) is A


@BUILD
@pytest.mark.parametrize("room", ["0", "1 GiB"])
def test_made_while_a_graph_is_captured(build, room, gpu, monkeypatch):
    """Beside it; where there is no room for them, the graph goes column by column."""
    import cupy

    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", room)
    csr = zoo.integers(NAME, np.float64)
    A, X, out = build(csr, gpu), put(matrix(csr.shape[0], 30), gpu), cupy.empty((csr.shape[1], 30))
    graph = captured(lambda: A.T.matmat(X, out=out))
    for factor in (1, 3):
        graph.launch()
        assert (A._transpose is False) == (room == "0")
        np.testing.assert_array_equal(get(out), factor * csr.toarray().T @ get(X))
        A.with_values(put(3 * csr.data, gpu), out=A)


@pytest.mark.parametrize("build", TYPICAL, ids=str)
@pytest.mark.parametrize("limit", ["0", "1", "1 GiB"])
def test_the_limit(build, limit, monkeypatch):
    """Beyond it the base's own tables do: with the same bits in every call, and in matrices too."""
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", limit)
    csr, A, x = array(build, np.float32)
    y = A.T @ x
    assert ("products by" in repr(A.T)) == (limit == "1 GiB")
    assert_product(y, csr.T.tocsr(), x)
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", "1 GiB")  # it is decided once
    assert_same_bits(A.T @ x, y)
    X = np.stack([x, 2 * x], axis=1)
    np.testing.assert_allclose(A.T @ X, np.stack([y, 2 * y], axis=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("limit", ["lots", "-1", "1.5 apples"])
def test_a_limit_that_is_none(limit, monkeypatch):
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", limit)
    _, A, x = array(DEFAULTS[0])
    with pytest.raises(ValueError, match="CVRARRAY_TRANSPOSED_MEMORY must be"):
        A.T @ x


@BUILD
def test_the_same_bits_with_any_number_of_threads(build, monkeypatch):
    _, A, x = array(build)
    found = []
    for count in ("1", "2", "5"):
        monkeypatch.setenv("CVRARRAY_NUM_THREADS", count)
        found.append(build(zoo.floats(NAME, np.float64), "cpu").T @ x)
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], found[2])
    assert_same_bits(found[0], A.T @ x)


@BUILD
def test_other_values_have_other_tables(build):
    csr, A, x = array(build)
    A.T @ x
    for B, S in ((A.with_values(3 * csr.data), 3 * csr), (A * -2, -2 * csr), (abs(A), abs(csr)), (A.T * 2, None)):
        if S is None:
            assert_product(B @ x, (2 * csr).T.tocsr(), x)
        else:
            assert_product(B.T @ x, S.T.tocsr(), x)


@BUILD
def test_values_written_into_the_tables(build):
    """Whoever writes other values into an array's tables says so."""
    csr, A, x = array(build)
    before = A.T @ x
    values = A._values(A._tables)
    values.setflags(write=True)
    values *= 2
    A._values_changed()
    assert_same_bits(A.T @ x, 2 * before)
    assert_product(A.T @ x, (2 * csr).T.tocsr(), x)


@BUILD
def test_copies_and_pickles_have_none(build):
    _, A, x = array(build)
    size = len(pickle.dumps(A))
    y = A.T @ x
    assert len(pickle.dumps(A)) == size
    for B in (copy.deepcopy(A), A.copy(), pickle.loads(pickle.dumps(A)), pickle.loads(pickle.dumps(A.T)).T):
        assert B._transpose is None
        assert_same_bits(B.T @ x, y)


@BUILD
def test_one_product_keeps_nothing(build):
    csr, A, x = array(build)
    assert_product(TransposedArray.once(A) @ x, csr.T.tocsr(), x)
    np.testing.assert_allclose(A.sum(axis=0), csr.toarray().sum(axis=0), rtol=1e-9, atol=1e-6)
    assert A._transpose is None


@BUILD
def test_the_first_product_of_many_threads(build):
    _, A, x = array(build)
    expected = build(zoo.floats(NAME, np.float64), "cpu").T @ x
    with ThreadPoolExecutor(8) as pool:
        for y in pool.map(lambda _: A.T @ x, range(32)):
            assert_same_bits(y, expected)


def test_memory_is_counted_while_it_is_held():
    gc.collect()
    before = transposed.BUDGET.held()
    _, A, x = array(DEFAULTS[0])
    A.T @ x
    assert transposed.BUDGET.held() == before + A._transpose.nbytes
    del A
    gc.collect()
    assert transposed.BUDGET.held() == before


@BUILD
def test_new_values_in_place_are_those_of_the_transpose_too(build):
    """The tables that are kept get the new values, with the bits that tables made anew would have."""
    csr, A, x = array(build)
    B = A.with_values(csr.data)
    B.T @ x
    kept = B._transpose
    for factor in (2.5, -3.0, 0.0):
        values = csr.data * factor
        A.with_values(values, out=B)
        assert_same_bits(B.T @ x, A.with_values(values).T @ x)
        assert_same_bits(B.T @ matrix(csr.shape[0], 3), A.with_values(values).T @ matrix(csr.shape[0], 3))
        assert B._transpose is kept


@BUILD
@pytest.mark.parametrize("columns", [(), (5,)], ids=["vector", "matrix"])
@pytest.mark.parametrize("is_view", [False, True], ids=["array", "view"])
@pytest.mark.parametrize("limit", ["1 GiB", "0"])
def test_values_that_are_replaced_again_and_again(build, columns, is_view, limit, device, monkeypatch):
    """Products with an array and with its transpose convert once at most, and the array's own values stay."""
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", limit)
    csr, made, original = zoo.integers(NAME, np.float64), [], FormatArray._convert.__func__
    A = build(csr.T.tocsr(), device).T if is_view else build(csr, device)

    def counted(cls, *args, **keywords):
        made.append(cls)
        return original(cls, *args, **keywords)

    monkeypatch.setattr(FormatArray, "_convert", classmethod(counted))
    for k in range(3):
        csr.data[:] = np.arange(1 + k, csr.nnz + 1 + k)
        for is_transposed, expected in ((False, csr.toarray()), (True, csr.toarray().T)):
            x = np.arange(1.0, 1 + expected.shape[1] * (columns or (1,))[0]).reshape(-1, *columns)
            B = transposed.with_values(A, put(csr.data, device), is_transposed, *(columns or (None,)))
            np.testing.assert_array_equal(get(B @ put(x, device)), expected @ x)
    scatters = limit == "0" or (device != "cpu" and not columns and not is_view)
    assert len(made) == (0 if scatters else 1)
    np.testing.assert_array_equal(get(A.data), zoo.integers(NAME, np.float64).data)
