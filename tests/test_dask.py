"""Our arrays as Dask's chunks: what one does with a dask array, without registering anything."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checks import get, in_turn, put
from scipy.sparse import coo_array, csr_array, random_array

import cvrarray
from cvrarray.array.base import SparseArray
from cvrarray.core import devices

pytest.importorskip("dask.array")
import dask
import dask.array as da
from dask.base import tokenize

ROOT = Path(__file__).parent.parent
CLASSES = {"cvr": cvrarray.CVRArray, "bbcsr": cvrarray.BBCSRArray}
CHUNKS = [(70, 45), (32, 90), (200, 90)]  # cuts in both axes, panels of rows, one chunk


def matrix(seed: int = 0, shape=(200, 90), dtype=np.float64) -> csr_array:
    """Small integers, so that sums in any order are exact; with an empty row and an empty column."""
    rng = np.random.default_rng(seed)
    csr = random_array(shape, density=0.05, rng=rng, format="csr", data_sampler=lambda size: rng.integers(1, 9, size))
    dense = csr.toarray().astype(dtype)
    dense[5], dense[:, 7] = 0, 0
    return csr_array(dense)


@pytest.fixture(params=["cvr", "bbcsr"])
def cls(request):
    return CLASSES[request.param]


@pytest.fixture(autouse=True)
def synchronous():
    """One thread: what fails shows where. Other schedulers have tests of their own."""
    with dask.config.set(scheduler="synchronous"):
        yield


def dense(value) -> np.ndarray:
    """Any result on the host, dense."""
    value = value.todense() if isinstance(value, SparseArray) else value
    return np.asarray(get(value))


def sparse_chunks(array: da.Array, cls) -> bool:
    return isinstance(array._meta, SparseArray) and isinstance(array.compute(), SparseArray)


# ----------------------------------------------------------------------------------------------- functions of one array

STAYS_SPARSE = {
    "itself": lambda x: x,
    "T": lambda x: x.T,
    "transpose": lambda x: da.transpose(x),
    "scalar": lambda x: x * 3,
    "scalar left": lambda x: 0.5 * x,
    "divide": lambda x: x / 4,
    "negative": lambda x: -x,
    "abs": lambda x: abs(x),
    "sin": lambda x: da.sin(x),
    "sqrt": lambda x: da.sqrt(x),
    "sum with itself": lambda x: x + x,
    "product with itself": lambda x: x * x,
    "difference": lambda x: x - 2 * x,
    "astype": lambda x: x.astype(np.float32),
    "rows": lambda x: x[20:150],
    "step": lambda x: x[10:150:7, 3:50],
    "reversed": lambda x: x[::-1],
    "fancy rows": lambda x: x[[3, 199, 40, 40, 0]],
    "fancy columns": lambda x: x[:, [89, 0, 7]],
    "mask": lambda x: x[np.arange(200) % 3 == 0],
    "rechunk": lambda x: x.rechunk((50, 20)),
    "rechunk to one": lambda x: x.rechunk(-1),
    "concatenate": lambda x: da.concatenate([x, x]),
    "concatenate columns": lambda x: da.concatenate([x, 2 * x], axis=1),
    "vstack": lambda x: da.vstack([x, x]),
    "hstack": lambda x: da.hstack([x, x]),
    "block": lambda x: da.block([[x, x], [x, -x]]),
    "take": lambda x: da.take(x, [1, 5], axis=0),
    "map_blocks": lambda x: x.map_blocks(lambda a: a * 2),
    "map_blocks with meta": lambda x: x.map_blocks(lambda a: a * 2, dtype=x.dtype, meta=x._meta),
    "persist": lambda x: x.persist() * 1,
    "conj": lambda x: x.conj(),
    "blocks": lambda x: x.blocks[0],
}

BECOMES_DENSE = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(axis=1),
    "sum of columns": lambda x: x.sum(axis=0),
    "sum keepdims": lambda x: x.sum(axis=1, keepdims=True),
    "da.sum": lambda x: da.sum(x, axis=(0, 1)),
    "max": lambda x: x.max(),
    "max of columns": lambda x: x.max(axis=0),
    "min of rows": lambda x: x.min(axis=1),
    "mean": lambda x: x.mean(),
    "mean of columns": lambda x: x.mean(axis=0),
    "mean of rows": lambda x: x.mean(axis=1, keepdims=True),
    "any": lambda x: (x != 0).any(axis=1),
    "column": lambda x: x[:, 3],
    "row": lambda x: x[21],
    "element": lambda x: x[21, 5],
    "einsum rows": lambda x: da.einsum("ij->i", x),
    "einsum all": lambda x: da.einsum("ij->", x),
    "diagonal": lambda x: da.diag(x[:90, :90].rechunk(-1)),
}


@in_turn(
    "name, chunks, cls",
    [*STAYS_SPARSE, *BECOMES_DENSE],
    [(chunks,) for chunks in CHUNKS],
    [cvrarray.CVRArray, cvrarray.BBCSRArray],
    times=2,
)
def test_function(name, chunks, cls, device):
    function = (STAYS_SPARSE | BECOMES_DENSE)[name]
    host = matrix().toarray()
    x = da.from_array(cls(matrix(), device=device), chunks=chunks)
    found = function(x)
    expected = function(da.from_array(host, chunks=chunks)).compute()
    result = found.compute()
    assert dense(result).dtype == expected.dtype
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(
        dense(result), expected, rtol=4 * np.finfo(np.float32 if expected.dtype == np.float32 else float).eps
    )
    if name in STAYS_SPARSE:
        assert isinstance(result, SparseArray)
        assert result.device == device
        assert isinstance(found._meta, SparseArray), "the meta lost the type"
    else:
        assert not isinstance(result, SparseArray)
        assert found.ndim == np.ndim(expected)


# ------------------------------------------------------------------------------------------------ products

PRODUCTS = {
    "A @ x": (lambda a, x, y: a @ x, "x"),
    "A @ X": (lambda a, x, y: a @ x, "X"),
    "y @ A": (lambda a, x, y: y @ a, "y"),
    "Y @ A": (lambda a, x, y: y @ a, "Y"),
    "A.T @ y": (lambda a, x, y: a.T @ y, "y"),
    "dot": (lambda a, x, y: a.dot(x), "x"),
    "da.dot": (lambda a, x, y: da.dot(a, x), "X"),
    "tensordot": (lambda a, x, y: da.tensordot(a, x, axes=1), "X"),
    "tensordot of rows": (lambda a, x, y: da.tensordot(a, y, axes=((0,), (0,))), "y"),
    "tensordot left": (lambda a, x, y: da.tensordot(y, a, axes=1), "Y"),
    "einsum": (lambda a, x, y: da.einsum("ij,j->i", a, x), "x"),
    "einsum matrix": (lambda a, x, y: da.einsum("ij,jk->ik", a, x), "X"),
}
SHAPES = {"x": (90,), "X": (90, 4), "y": (200,), "Y": (3, 200)}


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name, chunks, cls, device):
    product, operand = PRODUCTS[name]
    if device != "cpu" and name in ("y @ A", "Y @ A", "tensordot left"):
        pytest.skip("Dask calls cupy.matmul, which knows no other arrays: see test_left_product_on_any_device")
    values = np.random.default_rng(1).integers(-4, 5, SHAPES[operand]).astype(np.float64)
    a = da.from_array(cls(matrix(), device=device), chunks=chunks)
    x = da.from_array(put(values, device), chunks=50)
    found = product(a, x, x).compute()
    assert devices.of(found) == devices.parse(device)
    np.testing.assert_array_equal(
        dense(found),
        product(matrix().toarray(), values, values)
        if "@" in name
        else product(da.from_array(matrix().toarray()), values, values).compute(),
    )


@pytest.mark.parametrize("shape", [(200,), (3, 200)], ids=str)
def test_left_product_on_any_device(shape, cls, device):
    """cvrarray.dask.matmul, where Dask's own would give a sparse array to cupy.matmul."""
    values = np.random.default_rng(1).integers(-4, 5, shape).astype(np.float64)
    a = da.from_array(cls(matrix(), device=device), chunks=(70, 45))
    x = da.from_array(put(values, device), chunks=50)
    np.testing.assert_array_equal(dense(cvrarray.dask.matmul(x, a).compute()), values @ matrix().toarray())


def test_products_of_two(cls, device):
    """By the operator where one of them is what to_dask gives; else the error names the function."""
    csr, other = matrix(), matrix(1, (90, 40))
    panels, array = cvrarray.to_dask(csr, chunks=70, format=cls.format, device=device), cls(other, device=device)
    chunked = da.from_array(array, chunks=(30, 40))
    cases = (
        (panels @ chunked, csr @ other),
        (chunked.T @ panels.T, other.T @ csr.T),
        (panels @ panels.T, csr @ csr.T),
        (panels.T @ panels @ panels.T, csr.T @ csr @ csr.T),
        (panels.persist() @ array, csr @ other),
        (array.T @ pickle.loads(pickle.dumps(panels)).T, other.T @ csr.T),
        (panels[:50] @ panels.T, csr[:50] @ csr.T),
        (np.matmul(array.T, (panels + panels).T), other.T @ (2 * csr).T),
    )
    for found, expected in cases:
        assert sparse_chunks(found, cls)
        np.testing.assert_array_equal(dense(found.compute()), expected.toarray())
    with pytest.raises(IndexError, match=r"use cvrarray\.dask\.matmul"):
        ((panels + panels) @ (chunked + chunked)).compute()


def test_repr_has_stored_bytes(cls, tmp_path):
    csr = matrix()
    panels = cvrarray.to_dask(csr, chunks=70, format=cls.format, device="cpu")
    stored = [panels.blocks[k].compute().nbytes for k in range(3)]
    total = dask.utils.format_bytes(sum(stored))
    cvrarray.to_store(csr, tmp_path / "a.zarr", format=cls.format, device="cpu")
    for array in (panels, panels.T, panels.persist(), pickle.loads(pickle.dumps(panels))):
        assert f"stored={total}>" in repr(array)
        html = array._repr_html_()
        assert f"stored={total}" in html
        assert f"{dask.utils.format_bytes(max(stored))} stored" in html
        assert dask.utils.format_bytes(panels.nbytes) not in html
    assert "stored=" in repr(cvrarray.open_store(tmp_path / "a.zarr", device="cpu"))
    assert "stored" not in (panels @ panels.T)._repr_html_()  # which nobody knows


BARE = {
    "A @ dask": lambda a, d: a @ d,
    "np.matmul": lambda a, d: np.matmul(a, d),
    "np.dot": lambda a, d: np.dot(a, d),
}


@pytest.mark.parametrize("name", BARE)
def test_bare_array_with_dask_operand(name, cls, device):
    values = np.arange(90.0)
    x = da.from_array(put(values, device), chunks=30)
    found = BARE[name](cls(matrix(), device=device), x)
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(dense(found.compute()), matrix() @ values)


def test_dask_operand_left_of_a_bare_array(cls):
    values = np.arange(200.0)
    found = da.from_array(values, chunks=30) @ cls(matrix(), device="cpu")
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(dense(found.compute()), values @ matrix().toarray())


def test_bare_array_beside_dask_in_arithmetic_and_functions(cls, device):
    A = cls(matrix(), device=device)
    d = da.from_array(cls(matrix(1), device=device), chunks=(70, 90))
    for found, expected in (
        (A + d, matrix() + matrix(1)),
        (d + A, matrix() + matrix(1)),
        (d * A, matrix() * matrix(1)),
        (A - d, matrix() - matrix(1)),
        (np.add(d, A), matrix() + matrix(1)),
    ):
        assert isinstance(found, da.Array)
        np.testing.assert_array_equal(dense(found.compute()), expected.toarray())
    found = np.concatenate([A, d])
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(dense(found.compute()), np.concatenate([matrix().toarray(), matrix(1).toarray()]))


def test_stack_says_what_to_do(cls, device):
    x = da.from_array(cls(matrix(), device=device), chunks=(70, 90))
    with pytest.raises((TypeError, ValueError), match="concatenate"):
        da.stack([x, x]).compute()


# ------------------------------------------------------------------------------------------------ registration

FRESH = [  # each is the first thing that a new process does with Dask
    "d = da.ones(4, chunks=2); y = A @ d",
    "y = cvrarray.to_dask(A, chunks=2) @ np.ones(4)",
]


@pytest.mark.parametrize("code", FRESH)
def test_nothing_needs_registering(code):
    setup = "import numpy as np, cvrarray; A = cvrarray.CVRArray(2 * np.eye(4), device='cpu'); import dask.array as da; "
    check = "; y = y.compute(); y = y.todense() if hasattr(y, 'todense') else y; print(float(y.sum()))"
    found = subprocess.run([sys.executable, "-c", setup + code + check], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert found.stdout.strip() == "8.0", found.stderr


def test_import_loads_neither_dask_nor_zarr():
    code = (
        "import sys, cvrarray, cvrarray.dask, cvrarray.store; dir(cvrarray); "
        "print([n for n in ('dask', 'zarr', 'distributed', 'cupy', 'numba') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"


# ----------------------------------------------------------------------------------------------- tokens, sizes, pickles


def test_tokens_agree_across_processes():
    code = (
        "import sys; sys.path.insert(0, 'tests'); import cvrarray, numpy as np; from dask.base import tokenize; "
        "from test_dask import matrix; A = cvrarray.CVRArray(matrix(), device='cpu'); "
        "print(tokenize(A), tokenize(A.T), tokenize(cvrarray.BBCSRArray(matrix(), device='cpu')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    A, B = (c(matrix(), device="cpu") for c in CLASSES.values())
    assert found.stdout.split() == [tokenize(A), tokenize(A.T), tokenize(B)]
    assert len(set(found.stdout.split())) == 3


def test_tokens_see_every_table(cls, device):
    A = cls(matrix(), device=device)
    token = tokenize(A)
    assert token == tokenize(A.copy()) == tokenize(pickle.loads(pickle.dumps(A)))
    for name, table in A._tables._asdict().items():
        if not getattr(table, "size", 0):
            continue
        for place in (0, table.size - 1):
            changed = table.copy()
            flat = changed.reshape(-1).view(np.uint8)
            byte = place * table.dtype.itemsize
            flat[byte] = flat[byte] ^ 1
            assert tokenize(cls._from_tables(A._tables._replace(**{name: changed}))) != token, (name, place)


def test_sizeof_counts_the_tables(cls, device):
    from dask.sizeof import sizeof

    A = cls(matrix(), device=device)
    tokenize(A)
    assert A.nbytes <= sizeof(A) <= A.nbytes + 1000
    assert A.nbytes <= sizeof(A.T) <= A.nbytes + 1000


def test_pickled_tables_come_back_at_cache_lines():
    A = cvrarray.CVRArray(matrix(), device="cpu")
    buffers = []
    data = pickle.dumps(A, protocol=5, buffer_callback=buffers.append)
    shifted = []
    for buffer in buffers:  # as a message has them: one after the other, from an odd address on
        room = bytearray(buffer.raw().nbytes + 1)
        room[1:] = buffer.raw()
        shifted.append(memoryview(room)[1:])
    again = pickle.loads(data, buffers=shifted)
    assert all(table.ctypes.data % 64 == 0 for table in again._tables if getattr(table, "size", 0))
    again.check()
    np.testing.assert_array_equal(again @ np.arange(90.0), A @ np.arange(90.0))


# ------------------------------------------------------------------------------------------------ to_dask


def test_panels_have_equal_shares_of_stored_bytes():
    lengths = np.r_[np.full(64, 60), np.full(1984, 2)]  # half of the entries in a few rows
    rng = np.random.default_rng(0)
    row = np.repeat(np.arange(2048), lengths)
    csr = csr_array(coo_array((np.ones(row.size), (row, rng.integers(0, 4000, row.size))), shape=(2048, 4000)))
    d = cvrarray.to_dask(csr, chunks="24 kB", format="cvr", device="cpu")
    rows = d.chunks[0]
    assert all(n % 32 == 0 for n in rows)
    sizes = [a.nbytes for a in dask.compute(*d.to_delayed().ravel())]
    assert len(sizes) > 3
    assert max(sizes) < 2 * np.mean(sizes), "panels follow rows, not bytes"
    assert rows[0] < rows[-1]


@pytest.mark.parametrize("block_size", [1, 3, 6])
def test_panels_of_bbcsr_begin_at_blocks(block_size, device):
    d = cvrarray.to_dask(matrix(), chunks="2 kB", format="bbcsr", block_size=block_size, device=device)
    assert d.numblocks[0] > 1
    assert all(n % np.lcm(32, block_size) == 0 for n in d.chunks[0][:-1])
    assert d._meta.block_size == block_size


@pytest.mark.parametrize("kind", ["scipy", "sparse", "ours", "dense"])
def test_to_dask_of_any_matrix(kind, device):
    make = {
        "scipy": lambda: matrix(),
        "sparse": lambda: pytest.importorskip("sparse").COO.from_scipy_sparse(matrix()),
        "ours": lambda: cvrarray.BBCSRArray(matrix(), block_size=3, device=device),
        "dense": lambda: matrix().toarray(),
    }[kind]
    d = cvrarray.to_dask(make(), chunks=96, device=device)
    assert d.chunks == ((96, 96, 8), (90,))
    found = d.compute()
    assert found.device == device
    np.testing.assert_array_equal(dense(found), matrix().toarray())
    if kind == "ours":
        assert (found.format, found.block_size) == ("bbcsr", 3)


@pytest.mark.parametrize("kind", ["sparse", "scipy", "cupyx", "dense"])
def test_to_dask_converts_chunk_by_chunk(kind, cls, device, monkeypatch):
    import cvrarray.dask.panels as panels

    if kind == "sparse":
        source = da.from_array(pytest.importorskip("sparse").COO.from_scipy_sparse(matrix()), chunks=(70, 45))
    elif kind == "dense":
        source = da.from_array(put(matrix().toarray(), device), chunks=(70, 45))
    else:
        if kind == "cupyx" and device == "cpu":
            pytest.skip("lives on a GPU")
        blocks = da.from_array(put(matrix().toarray(), device), chunks=(70, 45))
        make = csr_array if kind == "scipy" else __import__("cupyx.scipy.sparse").scipy.sparse.csr_matrix
        source = blocks.map_blocks(lambda b: make(get(b) if kind == "scipy" else b), dtype=np.float64)
    calls = []
    convert = panels._convert
    monkeypatch.setattr(panels, "_convert", lambda chunk, **how: calls.append(chunk.shape) or convert(chunk, **how))
    d = cvrarray.to_dask(source, format=cls.format, device=device)
    assert d.chunks == source.chunks
    assert isinstance(d._meta, cls)
    d = d.persist()
    n_chunks = 3 * 2
    assert len(calls) == n_chunks
    x = put(np.arange(90.0), device)
    for _ in range(3):  # a persisted matrix is not converted again
        y = (d @ x).compute()
    assert len(calls) == n_chunks
    np.testing.assert_array_equal(dense(y), matrix() @ np.arange(90.0))


@pytest.mark.parametrize(
    ("chunks", "message"),
    [((100, 50), "200"), (0, "chunks must"), ("many", "chunks must"), (2.5, "chunks must"), ((-1, 201), "chunks must")],
)
def test_bad_chunks(chunks, message):
    with pytest.raises(ValueError, match=message):
        cvrarray.to_dask(matrix(), chunks=chunks, device="cpu")


def test_numpy_integers_are_rows():
    csr = matrix()
    n, half = csr.shape[0], np.int64(csr.shape[0] // 2)
    for chunks in (half, (half, n - half)):
        assert cvrarray.to_dask(csr, chunks=chunks, device="cpu").chunks[0] == (int(half), n - int(half))
    with pytest.raises(ValueError, match="chunks must"):  # no panel at all
        cvrarray.to_dask(csr_array((0, 5)), chunks=(), device="cpu")


def test_empty_matrices(cls, device):
    for shape in ((0, 5), (5, 0), (0, 0)):
        d = cvrarray.to_dask(csr_array(shape), format=cls.format, device=device)
        assert d.shape == shape
        assert dense(d.compute()).shape == shape
        np.testing.assert_array_equal(dense((d @ put(np.ones(shape[1]), device)).compute()), np.zeros(shape[0]))


# ------------------------------------------------------------------------------------------------ schedulers, backends


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_schedulers_give_the_same_bits(scheduler, cls, device):
    rng = np.random.default_rng(5)
    csr = random_array((3000, 500), density=0.02, rng=rng, format="csr")
    x = put(rng.standard_normal(500), device)
    d = cvrarray.to_dask(csr, chunks=256, format=cls.format, device=device)
    with dask.config.set(scheduler="synchronous"):
        expected = dense((d @ x).compute())
    with dask.config.set(scheduler=scheduler):
        for _ in range(3):
            np.testing.assert_array_equal(dense((d @ x).compute()), expected)
    np.testing.assert_allclose(expected, csr @ get(x))


def test_to_backend(gpu):
    d = cvrarray.to_dask(matrix(), chunks=64, format="cvr", device="cpu")
    on_gpu = d.to_backend("cupy")
    assert on_gpu.compute().device == gpu
    assert on_gpu.to_backend("numpy").compute().device == "cpu"


def test_to_backend_numpy_stays_sparse():
    d = cvrarray.to_dask(matrix(), chunks=64, format="cvr", device="cpu").to_backend("numpy")
    assert isinstance(d.compute(), cvrarray.CVRArray)


def test_names_are_the_same_for_the_same_matrix():
    one, two = (cvrarray.to_dask(matrix(), chunks=64, device="cpu") for _ in range(2))
    assert one.name == two.name
    assert one.name != cvrarray.to_dask(matrix(1), chunks=64, device="cpu").name


@pytest.mark.parametrize("multiply", [lambda a, b: a @ b, np.matmul, cvrarray.dask.matmul], ids=["@", "np.matmul", "ours"])
def test_operands_that_dask_would_index_by_a_third_dimension(multiply):
    csr = random_array((12, 9), density=0.4, rng=np.random.default_rng(0), format="csr")
    D = cvrarray.to_dask(csr, chunks=5, device="cpu")
    for other in (csr.T.tocsr(), csr.T.tocoo()):
        with pytest.raises(TypeError, match=r"such arrays or dense.*cvrarray\.to_dask"):
            multiply(D, other)
    for left, right in ((D, np.ones((2, 9, 3))), (D, da.ones((2, 9, 3))), (np.ones((2, 3, 12)), D)):
        with pytest.raises(TypeError, match=r"1 or 2 dimensions; got 3.*dask\.array.stack"):
            multiply(left, right)
    np.testing.assert_allclose(multiply(D, cvrarray.to_dask(csr.T, device="cpu")).compute().todense(), (csr @ csr.T).toarray())
    np.testing.assert_allclose(multiply(np.ones((2, 12)), D).compute(), np.ones((2, 12)) @ csr)


def test_arrays_that_from_array_makes_name_to_dask():
    A = cvrarray.CVRArray(np.diag([1.0, 2, 4]))
    D = da.from_array(A, asarray=False, chunks=2)
    for call in (lambda: (D @ D.T).compute(), lambda: D.std().compute(), lambda: D.var(axis=0).compute()):
        with pytest.raises((IndexError, TypeError), match=r"cvrarray\.to_dask"):
            call()
    P = cvrarray.to_dask(A, chunks=2, device="cpu")
    np.testing.assert_allclose((P @ P.T).compute().todense(), np.diag([1.0, 4, 16]))
    for name in ("std", "var"):
        for axis in (None, 0, 1):
            expected = getattr(A.todense(), name)(axis=axis, ddof=1)
            np.testing.assert_allclose(getattr(P, name)(axis=axis, ddof=1).compute(), expected)
