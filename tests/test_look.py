"""What a GPU sees of a CSR with its check, beside the CPU's check and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from cvrarray.core.tables import WARP, Wanted
from cvrarray.cpu import csr as on_cpu

pytestmark = pytest.mark.small


def matrices():
    """Canonical ones: short, long and empty rows, whole blocks and such with a hole, none at all."""
    rng = np.random.default_rng(7)
    uneven = scipy.sparse.random_array((700, 9000), density=0.002, rng=rng, format="lil")
    uneven[5] = rng.random(9000)
    uneven[40, ::3] = 1.0
    blocks = scipy.sparse.random_array((90, 500), density=0.1, rng=rng, format="csr")
    far = scipy.sparse.coo_array((np.ones(500), (rng.integers(0, 97, 500), rng.integers(0, 1 << 20, 500))), shape=(97, 1 << 20))
    yield "uneven", uneven.tocsr()
    yield "far", far.tocsr()
    yield "empty", scipy.sparse.csr_array((40, 3))
    yield "no rows", scipy.sparse.csr_array((0, 3))
    for size in (2, 3, 6):
        whole = scipy.sparse.kron(blocks, np.ones((size, size)), format="csr")
        whole.sort_indices()
        yield f"blocks of {size}", whole
        yield f"blocks of {size}, cut", whole[: whole.shape[0] - 1]
        holed = whole.tolil()
        holed[size, whole.indices[whole.indptr[size]]] = 0
        yield f"blocks of {size} with a hole", holed.tocsr()


def spoiled(indptr, indices, n_cols):
    """The arrays of a CSR, as they are and with one thing wrong in each."""
    yield indptr, indices
    nnz = indices.size
    if nnz > 10:
        for at, column in ((nnz // 2, n_cols), (nnz - 1, -1), (3, 2**31 - 1), (nnz // 3, indices[nnz // 3 - 1])):
            wrong = indices.copy()
            wrong[at] = column
            yield indptr, wrong
        middle = indptr.size // 2
        ends = (0, 1), (0, -5), (-1, nnz - 1), (-1, nnz + 7)
        for at, offset in (*ends, (middle, nnz + 100), (middle, -3), (middle, 2**31 - 1)):
            wrong = indptr.copy()
            wrong[at] = offset
            yield wrong, indices


@pytest.mark.parametrize("block_size", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("dtypes", [(np.int32, np.int32), (np.int64, np.int32), (np.int64, np.int64)], ids=str)
def test_it_finds_what_a_cpu_finds(block_size, dtypes, gpu, monkeypatch):
    import cupy

    from cvrarray.gpu import csr as on_gpu
    from cvrarray.gpu import look

    for many, few_bins in ((look.MANY, look.FEW_BINS), (0, 0)):
        monkeypatch.setattr(look, "MANY", many)
        monkeypatch.setattr(look, "FEW_BINS", few_bins)
        for name, matrix in matrices():
            n_cols = matrix.shape[1]
            for indptr, indices in spoiled(matrix.indptr.astype(dtypes[0]), matrix.indices.astype(dtypes[1]), n_cols):
                there = cupy.asarray(indptr), cupy.asarray(indices)
                first, last, bad_row, bad_position, canonical, seen = on_gpu.check(
                    *there, n_cols, wanted=Wanted(block_size=block_size)
                )
                expected = on_cpu.check(indptr, indices, n_cols)
                assert (first, last) == (int(indptr[0]), int(indptr[-1])), name
                if (first, last) != (0, indices.size):
                    continue
                assert bad_row == expected[2], name
                if bad_row >= 0:
                    continue
                assert bad_position == expected[3], name
                if bad_position >= 0:
                    continue
                assert canonical == expected[4], name
                if canonical:
                    assert_bins(seen, indptr, indices, block_size)


def assert_bins(seen, indptr, indices, size):
    """Row lengths, and the bins of blocks where these have no hole."""
    lengths = np.diff(indptr)
    longest = [lengths[r : r + WARP].max() for r in range(0, lengths.size, WARP)]
    assert seen.survey.numbers[:2] == [WARP * sum(longest), int((lengths == 0).sum())]
    if lengths.size:
        assert seen.survey.numbers[2:4] == [lengths.min(), lengths.max()]
    if not size or not lengths.size:
        return
    n_rows = lengths.size
    columns = [indices[indptr[r] : indptr[r + 1]] for r in range(n_rows)]
    entries = [set(row.tolist()) for row in columns]
    whole = all(
        {b * size + j for b in {c // size for c in entries[row]} for j in range(size)} == entries[r]
        for row in range(0, n_rows, size)
        for r in range(row, min(row + size, n_rows))
    )
    if size > 1 and not whole:
        assert seen.measured is None
        assert seen.with_holes == size
        return
    found = seen.measured
    assert found.block_size == size
    assert not found.has_holes
    bins = [np.concatenate(columns[r : r + WARP]) // size for r in range(0, n_rows, WARP)]
    narrow = [not b.size or int(b.max()) - int(b.min()) < 2**16 - 1 for b in bins]
    n_values = [WARP * int(n) for n in longest]
    n_narrow = [n // size if is_narrow else 0 for n, is_narrow in zip(n_values, narrow, strict=True)]
    end = len(bins) + 1
    assert found.sums[:end].get().tolist() == np.cumsum([0, *n_values]).tolist()
    starts = found.sums[end : 2 * end].get()
    assert (starts - starts[0]).tolist() == np.cumsum([0, *n_narrow]).tolist()
    assert (found.n_values, found.n_narrow) == (sum(n_values), sum(n_narrow))
    bases = [(int(b.min()) if b.size else 0) if is_narrow else -1 for b, is_narrow in zip(bins, narrow, strict=True)]
    assert found.col_base.get().tolist() == bases
