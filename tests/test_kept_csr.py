"""The canonical CSR that an array keeps once it is read back again: when it does, what it is good for, when it goes."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest
from checks import TYPICAL, assert_same_csr, in_turn
from scipy.sparse import vstack
from test_pending import USES, matrix

from cvrarray.array import kept

BUILDS = pytest.mark.parametrize("build", TYPICAL, ids=str)


def read_twice(A):
    for _ in range(2):
        A._canonical_csr()
    return A


@BUILDS
def test_the_second_reading_keeps_it(build):
    gc.collect()  # arrays of other tests
    S, before = matrix(), kept.BUDGET.held()
    A = build(S, "cpu")
    for _ in range(3):
        A @ np.ones(S.shape[1])
    A._canonical_csr()
    assert A._origin.csr(A._version) is None and kept.BUDGET.held() == before
    csr = A._canonical_csr()
    assert A._canonical_csr() is A._origin.csr(A._version) is csr
    assert kept.BUDGET.held() == before + sum(part.nbytes for part in csr[:3])
    for other in (A.copy(), copy.deepcopy(A), pickle.loads(pickle.dumps(A)), A * 2):
        assert other._origin.csr(other._version) is None
    del A, csr, other
    gc.collect()
    assert kept.BUDGET.held() == before


@in_turn("use, build", USES, TYPICAL)
def test_uses_give_what_they_give_without(build, use):
    """And nothing writes to what is kept."""
    S = matrix()
    A = read_twice(build(S, "cpu"))
    before = [part.copy() for part in A._origin.csr(A._version)[:3]]
    for found, expected in zip(np.atleast_1d(USES[use](A)), np.atleast_1d(USES[use](build(S, "cpu"))), strict=True):
        np.testing.assert_array_equal(found, expected)
    for part, copied in zip(A._origin.csr(A._version)[:3], before, strict=True):
        np.testing.assert_array_equal(part, copied)
    A.check()


@BUILDS
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_arrays_used_again(build, sign):
    """Of one structure and of two, with explicit zeros and with entries that cancel."""
    S, T = matrix(), matrix(91, 90)[:90]
    S.data[::3] = 0
    T = vstack([-sign * S[:40], T[40:]], format="csr")
    A, B, C = build(S, "cpu"), build(T, "cpu"), build(S * 3, "cpu")
    for _ in range(4):
        for left, right, expected in ((A, B, S + sign * T), (A, C, S + sign * 3 * S), (A, S, S + sign * S)):
            assert_same_csr((left + right if sign == 1 else left - right).to_scipy(), expected)


@BUILDS
def test_new_values_are_seen(build):
    S = matrix()
    A, B = read_twice(build(S, "cpu")), build(matrix(91, 90)[:90], "cpu")
    A.with_values(np.arange(1.0, S.nnz + 1), out=A)
    assert A._origin.csr(A._version) is None
    S.data[:] = np.arange(1.0, S.nnz + 1)
    for _ in range(3):
        assert_same_csr((A + B).to_scipy(), S + B.to_scipy())
        assert_same_csr(A[3:70].to_scipy(), S[3:70])


@BUILDS
def test_what_is_given_away_is_new(build):
    A = read_twice(build(matrix(), "cpu"))
    own, S = A._origin.csr(A._version), A.tocsr()
    for given, part in ((S.data, own.data), (S.indices, own.indices), (S.indptr, own.indptr), (A.data, own.data)):
        assert not np.shares_memory(given, part)
    rows = A[2:40].to_scipy()
    assert not np.shares_memory(rows.data, own.data)


@BUILDS
def test_slices_count_by_their_rows(build):
    A = build(matrix(), "cpu")
    for k in range(90):
        A[k]
        A[k : k + 2]
    assert A._origin.csr(A._version) is None
    for first in range(0, 90, 30):
        A._canonical_rows(first + 1, first + 30)
    A._canonical_rows(1, 20)
    assert A._origin.csr(A._version) is None
    assert_same_csr(A[7:37].to_scipy(), matrix()[7:37])
    A._canonical_rows(1, 20)
    assert A._origin.csr(A._version) is not None
    assert_same_csr(A[7:37].to_scipy(), matrix()[7:37])


@BUILDS
def test_stacks_of_arrays_used_again(build):
    S = matrix()
    A = build(S, "cpu")
    for _ in range(4):
        stack = np.vstack([A, A])
        np.testing.assert_array_equal(stack.todense(), np.vstack([S.toarray()] * 2))
        stack.check()


@BUILDS
@pytest.mark.parametrize("limit", ["0", "1000 B"])
def test_limit(build, limit, monkeypatch):
    monkeypatch.setenv("CVRARRAY_CSR_MEMORY", limit)
    A = read_twice(build(matrix(), "cpu"))
    assert A._origin.csr(A._version) is None
    monkeypatch.setenv("CVRARRAY_CSR_MEMORY", "1 GiB")
    assert_same_csr((A + A[::-1]).to_scipy(), matrix() + matrix()[::-1])
    assert A._origin.csr(A._version) is not None


def test_limit_in_words(monkeypatch):
    monkeypatch.setenv("CVRARRAY_CSR_MEMORY", "much")
    with pytest.raises(ValueError, match="CVRARRAY_CSR_MEMORY must be"):
        read_twice(TYPICAL[0](matrix(), "cpu"))
