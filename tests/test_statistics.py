"""The statistics by which a format is chosen, against counts by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import zoo

import cvrarray


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
