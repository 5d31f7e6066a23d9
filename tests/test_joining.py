"""concatenate, vstack, hstack and block beside NumPy and SciPy: entries, dtypes, formats, shapes that do not fit."""

from __future__ import annotations

import checks
import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from numpy import block, concatenate, hstack, vstack
from scipy.sparse import csr_array

import cvrarray
from cvrarray.array import joining
from cvrarray.input import coercion

BUILDS = [checks.Build("cvr", {}), checks.cvr(4, 5, "nnz"), checks.cvr(3, 1), checks.bbcsr(1), checks.bbcsr(6)]
CONFIGURATIONS = pytest.mark.parametrize("build", BUILDS, ids=str)
DTYPES = [np.bool_, np.int8, np.uint8, np.int64, np.uint64, np.float32, np.float64, np.complex64, np.complex128]


def dense(n_rows, n_cols, dtype=np.float64) -> np.ndarray:
    rng = np.random.default_rng(10 * n_rows + n_cols)
    return (rng.integers(1, 100, (n_rows, n_cols)) * (rng.random((n_rows, n_cols)) < 0.4)).astype(dtype)


def assert_joined(found, expected: np.ndarray, A) -> None:
    assert type(found) is type(A)
    assert found._parameters() == A._parameters()
    assert found.device == A.device
    found.check()
    checks.assert_same_bits(found.todense(), expected)
    assert found.nnz == np.count_nonzero(expected)


@CONFIGURATIONS
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_concatenate(build, axis, device):
    for sizes in ((5, 7, 2), (40, 1), (0, 3, 0), (6,), (0,)):
        parts = [dense(n, 11) if axis % 2 == 0 else dense(11, n) for n in sizes]
        arrays = [build(part, device=device) for part in parts]
        assert_joined(concatenate(arrays, axis=axis), np.concatenate(parts, axis=axis), arrays[0])
    assert_joined(joining.concatenate(iter(arrays)), np.concatenate(parts), arrays[0])


@CONFIGURATIONS
def test_vstack_and_hstack(build, device):
    tall, wide, square = dense(9, 4), dense(4, 9), dense(4, 4)
    A, B, C = (build(part, device=device) for part in (tall, wide, square))
    assert_joined(vstack([A, C, A]), np.vstack([tall, square, tall]), A)
    assert_joined(hstack((C, B, C)), np.hstack((square, wide, square)), C)
    row = checks.put(np.array([0.0, 1.0, 0.0, -2.0]), device)
    assert_joined(vstack([A, row]), np.vstack([tall, checks.get(row)]), A)


@CONFIGURATIONS
def test_block(build, device):
    parts = [[dense(3, 4), dense(3, 5)], [dense(6, 4), dense(6, 5)], [dense(1, 9)]]
    arrays = [[build(part, device=device) for part in row] for row in parts]
    first = arrays[0][0]
    assert_joined(block(arrays), np.block(parts), first)
    assert_joined(block(arrays[1]), np.block(parts[1]), first)
    assert_joined(block([arrays[1]]), np.block([parts[1]]), first)
    assert_joined(block(first), parts[0][0], first)


@CONFIGURATIONS
def test_dtype_and_casting(build, device):
    parts = [dense(5, 6, np.int8), dense(5, 6, np.float64)]
    arrays = [build(part, device=device) for part in parts]
    for kwargs in (
        {"dtype": np.float16},
        {"dtype": np.float32},
        {"dtype": np.complex64},
        {"dtype": np.int16, "casting": "unsafe"},
    ):
        for function in (np.vstack, np.hstack):
            assert_joined(function(arrays, **kwargs), function(parts, **kwargs), arrays[0])
    with pytest.raises(TypeError, match="cannot cast from float64 to int16"):
        concatenate(arrays, dtype=np.int16)
    with pytest.raises(TypeError, match="cannot cast from float64 to float32"):
        concatenate(arrays, dtype=np.float32, casting="safe")
    with pytest.raises(TypeError, match="values must be"):
        concatenate(arrays, dtype=np.longdouble)


@CONFIGURATIONS
def test_the_first_of_ours_decides_the_format(build, device):
    parts = [dense(5, 6), dense(5, 6)]
    A, B = build(parts[0], device=device), checks.bbcsr(2)(parts[1], device=device)
    assert_joined(concatenate([A, B]), np.concatenate(parts), A)
    assert_joined(concatenate([B, A], 1), np.concatenate(parts[::-1], 1), B)
    assert_joined(concatenate([A.T, B.T], 1), np.concatenate([part.T for part in parts], 1), A)
    assert_joined(block([[B], [A]]), np.concatenate(parts[::-1]), B)


@CONFIGURATIONS
@pytest.mark.parametrize("axis", [0, 1])
def test_members_of_other_libraries(build, axis):
    parts = [dense(5, 5), dense(5, 5), dense(5, 5)]
    A = build(parts[0], device="cpu")
    for other in (csr_array, scipy.sparse.csc_matrix, scipy.sparse.coo_array, sparse.COO.from_numpy, np.asarray):
        assert_joined(concatenate([A, other(parts[1]), A], axis), np.concatenate([parts[0], parts[1], parts[0]], axis), A)
        # pydata/sparse does not defer to others where it comes first
        assert_joined(joining.concatenate([other(parts[1]), A], axis), np.concatenate(parts[1::-1], axis), A)
    assert_joined(block([[A, csr_array(parts[1])]]), np.hstack(parts[:2]), A)


@pytest.mark.parametrize("name", zoo.ZOO)
def test_zoo(name, device):
    """Every matrix beside and below itself backwards: entries, explicit zeros too, as SciPy has them."""
    csr = zoo.integers(name)
    backwards = csr[::-1]
    build = checks.TYPICAL[len(name) % 4]
    A, B = build(csr, device=device), build(backwards, device=device)
    for ours, scipys in ((vstack, scipy.sparse.vstack), (hstack, scipy.sparse.hstack)):
        expected = scipys([csr, backwards, csr], format="csr")
        expected.sort_indices()
        checks.assert_same_csr(ours([A, B, A]).to_scipy(), csr_array(expected))


def test_pieces_give_the_array_back(device):
    from cvrarray.array.indexing import getitem

    whole = dense(30, 40)
    A = cvrarray.BBCSRArray(whole, device=device, block_size=3)
    pieces = [[getitem(A, np.s_[r : r + 10, c : c + 8]) for c in range(0, 40, 8)] for r in range(0, 30, 10)]
    checks.assert_same_tables(block(pieces)._tables, A._tables)


def test_wide_results_have_wide_indices(device):
    n = 2**31 - 1
    A = cvrarray.CVRArray(coercion.from_triplets(np.array([1]), np.array([n - 1]), np.array([2.0]), (2, n)), device=device)
    found = concatenate([A, A], 1)
    assert found.shape == (2, 2 * n)
    np.testing.assert_array_equal(found.to_scipy().indices, [n - 1, 2 * n - 1])
    wide = coercion.from_triplets(np.array([0]), np.array([2**61]), np.array([2.0]), (1, 2**61 + 1))
    B = cvrarray.CVRArray(wide, device=device)
    with pytest.raises(ValueError, match="below 2\\^62"):
        concatenate([B, B], 1)


def test_errors(device):
    A, B = (cvrarray.CVRArray(dense(*shape), device=device) for shape in ((3, 4), (3, 5)))
    mismatch = "along dimension {}, the array at index 0 has size {} and the array at index {} has size {}"
    for function, arrays, message in (
        (concatenate, [A, A, B], mismatch.format(1, 4, 2, 5)),
        (vstack, [A, B], mismatch.format(1, 4, 1, 5)),
        (hstack, [A, A.T], mismatch.format(0, 3, 1, 4)),
        (block, [[A, A.T]], mismatch.format(0, 3, 1, 4)),
        (block, [[A, A], [A]], mismatch.format(1, 8, 1, 4)),
        (joining.concatenate, [], "at least one array"),
        (joining.block, [], "empty list"),
        (block, [[A], []], "empty list"),
        (block, [A, [A]], "one depth"),
        (block, [[[A]]], "nested more deeply"),
        (concatenate, [A, checks.put(np.ones(4), device)], "2 dimensions"),
        (np.stack, [A, A], "3 dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            function(arrays)
    with pytest.raises(ValueError, match="axis 0 or 1"):
        concatenate([A, A], axis=None)
    for axis in (2, -3):
        with pytest.raises(np.exceptions.AxisError):
            concatenate([A, A], axis=axis)
    with pytest.raises(TypeError, match="immutable"):
        concatenate([A, A], out=np.zeros((6, 4)))
    with pytest.raises(TypeError, match="must be a sparse or dense 2-D array"):
        concatenate([A, None])
    with pytest.raises(TypeError, match="must be an array of ours"):
        joining.concatenate([np.eye(3)])


def test_devices_do_not_mix(gpu):
    here, there = (cvrarray.CVRArray(dense(3, 4), device=device) for device in ("cpu", gpu))
    for arrays in ([here, there], [there, here], [there, csr_array(dense(3, 4))], [there, dense(3, 4)]):
        for function in (vstack, hstack, lambda members: block([members])):
            with pytest.raises(TypeError, match="must be on one device"):
                function(arrays)
