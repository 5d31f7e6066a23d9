"""Results that stay CSR until their tables are asked for: the same tables, the same values, and nobody's memory."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checks import TYPICAL, assert_same_bits, assert_same_csr, assert_same_tables, in_threads, in_turn
from scipy.sparse import csr_array, random_array

import cvrarray

BUILDS = pytest.mark.parametrize("build", TYPICAL, ids=str)

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "A + S": lambda A, S: A + S,
    "A - S": lambda A, S: A - S,
    "A @ S": lambda A, S: A @ S,
    "A[[3, 1]]": lambda A, S: A[[3, 1, 1]],
    "A[:, 5:50]": lambda A, S: A[:, 5:50],
    "hstack": lambda A, S: np.hstack([A, A]),
    "A.T.copy()": lambda A, S: A.T.copy(),
    "tril": lambda A, S: np.tril(A),
    "zeros_like": lambda A, S: np.zeros_like(A),
}

#: What an array can do, that gives dense results, ours or SciPy's.
USES: dict[str, Callable[[Any], Any]] = {
    "A @ x": lambda C: C @ np.ones(C.shape[1]),
    "A.T @ x": lambda C: C.T @ np.ones(C.shape[0]),
    "2 * A": lambda C: (2 * C).todense(),
    "abs": lambda C: abs(C).todense(),
    "A + A": lambda C: (C + C).todense(),
    "A - A.T.T": lambda C: (C - C.T.T).todense(),
    "A * A": lambda C: (C * C).todense(),
    "A > 1": lambda C: (C > 1).todense(),
    "A @ A.T": lambda C: (C @ C.T).todense(),
    "A[1:3]": lambda C: C[1:3].todense(),
    "A[1]": lambda C: C[1],
    "A[:, 2:]": lambda C: C[:, 2:].todense(),
    "vstack": lambda C: np.vstack([C, C]).todense(),
    "hstack": lambda C: np.hstack([C, C]).todense(),
    "sum": lambda C: [*C.sum(axis=0).tolist(), *C.sum(axis=1).tolist(), C.sum()],
    "max": lambda C: [*C.max(axis=0).tolist(), C.min()],
    "mean": lambda C: C.mean(axis=1),
    "diagonal": lambda C: C.diagonal(),
    "data": lambda C: C.data,
    "nonzero": lambda C: C.nonzero(),
    "with_values": lambda C: C.with_values(np.arange(1.0, C.nnz + 1)).todense(),
    "eliminate_zeros": lambda C: C.eliminate_zeros().todense(),
    "astype": lambda C: C.astype("float32").todense(),
    "T": lambda C: C.T.todense(),
    "tocsr": lambda C: C.tocsr().toarray(),
    "tocoo": lambda C: C.tocoo().todense(),
    "copy": lambda C: C.copy().todense(),
    "deepcopy": lambda C: copy.deepcopy(C).todense(),
    "pickle": lambda C: pickle.loads(pickle.dumps(C)).todense(),
    "asarray": lambda C: cvrarray.asarray(C, format="bbcsr").todense(),
    "roll": lambda C: np.roll(C, 1, axis=0).todense(),
    "norm": lambda C: np.linalg.norm(C),
    "attributes": lambda C: str((C.shape, C.nnz, C.dtype, C.device, C.format)),
    "unique": lambda C: np.unique_values(C),
}


def matrix(n_rows: int = 90, n_cols: int = 90) -> csr_array:
    S = random_array((n_rows, n_cols), density=0.1, rng=np.random.default_rng(n_rows), format="csr")
    S.data = np.round(S.data * 9 + 1)
    return S


def held(C: Any) -> bytes:
    return b"".join(array.tobytes() for array in C._origin.pending.csr[:3])


@in_turn("operation, build", OPERATIONS, TYPICAL, times=2)
def test_tables_are_those_of_a_conversion(build, operation):
    S = matrix()
    A = build(S, "cpu")
    C = OPERATIONS[operation](A, S)
    assert C._origin.pending is not None
    assert type(C) is type(A)
    S = C.to_scipy()
    assert (C.shape, C.nnz, C.dtype) == (S.shape, S.nnz, S.dtype)
    assert C.nbytes == S.data.nbytes + S.indices.nbytes + C._origin.pending.csr.indptr.nbytes
    assert "still CSR" in repr(C)
    fresh = type(A)(S, **A._parameters())
    y = C @ np.ones(C.shape[1])
    assert C._origin.pending is None and "still CSR" not in repr(C)
    assert_same_bits(y, fresh @ np.ones(C.shape[1]))
    assert_same_tables(C._tables, fresh._tables)
    assert C.nbytes == fresh.nbytes
    C.check()
    assert_same_csr(C.to_scipy(), S)


@in_turn("use, build", USES, TYPICAL)
def test_uses_give_what_converted_arrays_give(build, use):
    """And nothing writes to the CSR, which other arrays may have too."""
    S = matrix()
    A = build(S, "cpu")
    C, D = A[::-1], type(A)(S[::-1], **A._parameters())
    before = held(C)
    holder = C._origin.pending.csr
    for found, expected in zip(np.atleast_1d(USES[use](C)), np.atleast_1d(USES[use](D)), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert b"".join(array.tobytes() for array in holder[:3]) == before
    assert all(array.flags.writeable for array in holder[:3])  # kernels have one version for both kinds
    C.check()


@BUILDS
def test_what_is_given_away_is_new(build):
    C = build(matrix(), "cpu")[::-1]
    own = C._origin.pending.csr
    S = C.tocsr()
    for given, kept in ((S.data, own.data), (S.indices, own.indices), (S.indptr, own.indptr), (C.data, own.data)):
        assert not np.shares_memory(given, kept)
    rows = C[2:4]
    assert not np.shares_memory(rows._origin.pending.csr.data, own.data)  # a few rows do not keep all of them
    S.data[:] = 0
    assert C.sum() == build(matrix(), "cpu").sum()


@BUILDS
def test_chains_convert_at_their_end(build, monkeypatch):
    S, T = matrix(), matrix(91, 90)[:90]
    A, B = build(S, "cpu"), build(T, "cpu")
    made, original = [], type(A)._convert.__func__

    def counted(cls, *args, **keywords):
        made.append(cls)
        return original(cls, *args, **keywords)

    monkeypatch.setattr(type(A), "_convert", classmethod(counted))
    C = ((A @ B)[3:80] * 2 + (A @ S)[3:80]) @ B
    assert not made
    expected = ((S @ T)[3:80] * 2 + (S @ S)[3:80]) @ T
    np.testing.assert_array_equal(C.todense(), expected.toarray())
    assert not made
    np.testing.assert_array_equal(C @ np.ones(90), expected @ np.ones(90))
    assert len(made) == 1


@BUILDS
def test_threads_convert_one_array(build):
    C = build(matrix(), "cpu")[::-1]
    found, ready = [], threading.Barrier(4)

    def ask(_number: int) -> None:
        ready.wait()
        found.append(C._tables)

    in_threads(ask, range(4))
    assert len(found) == 4 and all(tables is C._tables for tables in found)


@BUILDS
def test_new_values_in_place(build):
    C = build(matrix(), "cpu")[::-1]
    D = C.with_values(np.arange(1.0, C.nnz + 1))
    assert C.with_values(D.data, out=C) is C
    np.testing.assert_array_equal(C.todense(), D.todense())


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("keywords", [{"n_lanes": 16}, {"block_size": 3}], ids=["cvr", "bbcsr"])
def test_a_pickle_leaves_it_at_that(keywords, protocol):
    """The CSR is sent, and converted where the product is."""
    array_class = cvrarray.CVRArray if "n_lanes" in keywords else cvrarray.BBCSRArray
    A = array_class(matrix(), device="cpu", **keywords)
    C = A @ A
    sent = pickle.loads(pickle.dumps(C, protocol))
    assert (C._origin.pending is None, sent._origin.pending is None) == (False, False)
    assert (sent.shape, sent.dtype, sent.nnz, sent.format) == (C.shape, C.dtype, C.nnz, C.format)
    assert sent._origin.pending.keywords == C._origin.pending.keywords
    x = np.arange(90.0)
    np.testing.assert_array_equal(sent @ x, C @ x)
    sent.check()
    np.testing.assert_array_equal(sent.todense(), C.todense())
