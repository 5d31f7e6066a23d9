"""A third format, plain CSR in ten lines a module, defined here: what the package does with it, without knowing it."""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse

import cvrarray
from cvrarray.array.format import FORMATS, FormatArray
from cvrarray.core.tables import CSR

# ------------------------------------------------------------------------------------- its module for the CPU's kernels


class ToyTables(NamedTuple):
    """A canonical CSR."""

    shape: tuple[int, int]
    nnz: int
    indptr: Any
    indices: Any
    data: Any


def convert(csr: CSR) -> ToyTables:
    return ToyTables(csr.shape, csr.nnz, csr.indptr.astype(np.int64), csr.indices.copy(), csr.data.copy())


def product(t: ToyTables, dtype: np.dtype):
    def run(x, y, alpha, beta):
        y[:] = alpha * (scipy.sparse.csr_array(t[2:][::-1], shape=t.shape) @ x) + (beta * y if beta else 0)

    return run


def to_csr(t: ToyTables, first: int, last: int):
    rows = scipy.sparse.csr_array(t[2:][::-1], shape=t.shape)[first:last]
    return CSR(rows.indptr, rows.indices.astype(t.indices.dtype), rows.data, rows.shape)


KERNELS = ModuleType("toy")
KERNELS.convert, KERNELS.product, KERNELS.to_csr = convert, product, to_csr


# ------------------------------------------------------------------------------------------------------------- its page


@pytest.fixture
def toy():
    """The class; forgotten again afterwards, so that other tests see the package's own formats."""

    class ToyArray(FormatArray):
        format = "toy"
        _modules = {"cpu": KERNELS}  # noqa: RUF012
        _table_type, _value_table = ToyTables, "data"
        _stored = {"indptr": ("<i8", 1), "indices": ("index", 1), "data": ("value", 1)}  # noqa: RUF012

        def _invariants(self):
            t = self._tables
            yield "1: indptr has an offset a row", t.indptr.size == t.shape[0] + 1

        def _layout(self):
            return "plain CSR"

        def __reduce_ex__(self, protocol):  # the class is local to this function, which pickle cannot name
            return _again, (self._tables,)

    yield ToyArray
    FORMATS.pop("toy")


def _again(tables):
    return FORMATS["toy"]._from_tables(tables)


@pytest.fixture
def matrix():
    return scipy.sparse.random_array((70, 50), density=0.1, rng=np.random.default_rng(1), format="csr")


def test_asarray_and_products(toy, matrix):
    A = cvrarray.asarray(matrix, format="toy", device="cpu")
    assert type(A) is toy and A.shape == (70, 50) and A.nnz == matrix.nnz
    A.check()
    rng = np.random.default_rng(2)
    x, X, z = rng.random(50), rng.random((50, 3)), rng.random(70)
    np.testing.assert_allclose(A @ x, matrix @ x)
    np.testing.assert_allclose(A.matvec(x, out=z.copy(), alpha=2.0, beta=3.0), 2 * (matrix @ x) + 3 * z)
    np.testing.assert_allclose(A @ X, matrix @ X)
    np.testing.assert_allclose(A.T @ z, matrix.T @ z)
    np.testing.assert_allclose(A.T @ X[:, :2].repeat(2, 0)[:70], matrix.T @ X[:, :2].repeat(2, 0)[:70])


def test_array_code(toy, matrix):
    A = cvrarray.asarray(matrix, format="toy", device="cpu")
    assert (A.tocsr() != matrix).nnz == 0
    assert type(A * 2) is toy and ((2 * A).tocsr() != 2 * matrix).nnz == 0
    assert type(A + A) is toy
    np.testing.assert_array_equal(A[5:9].todense(), matrix[5:9].toarray())
    np.testing.assert_allclose(A.sum(axis=0), matrix.sum(axis=0))
    np.testing.assert_array_equal(A.with_values(np.arange(A.nnz)).tocsr().data, np.arange(A.nnz))
    assert type(cvrarray.CVRArray(matrix).asformat("toy")) is toy
    assert type(A.asformat("cvr")) is cvrarray.CVRArray


def test_repr_and_errors(toy, matrix):
    assert "ToyArray 70 x 50" in repr(toy(matrix)) and "plain CSR" in repr(toy(matrix))
    with pytest.raises(ValueError, match="format must be 'auto', 'cvr', 'bbcsr' or 'toy'; got 'ell'"):
        cvrarray.asarray(matrix, format="ell")


def test_files_and_pickles(toy, matrix, tmp_path):
    A = toy(matrix)
    cvrarray.save(tmp_path / "a.cvra", A)
    for B in (cvrarray.load(tmp_path / "a.cvra", device="cpu"), pickle.loads(pickle.dumps(A))):
        assert type(B) is toy
        assert (B.tocsr() != matrix).nnz == 0


def test_dask_and_stores(toy, matrix, tmp_path):
    pytest.importorskip("dask")
    lazy = cvrarray.to_dask(matrix, chunks=32, format="toy", device="cpu")
    assert type(lazy._meta) is toy
    x = np.arange(50.0)
    np.testing.assert_allclose((lazy @ x).compute(scheduler="sync"), matrix @ x)
    cvrarray.to_store(matrix, tmp_path / "a.zarr", format="toy", device="cpu", chunks="4 KiB")
    np.testing.assert_allclose(cvrarray.Stored(tmp_path / "a.zarr", device="cpu") @ x, matrix @ x)


def test_only_those_that_say_what_they_cost_are_chosen(toy, matrix):
    assert cvrarray.asarray(matrix, device="cpu").format in ("cvr", "bbcsr")
    assert set(cvrarray.statistics(matrix).table_bytes) == {"cvr", "bbcsr1", "bbcsr2", "bbcsr3", "bbcsr4", "bbcsr6"}
