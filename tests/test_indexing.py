"""``A[...]`` against NumPy on the dense array: every kind of key, on both formats and devices."""

from __future__ import annotations

import checks
import numpy as np
import pytest
import zoo
from scipy.sparse import coo_array, csr_array

import cvrarray
from cvrarray.input import coercion

BUILDS = [checks.Build("cvr", {}), checks.cvr(4, 5, "nnz"), checks.cvr(3, 1), checks.bbcsr(1), checks.bbcsr(6)]
CONFIGURATIONS = pytest.mark.parametrize("build", BUILDS, ids=str)
SHAPE = (17, 29)


def sample(dtype=np.float64, density=0.3) -> np.ndarray:
    """A dense array with empty rows and columns, and entries in the corners."""
    rng = np.random.default_rng(5)
    dense = rng.integers(1, 100, SHAPE) * (rng.random(SHAPE) < density)
    dense[[3, 4, 9]] = 0
    dense[:, [2, 28]] = 0
    dense[0, 0] = dense[16, 27] = 77
    return dense.astype(dtype)


def assert_item(A, dense: np.ndarray, key, device_key=None) -> None:
    """``A[key]`` is ``dense[key]``: a scalar, a dense vector, or a valid array of the same format."""
    found = A[key if device_key is None else device_key]
    expected = dense[key]
    if np.ndim(expected) == 2:
        assert type(found) is type(A)
        assert found.device == A.device
        assert found._parameters() == A._parameters()
        found.check()
        assert found.nnz == np.count_nonzero(expected)
        found = found.todense()
    elif np.ndim(expected) == 1 or A.device != "cpu":
        assert isinstance(found, A._target.xp.ndarray)
    else:
        assert isinstance(found, np.generic)
    checks.assert_same_bits(found, expected)


ROW_KEYS = [*np.s_[:, 1:9, 3:5, 5:2, 100:, -6:, ::2, 1::3, ::-1, ::-4, 14:2:-3, 0:0, 0, -1, 3, 5]]
COL_KEYS = [*np.s_[3:, :1, 20:3, ::2, 1:25:7, ::-1, 27:0:-2, -1:-30:-5, :: 10**6, 5:6, 0:0, 0, -1, 2, 27]]
BASIC = [
    *ROW_KEYS,
    *((row, COL_KEYS[number % len(COL_KEYS)]) for number, row in enumerate(ROW_KEYS)),
    *((slice(None), col) for col in COL_KEYS),
    *(np.s_[...], np.s_[..., :], np.s_[:, ...], np.s_[1:9, ...], np.s_[..., 4:20], np.s_[0, ...], np.s_[..., 0], np.s_[:,]),
    *(np.s_[0, 0], np.s_[-1, -2], np.s_[16, 27], np.s_[np.int8(5), np.uint64(4)], np.s_[np.array(5), 4], np.s_[5, ::-1]),
]


@checks.in_turn("key, build", [(key,) for key in BASIC], BUILDS, times=2)
def test_ints_slices_and_ellipsis(build, key, device):
    dense = sample()
    assert_item(build(dense, device=device), dense, key)


ROWS = [0, 4, -1, 16, 16, 2, -17, 0]
COLS = [28, 0, 5, -1, 5, 5, 27, -29]
ADVANCED = {
    "rows": ROWS,
    "rows in an array": np.array(ROWS, np.int8),
    "rows ascending": np.array([0, 3, 3, 12], np.uint16),
    "no rows": [],
    "no rows as integers": np.zeros(0, np.int32),
    "all rows by a mask": np.ones(17, bool),
    "rows by a mask": np.arange(17) % 3 == 0,
    "no rows by a mask": np.zeros(17, bool),
    "mask as a list": [True, False] * 8 + [True],
    "cols": np.s_[:, COLS],
    "cols ascending": np.s_[:, [1, 2, 2, 2, 20]],
    "no cols": np.s_[:, []],
    "cols by a mask": np.s_[..., np.arange(29) % 4 == 1],
    "more cols than there are": np.s_[:, np.arange(100) * 7 % 29],
    "rows, some cols": np.s_[ROWS, 3:20:4],
    "rows, cols backwards": np.s_[ROWS, ::-1],
    "some rows, cols": np.s_[15:2:-2, COLS],
    "row mask, cols": np.s_[np.arange(17) % 3 == 0, :5],
    "row of cols": np.s_[5, COLS],
    "row by a mask": np.s_[5, np.arange(29) % 4 == 1],
    "column of rows": np.s_[ROWS, 5],
    "paired": np.s_[ROWS, COLS],
    "paired with one": np.s_[ROWS, [5]],
    "one paired": np.s_[[5], COLS],
    "paired with nothing": np.s_[[], []],
    "masks paired": np.s_[np.arange(17) < 7, np.arange(29) > 21],
    "mesh": np.ix_(ROWS, COLS),
    "mesh of a mask": np.ix_(np.arange(17) % 3 == 0, COLS),
    "mesh of nothing": np.ix_([], COLS),
    "mesh by hand": np.s_[np.array(ROWS)[:, None], np.array(COLS)],
    "range": range(3, 15, 2),
    "mask of all": sample() % 3 == 1,
    "mask of nothing": np.zeros(SHAPE, bool),
    "mask of everything": np.ones(SHAPE, bool),
    "mask as lists": (sample() > 50).tolist(),
}


@checks.in_turn("name, build", ADVANCED, BUILDS, times=2)
def test_index_arrays_and_masks(build, name, device):
    dense = sample()
    key = ADVANCED[name] if name != "mask as lists" else np.array(ADVANCED[name])
    assert_item(build(dense, device=device), dense, key, ADVANCED[name])


@CONFIGURATIONS
@pytest.mark.parametrize("name", ["rows in an array", "cols", "rows by a mask", "paired", "mesh", "mask of all"])
def test_keys_on_the_device(build, name, device):
    """Keys as arrays of the device's own module."""
    dense, key = sample(), ADVANCED[name]

    def put(part):
        return part if isinstance(part, slice) else checks.put(np.asarray(part), device)

    assert_item(build(dense, device=device), dense, key, tuple(map(put, key)) if isinstance(key, tuple) else put(key))


@checks.in_turn("dtype, build", [np.bool_, np.int8, np.uint64, np.float32, np.complex128], BUILDS)
def test_dtypes_are_kept(build, dtype, device):
    dense = sample(dtype)
    A = build(dense, device=device)
    for key in (np.s_[2:9, ::-2], (slice(None), COLS), (5, 6), 5, (ROWS, COLS)):
        assert_item(A, dense, key)


@pytest.mark.parametrize("name", zoo.ZOO)
def test_zoo(name, device):
    """Every matrix of the zoo, by keys that its shape allows."""
    csr = zoo.integers(name)
    n_rows, n_cols = csr.shape
    rng = np.random.default_rng(3)
    rows, cols = (rng.integers(0, n, 9) if n else np.zeros(0, np.int64) for n in csr.shape)
    A = checks.TYPICAL[len(name) % 4](csr, device=device)
    for key in (np.s_[1:-1, 1:-1], np.s_[::-3], np.s_[:, ::-2], rows, (slice(None), cols), np.ix_(rows, cols)):
        found = A[key].to_scipy()
        if isinstance(key, tuple):
            expected = csr[key[0].ravel() if isinstance(key[0], np.ndarray) else key[0]]
            expected = expected[:, key[1].ravel() if isinstance(key[1], np.ndarray) else key[1]]
        else:
            expected = csr[key]
        expected.sort_indices()
        checks.assert_same_csr(found, expected)  # explicit zeros too
    if n_rows and n_cols:
        pairs = A[rows, cols]
        np.testing.assert_array_equal(checks.get(pairs), [csr[r, c] for r, c in zip(rows, cols, strict=True)])
        np.testing.assert_array_equal(checks.get(A[n_rows // 2]), csr[[n_rows // 2]].toarray()[0])
        np.testing.assert_array_equal(checks.get(A[:, -1]), csr[:, [-1]].toarray()[:, 0])


@CONFIGURATIONS
def test_special_values_and_explicit_zeros_survive(build, device):
    val, places = np.array([np.nan, -np.inf, 0.0, -0.0, 1e-320]), ([0, 0, 1, 3, 3], [4, 1, 2, 0, 4])
    A, dense = build(csr_array((val, places), shape=(4, 5)), device=device), np.zeros((4, 5))
    dense[places] = val  # not toarray(), which adds and loses -0.0
    found = A[::-1, ::-1]
    assert found.nnz == 5
    checks.assert_same_bits(found.todense(), dense[::-1, ::-1])
    checks.assert_same_bits(A[[3, 0, 1]].todense(), dense[[3, 0, 1]])
    checks.assert_same_bits(A[[0, 0, 3], [4, 1, 0]], dense[[0, 0, 3], [4, 1, 0]])


@CONFIGURATIONS
def test_sparse_mask(build, device):
    """``A[mask]`` with a mask that is an array of ours: places stored as False do not count."""
    dense = sample()
    mask = dense > 40
    stored = coo_array((mask[dense != 0], np.nonzero(dense)), shape=SHAPE)
    sparse_mask = build(stored, device=device)
    assert sparse_mask.nnz > mask.sum()
    checks.assert_same_bits(build(dense, device=device)[sparse_mask], dense[mask])


@CONFIGURATIONS
def test_chained(build, device):
    dense = sample()
    A = build(dense, device=device)
    found = A[ROWS][:, COLS][1:, ::-1]
    checks.assert_same_bits(found.todense(), dense[ROWS][:, COLS][1:, ::-1])


@CONFIGURATIONS
def test_whole_array_is_itself(build, device):
    A = build(sample(), device=device)
    assert A[:] is A
    assert A[...] is A
    assert A[0:17, 0:100] is A


WIDE = 2**62 - 1


@pytest.mark.parametrize("build", [checks.cvr(4, 3, "nnz"), checks.bbcsr(3)], ids=str)
def test_widest_shape(build, device):
    """Nothing is allocated by the number of columns; int64 columns become int32 where the result is narrow."""
    row, col = np.array([0, 0, 1, 3, 3]), np.array([0, WIDE - 1, 2**40, 5, WIDE // 2])
    val = np.arange(1.0, 6.0)
    A = build(coercion.from_triplets(row, col, val, (4, WIDE)), device=device)
    assert float(A[0, -1]) == 2.0
    assert float(A[1, 2**40 + 1]) == 0.0
    picked = A[:, [WIDE - 1, 5, 2**40, 2**40, 7]]
    expected = np.array([[2, 0, 0, 0, 0], [0, 0, 3, 3, 0], [0, 0, 0, 0, 0], [0, 4, 0, 0, 0]], float)
    checks.assert_same_bits(picked.todense(), expected)
    assert picked.to_scipy().indices.dtype == np.int32
    narrow = A[:, 5 : WIDE : WIDE // 2 - 5]
    checks.assert_same_bits(narrow.todense(), expected[:, [1, 4, 4]] + np.array([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 5, 0]]))
    flipped = A[::-1, ::-1]
    assert flipped.shape == (4, WIDE)
    checks.assert_same_bits(flipped[:, [0, WIDE - 1 - 2**40]].todense(), expected[::-1, [0, 2]])
    checks.assert_same_bits(A[:, WIDE - 1], expected[:, 0])
    checks.assert_same_bits(A[3, :6], np.array([0, 0, 0, 0, 0, 4.0]))


ERRORS = {
    "row too large": (17, IndexError, "row 17 is out of bounds for axis 0 with size 17"),
    "row too small": (-18, IndexError, "row -18 is out of bounds for axis 0 with size 17"),
    "column too large": (np.s_[0, 29], IndexError, "column 29 is out of bounds for axis 1 with size 29"),
    "one of the rows": ([0, 30, 1], IndexError, "row 30 is out of bounds for axis 0 with size 17"),
    "one of the columns": (np.s_[:, [0, -30]], IndexError, "column -30 is out of bounds for axis 1 with size 29"),
    "paired column": (np.s_[[0, 1], [0, 29]], IndexError, "column 29 is out of bounds"),
    "beyond 64 bits": (np.array([2**64 - 1], np.uint64), IndexError, "out of bounds"),
    "three indices": (np.s_[0, 0, 0], IndexError, "2 dimensions; got 3"),
    "new axis": (np.s_[None, 0], IndexError, "np.newaxis"),
    "new axis alone": (None, IndexError, "np.newaxis"),
    "two ellipses": (np.s_[..., ...], IndexError, "at most one Ellipsis"),
    "float": (1.5, IndexError, "must be integers"),
    "floats": ([1.0, 2.0], IndexError, "must be integers"),
    "string": ("a", IndexError, "must be integers"),
    "bool": (True, IndexError, "must be named by a number"),
    "short mask": (np.ones(16, bool), IndexError, "one entry a row, 17; got shape"),
    "long mask": (np.s_[:, np.ones(30, bool)], IndexError, "one entry a column, 29; got shape"),
    "mask of another shape": (np.ones((29, 17), bool), IndexError, "the array's shape"),
    "lengths that do not pair": (np.s_[[0, 1, 2], [0, 1]], IndexError, r"broadcast; got \(3,\) and \(2,\)"),
    "2-D index": (np.zeros((2, 2), int), IndexError, "1 dimension"),
    "3-D index": (np.zeros((2, 2, 2), int), IndexError, "1 dimension"),
    "ragged": ([[1, 2], [3]], IndexError, "index array"),
    "sparse index": (csr_array(np.eye(3)), IndexError, "must be"),
    "slice of floats": (slice(0.5, 2), TypeError, "slice indices"),
    "step 0": (slice(0, 5, 0), ValueError, "zero"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, device):
    key, error, message = ERRORS[name]
    A = cvrarray.CVRArray(sample(), device=device)
    with pytest.raises(error, match=message):
        A[key]


def test_empty_shapes(device):
    for shape in ((0, 5), (5, 0), (0, 0)):
        dense = np.zeros(shape)
        for build in BUILDS[1:4]:
            A = build(dense, device=device)
            for key in (np.s_[:, ::-1], np.s_[::-2], np.s_[:, []], [], np.s_[1:1, 1:1], np.zeros(shape[0], bool)):
                assert_item(A, dense, key)
            with pytest.raises(IndexError, match="out of bounds"):
                A[0, 0]


def test_keys_on_another_device_are_refused(gpu):
    import cupy

    A = cvrarray.CVRArray(sample(), device="cpu")
    for key in (cupy.array([0, 1]), (slice(None), cupy.ones(29, bool))):
        with pytest.raises(TypeError, match="must be on the array's device, cpu"):
            A[key]
    with pytest.raises(TypeError, match="on the array's device, cpu"):
        A[cupy.ones(SHAPE, bool)]


@CONFIGURATIONS
def test_transposed_views(build, device):
    """Selections of ``A.T`` are arrays of A's format; vectors and scalars as of any array."""
    dense = sample()
    A = build(dense, device=device)
    for key in (np.s_[2:20:3], (COLS, slice(None)), np.ix_(COLS, ROWS), np.s_[::-1, ::-1]):
        found = A.T[key]
        assert type(found) is type(A)
        found.check()
        checks.assert_same_bits(found.todense(), dense.T[key])
    for key in (5, np.s_[:, 4], (COLS, ROWS), (27, 16)):
        checks.assert_same_bits(A.T[key], dense.T[key])


@CONFIGURATIONS
def test_rows_are_decoded_from_their_own_tiles(build, device, monkeypatch):
    """A row, an entry and a slice of rows come from the chunks or bins that hold them, not from the whole array."""
    dense = np.zeros((300, 40))
    # rows that several chunks share, empty ones between
    dense[::3] = np.random.default_rng(0).integers(1, 9, (100, 40))
    dense[[31, 32, 299]] = 5
    A = build(csr_array(dense), device)
    expected = {key: dense[key] for key in (0, 31, 32, 150, -1, (31, 7), (1, 1))}
    sliced = {key: dense[slice(*key)] for key in ((31, 33), (32, 64), (1, 3), (298, None), (40, 30, -3), (7, 7))}
    monkeypatch.setattr(type(A), "_canonical_csr", lambda self: pytest.fail("the whole array was decoded"))
    for key, values in expected.items():
        checks.assert_same_bits(A[key], values)
    for key, values in sliced.items():
        part = A[slice(*key)]
        part.check()
        checks.assert_same_bits(part.todense(), values)


@checks.in_turn("name, build", zoo.ZOO, [checks.cvr(32, 7), checks.cvr(4, 1000, "nnz"), checks.bbcsr(6)], times=2)
def test_runs_of_rows_hold_their_entries(build, name, device):
    """Also stored zeros, and rows that chunks cut."""
    csr = zoo.integers(name)
    A, n_rows = build(csr, device), csr.shape[0]
    if n_rows > 10_000:
        pytest.skip("too many rows to be taken run by run")
    for first, last in {(0, 0), (0, n_rows), (n_rows // 3, n_rows // 2), (n_rows // 2, n_rows)}:
        with A._target.use():
            part = A._canonical_rows(first, last)
        indptr, indices, data = (checks.get(array) for array in part[:3])
        assert part.shape == (last - first, csr.shape[1])
        checks.assert_same_csr(csr_array((data, indices, indptr), shape=part.shape), csr[first:last])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.complex128, np.int8, np.bool_], ids=str)
def test_large_and_small_results_are_alike(dtype, monkeypatch):
    """SciPy's loops, which large CSRs are indexed by on a CPU, and NumPy's operations give the same entries."""
    from cvrarray.cpu import taking

    dense = sample(np.float64).astype(dtype)
    A = checks.Build("cvr", {})(dense, "cpu")
    rng = np.random.default_rng(3)
    rows = [*np.s_[::-1, 1:15:3, -1:-1:-1, 5::-2], rng.integers(0, 17, 40), np.array([], int), rng.random(17) < 0.4]
    cols = [*np.s_[4:20, 7, 3::4, ::-1, 9:2], rng.integers(0, 29, 70), np.arange(29), np.array([], int)]
    keys = [*rows, *((slice(None), c) for c in cols)]
    used = []
    take = taking._taken
    monkeypatch.setattr(taking, "_taken", lambda *a: used.append(1) or take(*a))
    for key in keys:
        for least, most in ((0, 2**31 - 1), (1 << 60, 1 << 60), (0, 1)):
            monkeypatch.setattr(taking, "LEAST", least)
            monkeypatch.setattr(taking, "MOST", most)
            assert_item(A, dense, key)
        assert used, key
    assert len(used) >= len(keys) - 4  # where there is no entry to take, either may be used


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.complex64, np.int8, np.bool_], ids=str)
def test_arrays_side_by_side_are_alike(dtype, monkeypatch):
    """The same of ``hstack``, of arrays of several dtypes and with explicit zeros."""
    from cvrarray.cpu import taking

    dense = sample(np.float64).astype(dtype)
    A, few = checks.Build("cvr", {})(dense, "cpu"), sample(np.int8, 0.05)[:, :3]
    csr = csr_array(dense.astype(np.float32)) if dtype == np.float16 else csr_array(dense)
    csr.data[::3] = 0
    for members in ([A, A], [A, cvrarray.asarray(few, device="cpu"), A], [cvrarray.asarray(csr, device="cpu"), A]):
        found = []
        for least in (0, 1 << 60):
            monkeypatch.setattr(taking, "LEAST", least)
            joined = np.hstack(members)
            joined.check()
            found.append(joined)
        assert found[0].nnz == found[1].nnz == sum(array.nnz for array in members)
        assert found[0].dtype == found[1].dtype
        checks.assert_same_bits(found[0].todense(), found[1].todense())
        checks.assert_same_bits(found[0].todense(), np.hstack([array.todense() for array in members]))


def test_more_entries_than_32_bits_reach_are_not_taken_by_scipy(monkeypatch):
    """SciPy's offsets would wrap: rows and columns that are named many times."""
    from cvrarray.cpu import taking

    monkeypatch.setattr(taking, "LEAST", 0)
    monkeypatch.setattr(taking, "MOST", 30)
    dense = np.arange(1.0, 26).reshape(5, 5)
    A = checks.Build("cvr", {})(dense, "cpu")
    csr = coercion.as_csr(dense)
    many = np.array([1, 1, 1, 1, 1, 1, 1])
    assert taking.rows(csr, many[:6]) is not None
    assert taking.rows(csr, many) is None
    assert taking.columns(csr, np.arange(5)) is not None
    assert taking.columns(csr, many[:2]) is None
    assert_item(A, dense, many)
    assert_item(A, dense, np.s_[:, many])


def test_wide_matrices_take_no_table_of_columns():
    """SciPy's loops have a table of all columns, which the memory of an index must not grow by."""
    from cvrarray.cpu import taking

    csr = coercion.as_csr(csr_array((np.ones(20_000), np.arange(20_000) * 100_000, [0, 20_000]), shape=(1, 2**31 - 2)))
    assert taking.columns(csr, np.array([0, 100_000])) is None
    assert taking.columns(csr, np.s_[::2]) is None
    assert taking.columns(csr, np.s_[0:100_001:1]).nnz == 2
