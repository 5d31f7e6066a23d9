"""What an array is made from: every container, order, byte order and index dtype gives one matrix; none is changed."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from checks import (
    DEFAULTS,
    assert_same_bits,
    assert_same_csr,
    assert_same_tables,
    bbcsr,
    cvr,
    from_csr,
    get,
    in_pairs,
    in_turn,
    put,
)

import cvrarray
from cvrarray.cpu.csr import look

BUILDS = [cvr(4, 3, "nnz"), bbcsr(3)]
BUILD = pytest.mark.parametrize("build", BUILDS, ids=str)
NAMES = ["explicit_zeros", "rows_of_mixed_length", "one_by_one", "shape_without_entries_5_0", "all_rows_empty"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4", ">i8"]


# Containers


@in_turn(
    "format, kind, name, build",
    ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"],
    ["array", "matrix"],
    [*NAMES, "shape_without_entries_0_0"],
    BUILDS,
    times=3,
)
def test_scipy(build, name, kind, format, device):
    """Every format, as array and as matrix; those that keep explicit zeros have them kept."""
    csr = zoo.floats("all_rows_empty" if format == "bsr" and "shape" in name else name)  # SciPy makes no BSR without rows
    if format in ("lil", "dok", "dia"):  # SciPy itself drops or makes zeros there
        csr.eliminate_zeros()
    given = getattr(scipy.sparse, f"{format}_{kind}")(csr)
    expected = csr_array_of(given)
    A = build(given, device)
    assert A.device == device
    assert_same_csr(A.to_scipy(), expected)


def csr_array_of(given):
    """The canonical CSR of a SciPy object, made by SciPy."""
    csr = scipy.sparse.csr_array(given)
    csr.sort_indices()
    return scipy.sparse.csr_array((csr.data, np.int32(csr.indices), np.int32(csr.indptr)), shape=csr.shape)


@in_turn(
    "name, kind, build",
    [*NAMES, "shape_without_entries_0_0"],
    ["coo", "gcxs rows", "gcxs columns", "dok"],
    BUILDS,
    times=2,
)
def test_pydata(build, name, kind, device):
    """A COO may hold stored zeros: they are entries here too."""
    csr = zoo.floats(name)
    if kind != "coo":
        csr.eliminate_zeros()
    given = sparse.COO(np.stack(csr.tocoo().coords), csr.data, shape=csr.shape, prune=False)
    assert given.nnz == csr.nnz
    if kind.startswith("gcxs"):
        given = sparse.GCXS(given, compressed_axes=(int("columns" in kind),))
    elif kind == "dok":
        given = given.asformat("dok")
    assert_same_csr(build(given, device).to_scipy(), csr)


@in_turn("dtype, order, build", ["bool", "int64", "float32", "complex128"], ["C", "F"], BUILDS)
def test_dense(build, dtype, order, device):
    """A dense matrix stores what is not 0."""
    csr = zoo.integers("power_law", dtype)
    assert_same_csr(build(csr.toarray(order=order), device).to_scipy(), csr)


@BUILD
def test_dense_views(build, device):
    """Strided, transposed, negative and read-only views, and nested lists."""
    dense = zoo.floats("tridiagonal_31").toarray()
    wide = np.zeros((62, 93))
    wide[::2, ::3] = dense
    frozen = dense.copy()
    frozen.flags.writeable = False
    flipped = np.ascontiguousarray(dense[::-1, ::-1])[::-1, ::-1]
    for given in (wide[::2, ::3], np.ascontiguousarray(dense.T).T, flipped, frozen, dense.tolist()):
        np.testing.assert_array_equal(build(given, device).to_scipy().toarray(), dense)


@BUILD
@pytest.mark.parametrize("name", ["explicit_zeros", "rows_of_mixed_length"])
@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_cupyx_stays_on_its_device(build, name, format, gpu):
    import cupyx.scipy.sparse

    csr = zoo.floats(name)
    given = getattr(cupyx.scipy.sparse, f"{format}_matrix")(getattr(scipy.sparse, f"{format}_matrix")(csr))
    A = build(given)
    assert A.device == gpu
    assert_same_csr(A.to_scipy(), csr)
    assert build(given, "cpu").device == "cpu"
    assert_same_csr(build(given, "cpu").to_scipy(), csr)
    dense = build(put(csr.toarray(), gpu))
    assert dense.device == gpu
    np.testing.assert_array_equal(get(dense.todense()), csr.toarray())


@in_pairs(
    "source, target, name",
    DEFAULTS,
    [cvr(4, 3, "nnz"), cvr(32, 2, "rows"), bbcsr(3), bbcsr(6)],
    ["explicit_zeros_beside_holes", "rows_of_mixed_length", "all_rows_empty"],
)
def test_ours(source, target, name, device):
    """From one of our arrays to another format or other parameters, staying on its device."""
    csr = zoo.floats(name)
    A = target(source(csr, device))
    assert A.device == device
    assert_same_tables(A._tables, target(csr, device)._tables)


@pytest.mark.parametrize("source", DEFAULTS, ids=str)
@pytest.mark.parametrize("target", DEFAULTS, ids=str)
def test_ours_to_another_device(source, target, gpu):
    csr = zoo.floats("power_law")
    for here, there in (("cpu", gpu), (gpu, "cpu")):
        A = target(source(csr, here), device=there)
        assert A.device == there
        assert_same_csr(A.to_scipy(), csr)


def test_host_input_stays_on_the_host():
    assert cvrarray.CVRArray(zoo.floats("diagonal")).device == "cpu"
    assert cvrarray.BBCSRArray(zoo.floats("diagonal")).device == "cpu"


# Not canonical


@BUILD
@pytest.mark.parametrize("flags", [{}, {"has_sorted_indices": True}, {"has_canonical_format": True}], ids=str)
def test_unsorted_and_duplicated_csr(build, flags, device):
    """Sorted and summed, whatever SciPy's cached flags say: the user set them, or edited the arrays after."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    indptr, indices, data = _shuffled_twice(csr)
    given = scipy.sparse.csr_matrix((data, indices, indptr), shape=csr.shape)
    for name, value in flags.items():
        setattr(given, name, value)
    assert_same_csr(build(given, device).to_scipy(), _doubled(csr))


@BUILD
def test_duplicates_are_summed_in_order(build, device):
    """Each place's values are added in the order in which they came: the same bits on every device."""
    rng = np.random.default_rng(6)
    row, col = rng.integers(0, 3, 3000), rng.integers(0, 20, 3000)
    val = (rng.standard_normal(3000) * 10 ** rng.uniform(-6, 6, 3000)).astype(np.float32)
    expected = np.zeros((3, 20), np.float32)
    np.add.at(expected, (row, col), val)
    A = build(scipy.sparse.coo_array((val, (row, col)), shape=(3, 20)), device)
    assert_same_bits(A.todense(), expected)


@BUILD
def test_duplicates_that_cancel_stay_stored(build, device):
    """Entries that add up to 0 are explicit zeros, not absent."""
    given = scipy.sparse.coo_array(([2.0, -2.0, 1.0], ([1, 1, 2], [3, 3, 0])), shape=(4, 5))
    A = build(given, device)
    assert A.nnz == 2
    assert_same_csr(A.to_scipy(), scipy.sparse.csr_array(([0.0, 1.0], [3, 0], [0, 0, 1, 2, 2]), shape=(4, 5)))


@BUILD
@pytest.mark.parametrize(("dtype", "value", "total"), [("bool", True, True), ("int8", 100, -56), ("uint64", 100, 200)])
def test_duplicates_in_integers(build, dtype, value, total, device):
    """bool: either; integers wrap."""
    given = scipy.sparse.coo_array((np.full(2, value, dtype), ([1, 1], [2, 2])), shape=(3, 3))
    A = build(given, device)
    assert A.dtype == dtype
    assert get(A.todense())[1, 2] == total


@BUILD
def test_empty_rows_and_columns_of_scipy_views(build, device):
    """Slices and transposes of SciPy matrices."""
    csr = zoo.floats("power_law")
    for given in (csr[10:200, 3:300], csr.T, csr[::3], csr[:, 5:6], csr[[7, 7, 0]]):
        assert_same_csr(build(given, device).to_scipy(), csr_array_of(given))


# from_csr


@pytest.mark.parametrize("cls", [cvrarray.CVRArray, cvrarray.BBCSRArray])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_from_csr_index_dtypes(cls, dtype, device):
    """Any integers are indices."""
    csr = zoo.floats("tridiagonal_33")
    kind = np.dtype(dtype)
    if device != "cpu" and kind.byteorder == ">":
        pytest.skip("CuPy has no other byte order")
    indptr, indices = (put(a.astype(kind), device) for a in (csr.indptr, csr.indices))
    A = from_csr(cls, indptr, indices, put(csr.data, device), csr.shape)
    assert A.device == device
    assert_same_csr(A.to_scipy(), csr)


@BUILD
def test_from_csr_lists(build):
    """Lists and tuples, shape as list of NumPy integers."""
    cls = type(build(np.eye(1)))
    A = from_csr(cls, [0, 2, 2, 3], (0, 2, 1), [1.0, 2, 3], [np.int64(3), np.int32(4)], **build.keywords)
    np.testing.assert_array_equal(A.todense(), [[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 0]])
    assert A.shape == (3, 4)
    assert all(type(n) is int for n in A.shape)


@BUILD
def test_from_csr_of_other_array_kinds(build, device):
    """Strided, big-endian and read-only arrays."""
    csr = zoo.floats("rows_of_mixed_length")
    cls = type(build(np.eye(1)))

    def strided(a):
        return np.repeat(a, 2)[::2]

    def reversed_twice(a):
        return a[::-1].copy()[::-1]

    def big_endian(a):
        return a.astype(a.dtype.newbyteorder(">"))

    def frozen(a):
        a = a.copy()
        a.flags.writeable = False
        return a

    for kind in (strided, reversed_twice, big_endian, frozen):
        parts = [kind(a) for a in (csr.indptr, csr.indices, csr.data)]
        A = from_csr(cls, *parts, csr.shape, device=device, **build.keywords)
        assert A.dtype == np.float64
        assert A.dtype.isnative
        assert_same_csr(A.to_scipy(), csr)


# from_blocks


@pytest.mark.parametrize("order", ["as given", "shuffled", "with duplicates"])
def test_from_blocks(order, device):
    """Pairs in any order; duplicates add up; the shape is inferred."""
    rng = np.random.default_rng(4)
    pairs = np.array([(0, 0), (0, 3), (2, 1), (4, 4), (4, 0)])
    blocks = rng.integers(-4, 5, (5, 3, 3)).astype(float)
    if order == "shuffled":
        shuffle = rng.permutation(5)
        pairs, blocks = pairs[shuffle], blocks[shuffle]
    if order == "with duplicates":
        pairs, blocks = np.r_[pairs, pairs[:3]], np.r_[blocks, blocks[:3]]
    dense = np.zeros((15, 15))
    for (i, j), block in zip(pairs, blocks, strict=True):
        dense[3 * i : 3 * i + 3, 3 * j : 3 * j + 3] += block
    A = cvrarray.BBCSRArray.from_blocks(*(put(np.ascontiguousarray(a), device) for a in (*pairs.T, blocks)))
    A.check()
    assert A.device == device
    assert A.block_size == 3
    assert A.shape == (15, 15)
    assert A.nnz == 5 * 9
    np.testing.assert_array_equal(get(A.todense()), dense)


@pytest.mark.parametrize("shape", [(8, 9), (9, 8), (20, 7), (7, 20)])
def test_from_blocks_with_a_shape(shape, device):
    """A shape larger than the blocks, or one that cuts them off."""
    blocks = np.ones((2, 3, 3))
    A = cvrarray.BBCSRArray.from_blocks([0, 2], [1, 2], blocks, shape=shape, device=device)
    A.check()
    assert A.shape == shape
    dense = np.zeros((30, 30))
    dense[:3, 3:6], dense[6:9, 6:9] = blocks
    np.testing.assert_array_equal(get(A.todense()), dense[: shape[0], : shape[1]])


def test_from_no_blocks(device):
    A = cvrarray.BBCSRArray.from_blocks([], [], np.zeros((0, 4, 4)), shape=(10, 12), device=device)
    A.check()
    assert (A.shape, A.nnz, A.block_size, A.device) == ((10, 12), 0, 4, device)
    assert not get(A @ put(np.ones(12), device)).any()


# asarray


@pytest.mark.parametrize("format", ["cvr", "bbcsr"])
def test_asarray_takes_a_format(format, device):
    csr = zoo.floats("power_law")
    A = cvrarray.asarray(csr, format=format, device=device)
    assert A.format == format
    assert A.device == device
    assert_same_csr(A.to_scipy(), csr)
    parameter, value = ("n_chunks", 3) if format == "cvr" else ("block_size", 2)
    assert getattr(cvrarray.asarray(csr, format=format, device=device, **{parameter: value}), parameter) == value


@pytest.mark.parametrize("name", list(zoo.ZOO)[::3])
def test_asarray_chooses(name, device):
    """A choice for every matrix of the zoo, with a reason in plan and in repr."""
    csr = zoo.floats(name)
    A = cvrarray.asarray(csr, device=device)
    assert A.format in ("cvr", "bbcsr")
    assert A.device == device
    assert A.plan
    assert A.plan in repr(A)
    assert_same_csr(A.to_scipy(), csr)


def test_asarray_uses_a_gpu_where_there_is_one():
    expected = "cuda:0" if cvrarray.core.devices.gpu_count() else "cpu"
    assert cvrarray.asarray(zoo.floats("diagonal")).device == expected


# The user's object


@BUILD
@pytest.mark.parametrize(
    ("format", "frozen"), [("csr", False), ("csr", True), ("csc", True), ("coo", True), ("lil", False), ("dok", False)]
)
def test_scipy_input_is_left_alone(build, format, frozen, device):
    """Arrays, their order and the flags stay as they were, even when unsorted; read-only ones are taken."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    indptr, indices, data = _shuffled_twice(csr)
    given = scipy.sparse.csr_matrix((data, indices, indptr), shape=csr.shape).asformat(format)
    if format == "csr":
        given.has_canonical_format = given.has_sorted_indices = False
    before = _state(given)
    if frozen:
        for array in _arrays(given):
            array.flags.writeable = False
    build(given, device) @ put(np.ones(csr.shape[1]), device)
    for name, value in before.items():
        np.testing.assert_array_equal(_state(given)[name], value, err_msg=name)


@BUILD
def test_array_shares_no_memory(build, device):
    """Later edits of the input, or of what came back, do not reach the array."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A = build(csr, device)
    expected = csr.copy()
    csr.data[:], csr.indices[:] = 0, 0
    A.tocsr().data[:] = 0
    assert_same_csr(A.to_scipy(), expected)


def _shuffled_twice(csr):
    """indptr, indices, data of 2 * csr: every entry twice, each row's in a random order."""
    rng = np.random.default_rng(11)
    row = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr)).repeat(2)
    order = np.lexsort((rng.random(row.size), row))
    return 2 * csr.indptr, csr.indices.repeat(2)[order], csr.data.repeat(2)[order]


def _doubled(csr):
    csr.data *= 2
    return csr


def _arrays(matrix):
    if matrix.format in ("csr", "csc"):
        return [matrix.data, matrix.indices, matrix.indptr]
    return [matrix.data, matrix.row, matrix.col] if matrix.format == "coo" else []


def _state(matrix):
    if matrix.format == "lil":
        return {"rows": np.concatenate(matrix.rows), "data": np.concatenate(matrix.data)}
    if matrix.format == "dok":
        return {"keys": np.array(list(matrix.keys())), "values": np.array(list(matrix.values()))}
    state = {str(k): array.copy() for k, array in enumerate(_arrays(matrix))}
    if matrix.format != "coo":
        state |= {"sorted": matrix.has_sorted_indices, "canonical": matrix.has_canonical_format}
    return state


def test_plan_names_what_decided():
    """The predicted time of the format chosen is the least, and the text has it and the other format's."""
    from cvrarray import generate
    from cvrarray.choice import model

    for csr in (generate.poisson7(12), generate.elast3(5), generate.rmat(9)):
        stats = cvrarray.statistics(csr, exact=False)
        found = cvrarray.asarray(csr, device="cpu").plan
        numbers = re.search(r": predicted ([\d.,]+) us a product \(.+: ([\d.,]+)\)", found).groups()
        mine, other = (float(text.replace(",", "")) for text in numbers)
        assert mine <= other
        times = model.predict(stats, "cpu")
        assert float(f"{min(times.values()):.2g}") == pytest.approx(mine, rel=0.05)
        assert re.search(r"; [\d.]+ and [\d.]+ bytes a nonzero; ", found)


@pytest.mark.parametrize("n_rows", [33, 65, 97])
def test_a_last_row_with_most_of_the_entries(n_rows):
    """Ranges of bins after it are empty, and lie beyond the last offset: nobody looks there."""
    n_cols = 1 << 18
    indptr = np.append(np.arange(n_rows), n_rows - 1 + n_cols).astype(np.int32)
    indices = np.concatenate([np.zeros(n_rows - 1, np.int32), np.arange(n_cols, dtype=np.int32)])
    is_canonical, bins = look(indptr, indices, n_cols)
    assert is_canonical
    assert (bins.longest.max(), bins.high.max(), bins.low.max()) == (n_cols, n_cols - 1, 0)
    A = cvrarray.BBCSRArray((np.ones(indices.size), indices, indptr), shape=(n_rows, n_cols), block_size=2, device="cpu")
    assert (A @ np.ones(n_cols)).tolist() == [1.0] * (n_rows - 1) + [n_cols]


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csc_array])
def test_room_behind_the_last_row(kind, device):
    """SciPy lets the arrays of a CSR be longer than their entries; what lies there is no part of the matrix. So do CuPy and
    pydata/sparse.
    """
    S = scipy.sparse.random_array((30, 30), density=0.2, rng=0, format="csr")
    longer = kind(S)
    longer.data, longer.indices = (np.concatenate([part, [99, 99]]) for part in (longer.data, longer.indices))
    triple = tuple(put(part, device) for part in (np.append(S.data, 9.0), np.append(S.indices, 99), S.indptr))
    gcxs = sparse.GCXS.from_scipy_sparse(S)
    gcxs.data, gcxs.indices = longer_parts = np.append(gcxs.data, 9.0), np.append(gcxs.indices, 99)
    made = [
        cvrarray.CVRArray(longer, device=device),
        cvrarray.BBCSRArray(triple, shape=S.shape),
        from_csr(cvrarray.CVRArray, triple[2], triple[1], triple[0], S.shape),
        cvrarray.CVRArray(gcxs, device=device),
    ]
    if device != "cpu":
        import cupyx.scipy.sparse

        matrix = cupyx.scipy.sparse.csr_matrix(S)
        matrix.data, matrix.indices = (put(part, device) for part in longer_parts)
        made.append(cvrarray.CVRArray(matrix))
    for A in made:
        np.testing.assert_array_equal(A.to_scipy().toarray(), S.toarray())
        assert A.nnz == S.nnz


def test_what_goes_to_a_gpu_is_checked_there(gpu):
    """Sorting and sums too: Numba, which takes longer to load than a small conversion, is not imported."""
    code = """
        import sys, numpy as np, scipy.sparse as sp, cvrarray, cupy
        S = sp.random_array((300, 200), density=0.1, format="csr")
        twice = sp.csr_array((np.r_[S.data, S.data], np.r_[S.indices, S.indices[::-1]], [0, 2 * S.nnz]), shape=(1, 200))
        for of in (S, S.tocsc(), S.tocoo(), twice, (S.data, S.indices, S.indptr)):
            A = cvrarray.asarray(of, device="cuda")
            assert abs(A.to_scipy() - (sp.csr_array(of) if not isinstance(of, tuple) else S)).max() < 1e-14
            cvrarray.CVRArray(of, device="cuda") @ cupy.ones(A.shape[1])
        assert "numba" not in sys.modules, [name for name in sys.modules if name.startswith("cvrarray.cpu")]
        S.indices[7] = 200
        try:
            cvrarray.asarray(S, device="cuda")
        except ValueError as error:
            assert "got 200 at position 7" in str(error)
        else:
            raise AssertionError("not refused")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
