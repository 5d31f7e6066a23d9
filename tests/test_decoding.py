"""Compiled CSR on a CPU: from the tables of either format, from coordinates in any order, transposed, added, multiplied."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import DEFAULTS, DIFFERENT, assert_same_csr, assert_same_tables, in_turn
from scipy.sparse import coo_array, csr_array, random_array

import cvrarray
from cvrarray.cpu import csr as kernels
from cvrarray.input import coercion

SMALL = [name for name in zoo.ZOO if np.prod(zoo.ZOO[name]().shape) < 1_000_000]


@in_turn("name, build", SMALL, DIFFERENT[:-1], times=2)  # test_conversions reads blocks of 32
def test_diagonals_and_rows(build, name):
    csr = zoo.floats(name, np.float64)
    A, dense = build(csr, "cpu"), csr.toarray()
    n_rows, n_cols = csr.shape
    for k in (0, 1, -1, 7, -n_rows - 3, n_cols + 2):
        expected = np.diagonal(dense, k) if -n_rows < k < n_cols else np.zeros(0)
        assert A.diagonal(k).tobytes() == expected.tobytes()
        assert A.T.diagonal(-k).tobytes() == expected.tobytes()
    for first, last in ((0, n_rows // 2), (n_rows // 3, 2 * n_rows // 3), (n_rows // 2 + 1, n_rows)):
        assert_same_csr(A[first:last].to_scipy(), csr[first:last])


@in_turn("dtype, threads", ["bool", "int8", "int64", "float16", "float32", "complex64"], ["1", "3"])
def test_coordinates_in_any_order(dtype, threads, monkeypatch):
    """Duplicates are added up in the order they come in, float16 in float32; rows of all lengths are sorted."""
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", threads)
    monkeypatch.setattr(kernels, "PART", 64)
    rng = np.random.default_rng(5)
    row = np.concatenate([np.full(n, r) for r, n in enumerate((0, 1, 5, 23, 24, 25, 300, 1000, 2, 0))])
    col, val = rng.integers(0, 700, row.size), rng.integers(-9, 9, row.size).astype(dtype)
    order = rng.permutation(row.size)
    row, col, val = row[order], col[order], val[order]
    wide = np.float32 if dtype == "float16" else val.dtype
    dense, stored = np.zeros((10, 700), wide), np.zeros((10, 700), bool)
    np.add.at(dense, (row, col), val.astype(wide))
    stored[row, col] = True
    found = coercion.from_triplets(row, col, val, (10, 700))
    assert found.indptr.tolist() == [0, *np.cumsum(stored.sum(axis=1)).tolist()]
    np.testing.assert_array_equal(found.indices, np.nonzero(stored)[1])
    np.testing.assert_array_equal(found.data, dense[stored].astype(dtype))
    by_rows = np.argsort(row, kind="stable")
    indptr = np.searchsorted(row[by_rows], np.arange(11))
    again = coercion.from_parts(indptr, col[by_rows], val[by_rows], (10, 700))
    for ours, other in zip(again[:3], found[:3], strict=True):
        np.testing.assert_array_equal(ours, other)


@in_turn("name, threads", zoo.ZOO, ["1", "3"])
def test_shuffled_and_transposed(name, threads, monkeypatch):
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", threads)
    monkeypatch.setattr(kernels, "PART", 64)
    csr = zoo.floats(name, np.float32)
    coo = csr.tocoo()
    for order in (np.arange(coo.nnz), np.random.default_rng(0).permutation(coo.nnz)):
        triplets = coo_array((coo.data[order], (coo.row[order], coo.col[order])), shape=csr.shape)
        found = coercion.as_csr(triplets)
        assert_same_csr(csr_array((found.data, found.indices, found.indptr), shape=csr.shape), csr)
    flipped = kernels.transpose(coercion.as_csr(csr))
    assert_same_csr(csr_array((flipped.data, flipped.indices, flipped.indptr), shape=flipped.shape), csr.T.tocsr())


@in_turn("dtype, build, threads", ["int64", "float32", "complex64"], DEFAULTS, ["1", "3"])
def test_sums_of_arrays(build, dtype, threads, monkeypatch):
    """The values of both where the structure is one, merged rows where it is not; entries that cancel are left out."""
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", threads)
    monkeypatch.setattr(kernels, "PART", 64)
    for name in ("rows_of_mixed_length", "many_empty_rows_between", "blocks_with_holes", "one_dense_column"):
        csr = zoo.integers(name, dtype)
        other = csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape)
        other = csr_array(csr_array(other[::-1]) + csr.astype(bool).astype(dtype))
        A, B = build(csr, "cpu"), build(other, "cpu")
        dense, other = csr.toarray(), other.toarray()
        for found, expected in (
            (A + B, dense + other), (A - B, dense - other), (B * A, other * dense), (A + A * 2, dense * 3),
            (A - A, dense * 0), (A * A, dense * dense), (np.maximum(A, B), np.maximum(dense, other)),
        ):  # fmt: skip
            found.check()
            np.testing.assert_array_equal(found.todense(), expected)
            assert found.nnz == np.count_nonzero(expected)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float32", "complex64"])
def test_products_of_sparse_matrices(dtype):
    rng = np.random.default_rng(2)
    for m, k, n in ((70, 50, 3000), (1, 40, 1), (30, 0, 20), (0, 5, 7), (64, 64, 64)):
        a, b = (random_array(shape, density=0.2, rng=rng, format="csr") for shape in ((m, k), (k, n)))
        a.data, b.data = (np.round(m.data * 9 - 4).astype(dtype) for m in (a, b))
        expected = a.toarray() @ b.toarray()
        A, B = cvrarray.CVRArray(a, device="cpu"), cvrarray.BBCSRArray(b, device="cpu")
        product = A @ B
        product.check()
        np.testing.assert_array_equal(product.todense(), expected)
        assert product.nnz == np.count_nonzero(expected)  # as SciPy: what cancels is not stored
        product = A.dot(B, format="csr")
        assert product.has_sorted_indices
        np.testing.assert_array_equal(product.toarray(), expected)  # a complex product's zeros have signs of their own


@pytest.mark.parametrize(("dtype", "n_lanes"), [("float64", 32), ("bool", 8), ("complex128", 5)])
def test_chunks_on_a_gpu_and_the_way_back(dtype, n_lanes, gpu):
    """A GPU makes the tables that a CPU makes, and reads them, or some chunks of them, back."""
    rng = np.random.default_rng(n_lanes)
    for name in SMALL:
        csr = zoo.floats(name, np.float64)
        csr.data = rng.integers(1, 100, csr.nnz).astype(dtype)
        for n_chunks in {1, 3, csr.nnz} if 0 < csr.nnz < 1000 else {min(csr.nnz, 3)}:
            how = {"n_lanes": n_lanes, "n_chunks": n_chunks or None, "values": "plain"}
            A, B = (cvrarray.CVRArray(csr, device=device, **how) for device in ("cpu", gpu))
            assert_same_tables(A._tables, B.to_device("cpu")._tables)
            assert_same_csr(B.to_scipy(), csr)
            n_rows = csr.shape[0]
            for first, last in ((0, n_rows // 2), (n_rows // 3, 2 * n_rows // 3), (n_rows // 2 + 1, n_rows)):
                if first < last:
                    assert_same_csr(B[first:last].to_scipy(), csr[first:last])
