"""Properties over random structures: small integers, so that every comparison is exact."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from checks import assert_same_csr, assert_same_tables, from_csr, get, put
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

import cvrarray

# The device is the same in every example. Examples are the same in every run, so that CI does not fail by chance.
SETTINGS = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# A GPU compiles one kernel for each of these: few, but with odd ones and both ends.
N_LANES = st.sampled_from([1, 2, 3, 4, 8, 17, 32])
BLOCK_SIZES = st.sampled_from([1, 2, 3, 6, 7, 16, 32])
SPLITS = st.sampled_from(["rows", "nnz", "even"])


@st.composite
def scattered(draw):
    """Up to 120 entries anywhere, some twice, some 0, in any order; shapes from 0 x 0."""
    n_rows, n_cols = draw(st.integers(0, 100)), draw(st.integers(0, 100))
    entry = st.tuples(st.integers(0, max(n_rows - 1, 0)), st.integers(0, max(n_cols - 1, 0)), st.integers(-3, 3))
    row, col, val = np.array(draw(st.lists(entry, max_size=120 if n_rows and n_cols else 0)), int).reshape(-1, 3).T
    return coo_array((val.astype(float), (row, col)), shape=(n_rows, n_cols))


@st.composite
def by_row_lengths(draw):
    """Rows of drawn lengths, from empty to far longer than the others: what feeding and stealing depend on."""
    lengths = draw(st.lists(st.one_of(st.integers(0, 4), st.integers(0, 150)), min_size=1, max_size=70))
    n_cols = max(max(lengths), draw(st.integers(1, 200)))
    row = np.repeat(np.arange(len(lengths)), lengths)
    col = np.concatenate([(r + np.arange(n)) % n_cols for r, n in enumerate(lengths)]).astype(int)
    return coo_array((1.0 + (row + 3 * col) % 5, (row, col)), shape=(len(lengths), n_cols))


MATRICES = st.one_of(scattered(), by_row_lengths())


@SETTINGS
@given(matrix=MATRICES, n_lanes=N_LANES, n_chunks=st.integers(1, 40), split=SPLITS)
def test_cvr(device, matrix, n_lanes, n_chunks, split):
    A = cvrarray.CVRArray(matrix, n_lanes=n_lanes, n_chunks=n_chunks, split=split, device=device)
    _check(A, matrix, device)
    csr = A.to_scipy()
    cuts = reference.cuts(csr.indptr, n_chunks, n_lanes, split)
    chunks = reference.cvr_chunks(csr.indptr, csr.indices, csr.data, csr.shape[0], n_lanes, cuts)
    assert A.n_chunks == len(chunks)
    for k, expected in enumerate(chunks):
        found = A.chunk(k)
        for field in ("val", "col_idx", "tail", "rec_pos", "rec_wb"):
            np.testing.assert_array_equal(get(getattr(found, field)), expected[field], err_msg=field)
        assert found.lr_rec == expected["lr_rec"]


@SETTINGS
@given(matrix=MATRICES, block_size=BLOCK_SIZES)
def test_bbcsr(device, matrix, block_size):
    A = cvrarray.BBCSRArray(matrix, block_size=block_size, device=device)
    _check(A, matrix, device)
    csr = A.to_scipy()
    for field, table in reference.bbcsr(csr.indptr, csr.indices, csr.data, csr.shape, block_size).items():
        ours = A.padded_data if field == "data" else getattr(A, field)
        np.testing.assert_array_equal(get(ours), table, err_msg=field)


@SETTINGS
@given(matrix=MATRICES, n_lanes=N_LANES, n_chunks=st.integers(1, 40), split=SPLITS, block_size=BLOCK_SIZES)
def test_devices_agree(gpu, matrix, n_lanes, n_chunks, split, block_size):
    for convert, keywords in (
        (cvrarray.CVRArray, {"n_lanes": n_lanes, "n_chunks": n_chunks, "split": split}),
        (cvrarray.BBCSRArray, {"block_size": block_size}),
    ):
        assert_same_tables(convert(matrix, device=gpu, **keywords)._tables, convert(matrix, device="cpu", **keywords)._tables)


@SETTINGS
@given(data=st.data(), n_rows=st.integers(0, 6), n_cols=st.integers(0, 6), value=st.integers(-(2**40), 2**40))
def test_broken_csr_is_refused(device, data, n_rows, n_cols, value):
    """One number of a valid CSR replaced: a ValueError, or the matrix that the changed arrays really mean."""
    csr = csr_array(np.ones((n_rows, n_cols)))
    parts = {"indptr": csr.indptr.astype(np.int64), "indices": csr.indices.astype(np.int64)}
    name = data.draw(st.sampled_from([name for name in parts if parts[name].size]))
    place = data.draw(st.integers(0, parts[name].size - 1))
    parts[name][place] = value
    valid = _is_csr(**parts, nnz=csr.nnz, n_cols=n_cols)
    arrays = (put(a, device) for a in (parts["indptr"], parts["indices"], csr.data))
    if not valid:
        with pytest.raises(ValueError, match=name):
            from_csr(cvrarray.CVRArray, *arrays, csr.shape)
        return
    A = from_csr(cvrarray.CVRArray, *arrays, csr.shape)
    expected = np.zeros(csr.shape)
    n = parts["indptr"][-1]  # behind the last row there may be room
    np.add.at(expected, (np.repeat(np.arange(n_rows), np.diff(parts["indptr"])), parts["indices"][:n]), csr.data[:n])
    np.testing.assert_array_equal(get(A.todense()), expected)


def _is_csr(indptr, indices, nnz, n_cols):
    in_order = indptr[0] == 0 and indptr[-1] <= nnz and (np.diff(indptr) >= 0).all()
    return bool(in_order and ((indices >= 0) & (indices < n_cols)).all())


def _check(A, matrix, device):
    """Invariants, the product, and the way back."""
    A.check()
    csr = csr_array(matrix)
    csr.sum_duplicates()
    assert_same_csr(A.to_scipy(), csr)
    x = np.arange(csr.shape[1]) % 7 - 3.0
    out = put(np.full(csr.shape[0], np.nan), device)
    np.testing.assert_array_equal(get(A.matvec(put(x, device), out=out)), csr @ x)
    poisoned = np.where(x == 0, np.inf, x)
    touched = _pattern(csr) @ (x == 0) > 0
    np.testing.assert_array_equal(np.isfinite(get(A @ put(poisoned, device))), ~touched)


def _pattern(csr):
    return csr_array((np.ones(csr.nnz, int), csr.indices, csr.indptr), shape=csr.shape)
