"""Assembly: values at coordinates that stay the same, against dense sums and against a conversion, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from checks import assert_same_bits, assert_same_tables, get, in_pairs, put

import cvrarray
from cvrarray.cpu.runtime import memory

RNG = np.random.default_rng(4)
SHAPE = 100, 90  # in blocks


def coordinates(copies: int):
    """Random ones, each named `copies` times; some twice as often."""
    key = np.tile(RNG.choice(SHAPE[0] * SHAPE[1], 700, replace=False), copies)
    if copies > 1:
        key = RNG.permutation(np.r_[key, key[:200]])
    return np.divmod(key, SHAPE[1])


def values_of(n: int, size: int, dtype) -> np.ndarray:
    values = 10 * RNG.standard_normal((n, size, size) if size > 1 else n)
    return (values * (1 + 1j) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def sums(rows, cols, values, size, shape) -> np.ndarray:
    """Dense, added in the order in which values come."""
    dense = np.zeros((SHAPE[0] * size, SHAPE[1] * size), values.dtype)
    seen = np.zeros(SHAPE, bool)
    with np.errstate(over="ignore"):
        for row, col, value in zip(rows, cols, values.reshape(-1, size, size), strict=True):
            place = slice(row * size, row * size + size), slice(col * size, col * size + size)
            dense[place] = dense[place] + value if seen[row, col] else value
            seen[row, col] = True
    return dense[: shape[0], : shape[1]]


@in_pairs(
    "format, size, dtype, cut, copies",
    [("auto", 1, "float64"), ("auto", 6, "float64"), ("auto", 3, "float64"), ("cvr", 1, "float32")],
    [((0, 0),), ((1, 2),), ((2, 0),), ((0, 1),)],
    [1, 3],
)
def test_against_dense_sums(format, size, copies, cut, dtype, device):
    rows, cols = coordinates(copies)
    shape = tuple(n * size - lost * (size > 2) for n, lost in zip(SHAPE, cut, strict=True))
    plan = cvrarray.Assembly(put(rows, device), put(cols, device), shape=shape, block_size=size, format=format)
    A = None
    for turn in range(3):
        values = values_of(rows.size, size, dtype)
        made = plan(put(values, device), out=A)
        assert turn == 0 or made is A
        A = made
        A.check()
        assert (A.shape, A.dtype, A.device) == (shape, np.dtype(dtype), device)
        assert_same_bits(A.todense(), sums(rows, cols, values, size, shape))
        assert_same_tables(plan(put(values, device))._tables, A._tables)
        assert_same_tables(type(A)(A.to_scipy(), device=device, **A._parameters())._tables, A._tables)
    assert A.format == format or format == "auto"
    assert format != "auto" or A.plan


@pytest.mark.parametrize("size", [3, 7])
def test_blocks_on_the_diagonal(size, device):
    """Each follows the last one's place, but no block's values those of the last; groups of 32 rows cut some."""
    place = RNG.permutation(np.tile(np.arange(70), 3))
    values = values_of(place.size, size, "float64")
    A = cvrarray.Assembly(put(place, device), put(place, device), block_size=size, format="bbcsr")(put(values, device))
    expected = np.zeros((70 * size, 70 * size))
    for k, value in zip(place, values, strict=True):
        expected[k * size : (k + 1) * size, k * size : (k + 1) * size] += value
    assert_same_bits(A.todense(), expected)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_written_past_the_caches(size, monkeypatch):
    """As large tables are: the same bits."""
    rows, cols = coordinates(3)
    plan = cvrarray.Assembly(rows, cols, block_size=size, format="bbcsr", device="cpu")
    values = values_of(rows.size, size, "float64")
    expected = plan(values)
    monkeypatch.setattr(memory, "PAST_CACHES", 0)
    assert memory.goes_past_caches(expected._tables.data)
    assert_same_tables(plan(values)._tables, expected._tables)


@pytest.mark.parametrize("dtype", ["float16", "bool", "uint64", "complex64"])
def test_sums_of_other_dtypes(dtype, device):
    rows, cols = [0, 1, 0, 0, 2], [1, 0, 1, 1, 2]
    values = np.array([1, 1, 1, 1, 0]).astype(dtype)
    plan = cvrarray.Assembly(put(np.array(rows), device), put(np.array(cols), device))
    A = plan(put(values, device))
    A.check()
    assert A.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(get(A.todense()), np.array([[0, 3, 0], [1, 0, 0], [0, 0, 0]]).astype(dtype))
    assert A.nnz == 3  # a zero is stored
    plan = cvrarray.Assembly(put(np.zeros(3, int), device), put(np.zeros(3, int), device))
    A = plan(put(np.array([2048, 1, 1]).astype(dtype), device))
    assert get(A.todense())[0, 0] == np.array(2050 if dtype != "bool" else 1).astype(dtype)  # float16 is added in float32


def test_values_in_several_dtypes(device):
    rows, cols = coordinates(2)
    plan = cvrarray.Assembly(put(rows, device), put(cols, device))
    for dtype in ("float32", "float64"):
        values = values_of(rows.size, 1, dtype)
        assert_same_bits(plan(put(values, device)).todense(), sums(rows, cols, values, 1, plan.shape))
    single = plan(put(values.astype(np.float32), device))
    plan(put(values, device), out=single)  # cast first, then summed
    assert_same_bits(single.todense(), sums(rows, cols, values.astype(np.float32), 1, plan.shape))


def test_small_and_empty(device):
    one = put(np.zeros(1, int), device)
    none = put(np.zeros(0, int), device)
    assert get(cvrarray.Assembly(one, one)(put(np.array([7.0]), device)).todense()).tolist() == [[7.0]]
    for size in (1, 3):
        for shape in (None, (5, 7)):
            plan = cvrarray.Assembly(none, none, shape=shape, block_size=size)
            A = plan(put(np.zeros((0, size, size) if size > 1 else 0), device))
            assert (A.shape, A.nnz) == (shape or (0, 0), 0)
            plan(put(np.zeros((0, size, size) if size > 1 else 0), device), out=A)


def test_coordinates_of_any_kind():
    """Lists, unsigned and big-endian integers; columns far apart."""
    expected = cvrarray.Assembly([1, 0], [0, 2])(np.array([1.0, 2.0])).todense()
    for dtype in ("uint8", ">i4", "uint64"):
        found = cvrarray.Assembly(np.array([1, 0], dtype), np.array([0, 2], dtype))(np.array([1.0, 2.0]))
        np.testing.assert_array_equal(found.todense(), expected)
    far = cvrarray.Assembly([3, 0, 3], [2**40, 5, 2**40], shape=(4, 2**41))(np.array([1.0, 2.0, 3.0]))
    assert far[3, 2**40] == 4 and far.nnz == 2
    strided = np.arange(8.0)[::2]
    assert_same_bits(cvrarray.Assembly(range(4), range(4))(strided).diagonal(), strided)
    assert_same_bits(cvrarray.Assembly(range(4), range(4))(strided.astype(">f8")).diagonal(), strided)


@pytest.mark.parametrize(
    ("rows", "cols", "keywords", "error", "words"),
    [
        ([0], [0, 1], {}, ValueError, "one length.*1 and 2"),
        ([0, -1], [0, 1], {}, ValueError, r"rows must lie in \[0, .*-1"),
        ([0, 1], [0, 3], {"shape": (2, 3)}, ValueError, r"cols must lie in \[0, 3\).*3"),
        ([0, 1], [0, 2], {"shape": (6, 6), "block_size": 3}, ValueError, r"cols must lie in \[0, 2\).*blocks of 3.*2"),
        ([0.0], [0], {}, TypeError, "rows must hold integers.*float64"),
        ([[0]], [[0]], {}, ValueError, "rows must have 1 dimension"),
        ([0], [0], {"block_size": 33}, ValueError, "block_size.*32.*33"),
        ([0], [0], {"format": "ell"}, ValueError, "format must be.*ell"),
        ([0], [0], {"shape": (-1, 2)}, ValueError, "shape"),
    ],
)
def test_refuses_coordinates(rows, cols, keywords, error, words):
    with pytest.raises(error, match=words):
        cvrarray.Assembly(np.array(rows), np.array(cols), **keywords)


def test_refuses_values(device):
    rows = put(np.arange(3), device)
    plan, blocks = cvrarray.Assembly(rows, rows), cvrarray.Assembly(rows, rows, block_size=2, format="bbcsr")
    for call, error, words in (
        (lambda: plan(put(np.ones(2), device)), ValueError, r"values must have shape \(3,\).*\(2,\)"),
        (lambda: blocks(put(np.ones(3), device)), ValueError, r"\(3, 2, 2\).*\(3,\)"),
        (lambda: blocks(put(np.ones((3, 2, 3)), device)), ValueError, r"\(3, 2, 2\).*\(3, 2, 3\)"),
        (lambda: plan(np.ones(3, object)), TypeError, "values must be"),
        (
            lambda: plan(put(np.ones(3), device), out=blocks(put(np.ones((3, 2, 2)), device))),
            (TypeError, ValueError),
            "out must",
        ),
        (
            lambda: plan(put(np.ones(3), device), out=plan(put(np.ones(3, int), device))),
            TypeError,
            "float64.*int64|int64.*float64",
        ),
        (lambda: blocks(put(np.ones((3, 2, 2)), device), out=plan), TypeError, "out must be an array.*Assembly"),
    ):
        if device != "cpu" and error is TypeError and "values" in words:
            continue
        with pytest.raises(error, match=words):
            call()
    other = cvrarray.Assembly(rows, rows, block_size=2, shape=(8, 6), format="bbcsr")(put(np.ones((3, 2, 2)), device))
    with pytest.raises(ValueError, match="out must have the structure"):
        blocks(put(np.ones((3, 2, 2)), device), out=other)


def test_refuses_another_device(gpu):
    plan = cvrarray.Assembly([0, 1], [0, 1], device=gpu)
    with pytest.raises(TypeError, match=r"values must be on the plan's device, cuda:0; got cpu.*cupy.asarray"):
        plan(np.ones(2))


def test_captured_in_a_graph(gpu):
    """Assemble, multiply: replayed with other values."""
    import cupy

    rows, cols = coordinates(3)
    for size in (1, 3):
        plan = cvrarray.Assembly(cupy.asarray(rows), cupy.asarray(cols), block_size=size)
        values = cupy.asarray(values_of(rows.size, size, "float64"))
        A = plan(values)
        x, y = cupy.asarray(RNG.standard_normal(A.shape[1])), cupy.empty(A.shape[0])
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            plan(values, out=A).matvec(x, out=y)
            stream.synchronize()
            used = cupy.get_default_memory_pool().used_bytes()
            plan(values, out=A)
            assert cupy.get_default_memory_pool().used_bytes() == used
            cupy.get_default_memory_pool().free_all_blocks()
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            plan(values, out=A).matvec(x, out=y)
            graph = stream.end_capture()
            for _ in range(3):
                values[:] = cupy.asarray(values_of(rows.size, size, "float64"))
                graph.launch(stream)
                stream.synchronize()
                assert_same_bits(y, plan(values) @ x)


def test_from_blocks_has_the_tables_of_a_conversion(device):
    rows, cols = coordinates(2)
    values = values_of(rows.size, 6, "float64")
    A = cvrarray.BBCSRArray.from_blocks(put(rows, device), put(cols, device), put(values, device))
    assert_same_tables(cvrarray.BBCSRArray(A.to_scipy(), block_size=6, device=device)._tables, A._tables)
    assert_same_bits(A.todense(), sums(rows, cols, values, 6, A.shape))


def bsr(size: int, dtype: str = "float64") -> scipy.sparse.bsr_array:
    """Three to nine blocks a row, in random order."""
    rows, cols = np.divmod(np.unique(np.random.default_rng(7).integers(0, 60 * 50, 360)), 50)
    order = np.random.default_rng(8).permutation(rows.size)
    order = order[np.argsort(rows[order], kind="stable")]
    data = values_of(rows.size, size, dtype).reshape(-1, size, size)
    indptr = np.searchsorted(rows[order], np.arange(61))
    return scipy.sparse.bsr_array((data, cols[order], indptr), shape=(60 * size, 50 * size))


@pytest.mark.parametrize(("size", "dtype"), [(3, "float64"), (6, "float32"), (7, "float64")])
def test_asarray_of_a_bsr(size, dtype, device):
    """From its blocks, and yet what a conversion of its CSR gives."""
    S = bsr(size, dtype)
    blocks = cvrarray.asarray(S, format="bbcsr", block_size=size, device=device)
    assert_same_tables(cvrarray.BBCSRArray(S.tocsr(), block_size=size, device=device)._tables, blocks._tables)
    chosen = cvrarray.asarray(S, device=device)
    assert chosen.plan
    assert_same_tables(type(chosen)(S.tocsr(), device=device, **chosen._parameters())._tables, chosen._tables)
    single = cvrarray.asarray(S, format="cvr", device=device)
    assert_same_tables(cvrarray.CVRArray(S.tocsr(), device=device)._tables, single._tables)
    broken = S.copy()
    broken.indices[0] = 50
    with pytest.raises(ValueError, match=r"indices must lie in \[0, 50\)"):
        cvrarray.asarray(broken, device=device)


def test_the_block_size_of_a_bsr_is_a_candidate():
    """Blocks of 5, which are no candidate otherwise."""
    n = 400
    indices = (np.arange(n)[:, None] + np.arange(8)).ravel() % n
    S = scipy.sparse.bsr_array((np.ones((8 * n, 5, 5), np.float32), indices, np.arange(0, 8 * n + 1, 8)), shape=(5 * n, 5 * n))
    A = cvrarray.asarray(S, device="cpu")
    assert (A.format, A.block_size, A.nnz) == ("bbcsr", 5, S.nnz)
    assert "5 x 5 blocks hold 1.00" in A.plan


def test_a_place_that_is_named_very_often(device):
    """Terms are kept one after the other where 32 slots have very different numbers of them; the sums are the same."""
    rng = np.random.default_rng(0)
    index = rng.permutation(np.r_[np.zeros(5000, int), np.arange(900)])
    values = rng.random(index.size)
    A = cvrarray.Assembly(put(index, device), put(index, device))(put(values, device))
    expected = np.zeros(900)
    for place, value in zip(index, values, strict=True):
        expected[place] += value
    np.testing.assert_array_equal(get(A.diagonal()), expected)
