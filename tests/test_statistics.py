"""The statistics by which a format is chosen, against counts by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import assert_same_tables

import cvrarray
from cvrarray.choice import model
from cvrarray.core.tables import Seen
from cvrarray.input import coercion


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", zoo.ZOO)
@pytest.mark.each_value
def test_row_lengths(name, exact, index, device):
    csr = zoo.integers(name)
    csr.indptr, csr.indices = csr.indptr.astype(index), csr.indices.astype(index)
    found = cvrarray.statistics(cvrarray.CVRArray(csr, device=device), exact=exact)
    lengths = np.diff(csr.indptr)
    n_rows = len(lengths)
    assert (found.row_min, found.row_max) == ((lengths.min(), lengths.max()) if n_rows else (0, 0))
    assert found.empty_rows == np.count_nonzero(lengths == 0)
    assert found.row_mean == (lengths.mean() if n_rows else 0)
    if csr.nnz:  # a BBCSR array of blocks of size 1 pads each 32 rows to their longest, and has an offset for them
        padded = np.resize(np.append(lengths, np.zeros(-n_rows % 32, int)), (-(-n_rows // 32), 32)).max(axis=1).sum() * 32
        assert found.table_bytes["bbcsr1"] >= padded * (1 + 2)
        if exact:
            assert found.row_std == pytest.approx(lengths.std())
            slots = cvrarray.BBCSRArray(csr, block_size=1, device="cpu").padded_data.size
            assert slots == padded


@pytest.mark.small
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_cuda_counts_what_a_cpu_counts(index, gpu, monkeypatch):
    """In windows, which reach over the last row, and in all rows: so both choose the same format."""
    import cupyx.scipy.sparse as on_gpu

    from cvrarray.gpu import statistics

    begin, calls = statistics.begin, []
    monkeypatch.setattr(statistics, "begin", lambda *given: calls.append(given) or begin(*given))
    rng = np.random.default_rng(3)
    rows = [scipy.sparse.random_array((n, 700), density=0.02, rng=rng, format="csr") for n in (1, 97, 3001)]
    holes = scipy.sparse.kron(rows[2][:1003, :200], np.triu(np.ones((3, 3))), format="csr")
    full = scipy.sparse.kron(rows[2][:, :90], np.ones((6, 6)), format="csr")
    few = scipy.sparse.csr_array(([1.0], ([20_000], [7])), shape=(40_000, 9))  # between the windows
    for csr in (*rows, holes, full, few, *(zoo.integers(name, np.float64) for name in ("power_law", "one_dense_row"))):
        csr.indptr, csr.indices = csr.indptr.astype(index), csr.indices.astype(index)
        there = on_gpu.csr_matrix(csr)
        there.indptr, there.indices = there.indptr.astype(index), there.indices.astype(index)
        for exact in (False, True):
            found, expected = cvrarray.statistics(there, exact=exact), cvrarray.statistics(csr, exact=exact)
            inexact = {"row_std": pytest.approx(expected.row_std, nan_ok=True), "values": found.values}
            assert found == expected._replace(row_median=pytest.approx(expected.row_median, nan_ok=True), **inexact)
        with_the_check = coercion.as_csr(there, model.windows_of)
        assert with_the_check.seen.survey.indices is with_the_check.indices
        counted = cvrarray.statistics(with_the_check._replace(seen=Seen()), exact=False)
        calls.clear()
        again = cvrarray.statistics(with_the_check, exact=False)
        assert len(calls) == (csr is few)  # whose nonzero is in no window
        calls.clear()
        assert str(again) == str(counted)  # nan is nan
        assert abs(cvrarray.asarray(there).to_scipy() - csr).max() == 0
        assert len(calls) == 1 + (csr is few)
        seen, unseen = cvrarray.CVRArray(with_the_check), cvrarray.CVRArray(there)  # which counts the empty rows itself
        assert_same_tables(seen._tables, unseen._tables)
