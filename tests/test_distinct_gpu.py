"""Values in few bytes on a GPU: products have the bits of plain storage, whatever the values, the format, the product."""

from __future__ import annotations

import numpy as np
import pytest
from checks import autotune_at
from scipy import sparse

from cvrarray.core.distinct import arranged
from cvrarray.core.tables import CSR

TABLES = {
    "one": [0.1],
    "graph": [1],
    "negative": [-1],
    "17": np.arange(17) - 4,
    "hard": [-0.0, np.inf, np.nan, 5e-324, 1e-310, -np.inf, 3, 0.0],
    "256": np.arange(256) + 1,
}
#: Format and dtype of products: each has kernels of its own, so there are few.
PRODUCTS = [("cvr", "float64"), ("cvr cut", "complex64"), ("bbcsr 1", "float64"), ("bbcsr 6", "float32"), ("bbcsr 1", "bool")]


def matrix(names, dtype, n_rows=700, n_cols=410):
    """A CSR whose values are `names`: short, empty and long rows, blocks with holes and without; and numbers of its
    values.
    """
    rng = np.random.default_rng(7)
    blocks = sparse.random_array((n_rows // 6 + 1, n_cols // 6 + 1), density=0.05, rng=rng)
    pattern = sparse.kron(blocks, np.ones((6, 6))).tocsr()[:n_rows, :n_cols]
    pattern += sparse.random_array((n_rows, n_cols), density=0.004, rng=rng)
    pattern += sparse.coo_array((np.ones(n_cols), (np.full(n_cols, 41), np.arange(n_cols))), shape=(n_rows, n_cols))
    pattern = pattern.tocsr()
    pattern.sort_indices()
    with np.errstate(all="ignore"):
        distinct = np.array(names).astype(dtype)
        distinct = np.unique(distinct.view(f"V{distinct.itemsize}")).view(dtype)
    table = arranged(distinct)
    own = np.flatnonzero(np.isin(table.view(f"V{table.itemsize}"), distinct.view(f"V{table.itemsize}")))
    numbers = rng.permutation(np.resize(own, pattern.nnz)).astype(np.uint8)
    return pattern, table, numbers


def both(name, names, dtype):
    """The module of a format, and tables of the same matrix: plain ones, and with values in few bytes."""
    import cupy

    from cvrarray.gpu import bbcsr, cvr

    pattern, table, numbers = matrix(names, dtype)
    indptr, indices = (cupy.asarray(part.astype(np.int32)) for part in (pattern.indptr, pattern.indices))
    made = []
    for data in (table[numbers], numbers):
        csr = CSR(indptr, indices, cupy.asarray(data), pattern.shape)
        kind, _, size = name.partition(" ")
        if kind == "bbcsr":
            made.append(bbcsr.convert(csr, int(size)))
        else:
            made.append(cvr.convert(csr, 32, 9, "nnz" if size else "rows"))
    plain, coded = made
    if table.size == 1:
        coded = coded._replace(**{"data" if kind == "bbcsr" else "val": cupy.empty(0, np.uint8)})
    return (bbcsr if kind == "bbcsr" else cvr), plain, coded._replace(distinct=cupy.asarray(table))


def product_dtype(dtype):
    return np.dtype({"bool": "int64", "float16": "float32"}.get(dtype, dtype))


def operand(shape, dtype, seed=3):
    import cupy

    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 8
    return cupy.asarray((x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype))


def same_bits(a, b):
    return a.shape == b.shape and bool((a.view(np.uint8) == b.view(np.uint8)).all())


def same_numbers(a, b):
    """The same bits, but for those of nans: of two nans an addition gives either."""
    for number in (a, b):
        parts = number.view(number.real.dtype)
        parts[parts != parts] = 7
    return same_bits(a, b)


@pytest.mark.parametrize("values", TABLES)
@pytest.mark.parametrize(("name", "dtype"), PRODUCTS)
def test_products_have_the_bits_of_plain_values(gpu, name, values, dtype):
    import cupy

    module, plain, coded = both(name, TABLES[values], dtype)
    out = product_dtype(dtype)
    n_rows, n_cols = plain.shape
    alpha, beta = out.type(2), out.type(0)
    for product, before, after in (
        ("product", (n_cols,), (n_rows,)),
        ("product_matrix", (n_cols, 5), (n_rows, 5)),
    ):
        x = operand(before, out)
        y, z = (cupy.full(after, 7, out) for _ in range(2))
        getattr(module, product)(plain, out)(x, y, alpha, beta)
        getattr(module, product)(coded, out)(x, z, alpha, beta)
        assert same_numbers(y, z), product


@pytest.mark.parametrize("values", ["one", "17"])
@pytest.mark.parametrize("room", [1 << 20, 4096])
def test_products_with_shared_memory(gpu, monkeypatch, values, room):
    """x in shared memory beside the values: all of it, or of popular columns."""
    import cupy

    from cvrarray.gpu import row_lanes, shared_memory

    monkeypatch.setattr(row_lanes, "suits", lambda tables: False)
    autotune_at(monkeypatch, 2)
    monkeypatch.setattr(shared_memory, "L1_SHARE", 0)
    monkeypatch.setattr(shared_memory, "LEAST_SHARE", 0)
    found = shared_memory.shared_memory
    monkeypatch.setattr(shared_memory, "shared_memory", lambda: min(room, found()))
    for name in ("cvr", "bbcsr 1"):
        module, plain, coded = both(name, TABLES[values], "float64")
        x = operand(plain.shape[1], np.dtype(np.float64))
        y, z = (cupy.empty(plain.shape[0]) for _ in range(2))
        module.product(plain, y.dtype)(x, y, np.float64(1), np.float64(0))
        run = module.product(coded, y.dtype)
        for _ in range(3):
            z.fill(np.nan)
            run(x, z, np.float64(1), np.float64(0))
            assert same_bits(y, z), name


def many(size, n_distinct, dtype, seed=5):
    """Values of which `n_distinct` differ in their bits; the last one stands at one place only."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    bits = rng.permutation(np.arange(256 ** min(2, dtype.itemsize)))[:n_distinct]
    words = np.zeros((n_distinct, dtype.itemsize), np.uint8)
    words[:, -1], words[:, 0] = bits % 256, bits // 256
    number = rng.integers(0, max(1, n_distinct - 1), size)
    number[size // 3 * 2 + 1] = n_distinct - 1
    return words[number].reshape(-1).view(dtype)


def looked_up(stored, distinct):
    """The values that are stored."""
    from cvrarray.gpu.distinct import widened

    if distinct is None:
        return stored
    return distinct[stored] if distinct.size else widened(stored, distinct.dtype)


@pytest.fixture
def small(monkeypatch):
    """A test's matrices count as large."""
    from cvrarray.gpu import distinct

    monkeypatch.setattr(distinct, "LEAST_BYTES", 1)
    return distinct


@pytest.mark.parametrize("dtype", ["uint16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("n_distinct", [1, 2, 255, 256, 257, 5000])
def test_values_are_numbered_by_their_bits(gpu, dtype, n_distinct):
    import cupy

    from cvrarray.gpu.distinct import numbered

    data = many(100_003, n_distinct, dtype)
    stored, table = numbered(cupy.asarray(data))
    if n_distinct > 256:
        assert table is None
        assert same_bits(stored, cupy.asarray(data))
    elif table is None:  # 256 values of which none may stand first
        assert n_distinct == 256
    else:
        assert stored.dtype == np.uint8
        assert same_bits(table[stored], cupy.asarray(data))
        assert n_distinct <= table.size <= n_distinct + 1


def test_narrow_values_keep_every_bit(gpu, small):
    import cupy

    rng = np.random.default_rng(2)
    narrow = rng.integers(0, 2**32, 200_000, np.uint32).view(np.float32)  # nans of all kinds, denormals, infinities
    with np.errstate(invalid="ignore"):
        wide = narrow.astype(np.float64)  # which makes signalling nans quiet
    for data in (wide, wide.view(np.complex128)):
        stored, distinct = small.encode(cupy.asarray(data))
        assert distinct.size == 0
        assert stored.nbytes == data.nbytes // 2
        assert same_bits(looked_up(stored, distinct), cupy.asarray(data))
    wide[77_777] = np.nextafter(1.0, 2)
    stored, distinct = small.encode(cupy.asarray(wide))
    assert distinct is None
    assert stored.dtype == np.float64


@pytest.mark.parametrize("name", ["cvr", "bbcsr 1"])
def test_products_of_narrow_values(gpu, name):
    """float64 that is exactly float32, denormals of that among them."""
    import cupy

    from cvrarray.gpu import bbcsr, cvr

    pattern, _, numbers = matrix(np.arange(256) + 1, "float64")
    narrow = (np.linspace(1e-42, 1e-38, 256, dtype=np.float32) * np.float32(-1.5))[numbers]
    indptr, indices = (cupy.asarray(part.astype(np.int32)) for part in (pattern.indptr, pattern.indices))
    module = bbcsr if name == "bbcsr 1" else cvr
    of = (1,) if module is bbcsr else (32, 9, "rows")
    plain, coded = (
        module.convert(CSR(indptr, indices, cupy.asarray(data), pattern.shape), *of)
        for data in (narrow.astype(np.float64), narrow)
    )
    coded = coded._replace(distinct=cupy.empty(0, np.float64))
    x = operand(pattern.shape[1], np.dtype(np.float64))
    y, z = (cupy.empty(pattern.shape[0]) for _ in range(2))
    module.product(plain, y.dtype)(x, y, np.float64(1), np.float64(0))
    module.product(coded, y.dtype)(x, z, np.float64(1), np.float64(0))
    assert abs(y).max() > 0
    assert same_bits(y, z)


@pytest.mark.parametrize("format_name", ["cvr", "bbcsr"])
def test_a_solve_has_the_bits_of_plain_values(gpu, small, format_name):
    """All iterations in one kernel, with the values in its shared memory."""
    import cupy

    import cvrarray
    from cvrarray.linalg import cg

    n = 40
    line = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    grid = sparse.kronsum(line, line).tocsr()
    of = {"block_size": 1} if format_name == "bbcsr" else {}
    few, plain = (cvrarray.asarray(grid, device="cuda", format=format_name, values=v, **of) for v in ("auto", "plain"))
    assert few._tables.distinct.size == 3  # 0, -1 and 4
    b = cupy.ones(n * n)
    assert same_bits(cg(few, b, maxiter=60)[0], cg(plain, b, maxiter=60)[0])


@pytest.mark.parametrize("format_name", ["cvr", "bbcsr"])
@pytest.mark.parametrize("values", ["one", "17"])
def test_arrays(gpu, small, format_name, values):
    """What is no product, of arrays whose values are in few bytes."""
    import cupy

    import cvrarray

    pattern, table, numbers = matrix(TABLES[values], "float64")
    csr = sparse.csr_array((table[numbers], pattern.indices, pattern.indptr), shape=pattern.shape)
    of = {"block_size": 1} if format_name == "bbcsr" else {}
    few, plain = (cvrarray.asarray(csr, device="cuda", format=format_name, values=v, **of) for v in ("auto", "plain"))
    assert few._tables.distinct.size == table.size
    assert plain._tables.distinct is None
    assert few.nbytes < plain.nbytes
    x = operand(csr.shape[1], np.dtype(np.float64))
    others = np.arange(csr.nnz) % 5 + 0.5
    for made, wanted in (
        (few, plain),
        (few.copy(), plain),
        (few * 2, plain * 2),
        (few[3:500], plain[3:500]),
        (few.with_values(cupy.asarray(others)), plain.with_values(cupy.asarray(others))),
        (few.with_values(x[np.arange(csr.nnz) % x.size]), plain.with_values(x[np.arange(csr.nnz) % x.size])),
        (cvrarray.asarray(few, device="cpu"), plain),
        (cvrarray.asarray(cvrarray.asarray(few, device="cpu"), device="cuda"), plain),
    ):
        assert np.array_equal(made.to_scipy().toarray(), wanted.to_scipy().toarray())
    assert same_bits(few @ x, plain @ x)
    assert same_bits(few.with_values(cupy.asarray(others)) @ x, plain.with_values(cupy.asarray(others)) @ x)


def test_long_rows_with_columns_far_apart_stay_plain(gpu, small):
    """Where looking numbers up does not pay; one value does."""
    import cvrarray

    rng = np.random.default_rng(1)
    col = np.sort(rng.integers(0, 5000, (64, 60)) + np.arange(60) * 5000, axis=1)
    row = np.repeat(np.arange(64), 60)
    for n, wanted in ((1, 1), (3, None)):
        csr = sparse.csr_array((np.arange(col.size) % n + 1.0, (row, col.ravel())), shape=(64, 300_000))
        for format_name in ("cvr", "bbcsr"):
            of = {"block_size": 1} if format_name == "bbcsr" else {}
            array = cvrarray.asarray(csr, device="cuda", format=format_name, **of)
            found = array._tables.distinct
            assert (found if found is None else found.size) == wanted
            assert np.array_equal(array.to_scipy().data, csr.data)
