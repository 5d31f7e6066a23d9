"""``A @ X`` for dense X, and ``A @ B`` for sparse B, against NumPy on the dense array and against the oracle."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from checks import (
    DEFAULTS,
    ONE_OF_EACH,
    TYPICAL,
    assert_product,
    assert_same_bits,
    autotune_at,
    captured,
    get,
    in_turn,
    put,
)

import cvrarray
from cvrarray.array.transposed import TransposedArray
from cvrarray.core import devices, matmat_kernels
from cvrarray.core.candidates import asked_for

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
TYPICAL_BUILDS = pytest.mark.parametrize("build", TYPICAL, ids=str)
NAMES = [name for name in zoo.ZOO if np.prod(zoo.ZOO[name]().shape) < 100_000][::3]
VARIED = ["rows_of_mixed_length", "explicit_zeros_beside_holes", "one_dense_row", "many_empty_rows_between"]


def matrix(n_rows, n_cols, dtype=np.float64, order="C", seed=4):
    """Small integers, as zoo.vector's."""
    return np.asarray(zoo.vector(n_rows * n_cols, dtype, seed).reshape(n_rows, n_cols), order=order)


def on(device, x):
    """`x` on the device in its own order (a copy to a GPU keeps it)."""
    return put(x, device)


# Dense X


@TYPICAL_BUILDS
@pytest.mark.parametrize("name", NAMES)
def test_layouts_of_lanes_and_columns(build, name, gpu):
    """test_products has all of them with one number of columns."""
    csr = zoo.integers(name, np.float64)
    A = build(csr, gpu)
    for k in (3, 8, 36, 70):
        x = matrix(csr.shape[1], k)
        np.testing.assert_array_equal(get(A @ put(x, gpu)), csr.toarray() @ x)


@in_turn("k, build", [0, 1, 2, 5, 8, 17, 64, 130], ONE_OF_EACH)
def test_any_number_of_columns(build, k, device):
    csr = zoo.floats("power_law", np.float32)
    x = zoo.float_vector(csr.shape[1] * k, np.float32).reshape(csr.shape[1], k)
    A = build(csr, device)
    y = A @ put(x, device)
    assert y.flags.c_contiguous
    assert_product(y, csr, x)
    assert_same_bits(A @ put(x, device), y)


#: How ``A @ X`` shares the rows of a matrix as small as these, by what it takes for few and for many.
SHARINGS = {
    "one group a row": {"ENOUGH_THREADS": (0, 0)},
    "many groups a row": {"ENOUGH_THREADS": (1 << 20,) * 2},
    "a thread block a row": {"LEAST_LONG": (0, 0), "LONG_FACTOR": 0},
    "a thread block a long row": {"LEAST_LONG": (6, 2), "LONG_FACTOR": 0},
    "pieces of rows": {"LEAST_LONG": (0, 0), "LONG_FACTOR": 0, "PIECE_ROUNDS": 0},
    "pieces of long rows": {"LEAST_LONG": (6, 2), "LONG_FACTOR": 0, "PIECE_ROUNDS": 0},
    "turns": {
        "ENOUGH_THREADS": (0, 0),
        "ENOUGH_TILES": (0, 0),
        "MOST_OF_TURNS": 1 << 20,
    },
    "several blocks together": {"LONG_ENOUGH": 0},
    "shares": {"UNEVEN": 0, "UNEVEN_FROM": 0, "UNEVEN_WARPS": 1 << 10, "ROUNDS": (2, 4)},
    "shares and pieces": {"UNEVEN": 0, "UNEVEN_FROM": 0, "UNEVEN_WARPS": 1 << 10, "ROUNDS": (1,)},
    "block rows in turn": {"UNEVEN": 0, "UNEVEN_FROM": 0, "MOST_SHARES": 0, "ROUNDS": (1,)},
}


def share(monkeypatch, how):
    from cvrarray.gpu import bbcsr_matmat, uneven_rows

    if how == "turns":
        monkeypatch.setenv("CVRARRAY_KERNEL", how)
    for name, value in SHARINGS[how].items():
        (module,) = (module for module in (bbcsr_matmat, matmat_kernels, uneven_rows) if hasattr(module, name))
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize(
    ("how", "block_size", "dtype"),
    [
        ("one group a row", 1, "float32"),
        ("one group a row", 1, "int8"),
        ("many groups a row", 1, "float64"),
        ("a thread block a row", 1, "float64"),
        ("a thread block a long row", 1, "complex128"),
        ("pieces of rows", 1, "float32"),
        ("pieces of long rows", 1, "float64"),
        ("several blocks together", 2, "float32"),
        ("several blocks together", 3, "complex64"),
        ("several blocks together", 3, "float64"),
        ("shares", 3, "float64"),
        ("shares and pieces", 3, "float32"),
        ("shares and pieces", 2, "complex128"),
        ("block rows in turn", 6, "float32"),
        ("turns", 1, "float32"),
        ("turns", 1, "complex128"),
        ("pieces of rows", 12, "float64"),
        ("pieces of long rows", 12, "int8"),
        ("turns", 12, "int8"),
        ("turns", 12, "float32"),
    ],
)
def test_layouts_of_rows(how, block_size, dtype, gpu, monkeypatch):
    """X has entries that no product may touch: those of columns without a nonzero, and, for padding, of the rows that
    have one.
    """
    share(monkeypatch, how)
    for name in (*VARIED, "blocks_over_the_edge", "wide_blocks_over_the_edge", "power_law", "narrow_and_wide_tiles"):
        csr = zoo.integers(name, dtype)
        for k in (1, 3, 5, 6, 7, 8, 9, 12, 16, 20, 28, 32, 33, 36, 64, 65, 72, 128, 140, 256, 300):
            x = matrix(csr.shape[1], k, dtype)
            if x.dtype.kind in "fc":
                x[np.diff(csr.tocsc().indptr) == 0] = np.nan
            out = put(np.full((csr.shape[0], k), 3, dtype), gpu)
            cvrarray.BBCSRArray(csr, block_size=block_size, device=gpu).matmat(put(x, gpu), out=out, beta=2)
            np.testing.assert_array_equal(get(out), (csr @ x).astype(dtype) + np.asarray(6, dtype), f"{name}, {k} columns")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_candidates_give_the_same_bits(dtype, gpu, monkeypatch):
    """Every kernel and layout that may multiply, also with values in few bytes. X has nan where no product may touch it."""
    from cvrarray.gpu import bbcsr_matmat, distinct

    share(monkeypatch, "one group a row")
    monkeypatch.setattr(bbcsr_matmat, "ENOUGH_TILES", (0, 0))
    monkeypatch.setattr(distinct, "LEAST_BYTES", 0)
    names = set()
    for name in (*VARIED, "power_law", "narrow_and_wide_tiles", "tridiagonal_33"):
        csr = zoo.floats(name, dtype) if np.dtype(dtype).kind in "fc" else zoo.integers(name, dtype)
        for values in ("plain", "auto"):
            A = cvrarray.BBCSRArray(csr, block_size=1, device=gpu, values=values)
            t = A._tables
            for k in (1, 2, 3, 5, 7, 8, 12, 16, 24, 32, 33, 36, 64, 72, 100, 128, 256):
                x = zoo.float_vector(csr.shape[1] * k, dtype) if csr.dtype.kind in "fc" else zoo.vector(csr.shape[1] * k, dtype)
                x = x.reshape(-1, k)
                if x.dtype.kind in "fc":
                    x[np.diff(csr.tocsc().indptr) == 0] = np.nan
                    x[:, 0] *= -np.finfo(dtype).tiny * 1e-6  # whose products may be -0
                on_gpu, y = put(x, gpu), None
                width = bbcsr_matmat.matrix_width(k, on_gpu, on_gpu)
                of = bbcsr_matmat.Asked(t, bbcsr_matmat.Lengths(t), np.dtype(dtype), k, width)
                for way, make in bbcsr_matmat.candidates(of).items():
                    out = put(np.full((csr.shape[0], k), 77, dtype), gpu)
                    make().of(bbcsr_matmat.as_struct(t), k)(on_gpu, out, np.dtype(dtype).type(1), np.dtype(dtype).type(0))
                    y = out if y is None else y
                    assert_same_bits(out, y)
                    names.add(way)
                assert_product(y[:, 1:3], csr, x[:, 1:3])
    expected = {"rows 1x1", "rows 1x3", "rows 4x1", "rows 8x1", "rows 8x4", "rows 16x4", "rows 32x2", "turns"}
    assert names >= expected | ({"walk"} if has_walks(dtype) else set())


def test_arrays_without_nonzeros_have_candidates(gpu):
    from cvrarray.gpu import bbcsr_matmat

    for n_rows in (100, 20_000):
        A = cvrarray.BBCSRArray(scipy.sparse.csr_array((n_rows, 1000), dtype=np.float32), block_size=1, device=gpu)
        y = A @ put(np.ones((1000, 64), np.float32), gpu)
        assert not get(y).any()
        of = bbcsr_matmat.Asked(A._tables, bbcsr_matmat.Lengths(A._tables), np.dtype(np.float32), 64, 4)
        assert "walk" not in bbcsr_matmat.candidates(of)


def has_walks(dtype):
    from cvrarray.gpu import properties

    return properties.has_copy_engine() and dtype in ("float32", "float64")


def test_layouts_fit_a_row_of_x():
    """What ``kernels/bbcsr_matmat_rows.cu`` requires: a tile is no wider than X, but for the last vectors of a single tile."""
    bbcsr_matmat = pytest.importorskip("cvrarray.gpu.bbcsr_matmat", reason="needs CuPy")
    for n_vectors in range(1, 300):
        few, many = (bbcsr_matmat.rows_layouts(n_vectors, n) for n in (1000, 100_000))
        assert set(few) == set(many)
        assert len(set(few)) == len(few) <= 4
        for lanes, vectors in few:
            assert lanes in (1, 2, 4, 8, 16, 32)
            assert vectors <= bbcsr_matmat.MOST_VECTORS
            assert vectors == 1 or n_vectors > (vectors - 1) * lanes
            assert n_vectors >= vectors * lanes or n_vectors <= vectors * lanes < n_vectors + lanes


@pytest.mark.parametrize("measures", ["1", "0"])
def test_the_fastest_is_measured_once(measures, gpu, monkeypatch):
    """At the product that the plan says, but not in a capture. Other arrays of the structure know it."""
    from cvrarray.gpu import plan

    monkeypatch.setenv("CVRARRAY_MEASURE", measures)
    autotune_at(monkeypatch, 3)
    timed = []
    seconds = plan._milliseconds
    monkeypatch.setattr(plan, "_milliseconds", lambda call: timed.append(call) or seconds(call))
    csr = cvrarray.generate.poisson7(40, np.float32)
    A, x = cvrarray.BBCSRArray(csr, block_size=1, device=gpu), put(matrix(csr.shape[1], 64, np.float32), gpu)
    y = A @ x
    assert_same_bits(A @ x, y)
    out = put(np.zeros(y.shape, y.dtype), gpu)
    graph = captured(lambda: A.matmat(x, out=out))
    assert not timed
    assert_same_bits(A @ x, y)
    assert (len(timed) > 1) == (measures == "1")
    n = len(timed)
    graph.launch()
    assert_same_bits(out, y)
    assert_same_bits(A @ x, y)
    B = A.with_values(A.data * 2)
    for _ in range(4):
        np.testing.assert_array_equal(get(B @ x), 2 * get(y))
    assert len(timed) == n


def test_kernels_by_name(monkeypatch):
    """CVRARRAY_KERNEL names those that take part, or with a minus sign those that do not; a name of none is no limit."""
    names = ["rows 8x4", "rows 8x1", "walk"]
    expected = {"walk": [2], "rows": [0, 1], "-walk": [0, 1], "-rows": [2], "turns": [0, 1, 2], "": [0, 1, 2]}
    for wanted, left in expected.items():
        monkeypatch.setenv("CVRARRAY_KERNEL", wanted)
        assert asked_for(names) == [names[k] for k in left], wanted


def arrow(n, size, dtype, seed=3):
    """Blocks on the diagonal, and two block rows and block columns that are full: a Hessian whose cameras see all points."""
    ends = np.repeat([0, n // 2], n), np.tile(np.arange(n), 2)
    row, col = (np.concatenate([ends[side], ends[1 - side], np.arange(n)]) for side in (0, 1))
    graph = scipy.sparse.coo_array((np.ones(row.size), (row, col)), shape=(n, n)).tocsr()
    blocks = scipy.sparse.kron(graph, np.ones((size, size)), format="csr")
    blocks.data = zoo.vector(blocks.nnz, dtype, seed)
    return scipy.sparse.csr_array(blocks)


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "float64"), (2, "float32"), (3, "float64"), (6, "float32"), (8, "complex64"), (12, "float32")]
)
def test_rows_of_many_pieces(size, dtype, gpu):
    """A very long row has several thread blocks, which meet in the same order in every run, also in a graph."""
    import cupy

    n = 2000
    csr = arrow(n, size, dtype)
    A = cvrarray.BBCSRArray(csr, block_size=size, device=gpu)
    for k in (2, 4, 16, 33):
        x = matrix(csr.shape[1], k, dtype)
        out = put(np.full((csr.shape[0], k), 3, dtype), gpu)
        A.matmat(put(x, gpu), out=out, beta=2)
        np.testing.assert_array_equal(get(out), csr @ x + np.asarray(6, dtype), f"{k} columns")
    x = put(zoo.float_vector(csr.shape[1] * 16, dtype).reshape(-1, 16), gpu)
    csr.data = zoo.float_vector(csr.nnz, dtype)
    A = cvrarray.BBCSRArray(csr, block_size=size, device=gpu)
    y = A @ x
    assert_product(y[:, :2], csr, get(x)[:, :2])
    for _ in range(5):
        assert_same_bits(A @ x, y)
    stream, again = cupy.cuda.Stream(non_blocking=True), cupy.empty_like(y)
    with stream:
        A.matmat(x, out=again)
        stream.begin_capture()
        A.matmat(x, out=again)
        graph = stream.end_capture()
        for _ in range(3):
            again.fill(0)
            graph.launch()
            assert_same_bits(again, y)


@pytest.mark.small
@pytest.mark.parametrize(
    ("how", "size"),
    [("many groups a row", 1), ("pieces of rows", 1), ("shares and pieces", 3), ("pieces of rows", 12)],
)
def test_rows_in_pieces(how, size, gpu, monkeypatch):
    """What compute-sanitizer watches of them."""
    share(monkeypatch, how)
    csr = arrow(60, size, np.float32)
    for k in (4, 5, 33, 64):
        x = matrix(csr.shape[1], k, np.float32)
        out = put(np.full((csr.shape[0], k), np.nan, np.float32), gpu)
        np.testing.assert_array_equal(
            get(cvrarray.BBCSRArray(csr, block_size=size, device=gpu).matmat(put(x, gpu), out=out)), csr @ x
        )


@TYPICAL_BUILDS
def test_more_tiles_of_columns_than_a_grid_has_in_y(build, gpu, monkeypatch):
    """z counts further ones, and the last of these may lie beyond all columns."""
    from cvrarray.gpu import launches

    monkeypatch.setattr(launches, "MOST_IN_Y", 2)
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    for k in (100, 321):
        x, before = matrix(csr.shape[1], k), matrix(csr.shape[0], k, seed=9)
        out = put(before.copy(), gpu)
        build(csr, gpu).matmat(put(x, gpu), out=out, beta=2)
        np.testing.assert_array_equal(get(out), csr.toarray() @ x + 2 * before)


def test_chunks_for_many_columns(gpu):
    """Wide X has fewer and longer chunks, where the device has enough blocks without them."""
    from cvrarray.input import coercion

    csr = zoo.integers("power_law", np.float32)
    on_gpu = coercion.as_csr(cvrarray.CVRArray(csr, device=gpu).tocsr())
    default = cvrarray.CVRArray(csr, device=gpu).n_chunks
    assert cvrarray.CVRArray._for_columns(on_gpu, 1) == {}
    for k in (12, 1 << 15):
        found = cvrarray.CVRArray._for_columns(on_gpu, k)
        n_chunks = found["n_chunks"]
        assert found["split"] == cvrarray.CVRArray._for_conversion(on_gpu, devices.of(on_gpu.data))["split"]
        assert 1 <= n_chunks <= default
        assert k == 12 or n_chunks < default
        x = matrix(csr.shape[1], k, np.float32)
        y = cvrarray.CVRArray(csr, n_chunks=n_chunks, device=gpu) @ put(x, gpu)
        np.testing.assert_array_equal(get(y), csr @ x)
    assert cvrarray.asarray(csr, format="cvr", device=gpu, columns=1 << 15).n_chunks == n_chunks
    assert cvrarray.asarray(csr, format="cvr", device=gpu, columns=1 << 15, n_lanes=32).n_chunks == default
    A = cvrarray.asarray(csr, device=gpu, columns=64)
    np.testing.assert_array_equal(get(A @ put(x[:, :64], gpu)), csr @ x[:, :64])


@pytest.fixture
def rechunked(monkeypatch):
    """The longer chunks that were made, on what counts as a small device."""
    from cvrarray.gpu import cvr_matmat

    made = []

    class Recorded(cvr_matmat.Rechunked):
        def __init__(self, *of):
            super().__init__(*of)
            made.append(self)

    monkeypatch.setattr(cvr_matmat, "Rechunked", Recorded)
    monkeypatch.setattr(cvr_matmat, "processors", lambda: 1)
    return made


@pytest.mark.small
@pytest.mark.parametrize(("dtype", "values"), [("float32", "any"), ("float64", "one"), ("int8", "few"), ("complex128", "any")])
def test_longer_chunks_for_wide_products(dtype, values, gpu, rechunked):
    """From 4 columns on, without being asked for; X has entries that no product may touch."""
    for name in (*VARIED, "power_law", "many_empty_rows_between"):
        csr = zoo.integers(name, dtype)
        if values != "any":
            csr.data[:] = 3 + np.arange(csr.nnz) % (1 if values == "one" else 5)
        A = cvrarray.CVRArray(csr, n_chunks=max(1, min(100, csr.nnz)), device=gpu)
        del rechunked[:]
        for k in (3, 4, 7, 8, 16, 36, 64, 130):
            x = matrix(csr.shape[1], k, dtype)
            if x.dtype.kind in "fc":
                x[np.diff(csr.tocsc().indptr) == 0] = np.nan
            np.testing.assert_array_equal(get(A @ put(x, gpu)), (csr @ x).astype(dtype), f"{name}, {k} columns")
            assert k >= 4 or not rechunked
        sizes = [made.tables.carry_row.size for made in rechunked]
        assert sizes == sorted(sizes, reverse=True)
        assert all(size < A.n_chunks for size in sizes)
        assert name != "power_law" or len(sizes) >= 2


LONG_ROWS = {"tall": (700, 9, 0.6), "long rows": (110, 320, 0.97), "middle": (500, 150, 0.2), "one column": (130, 1, 0.8)}


@pytest.mark.small
@pytest.mark.parametrize(
    ("dtype", "values", "n_lanes"),
    [("float32", "any", 32), ("float64", "few", 5), ("complex64", "one", 1), ("float32", "one", 32), ("int8", "any", 24)],
)
@pytest.mark.parametrize("name", LONG_ROWS)
def test_long_rows(name, dtype, values, n_lanes, gpu, monkeypatch):
    """Of A, or of X alone; chunks are long or many, and cut rows; X has entries not to be touched. Both ways alike."""
    n_rows, n_cols, density = LONG_ROWS[name]
    rng = np.random.default_rng(3)
    full = rng.integers(1, {"any": 9, "few": 4, "one": 2}[values], (n_rows, n_cols)).astype(dtype)
    full[rng.random(full.shape) > density] = 0
    full[n_rows // 3 : n_rows // 2] = full[:, n_cols // 3 : n_cols // 2] = 0
    csr = scipy.sparse.csr_array(full)
    least = 512 // csr.dtype.itemsize
    for n_chunks in (1, 3, 90):
        A, B = (cvrarray.CVRArray(csr, n_lanes=n_lanes, n_chunks=n_chunks, split="even", device=gpu) for _ in range(2))
        for k in (least // 4, least // 2 + 2, least, least + 2, 2 * least + 3):
            x = matrix(n_cols, k, dtype)
            exact = full @ x
            if x.dtype.kind in "fc":
                x[np.diff(csr.tocsc().indptr) == 0] = np.nan
            monkeypatch.setenv("CVRARRAY_KERNEL", "groups")
            y = A @ put(x, gpu)
            np.testing.assert_array_equal(get(y), exact, f"{n_chunks} chunks, {k} columns")
            monkeypatch.setenv("CVRARRAY_KERNEL", "long rows")
            assert_same_bits(y, B @ put(x, gpu))
            before = matrix(n_rows, k, dtype, seed=7)
            for way, alpha, beta in ((A, 2, 0), (A, -1, 3), (B, -1, 3)):
                out = put(before, gpu)
                way.matmat(put(x, gpu), out=out, alpha=alpha, beta=beta)
                np.testing.assert_array_equal(get(out), (alpha * exact + beta * before).astype(dtype))


@pytest.mark.parametrize(
    ("k", "mean", "n_chunks", "expected"),
    [(31, 30, 1, [False]), (32, 12, 1, [True, False]), (32, 11, 1, [False, True]), (32, 12, 900, [False, True])],
)
def test_which_ways_chunks_have(k, mean, n_chunks, expected, monkeypatch):
    """From 128 bytes of a row of X on two, first that for long rows where rows of A are long, and chunks not too many."""
    pytest.importorskip("cupy")
    from cvrarray.gpu import cvr_matmat

    monkeypatch.setattr(cvr_matmat, "processors", lambda: 132)
    monkeypatch.setattr(cvr_matmat, "attribute", lambda name: 50 << 20)
    of = cvr_matmat.Kind((1000, 1000), 1000 * mean, 32, np.dtype(np.float32))
    assert [how.is_long for how in cvr_matmat.candidates(k, 1, of, n_chunks)] == expected


@pytest.mark.parametrize("columns", [16, 48, 256])
def test_chunks_that_were_asked_for_stay(columns, gpu, rechunked):
    from cvrarray.input import coercion

    csr = zoo.integers("power_law", np.float32)
    A = cvrarray.CVRArray(csr, device=gpu)
    n_chunks = A._for_columns(coercion.as_csr(A.tocsr()), columns)["n_chunks"]
    x = matrix(csr.shape[1], columns, np.float32)
    np.testing.assert_array_equal(get(cvrarray.CVRArray(csr, n_chunks=n_chunks, device=gpu) @ put(x, gpu)), csr @ x)
    assert not rechunked


def test_longer_chunks_get_new_values(gpu, rechunked):
    """And are found once for all values."""
    csr = zoo.floats("power_law", np.float32)
    x = put(zoo.float_vector(csr.shape[1] * 16, np.float32).reshape(-1, 16), gpu)
    A = cvrarray.CVRArray(csr, n_chunks=100, device=gpu)
    first = A @ x
    for factor in (1, 4):  # a power of two, above 0: a row without entries gives 0.0, and not -0.0
        assert A.with_values(put(factor * csr.data, gpu), out=A) is A
        assert_same_bits(A @ x, factor * first)
    assert len(rechunked) == 1
    for factor in (4, 8):
        assert_same_bits(A.with_values(put(factor * csr.data, gpu)) @ x, factor * first)
    assert len(rechunked) == 3 and len({id(made.tables.step_ptr) for made in rechunked}) == 1


def test_longer_chunks_short_of_memory(gpu, rechunked, monkeypatch):
    import cupy

    from cvrarray.gpu import cvr

    def convert(*of):
        raise cupy.cuda.memory.OutOfMemoryError(1 << 40, 1 << 40)

    csr = zoo.integers("power_law", np.float32)
    A = cvrarray.CVRArray(csr, n_chunks=100, device=gpu)
    monkeypatch.setattr(cvr, "convert", convert)
    with pytest.raises(MemoryError, match=r"columns=k"):
        A @ put(matrix(csr.shape[1], 16, np.float32), gpu)


def test_rows_of_x_that_are_too_long_for_cvr(gpu, monkeypatch):
    from cvrarray.gpu import cvr_matmat

    monkeypatch.setattr(cvr_matmat, "MOST_ROW_BYTES", 100)
    A = cvrarray.CVRArray(np.eye(4), device=gpu)
    assert (A @ put(np.ones((4, 12)), gpu)).shape == (4, 12)
    with pytest.raises(ValueError, match="at most 12 columns of float64; got 13"):
        A @ put(np.ones((4, 13)), gpu)


@pytest.mark.parametrize("how", SHARINGS)
def test_padding_does_not_touch_x(how, gpu, monkeypatch):
    """nan and inf in rows of X stay in the rows of A that need them."""
    share(monkeypatch, how)
    csr = zoo.integers("rows_of_mixed_length", np.float32)
    for k in (4, 16, 64):
        x = matrix(csr.shape[1], k, np.float32)
        x[csr.indices[csr.indptr[:-1][np.diff(csr.indptr) > 0]]] = np.inf
        x[::5] = np.nan
        for block_size in (1, 12):
            y = cvrarray.BBCSRArray(csr, block_size=block_size, device=gpu) @ put(x, gpu)
            np.testing.assert_array_equal(np.isfinite(get(y)), np.isfinite(csr @ x))


@TYPICAL_BUILDS
def test_values_that_are_all_infinite(build, device):
    """Where one value stands for all, padding has no 0 of its own."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    csr.data[:] = np.inf
    for k in (4, 70):
        x = np.abs(matrix(csr.shape[1], k)) + 1
        np.testing.assert_array_equal(get(build(csr, device) @ put(x, device)), csr @ x)


@BUILD
def test_any_order_and_stride(build, device):
    """What lies between the numbers of X is not read; ``A.T @ X`` without tables multiplies the columns one by one."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A, n = build(csr, device), csr.shape[1]
    view = TransposedArray.once(build(csr.T.tocsr(), device))
    base, apart = put(matrix(2 * n, 12), device), np.full((24, n + 5), np.nan)
    apart[::2, 3 : n + 3] = matrix(12, n)
    for x in (base[:n], base[::2], base[:n, ::3], base[n - 1 :: -1], base[:n, ::-1], base.T[:, :n].T, base[:n].T.copy().T,
              put(apart, device)[::2, 3 : n + 3].T, put(matrix(12, n), device).T):  # fmt: skip
        for multiply in (A, view):
            np.testing.assert_array_equal(get(multiply @ x), csr.toarray() @ get(x))


def test_a_structure_is_looked_at_once(gpu, monkeypatch):
    """By products with a vector and with matrices in either order, and by arrays that differ in their values."""
    from cvrarray.gpu import bbcsr_lengths

    looked, aside = [], bbcsr_lengths.aside
    monkeypatch.setattr(bbcsr_lengths, "aside", lambda: looked.append("lengths") or aside())
    csr = cvrarray.generate.stencil27(16)
    x = put(matrix(csr.shape[1], 4), gpu)
    A = cvrarray.BBCSRArray(csr, block_size=1, device=gpu)
    for array in (A, A.with_values(put(2 * csr.data, gpu))):
        for given in (x[:, 0].copy(), x, put(get(x).T.copy(), gpu).T):
            array @ given
    assert looked == ["lengths"]


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "float64", "complex128"])
def test_fortran_order_becomes_c_order(dtype, device):
    """Tiles of every shape, whole ones and those at the edges: the same numbers in other places."""
    order = devices.parse(device).backend("order")
    for n_rows, n_cols in ((2, 2), (7, 300), (63, 33), (64, 32), (257, 3), (300, 17), (1000, 65), (2, 5000), (5000, 2)):
        x = matrix(n_rows, n_cols, order="F").astype(dtype)
        given = put(x.T.copy(), device).T
        found = order.c_order(given)
        assert found.flags.c_contiguous and not given.flags.c_contiguous
        np.testing.assert_array_equal(get(found), x)
        out = put(np.zeros_like(x, order="C"), device)
        assert order.c_order(given, out) is out
        np.testing.assert_array_equal(get(out), x)


@TYPICAL_BUILDS
@pytest.mark.parametrize("k", [2, 5, 70])
def test_a_copy_of_fortran_order_gives_the_bits_of_c_order(build, k, device):
    csr = zoo.floats("rows_of_mixed_length", np.float64)
    A, x = build(csr, device), zoo.float_vector(csr.shape[1] * k).reshape(-1, k)
    expected = get(A @ put(x, device))
    columns = put(x.T.copy(), device).T
    assert_same_bits(get(A @ columns), expected)
    out = put(np.full((k, csr.shape[0]), np.nan), device).T
    assert A.matmat(columns, out=out) is out
    assert_same_bits(get(out), expected)


@BUILD
def test_infinite_alpha(build, device):
    """alpha multiplies sums, also those of rows without entries: inf * 0 is nan, on every device."""
    csr = zoo.integers("many_empty_rows_between", np.float64)
    A, x = build(csr, device), zoo.vector(csr.shape[1])
    for alpha in (np.inf, np.nan):
        with np.errstate(invalid="ignore"):
            expected = alpha * (csr @ x)
            np.testing.assert_array_equal(get(A.matvec(put(x, device), alpha=alpha)), expected)
            many = get(A.matmat(put(np.stack([x, x], 1), device), alpha=alpha))
            np.testing.assert_array_equal(many, np.stack([expected, expected], 1))


@BUILD
def test_every_spelling(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A, x = build(csr, device), put(matrix(csr.shape[1], 3), device)
    expected = csr.toarray() @ get(x)
    spellings = [
        operator.matmul(A, x),
        np.matmul(A, x),
        np.dot(A, x),
        np.dot(a=A, b=x),
        A.dot(x),
        A.matmat(x),
        np.tensordot(A, x, 1),
        np.tensordot(A, x, ([1], [0])),
        np.tensordot(A, x, axes=(1, 0)),
        np.einsum("ij,jk->ik", A, x),
        np.einsum("ab, bc", A, x),
        np.einsum("ji,ik->jk", A, x),
        np.einsum("ij,jk->ki", A, x).T,
        np.einsum("jk,ij->ik", x, A),
        np.inner(A, x.T),
        np.linalg.matmul(A, x),
        A.aslinearoperator() @ x,
    ]
    for y in spellings:
        np.testing.assert_array_equal(get(y), expected)
        assert devices.of(y) == devices.parse(device)


def test_x_of_other_kinds():
    """Nested lists and subclasses of ndarray are taken as NumPy takes them; np.matrix counts as an array."""
    csr = zoo.integers("tridiagonal_31", np.float64)
    x = matrix(31, 2)
    for build in DEFAULTS:
        A = build(csr)
        np.testing.assert_array_equal(A @ x.tolist(), csr.toarray() @ x)
        np.testing.assert_array_equal(A @ x.view(type("Mine", (np.ndarray,), {})), csr.toarray() @ x)
        np.testing.assert_array_equal(A @ x.astype(">f8"), csr.toarray() @ x)
        with pytest.raises(TypeError, match=r"masked.*filled"):
            A @ np.ma.masked_array(x, x > 2)


def test_memmap_out_is_returned(tmp_path):
    csr = zoo.integers("tridiagonal_31", np.float64)
    x = matrix(31, 2)
    for build in DEFAULTS:
        vector = np.memmap(tmp_path / "y", np.float64, "w+", shape=31)
        assert build(csr).matvec(x[:, 0], out=vector) is vector
        np.testing.assert_array_equal(vector, csr @ x[:, 0])
        many = np.memmap(tmp_path / "z", np.float64, "w+", shape=(31, 2))
        assert build(csr).matmat(x, out=many) is many
        np.testing.assert_array_equal(many, csr @ x)


WRONG = [
    ("too few rows", np.ones((3, 2)), {}, ValueError, r"x.*length 4.*\(3, 2\)"),
    ("too many rows", np.ones((5, 2)), {}, ValueError, r"x.*length 4.*\(5, 2\)"),
    ("a vector", np.ones(4), {}, TypeError, r"2-D.*\(4,\)"),
    ("3-D", np.ones((4, 2, 2)), {}, TypeError, r"2-D.*\(4, 2, 2\)"),
    ("out of another length", np.ones((4, 2)), {"out": np.ones((2, 2))}, ValueError, r"out.*\(3, 2\).*\(2, 2\)"),
    ("out of another width", np.ones((4, 2)), {"out": np.ones((3, 1))}, ValueError, r"out.*\(3, 2\).*\(3, 1\)"),
    ("out a vector", np.ones((4, 2)), {"out": np.ones(3)}, TypeError, r"out.*2-D.*\(3,\)"),
    ("out of integers", np.ones((4, 2)), {"out": np.ones((3, 2), int)}, TypeError, "out.*float64.*int64"),
    ("beta without out", np.ones((4, 2)), {"beta": 2}, ValueError, "beta.*out"),
    ("alpha complex", np.ones((4, 2)), {"alpha": 1j}, TypeError, "alpha.*float64"),
]


@BUILD
@pytest.mark.parametrize(("x", "keywords", "error", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_refused(build, x, keywords, error, words, device):
    A = build(scipy.sparse.csr_array(np.arange(12.0).reshape(3, 4)), device)
    keywords = {name: put(value, device) if name == "out" else value for name, value in keywords.items()}
    with pytest.raises(error, match=words):
        A.matmat(put(x, device), **keywords)


@BUILD
def test_stacks_of_matrices(build, device):
    """As NumPy multiplies them: each matrix of the stack."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    x = np.stack([matrix(csr.shape[1], 4, seed=seed) for seed in (4, 5)])
    np.testing.assert_array_equal(get(build(csr, device) @ put(x, device)), csr.toarray() @ x)


# Sparse B


def sparse_kinds(csr, device):
    """The same matrix in every class that may stand on the other side on the CPU; on a GPU in ours and cupyx's."""
    ours = [build(csr, device) for build in DEFAULTS]
    views = [build(csr.T.tocsr(), device).T for build in DEFAULTS]
    if device != "cpu":
        import cupyx.scipy.sparse

        return [*ours, *views, ours[0].tocsr(), cupyx.scipy.sparse.csc_matrix(ours[0].tocsr())]
    coo = sparse.COO.from_scipy_sparse(csr)
    return [*ours, *views, csr, csr.tocsc(), csr.tocoo(), scipy.sparse.csr_matrix(csr), coo, coo.asformat("gcxs")]


@TYPICAL_BUILDS
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_sparse_times_sparse(build, dtype, device):
    left, right = zoo.integers("banded_stencil", dtype), zoo.integers("banded_stencil", dtype).T.tocsr()
    A = build(left, device)
    expected = left.toarray() @ right.toarray()
    for B in sparse_kinds(right, device):
        product = A @ B
        assert type(product) is type(A)
        assert (product.dtype, product.device) == (expected.dtype, A.device)
        product.check()
        np.testing.assert_array_equal(get(product.todense()), expected)
        if type(B).__module__.startswith(("scipy", "cupyx")):  # pydata/sparse answers itself, and fails
            np.testing.assert_array_equal(get(np.matmul(B, A).todense()), right.toarray() @ left.toarray())


@BUILD
def test_parameters_of_the_left_array_are_kept(build):
    A = cvrarray.CVRArray(np.eye(8), n_lanes=4) @ build(np.eye(8))
    assert isinstance(A, cvrarray.CVRArray)
    assert A.n_lanes == 4
    assert (cvrarray.BBCSRArray(np.eye(8), block_size=2) @ build(np.eye(8))).block_size == 2


@BUILD
def test_sparse_product_as_csr(build, device):
    csr = zoo.integers("banded_stencil", np.float64)
    A = build(csr, device)
    found = A.dot(A, format="csr")
    assert type(found).__module__.startswith("scipy" if device == "cpu" else "cupyx")
    np.testing.assert_array_equal(get(found.toarray()), csr.toarray() @ csr.toarray())
    with pytest.raises(ValueError, match=r"format.*'coo'"):
        A.dot(A, format="coo")


def test_sparse_product_on_a_stream(gpu):
    """cuSPARSE multiplies on the current stream, behind what that is asked to do before."""
    import cupy

    rng = np.random.default_rng(5)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        busy = cupy.ones((2000, 2000))
        for _ in range(20):
            csr = scipy.sparse.random_array(rng.integers(2, 300, 2)[[0, 0]], density=0.05, format="csr", rng=rng)
            expected = (csr @ csr).toarray()
            A = cvrarray.CVRArray(csr, device=gpu)
            busy @ busy
            np.testing.assert_allclose((A @ A).todense().get(), expected)
        stream.synchronize()


def test_sparse_product_after_a_stream_that_is_gone(gpu):
    """CuPy lets cuSPARSE multiply on the stream that it was used on last."""
    import cupy
    from cupy_backends.cuda.libs import cusparse

    A = cvrarray.CVRArray(zoo.integers("banded_stencil", np.float64), device=gpu)
    handle = cupy.cuda.device.get_cusparse_handle()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        A.T.copy()
        stream.synchronize()
        assert cusparse.getStream(handle) == 0
        cusparse.setStream(handle, stream.ptr)  # as other calls leave it
    del stream
    np.testing.assert_array_equal((A @ A).todense().get(), A.todense().get() @ A.todense().get())
    assert cusparse.getStream(handle) == 0


def test_sparse_product_by_panels(gpu, monkeypatch):
    """cuSPARSE counts terms in 32 bits: here as if in few."""
    from cvrarray.gpu import sparse_product

    for name in ("banded_stencil", "rows_of_mixed_length", "many_empty_rows_between", "one_dense_row", "all_rows_empty"):
        csr = zoo.integers(name, np.float64)
        A = cvrarray.CVRArray(csr, device=gpu)
        for most in (1, 40, 3000):
            monkeypatch.setattr(sparse_product, "MOST_TERMS", most)
            found = (A @ A.T).to_scipy()
            np.testing.assert_array_equal(found.toarray(), (csr @ csr.T).toarray())
            assert found.has_canonical_format


def test_integers_on_a_gpu(gpu):
    A = cvrarray.CVRArray(zoo.integers("tridiagonal_33", np.int64), device=gpu)
    with pytest.raises(TypeError, match=r"astype.*to_device"):
        A @ A


@BUILD
def test_sparse_shapes(build, device):
    A = build(np.ones((3, 4)), device)
    with pytest.raises(ValueError, match=r"\(3, 4\) and \(3, 4\)"):
        A @ A
    assert (A @ A.T).shape == (3, 3)
    assert (build(np.ones((0, 4)), device) @ A.T).shape == (0, 3)
    assert (A @ build(np.zeros((4, 0)), device)).shape == (3, 0)


def test_on_two_devices(gpu):
    A = cvrarray.CVRArray(np.eye(4))
    with pytest.raises(TypeError, match="one device"):
        A @ A.to_device(gpu)
    with pytest.raises(TypeError, match=r"get\(\)|to_device"):
        A @ put(np.ones((4, 2)), gpu)
    with pytest.raises(TypeError, match=r"cupy\.asarray|to_device"):
        A.to_device(gpu) @ np.ones((4, 2))


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_scipy_on_the_left(kind):
    """SciPy asks for a dense array, and gets an error that says what to write."""
    A = cvrarray.CVRArray(np.eye(4))
    with pytest.raises(TypeError, match=r"todense.*tocsr"):
        kind(np.eye(4)) @ A
    np.testing.assert_array_equal((kind(np.eye(4)) @ A.tocsr()).toarray(), np.eye(4))


@pytest.mark.parametrize(("size", "vectors"), [(3, 4), (6, 2)])
def test_sums_leave_room_for_four_thread_blocks(size, vectors, gpu):
    """Of blocks: the compiler alone would take more registers."""
    import cupy

    from cvrarray.gpu import bbcsr_matmat

    values = np.dtype(np.float32)
    kernel = bbcsr_matmat.MATMAT_BLOCKS(values, values, np.dtype(np.int32), size, False, 16, 4, vectors, 1, 1, False)
    registers = cupy.cuda.driver.funcGetAttribute(cupy.cuda.driver.CU_FUNC_ATTRIBUTE_NUM_REGS, kernel.ptr)
    assert registers <= 128
