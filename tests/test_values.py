"""New values in an old structure: every order in which they may come, in place and not, against a fresh conversion."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from checks import TYPICAL, assert_same_bits, assert_same_csr, assert_same_tables, bbcsr, cvr, from_csr, get, put

import cvrarray
from cvrarray.core import devices

STRUCTURES = [
    "shape_without_entries_0_5", "one_by_one", "hypersparse", "one_dense_row", "two_long_rows_share_a_chunk", "long_rows_last",
    "long_row_first", "rows_of_mixed_length", "power_law", "banded_stencil", "blocks_with_holes", "perfect_blocks_6",
    "perfect_blocks_3", "blocks_over_the_edge", "explicit_zeros", "narrow_and_wide_tiles", "one_long_block_row_across_bins",
]  # fmt: skip
#: Each size of values once; what else is compiled for them is compiled for other tests too.
PAIRS = [
    (cvr(32, 7, "rows"), "float64"), (cvr(4, 5, "nnz"), "float32"), (cvr(24, 5, "rows"), "float64"), (bbcsr(1), "float64"),
    (bbcsr(1), "bool"), (bbcsr(6), "float32"), (bbcsr(6), "complex128"), (cvr(32, 7, "rows"), "float16"),
]  # fmt: skip


def random_values(n: int, dtype: str, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = 1 + rng.integers(0, 100, n) + 0.37 * rng.random(n)
    return (values * (1 - 2j) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def sparse_on(matrix, device: str):
    """A SciPy matrix on the device."""
    if device == "cpu":
        return matrix
    import cupyx.scipy.sparse as on_gpu

    return getattr(on_gpu, f"{matrix.format}_matrix")(matrix)


def csr_of(csr, data):
    return scipy.sparse.csr_array((data, csr.indices, csr.indptr), shape=csr.shape)


def shuffled_coo(csr, data, copies: int = 1):
    """The entries in random order, each in several parts whose sum it is; and the sums in the order in which they come."""
    rng = np.random.default_rng(8)
    coo = csr.tocoo()
    order = rng.permutation(np.tile(np.arange(csr.nnz), copies))
    parts = random_values(order.size, data.dtype, seed=9) if copies > 1 else data[order]
    sums = np.zeros(csr.nnz, data.dtype)
    started = np.zeros(csr.nnz, bool)
    with np.errstate(over="ignore"):
        for k, entry in enumerate(order):
            sums[entry] = sums[entry] + parts[k] if started[entry] else parts[k]
            started[entry] = True
    shuffled = scipy.sparse.coo_array((parts, (coo.row[order], coo.col[order])), shape=csr.shape)
    return shuffled, sums


def unsorted_csr(csr, data):
    """The same matrix with the columns of every row in descending order."""
    order = np.lexsort((-csr.indices, np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))))
    matrix = scipy.sparse.csr_array((data[order], csr.indices[order], csr.indptr), shape=csr.shape)
    assert np.array_equal(matrix.indptr, csr.indptr)
    return matrix


@pytest.mark.parametrize(("build", "dtype"), PAIRS, ids=str)
def test_in_the_order_of_a_csr(build, dtype, device):
    for name in STRUCTURES:
        csr = zoo.integers(name, np.float64)
        A, parts = build(csr, device), (csr.indptr, csr.indices)
        data, again = (random_values(csr.nnz, dtype, seed) for seed in (5, 6))
        found = A.with_values(put(data, device))
        found.check()
        fresh = from_csr(type(A), *parts, data, csr.shape, **A._parameters() | build.keywords, device=device)
        assert_same_tables(found._tables, fresh._tables)
        for field, table in A._tables._asdict().items():  # no table but the values' is new
            assert field == A._value_table or getattr(found._tables, field) is table
        assert found._structure is A._structure
        assert A.with_values(put(again, device), out=found) is found
        assert_same_bits(found._values(found._tables), A.with_values(put(again, device))._values(found._tables))
        assert_same_tables(A._tables, build(csr, device)._tables)  # which nobody wrote to


ORDERS = {
    "csr": csr_of,
    "coo of pydata/sparse": lambda csr, data: sparse.COO.from_scipy_sparse(csr_of(csr, data)),
    "gcxs": lambda csr, data: sparse.GCXS(sparse.COO.from_scipy_sparse(csr_of(csr, data)), compressed_axes=(1,)),
    "dok": lambda csr, data: sparse.COO.from_scipy_sparse(csr_of(csr, data)).asformat("dok"),
    "unsorted csr": unsorted_csr,
    "csc": lambda csr, data: csr_of(csr, data).tocsc(),
    "coo": lambda csr, data: shuffled_coo(csr, data)[0],
    "lil": lambda csr, data: csr_of(csr, data).tolil(),
}


@pytest.mark.parametrize(("build", "dtype"), [PAIRS[0], PAIRS[1], PAIRS[3], PAIRS[5]], ids=str)
def test_in_the_order_of_a_matrix(build, dtype, device):
    for name in (name for name in STRUCTURES if not name.startswith("shape")):
        csr = zoo.integers(name, np.float64)
        A, data = build(csr, device), random_values(csr.nnz, dtype)
        expected = A.with_values(put(data, device))
        for order, arranged in ORDERS.items():
            if device == "cpu" or order in ("csr", "unsorted csr", "csc", "coo"):
                S = arranged(csr, data) if device == "cpu" else sparse_on(arranged(csr, data), device)
                found = A.with_values(S)
                assert_same_tables(found._tables, expected._tables)
                if order != "dok":  # of which pydata/sparse has no multiples
                    assert A.with_values(S * S.dtype.type(2), out=found) is found
                    assert_same_csr(found.to_scipy(), csr_of(csr, 2 * data))


@pytest.mark.parametrize(
    ("build", "dtype"),
    [PAIRS[0], PAIRS[3], (bbcsr(6), "float64"), (bbcsr(6), "float16"), (bbcsr(1), "int8"), (bbcsr(1), "bool")],
    ids=str,
)
def test_duplicates_are_summed_in_their_order(build, dtype, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A = build(csr, device)
    if dtype in ("float16", "int8", "bool") and device != "cpu":  # which CuPy does not hold
        return
    for copies in (2, 5):
        coo, sums = shuffled_coo(csr, np.zeros(csr.nnz, np.float32 if dtype == "float16" else dtype), copies)
        if dtype == "float16":
            parts = coo.data.astype(np.float16)
            total = np.zeros(csr.nnz, np.float32)
            place = {pair: k for k, pair in enumerate(zip(*csr.nonzero(), strict=True))}
            for value, pair in zip(parts.astype(np.float32), zip(coo.row, coo.col, strict=True), strict=True):
                total[place[pair]] += value
            S = sparse.COO(np.stack([coo.row, coo.col]), parts, shape=csr.shape, has_duplicates=False, sorted=True)
            sums = total.astype(np.float16)
        else:
            S = sparse_on(coo, device)
        found = A.with_values(S)
        assert_same_tables(found._tables, A.with_values(put(sums, device))._tables)
        assert_same_tables(A.with_values(S, out=found)._tables, A.with_values(put(sums, device))._tables)


@pytest.mark.parametrize("build", [bbcsr(6), bbcsr(3), bbcsr(4), cvr(32, 7, "rows")], ids=str)
@pytest.mark.parametrize("blocksize", [(6, 6), (3, 3), (2, 3)])
def test_in_the_order_of_a_bsr(build, blocksize):
    csr = zoo.integers("perfect_blocks_6", np.float64)
    A = build(csr, "cpu")
    bsr = csr.tobsr(blocksize)
    shuffled = unsorted_csr(
        scipy.sparse.csr_array((np.arange(len(bsr.data)), bsr.indices, bsr.indptr)), np.arange(len(bsr.data))
    )
    S = scipy.sparse.bsr_array((bsr.data[shuffled.data] * 7, shuffled.indices, bsr.indptr), shape=csr.shape)
    found = A.with_values(S)
    assert_same_csr(found.to_scipy(), csr_of(csr, 7 * csr.data))
    assert_same_csr(A.with_values(S, out=found).to_scipy(), csr_of(csr, 7 * csr.data))
    assert_same_csr(A.T.with_values(S.T).to_scipy(), csr_of(csr, 7 * csr.data).T.tocsr())


def test_orders_are_told_apart(device):
    """Index arrays that are changed in place are another order, though they are the same arrays."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A = cvrarray.CVRArray(csr, device=device)
    data = random_values(csr.nnz, "float64")
    S = sparse_on(unsorted_csr(csr, data), device)
    for _ in range(2):
        assert_same_csr(A.with_values(S).to_scipy(), csr_of(csr, data))
        S.sort_indices()
    for seed in range(8):  # more than are remembered
        order = np.random.default_rng(seed).permutation(csr.nnz)
        coo = csr.tocoo()
        S = scipy.sparse.coo_array((data[order], (coo.row[order], coo.col[order])), shape=csr.shape)
        assert_same_csr(A.with_values(sparse_on(S, device)).to_scipy(), csr_of(csr, data))
    assert len(A._structure.sources) <= 4


@pytest.mark.parametrize("build", TYPICAL, ids=str)
def test_of_a_view(build, device):
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A = build(csr, device)
    view = A.T
    expected = csr.T.tocsr()
    expected.data[:] = random_values(csr.nnz, "float64")
    found = view.with_values(put(expected.data, device))
    assert_same_csr(found.to_scipy(), expected)
    found = view.with_values(sparse_on(expected.tocsc(), device))
    assert_same_csr(found.to_scipy(), expected)
    expected.data *= 3
    assert view.with_values(sparse_on(expected, device), out=found) is found
    assert_same_csr(found.to_scipy(), expected)


@pytest.mark.parametrize(("build", "dtype"), [*((build, "float64") for build in TYPICAL)], ids=str)
def test_what_is_prepared_sees_the_new_values(build, dtype, device):
    """Products, views and transposed products that were made before the values changed."""
    csr = zoo.floats("power_law", dtype)
    A = build(csr, device)
    x, X = zoo.float_vector(csr.shape[1], dtype), zoo.float_vector(3 * csr.shape[1], dtype).reshape(-1, 3)
    view = A.T
    calls = [lambda B: B @ put(x, device), lambda B: B @ put(X, device), lambda B: B.T @ put(x, device)]
    for _ in range(20):
        for call in calls:
            call(A)
        view @ put(x, device)
    data = (csr.data * 10.0 ** np.random.default_rng(3).integers(0, 9, csr.nnz)).astype(dtype)
    fresh = build(csr_of(csr, data), device)
    A.with_values(put(data, device), out=A)
    for call in calls:
        assert_same_bits(call(A), call(fresh))
    assert_same_bits(view @ put(x, device), fresh.T @ put(x, device))
    assert_same_csr(A.to_scipy(), csr_of(csr, data))


@pytest.mark.parametrize("build", TYPICAL, ids=str)
def test_refuses_another_structure(build, device):
    csr = zoo.integers("banded_stencil", np.float64)
    A = build(csr, device)
    missing = csr.tolil()
    missing[2, 1] = 0
    for matrix, words in (
        (missing.tocsr(), r"no entry at \(2, 1\).*Store a zero there, which SciPy's \+, - and \* drop"),
        (csr + scipy.sparse.csr_array(([1.0], ([3], [100])), shape=csr.shape), r"an entry at \(3, 100\)"),
        (scipy.sparse.csr_array(csr.shape), r"no entry at \(0, 0\)"),
        (scipy.sparse.csr_array((3, 5)), r"shape.*\(144, 144\).*\(3, 5\)"),
    ):
        with pytest.raises(ValueError, match=words):
            A.with_values(sparse_on(scipy.sparse.csr_array(matrix), device))
    broken = sparse_on(csr.copy(), device)
    broken.indices[-1] = 144
    with pytest.raises(ValueError, match="indices must lie in"):
        A.with_values(broken)


def test_refuses_an_out_that_cannot_hold_them(device, tmp_path):
    csr = zoo.integers("banded_stencil", np.float64)
    A, other = cvrarray.CVRArray(csr, device=device), cvrarray.CVRArray(zoo.integers("power_law", np.float64), device=device)
    data = put(csr.data, device)
    for out, error, words in (
        (other, ValueError, "structure"),
        (cvrarray.CVRArray(csr, n_lanes=8, device=device), ValueError, "structure"),
        (cvrarray.BBCSRArray(csr, device=device), TypeError, "CVRArray.*BBCSRArray"),
        (A.T, TypeError, "CVRArray.*TransposedArray"),
        (A.astype(int), TypeError, "int64.*float64"),
        (np.zeros(3), TypeError, "ndarray"),
    ):
        with pytest.raises(error, match=words):
            A.with_values(data, out=out)
    separate = cvrarray.CVRArray(csr, device=device)  # the same structure, found by comparing
    assert A.with_values(2 * data, out=separate) is separate
    assert_same_csr(separate.to_scipy(), csr_of(csr, 2 * csr.data))
    single = A.astype("float32")
    A.with_values(3 * data, out=single)
    assert single.dtype == np.float32 and float(get(single.tocsr().data)[0]) == np.float32(3 * csr.data[0])
    if device == "cpu":
        cvrarray.save(tmp_path / "a.cvra", A)
        mapped = cvrarray.load(tmp_path / "a.cvra", device="cpu")
        A.with_values(2 * data, out=mapped)
        assert_same_csr(mapped.to_scipy(), csr_of(csr, 2 * csr.data))
        assert_same_csr(cvrarray.load(tmp_path / "a.cvra", device="cpu").to_scipy(), csr)  # the file is as it was


def test_values_that_lie_in_the_table_that_they_are_written_to(device):
    A = cvrarray.BBCSRArray(zoo.floats("power_law", np.float64), block_size=1, device=device)
    values = A._values(A._tables)[: A.nnz]
    expected = get(values).copy()
    np.testing.assert_array_equal(get(A.with_values(values, out=A).data), expected)


def test_refuses_another_device(gpu):
    csr = zoo.integers("banded_stencil", np.float64)
    with pytest.raises(TypeError, match="device"):
        cvrarray.CVRArray(csr, device=gpu).with_values(csr)
    with pytest.raises(TypeError, match="device"):
        cvrarray.CVRArray(csr, device="cpu").with_values(sparse_on(csr, gpu))


def test_allocates_nothing_in_place():
    """Of the size of the matrix: what a call makes beside is a few small objects."""
    import tracemalloc

    csr = scipy.sparse.random_array((2000, 2000), density=0.02, rng=np.random.default_rng(1), format="csr")
    for A in (cvrarray.CVRArray(csr), cvrarray.BBCSRArray(csr, block_size=1)):
        for values in (csr.data, csr, csr.tocsc()):
            A.with_values(values, out=A)
            tracemalloc.start()
            A.with_values(values, out=A)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < csr.data.nbytes // 8
    assert devices.of(A._values(A._tables)) == devices.CPU


@pytest.mark.small
@pytest.mark.parametrize("size", [1, 2, 3, 6], ids="blocks of {}".format)
def test_each_kernel_once_with_cuda(size, gpu):
    """What a sanitizer looks at: values of every structure and order, sums, and products at a structure's places."""
    import cupy

    from cvrarray.gpu import sampled

    rng = np.random.default_rng(size)
    places = scipy.sparse.random_array((41, 33), density=0.2, rng=rng, format="csr")
    csr = scipy.sparse.kron(places, np.ones((size, size)), format="csr")
    holes = scipy.sparse.csr_array(csr - csr.multiply(rng.random(csr.shape) < 0.1))
    long = scipy.sparse.random_array((41, 2400), density=0.3, rng=rng, format="csr")
    for matrix in (csr, holes, *[long] * (size == 1)):
        matrix.sort_indices()
        for array in (cvrarray.BBCSRArray(matrix, block_size=size, device=gpu), cvrarray.CVRArray(matrix, device=gpu)):
            assert_same_csr(array.tocsr(), matrix)
            data = rng.standard_normal(matrix.nnz).astype("float32" if size == 2 else "float64")
            found = array.with_values(cupy.asarray(data))
            assert_same_bits(found.tocsr().data, data)
            found.with_values(sparse_on(csr_of(matrix, data).tocsc(), gpu), out=found)
            assert_same_bits(found.tocsr().data, data)
    shuffled, _ = shuffled_coo(csr, np.arange(1.0, csr.nnz + 1))
    assert_same_bits(cvrarray.CVRArray(sparse_on(shuffled, gpu)).tocsr().data, np.arange(1.0, csr.nnz + 1))
    block_row, block_col = (np.tile(index, 3) for index in places.nonzero())
    for copies in (1, 3):
        n = copies * places.nnz
        values = rng.integers(0, 9, (n, size, size) if size > 1 else n).astype("float64")
        plan = cvrarray.Assembly(cupy.asarray(block_row[:n]), cupy.asarray(block_col[:n]), block_size=size, format="bbcsr")
        sums = values.reshape(copies, places.nnz, size, size).sum(axis=0)
        dense = np.zeros((41, size, 33, size))
        dense[block_row[: places.nnz], :, block_col[: places.nnz], :] = sums
        array = plan(cupy.asarray(values))
        assert_same_bits(array.todense(), dense.reshape(41 * size, -1)[: array.shape[0], : array.shape[1]])
    k = {1: 1, 2: 8, 3: 40, 6: 3}[size]
    left, right = (cupy.asarray(rng.integers(0, 9, (n, k)).astype("float64")) for n in csr.shape)
    row, col, out = (*(cupy.asarray(index) for index in csr.tocoo().coords), cupy.empty(csr.nnz))
    sampled.products(row, col, left, right, out)
    assert_same_bits(out, (left[row] * right[col]).sum(axis=1))
