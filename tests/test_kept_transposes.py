"""The tables that an array keeps of its transpose: when they are made, what they are good for, when they go."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import zoo
from checks import DEFAULTS, TYPICAL, assert_product, assert_same_bits, captured, get, put
from test_matmat import matrix

import cvrarray
from cvrarray.array import transposed
from cvrarray.array.format import FormatArray
from cvrarray.array.kept import State
from cvrarray.array.transposed import TransposedArray

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
NAME = "rows_of_mixed_length"


def array(build, dtype=np.float64):
    csr = zoo.floats(NAME, dtype)
    return csr, build(csr, "cpu"), zoo.float_vector(csr.shape[0], dtype)


@BUILD
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_the_first_product_makes_them(build, dtype, device):
    csr = zoo.floats(NAME, dtype)
    A, x = build(csr, device), put(zoo.float_vector(csr.shape[0], dtype), device)
    assert "products by" not in repr(A.T)
    assert A.T.nbytes == A.nbytes
    y = A.T @ x
    assert_product(get(y), csr.T.tocsr(), get(x))
    assert "products by" in repr(A.T)
    assert A.T.nbytes > A.nbytes
    assert A._transpose.tables.device == A.device
    kept = A._transpose.tables
    for other in (x @ A, A.T.copy().T.T @ x):
        assert_product(get(other), csr.T.tocsr(), get(x))
    for other in (A.T @ x, x @ A, A.T.matvec(x), np.matmul(x, A)):
        assert_same_bits(other, y)
    assert A._transpose.tables is kept


@BUILD
@pytest.mark.parametrize("k", [3, 64])
def test_they_suit_the_columns_that_they_are_made_for(build, k, device):
    csr = zoo.floats(NAME, np.float64)
    A = build(csr, device)
    A.T @ put(matrix(csr.shape[0], k), device)
    assert A._transpose.tables.plan == cvrarray.asarray(csr.T.tocsr(), columns=k, device=device).plan
    assert f"with {k} columns" in A._transpose.tables.plan
    kept = A._transpose.tables
    A.T @ put(matrix(csr.shape[0], 2 * k), device)
    assert A._transpose.tables is kept
    other = build(csr, device)
    transposed.with_values(other, put(csr.data, device), True, k)
    assert other._transpose.tables.plan == kept.plan


@BUILD
@pytest.mark.parametrize("limit", ["1 GiB", "0"])
def test_every_call_has_the_bits_of_the_first(build, limit, device, monkeypatch):
    """Of every array too, from threads that all make the first product, on streams of their own."""
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", limit)
    monkeypatch.setattr(transposed, "PANEL", 1 << 12)
    csr = zoo.floats(NAME, np.float64)
    x = put(zoo.float_vector(csr.shape[0]), device)
    A, B = build(csr, device), build(csr, device)
    first = get(A.T @ x)
    assert_product(first, csr.T.tocsr(), get(x))
    for _ in range(199 if limit != "0" or device == "cpu" else 9):
        assert_same_bits(get(A.T @ x), first)

    def multiply(_):
        with nullcontext() if device == "cpu" else __import__("cupy").cuda.Stream(non_blocking=True) as stream:
            found = [get(B.T @ x) for _ in range(5)]
            if stream is not None:
                stream.synchronize()
        return found

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(multiply, range(8)):
            for y in found:
                assert_same_bits(y, first)


@BUILD
@pytest.mark.parametrize("columns", [(), (5,)], ids=["vector", "matrix"])
def test_panels(build, columns, device, monkeypatch):
    """Where nothing is kept, rows are transposed panel by panel, as the array's size says."""
    csr, n = zoo.integers(NAME, np.float64).T.tocsr(), int(np.prod(columns, dtype=int))
    A = build(csr, device)
    x, y = (zoo.vector(m * n).reshape(m, *columns) for m in csr.shape)
    run = transposed.by_panels(A, "product_matrix" if columns else "product", np.dtype(np.float64))
    shapes, like = [], type(A)._like
    monkeypatch.setattr(type(A), "_like", lambda self, part: shapes.append(part.shape) or like(self, part))
    for wanted in (1, 3):
        shapes.clear()
        monkeypatch.setattr(transposed, "PANEL", -(-A.nbytes // wanted))
        out = put(y.copy(), device)
        run(put(x, device), out, np.float64(2), np.float64(-3))
        np.testing.assert_array_equal(get(out), 2 * (csr.toarray().T @ x) - 3 * y)
        heights = [width for height, width in shapes]
        assert sum(heights) == csr.shape[0] and len(heights) == wanted
        assert len(heights) == 1 or (set(heights[:-1]) == {heights[0]} and heights[0] % 32 == 0)
    assert A._transpose.state is State.UNDECIDED


@BUILD
def test_a_graph_needs_tables(build, gpu, monkeypatch):
    """Nothing is converted in a capture; and a graph sees values that are written to A later."""
    import cupy

    csr = zoo.floats(NAME, np.float64)
    A = build(csr, gpu).with_values(put(csr.data, gpu))
    x, out = put(zoo.float_vector(csr.shape[0]), gpu), cupy.empty(csr.shape[1])
    X, Y = put(matrix(csr.shape[0], 30), gpu), cupy.empty((csr.shape[1], 30))

    def refused():
        for multiply in (lambda: A.T.matvec(x, out=out), lambda: A.T.matmat(X, out=Y)):
            with pytest.raises(RuntimeError, match=r"Call A\.T @ x once before the capture"):
                multiply()

    captured(refused)
    A.T.matvec(x, out=out)
    graphs = captured(lambda: A.T.matvec(x, out=out)), captured(lambda: A.T.matmat(X, out=Y))
    for factor in (1, 2):
        A.with_values(put(factor * csr.data, gpu), out=A)
        out.fill(np.nan)
        for graph in graphs:
            graph.launch()
        assert_product(get(out), (factor * csr).T.tocsr(), get(x))
        np.testing.assert_allclose(get(Y), factor * csr.toarray().T @ get(X), rtol=1e-9, atol=1e-6)
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", "0")
    A = build(csr, gpu)
    A.T.matvec(x, out=out)
    captured(refused)


def test_an_array_that_a_gpu_has_no_room_to_convert(gpu, monkeypatch):
    """That depends on the GPU's memory, not on what is free: every run gives the same bits."""
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", "1 GiB")
    csr, A, x = array(DEFAULTS[0])
    there = A.to_device(gpu)
    monkeypatch.setattr(there._target.backend("memory"), "installed", lambda: 5 * A.nbytes)
    y = there.T @ put(x, gpu)
    assert there._transpose.state is State.REFUSED
    assert_product(get(y), csr.T.tocsr(), x)


def test_values_of_a_graph_fit_its_tables(gpu, monkeypatch):
    """Few values are not stored in few bytes where an array stores them plainly: a graph could not replace them."""
    import cupy

    monkeypatch.setattr("cvrarray.gpu.distinct.LEAST_BYTES", 1)
    csr = zoo.integers(NAME, np.float64)
    A = cvrarray.CVRArray(csr, device=gpu, values="plain")
    x, out = put(zoo.vector(csr.shape[0]), gpu), cupy.empty(csr.shape[1])
    A.T.matvec(x, out=out)
    graph = captured(lambda: A.T.matvec(x, out=out))
    A.with_values(put(np.arange(1.0, csr.nnz + 1), gpu), out=A)
    graph.launch()
    csr.data = np.arange(1.0, csr.nnz + 1)
    np.testing.assert_array_equal(get(out), csr.toarray().T @ get(x))


@BUILD
def test_solvers(build, device, monkeypatch):
    """They multiply by tables of the transpose, where there is room for them."""
    from cvrarray import linalg

    csr = zoo.floats(NAME, np.float64)
    b = put(zoo.float_vector(csr.shape[0]), device)
    A = build(csr, device)
    first = linalg.lsmr(A, b, maxiter=40)
    assert A._transpose.state is State.KEPT
    assert_same_bits(linalg.lsmr(A, b, maxiter=40).x, first.x)
    assert transposed.with_tables(A.T) is A._transpose.tables
    assert transposed.with_tables(A) is A
    few = get(linalg.lsmr(A, b, maxiter=5).x)
    monkeypatch.setenv("CVRARRAY_TRANSPOSED_MEMORY", "0")
    A = build(csr, device)
    np.testing.assert_allclose(get(linalg.lsmr(A, b, maxiter=5).x), few, rtol=1e-6, atol=1e-9)
    assert A._transpose.state is State.REFUSED
    view = A.T
    assert transposed.with_tables(view) is view


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
        assert B._transpose.state is State.UNDECIDED
        assert_same_bits(B.T @ x, y)


@BUILD
def test_one_product_keeps_nothing(build):
    csr, A, x = array(build)
    assert_product(TransposedArray.once(A) @ x, csr.T.tocsr(), x)
    np.testing.assert_allclose(A.sum(axis=0), csr.toarray().sum(axis=0), rtol=1e-9, atol=1e-6)
    assert A._transpose.state is State.UNDECIDED


def test_memory_is_counted_while_it_is_held():
    gc.collect()
    before = transposed.BUDGET.held()
    _, A, x = array(DEFAULTS[0])
    A.T @ x
    assert transposed.BUDGET.held() == before + A._transpose.tables.nbytes
    del A
    gc.collect()
    assert transposed.BUDGET.held() == before


@BUILD
def test_new_values_in_place_are_those_of_the_transpose_too(build):
    """The tables that are kept get the new values, with the bits that tables made anew would have."""
    csr, A, x = array(build)
    B = A.with_values(csr.data)
    B.T @ x
    kept = B._transpose.tables
    for factor in (2.5, -3.0, 0.0):
        values = csr.data * factor
        A.with_values(values, out=B)
        assert_same_bits(B.T @ x, A.with_values(values).T @ x)
        assert_same_bits(B.T @ matrix(csr.shape[0], 3), A.with_values(values).T @ matrix(csr.shape[0], 3))
        assert B._transpose.tables is kept


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
    if limit != "0":
        assert len(made) == 1
    elif device == "cpu":
        assert not made
    np.testing.assert_array_equal(get(A.data), zoo.integers(NAME, np.float64).data)
