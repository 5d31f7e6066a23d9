"""Products in CUDA graphs: captured once, replayed with what then lies in the same arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import assert_same_bits, autotune_at, captured, from_csr, get, in_pairs, put, take_segments

from cvrarray import BBCSRArray, CVRArray
from cvrarray.core import matmat_kernels


def power_law(dtype):
    return zoo.floats("power_law", dtype)


def long_rows(dtype):
    rng = np.random.default_rng(5)
    csr = scipy.sparse.csr_array((rng.random((20, 2500)) < 0.1).astype(dtype))
    csr.data = zoo.float_vector(csr.nnz, dtype)
    return csr


def of_values(*values):
    def matrix(dtype):
        csr = power_law("float32").astype(dtype)
        csr.data = np.resize(np.array(values, dtype), csr.nnz)
        return csr

    return matrix


def on_a_small_device(monkeypatch):
    from cvrarray.gpu import cvr_matmat

    monkeypatch.setattr(cvr_matmat, "processors", lambda: 1)


def in_pieces(monkeypatch):
    """Block rows and single rows, in `A @ X`."""
    from cvrarray.gpu import bbcsr_matmat, uneven_rows

    for name, value in (("LEAST_LONG", (0, 0)), ("LONG_FACTOR", 0), ("UNEVEN_FROM", 0), ("UNEVEN", 0)):
        monkeypatch.setattr(matmat_kernels, name, value)
    monkeypatch.setattr(bbcsr_matmat, "PIECE_ROUNDS", 0)
    monkeypatch.setattr(uneven_rows, "ROUNDS", (1,))


def with_few_values(monkeypatch):
    from cvrarray.gpu import distinct

    monkeypatch.setattr(distinct, "LEAST_BYTES", 1)


def by_popular_columns(monkeypatch):
    """From the first product on that is not captured."""
    from cvrarray.gpu import row_lanes, shared_memory

    monkeypatch.setattr(row_lanes, "suits", lambda tables: False)
    autotune_at(monkeypatch, 1)
    for name, value in (("L1_SHARE", 0), ("LEAST_SHARE", 0), ("shared_memory", lambda: 1600)):
        monkeypatch.setattr(shared_memory, name, value)


CUT = {"n_lanes": 8, "n_chunks": 50, "split": "nnz"}
#: The matrix, the array's format and parameters, and what is patched so that a small matrix takes the path.
KINDS = {
    "rows in lanes": (power_law, CVRArray, {}, None),
    "cut rows": (power_law, CVRArray, CUT, None),
    "popular columns": (power_law, CVRArray, {"n_chunks": 50, "split": "nnz"}, by_popular_columns),
    "few values": (of_values(1.5, -2, 4), CVRArray, CUT, with_few_values),
    "one value": (of_values(2), BBCSRArray, {"block_size": 1}, with_few_values),
    "values in half": (lambda dtype: power_law("float32").astype(dtype), CVRArray, {}, with_few_values),
    "segments": (long_rows, CVRArray, {"n_chunks": 9}, take_segments),
    "longer chunks": (power_law, CVRArray, {"n_lanes": 8, "n_chunks": 100}, on_a_small_device),
    "blocks": (power_law, BBCSRArray, {"block_size": 3}, None),
    "blocks in pieces": (power_law, BBCSRArray, {"block_size": 3}, in_pieces),
    "single columns in pieces": (power_law, BBCSRArray, {"block_size": 1}, in_pieces),
}
#: Columns of X, and the product, which may take no memory that it does not keep.
PRODUCTS = {
    "A @ x": ((), lambda A, x, out: A.matvec(x, out=out)),
    "2 A @ x + 3 y": ((), lambda A, x, out: A.matvec(x, out=out, alpha=2, beta=3)),
    "A @ x with strides": ((), lambda A, x, out: A.matvec(x[::-1], out=out[::-1])),
    "A @ X": ((16,), lambda A, x, out: A.matmat(x, out=out)),
    "2 A @ X + 3 Y": ((5,), lambda A, x, out: A.matmat(x, out=out, alpha=2, beta=3)),
    "A.T @ x": ((), lambda A, x, out: A.T.matvec(x, out=out)),
    "A.T @ X": ((5,), lambda A, x, out: A.T.matmat(x, out=out)),
}
KIND = pytest.mark.parametrize("kind", KINDS)


def built(kind, dtype, device, monkeypatch):
    """A matrix, and a function that makes an array of it."""
    matrix, cls, keywords, patch = KINDS[kind]
    if patch is not None:
        patch(monkeypatch)
    csr = matrix("float32" if dtype == "float16" else dtype)
    return csr, lambda: cls(csr, device=device, **keywords).astype(dtype)


@in_pairs(
    "kind, product, dtype, is_first",
    KINDS,
    PRODUCTS,
    itertools.product(["float32", "float64", "complex64", "float16"], [False, True]),
)
def test_replay(kind, product, dtype, is_first, gpu, monkeypatch):
    """As PyTorch captures: after a product on another stream, or none; kernels are compiled before, for another array."""
    import cupy

    csr, build = built(kind, dtype, gpu, monkeypatch)
    columns, multiply = PRODUCTS[product]
    n_out, n_in = csr.shape[::-1] if "T" in product else csr.shape
    first, second = (zoo.float_vector(n_in * (columns or (1,))[0], dtype, seed).reshape(n_in, *columns) for seed in (5, 6))
    A, x, out = build(), cupy.asarray(first), cupy.ones((n_out, *columns), dtype)
    multiply(A, x, out)
    if is_first:
        A = build()
    if is_first and "T" in product:  # which is not to be captured
        with pytest.raises(RuntimeError, match="before the capture"):
            captured(lambda: multiply(A, x, out))
        multiply(A, x, out)
    graph = captured(lambda: multiply(A, x, out))
    others = [cupy.full(1 << k, np.nan) for k in range(4, 20)]  # take what the pool thinks is free
    for values in (first, second, first):
        x.set(values)
        expected = cupy.ones((n_out, *columns), dtype)
        out.fill(1)
        graph.launch()
        replayed = out.get()
        multiply(A, x, expected)
        assert_same_bits(replayed, expected)
    assert not np.isnan(replayed).any() and np.ptp(replayed.real) > 0
    assert all(bool(cupy.isnan(other).all()) for other in others)


@KIND
def test_kernels_are_loaded_in_a_capture(kind, gpu, monkeypatch):
    """Those that no product has needed before."""
    import cupy

    from cvrarray.gpu import compiler

    csr, build = built(kind, "float32", gpu, monkeypatch)
    x, expected = put(zoo.float_vector(csr.shape[1], "float32"), gpu), cupy.empty(csr.shape[0], "float32")
    build().matvec(x, out=expected)
    A, out = build(), cupy.empty_like(expected)
    compiler.load.cache_clear()
    captured(lambda: A.matvec(x, out=out)).launch()
    assert_same_bits(out, expected)


@KIND
def test_two_products_in_one_graph(kind, gpu, monkeypatch):
    """On two streams that the graph joins: they may run at the same time, and share no memory."""
    import cupy

    csr, build = built(kind, "float32", gpu, monkeypatch)
    A = build()
    xs = [put(zoo.float_vector(csr.shape[1], "float32", seed), gpu) for seed in range(4)]
    expected = [A @ x for x in xs]
    outs = [cupy.empty_like(y) for y in expected]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in xs]

    def multiply():
        origin = cupy.cuda.get_current_stream()
        begin = origin.record()
        for stream, x, out in zip(streams, xs, outs, strict=True):
            with stream:
                stream.wait_event(begin)
                A.matvec(x, out=out)
                origin.wait_event(stream.record())

    graph = captured(multiply)
    for _ in range(20):
        for out in outs:
            out.fill(np.nan)
        graph.launch()
        for out, y in zip(outs, expected, strict=True):
            assert_same_bits(out, y)


@KIND
@pytest.mark.parametrize("product", ["A @ x", "A @ X", "A.T @ x"])
def test_products_in_turn_share_memory(kind, product, gpu, monkeypatch):
    """Those that are captured from one stream."""
    import cupy

    csr, build = built(kind, "float64", gpu, monkeypatch)
    columns, multiply = PRODUCTS[product]
    n_out, n_in = csr.shape[::-1] if "T" in product else csr.shape
    A, x = build(), put(zoo.float_vector(n_in * (columns or (1,))[0]).reshape(n_in, *columns), gpu)
    outs, used = [cupy.empty((n_out, *columns)) for _ in range(5)], []
    multiply(A, x, outs[0])
    for n in (1, 5):
        before = cupy.get_default_memory_pool().used_bytes()
        graph = captured(lambda n=n: [multiply(A, x, out) for out in outs[:n]])
        used.append(cupy.get_default_memory_pool().used_bytes() - before)
    assert used[0] == used[1]
    expected = outs[0].copy()
    for out in outs:
        out.fill(np.nan)
    graph.launch()
    for out in outs:
        assert_same_bits(out, expected)


def test_old_tables_of_the_transpose_in_a_graph(gpu):
    """What a capture renews is old until it is replayed; later values get there before the next replay."""
    import cupy

    csr = zoo.floats("power_law")
    X, out = put(zoo.float_vector(csr.shape[0] * 5).reshape(-1, 5), gpu), cupy.empty((csr.shape[1], 5))
    A = CVRArray(csr, device=gpu, values="plain")
    plain = get(A.T @ X)
    A.with_values(put(4 * csr.data, gpu), out=A)
    first = captured(lambda: A.T.matmat(X, out=out))
    np.testing.assert_array_equal(get(A.T @ X), 4 * plain)
    second = captured(lambda: A.T.matmat(X, out=out))
    for factor, graph in ((2, first), (4, second), (2, second), (4, first)):
        A.with_values(put(factor * csr.data, gpu), out=A)
        graph.launch()
        np.testing.assert_array_equal(get(out), factor * plain)


@KIND
@pytest.mark.parametrize("product", ["A @ x", "A @ X", "A.T @ x", "A.T @ X"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_graph_replaces_values(kind, product, when, gpu, monkeypatch):
    """They count in products that were made before the capture, and in those whose first was made after it."""
    import cupy

    csr, build = built(kind, "float64", gpu, monkeypatch)
    data, columns = put(csr.data, gpu), PRODUCTS[product][0]
    A, multiply = build().with_values(data), PRODUCTS[product][1]
    n_out, n_in = csr.shape[::-1] if "T" in product else csr.shape
    x, out = (put(zoo.float_vector(n * (columns or (1,))[0]).reshape(n, *columns), gpu) for n in (n_in, n_out))
    A.with_values(data, out=A)  # they have a table of their own from now on
    if when == "before":
        multiply(A, x, out)
    graph = captured(lambda: A.with_values(data, out=A))
    for factor in (1, 1024, 1, 3):
        data[:] = put(factor * csr.data, gpu)
        graph.launch()
        fresh = multiply(build().with_values(data), x, cupy.empty_like(out))
        multiply(A, x, out)
        if "T" in product:  # tables that values are written to, and those that are made for them, may add in other orders
            np.testing.assert_allclose(get(out), get(fresh), rtol=1e-9, atol=1e-9 * factor * abs(csr.data).max())
        else:
            assert_same_bits(out, fresh)


def test_values_that_are_few_are_not_replaced_in_a_capture(gpu, monkeypatch):
    with_few_values(monkeypatch)
    A = CVRArray(np.tril(np.ones((50, 50))), device=gpu)

    def replace():
        with pytest.raises(RuntimeError, match="before the capture"):
            A.with_values(data, out=A)

    data = put(np.full(A.nnz, 2.0), gpu)
    captured(replace)


def test_a_conversion_says_that_it_cannot_be_captured(gpu):
    """And the process goes on."""
    import cupy

    def convert():
        with pytest.raises(RuntimeError, match="before the capture"):
            from_csr(CVRArray, *parts, (50, 50))

    parts = cupy.arange(51, dtype=np.int32), cupy.arange(50, dtype=np.int32), cupy.ones(50)
    captured(convert)
    assert_same_bits(from_csr(CVRArray, *parts, (50, 50)) @ parts[2], parts[2])
