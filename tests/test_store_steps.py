"""Elementwise functions of a store: those of NumPy's dense arrays, applied when a panel is read; and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from checks import assert_same_bits, get, in_turn, put
from test_store import matrix

import cvrarray
from cvrarray import Stored, to_store

SHAPE = (300, 70)
ROWS = np.random.default_rng(1).uniform(0.5, 2, (SHAPE[0], 1))
COLUMNS = np.random.default_rng(2).uniform(0.5, 2, SHAPE[1])

#: Of a store or an array, and of what puts a dense operand on its device.
FUNCTIONS = {
    "log1p": lambda A, put: np.log1p(A),
    "sqrt of absolute": lambda A, put: np.sqrt(abs(A)),
    "scalars": lambda A, put: -(2 * A * np.float64(0.5)) / 3,
    "scaled rows": lambda A, put: A * put(ROWS),
    "scaled rows, ufunc": lambda A, put: np.multiply(A, put(ROWS.astype(np.float32)), dtype=np.float64),
    "divided columns": lambda A, put: A / put(COLUMNS),
    "a row": lambda A, put: A * put(COLUMNS[None]),
    "every entry": lambda A, put: A * put(ROWS * COLUMNS),
    "normalised": lambda A, put: np.log1p(1e4 * (A * put(ROWS))) / put(COLUMNS),
    "not commuting": lambda A, put: np.square(np.sqrt(abs(A)) * put(ROWS)) ** 3,
    "casts": lambda A, put: (A * 100).astype(np.int16).astype(np.float32),
    "complex": lambda A, put: A * 2j,
    "comparison": lambda A, put: A > 0.25,
    "clipped": lambda A, put: np.minimum(A, 0.5, dtype=np.float64),
}
FORMATS = [{"format": "cvr"}, {"format": "bbcsr", "block_size": 2}, {"format": "cvr", "values": "auto"}]


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "m.store")


def stored(path, device, csr=None, **how):
    """A store of several panels, and the dense matrix in it."""
    csr = matrix(SHAPE, 0.1) if csr is None else csr
    to_store(csr, path, chunks="6 kB", device=device, overwrite=True, **({"format": "cvr"} | how))
    return Stored(path, device=device, budget="1 MiB"), csr.toarray()


@in_turn("name, how", FUNCTIONS, FORMATS)
def test_functions(name, how, path, device):
    """dtype, entries and products are those of dense arrays; streamed, resident, pickled."""
    csr = matrix(SHAPE, 0.1)
    if "values" in how:
        csr.data = np.round(csr.data * 3) / 4  # few different values, zeros among them
    S, dense = stored(path, device, csr, **how)
    M, expected = FUNCTIONS[name](S, lambda v: put(v, device)), FUNCTIONS[name](dense, lambda v: v)
    assert (M.shape, M.nnz, M.rows, M.n_panels, M.format) == (S.shape, S.nnz, S.rows, S.n_panels, S.format)
    assert M.dtype == expected.dtype
    whole = np.concatenate([get(M.panel(k).todense()) for k in range(M.n_panels)])
    assert whole.dtype == M.dtype
    np.testing.assert_allclose(whole, expected, rtol=1e-6 if M.dtype == np.float32 else 1e-13)
    rng = np.random.default_rng(3)
    x, X, y = (rng.random(shape) for shape in (SHAPE[1], (SHAPE[1], 5), SHAPE[0]))
    wide = expected.astype(np.result_type(expected, np.float64))
    rtol = 1e-5 if M.dtype == np.float32 else 1e-12
    for B in (M, pickle.loads(pickle.dumps(M)), Stored(path, device=device, budget=0)):
        if B.resident_bytes == 0 and B._budget == 0:
            B = FUNCTIONS[name](B, lambda v: put(v, device))
        for _ in range(2):  # from the disk; what stayed
            first = B @ put(x, device)
            np.testing.assert_allclose(get(first), wide @ x, rtol=rtol, atol=1e-12)
            assert_same_bits(get(B @ put(x, device)), get(first))
            np.testing.assert_allclose(get(B @ put(X, device)), wide @ X, rtol=rtol, atol=1e-12)
            np.testing.assert_allclose(get(B.T @ put(y, device)), y @ wide, rtol=rtol, atol=1e-12)
            np.testing.assert_allclose(get(put(y, device) @ B), y @ wide, rtol=rtol, atol=1e-12)
        np.testing.assert_allclose(get(B.sum(axis=0)), expected.sum(axis=0), rtol=rtol)
        np.testing.assert_allclose(get(B.diagonal()), expected.diagonal(), rtol=rtol)
        assert (B.resident_bytes > 0) is (B._budget != 0)
        B.check()
    np.testing.assert_array_equal(get(S @ put(x, device)), get(Stored(path, device=device) @ put(x, device)))
    M.close()
    assert M.resident_bytes == 0


def test_functions_on_the_left(path, device):
    S, dense = stored(path, device)
    ones = put(np.ones(SHAPE[1]), device)
    for M in (put(ROWS, device) * S, np.multiply(2.0, S) * put(ROWS / 2, device)):
        np.testing.assert_allclose(get(M @ ones), (ROWS * dense).sum(axis=1))
    np.testing.assert_allclose(get((COLUMNS.tolist() * S) @ ones), (COLUMNS * dense).sum(axis=1))


def test_nothing_is_read_and_operands_are_copied(path, device):
    S, dense = stored(path, device)
    v = put(ROWS.copy(), device)
    files = {file: file.read_bytes() for file in Path(path).glob("*.tables")}
    for file in files:
        file.unlink()
    M = np.log1p(S * v)
    v[:] = 0
    assert "then multiply, log1p" in repr(M)
    for file, content in files.items():
        file.write_bytes(content)
    np.testing.assert_allclose(get(M.panel(1).todense()), np.log1p(dense * ROWS)[M.rows[1] : M.rows[2]])


def test_the_budget_holds_with_functions(path):
    """What stays is counted with the values that the functions made, and is near to what it takes."""
    S, _ = stored(path, "cpu", matrix((20_000, 70), 0.1))
    S._budget = S.nbytes // 2
    for M in (np.log1p(S), S * np.ones((20_000, 1)), S.astype(np.float32)):
        M @ np.ones(70)
        assert 0 < M.resident_bytes <= S._budget
        assert len(M._resident) < S.n_panels / 2
        taken = sum(panel.nbytes for panel in M._resident.values())
        assert taken < M.resident_bytes


REFUSED = {
    "exp": (np.exp, TypeError, r"of 0 is not 0.* apply it to panel\(k\).todense\(\) of each panel"),
    "plus a number": (lambda S: S + 1, TypeError, r"the result is dense\. A store .* apply it to panel\(k\)"),
    "minus a number": (lambda S: 1 - S, TypeError, "the result is dense"),
    "divided into": (lambda S: 1 / S, TypeError, "undefined"),
    "times nan": (lambda S: S * np.nan, TypeError, "undefined|is nan"),
    "at most": (lambda S: S < 1, TypeError, "the result is dense"),
    "dense": (lambda S: S + np.zeros(SHAPE), TypeError, "only multiply and divide"),
    "by the store": (lambda S: ROWS / S, TypeError, "the result is dense|undefined|into nan|into inf"),
    "itself": (lambda S: S * S, TypeError, "of a store and itself"),
    "another": (lambda S: S * np.sqrt(S), TypeError, "number or a dense array; got Stored"),
    "sparse": (lambda S: S * matrix(SHAPE), TypeError, "number or a dense array; got csr_array"),
    "ours": (lambda S: S * cvrarray.asarray(matrix(SHAPE), device="cpu"), TypeError, "dense array; got"),
    "masked": (lambda S: S * np.ma.MaskedArray(COLUMNS), TypeError, "masked"),
    "texts": (lambda S: S * "a", TypeError, "a number or a dense array; got str"),
    "array of texts": (lambda S: S * np.array(["a"]), TypeError, "must be numeric; got dtype <U1"),
    "None": (lambda S: S * None, TypeError, "a number or a dense array; got NoneType"),
    "as long as rows": (lambda S: S * ROWS[:, 0], ValueError, r"shape, \(300, 70\); got shape \(300,\)"),
    "larger": (lambda S: S * np.ones((2, *SHAPE)), ValueError, "broadcast to the store's shape"),
    "two results": (np.modf, TypeError, "one result; modf has several"),
    "made dense": (np.asarray, TypeError, r"become dense by itself.*mean_var.*panel\(k\)"),
    "mean": (np.mean, TypeError, "become dense by itself.*mean_var"),
    "sum into": (lambda S: S.sum(axis=0, out=np.empty(70)), TypeError, "out must be left out .* got ndarray"),
    "columns": (lambda S: S[:, [1, 2]], TypeError, r"open_store\('.*m\.store'\)\[:, columns\], other\)"),
    "preconditioner": (cvrarray.linalg.chebyshev, TypeError, "needs the entries of A; a Stored only multiplies"),
    "not square": (cvrarray.linalg.jacobi, ValueError, "A must be square"),
    "reduction": (np.add.reduce, TypeError, "add.reduce of a Stored"),
    "out": (lambda S: np.sqrt(S, out=np.empty(SHAPE)), TypeError, "sqrt of a Stored is not offered with out"),
    "dtype": (lambda S: S.astype("U3"), TypeError, "values must be"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, path):
    function, error, message = REFUSED[name]
    S, dense = stored(path, "cpu")
    with pytest.raises(error, match=message):
        function(S)
    np.testing.assert_allclose(S @ np.ones(SHAPE[1]), dense.sum(axis=1))


def test_operands_of_another_device(path, gpu):
    S, _ = stored(path, gpu)
    with pytest.raises(TypeError, match="operands must be on one device"):
        S * ROWS


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (1, 40)])
def test_small_shapes(shape, path, device):
    S, dense = stored(path, device, matrix(shape, 0.5))
    M = np.log1p(S * put(np.full((shape[0], 1), 2.0), device)) * put(np.full(shape[1], 3.0), device)
    np.testing.assert_allclose(get(M @ put(np.ones(shape[1]), device)), (3 * np.log1p(2 * dense)).sum(axis=1))


def test_damage_is_found(path):
    S, _ = stored(path, "cpu")
    file = next(Path(path).glob("*1.tables"))
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"panel 1 of .* do not match their checksum"):
        np.log1p(S) @ np.ones(SHAPE[1])


def test_a_store_with_functions_is_another(path):
    """It keeps none of the panels of the one that it was made of, and == is no function."""
    S, _ = stored(path, "cpu")
    S @ np.ones(SHAPE[1])
    M = np.log1p(S)
    assert S.resident_bytes > 0 == M.resident_bytes
    M @ np.ones(SHAPE[1])
    S.close()
    assert M.resident_bytes > 0 == S.resident_bytes
    assert M != S and len({M, S}) == 2


def test_what_functions_make_is_written_to_a_store_of_its_own(path, device, tmp_path):
    """In the same panels, with the same names; gone on with for the same functions alone."""
    array = cvrarray.CVRArray(matrix(SHAPE, 0.1), device=device)
    array.column_names = [f"gene {k}" for k in range(SHAPE[1])]
    to_store(array, path, chunks="6 kB", device=device)
    S, other = Stored(path, device=device), tmp_path / "other.store"
    M = np.log1p(S * put(ROWS, device))
    to_store(M, other, device=device)
    N = Stored(other, device=device)
    N.check()
    assert (N.rows, N.dtype, N.format, N.row_names) == (S.rows, M.dtype, S.format, None)
    assert N.column_names.tolist() == array.column_names
    for k in range(S.n_panels):
        np.testing.assert_array_equal(get(N.panel(k).todense()), get(M.panel(k).todense()))
    to_store(M, other, device=device, resume=True)
    with pytest.raises(ValueError, match="only for the same source"):
        to_store(np.log1p(S * put(2 * ROWS, device)), other, device=device, resume=True)
    to_store(S.astype(np.float32), other, device=device, overwrite=True, format="bbcsr", block_size=2)
    assert Stored(other, device=device).format == "bbcsr" and Stored(other, device=device).dtype == np.float32
    for how in ({"overwrite": True}, {"resume": True}):
        with pytest.raises(ValueError, match="must not be read from the same store"):
            to_store(M, path, device=device, **how)
    S.check()


def test_long_chains_open_nothing(path, monkeypatch):
    """A function costs the same after any number of others, and what the store was opened with stays."""
    S, dense = stored(path, "cpu")
    S._threads = 3
    opened = []
    monkeypatch.setattr("cvrarray.store.stream.manifest", lambda *how: opened.append(how))
    M = S
    for _ in range(40):
        M = M * 2.0
    assert not opened and M._threads == 3
    np.testing.assert_allclose(M.panel(0).todense(), 2.0**40 * dense[: M.rows[1]])
    monkeypatch.undo()
    assert pickle.loads(pickle.dumps(M))._threads == 3


def test_the_budget_of_a_store_is_not_that_of_its_functions(path):
    """Without a budget each takes what is free at its first product: functions need more than the store."""
    to_store(matrix((20_000, 70), 0.1), path, chunks="6 kB", device="cpu")
    S = Stored(path, device="cpu")
    S @ np.ones(70)
    M = np.log1p(S)
    M @ np.ones(70)
    assert len(S._resident) == len(M._resident) == S.n_panels


def test_operands_of_no_dimension_are_copied(path):
    S, dense = stored(path, "cpu")
    v = np.array(3.0)
    M = S * v
    v[...] = 5
    np.testing.assert_allclose(M.panel(0).todense(), 3 * dense[: S.rows[1]])


def test_truth_and_equality(path):
    S, dense = stored(path, "cpu")
    np.testing.assert_array_equal((S != 0).sum(axis=0), (dense != 0).sum(axis=0))
    assert (S == dense.max()).sum() == (np.float64(dense.max()) == S).sum() == 1
    assert S == S and S != None and S != "a" and S not in [np.sqrt(S), None]  # noqa: E711
    with pytest.raises(TypeError, match="the result is dense"):
        S == 0  # noqa: B015
    with pytest.raises(ValueError, match="truth of a Stored is that of many entries"):
        bool(S)
    with pytest.raises(TypeError, match="does not become dense by itself"):
        np.where(S > 0, 1, 0)


def test_sums_by_numpy(path, device):
    S, dense = stored(path, device)
    for axis in (None, 0, 1):
        np.testing.assert_allclose(get(np.sum(S, axis=axis)), dense.sum(axis=axis))


def test_chosen_rows_and_columns(path, tmp_path):
    """What the error of S[:, columns] names."""
    pytest.importorskip("dask.array")
    S, dense = stored(path, "cpu")
    other, columns = str(tmp_path / "other.store"), np.array([3, 50, 7])
    to_store(cvrarray.open_store(S.path, device="cpu")[:, columns], other, device="cpu")
    chosen = Stored(other, device="cpu")
    np.testing.assert_array_equal(
        np.concatenate([chosen.panel(k).todense() for k in range(chosen.n_panels)]), dense[:, columns]
    )
    rows = dense.sum(axis=1) > 1
    to_store(cvrarray.open_store(S.path, device="cpu")[rows], other, device="cpu", overwrite=True)
    np.testing.assert_allclose(Stored(other, device="cpu") @ np.ones(SHAPE[1]), dense[rows].sum(axis=1))


def test_astype_takes_copy(path):
    assert stored(path, "cpu")[0].astype(np.float32, copy=False).dtype == np.float32
