"""The formats' own worked examples, exactly: the slides' CVR demo and the note's BBCSR matrices, on every device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checks import get, put
from scipy.sparse import csr_array

import cvrarray

GOLDEN = Path(__file__).parent / "golden"
CVR = json.loads((GOLDEN / "cvr_15x15.json").read_text())
BBCSR = json.loads((GOLDEN / "bbcsr.json").read_text())


@pytest.fixture
def cvr_array(device):
    shape = (CVR["n_rows"], CVR["n_cols"])
    csr = csr_array((np.array(CVR["val"], float), CVR["col_idx"], CVR["row_ptr"]), shape=shape)
    return cvrarray.CVRArray(csr, n_lanes=CVR["n_lanes"], n_chunks=2, split="nnz", device=device)


@pytest.mark.parametrize("number", [0, 1])
def test_cvr_chunk(cvr_array, number):
    """val and col_idx but for the pads, tail, records and lr_rec are those of the slides."""
    chunk, golden = cvr_array.chunk(number), CVR["chunks"][number]
    n_lanes, n_steps = CVR["n_lanes"], golden["steps"]
    assert chunk.val.shape == chunk.col_idx.shape == (n_lanes, n_steps)
    np.testing.assert_array_equal(get(chunk.val), golden["val_by_lane"])
    kept = ~_pads(golden)
    np.testing.assert_array_equal(get(chunk.col_idx)[kept], np.array(golden["col_by_lane"])[kept])
    assert (get(chunk.col_idx)[~kept] == get(chunk.col_idx)[kept].min()).all(), "a pad has the chunk's smallest column"
    np.testing.assert_array_equal(get(chunk.tail), golden["tail"])
    np.testing.assert_array_equal(get(chunk.rec_pos), [pos for pos, _ in golden["rec"]])
    np.testing.assert_array_equal(get(chunk.rec_wb), [wb for _, wb in golden["rec"]])
    assert chunk.lr_rec == golden["lr_rec"]


def test_cvr_product(cvr_array, device):
    assert cvr_array.n_chunks == 2
    assert cvr_array.nnz == CVR["nnz"]
    np.testing.assert_array_equal(get(cvr_array @ put(np.array(CVR["x"], float), device)), CVR["y"])


@pytest.fixture(params=list(BBCSR), ids=lambda name: name.partition(" ")[0])
def note(request):
    return BBCSR[request.param]


@pytest.fixture
def bbcsr_array(note, device):
    row, col = np.array(note["pairs"]).T
    blocks = np.array([note["blocks"][f"{i},{j}"] for i, j in note["pairs"]])
    return cvrarray.BBCSRArray.from_blocks(put(row, device), put(col, device), put(blocks, device), device=device)


def test_bbcsr_layout(bbcsr_array, note):
    """Offsets and lengths are the note's; the blocks of a row are the same set, ours in ascending order."""
    A, blk = bbcsr_array, note["blk"]
    assert A.shape == (note["n"], note["n"])
    assert A.block_size == blk
    assert A.n_bins == note["nbin"]
    np.testing.assert_array_equal(get(A.bin_rowptr), note["bin_rowptr"])
    np.testing.assert_array_equal(np.diff(get(A.bin_rowptr)) // 32, note["bin_len"])
    np.testing.assert_array_equal(get(A.rowptr), note["rowptr"])
    assert A.colptr.size == A.padded_data.size // blk
    for row in range(32 * A.n_bins):
        ours = _row_blocks(get(A.rowptr), get(A.colptr), get(A.padded_data), row, blk)
        theirs = _row_blocks(note["rowptr"], note["colptr"], note["A_data"], row, blk)
        assert ours == sorted(theirs, key=lambda block: (block[0] < 0, block[0])), f"row {row}"


def test_bbcsr_product(bbcsr_array, note, device):
    np.testing.assert_array_equal(get(bbcsr_array @ put(np.array(note["x"]), device)), note["y"])


def _pads(chunk):
    """(n_lanes, n_steps) where the chunk's table holds padding: the last slots of a lane, after its last record."""
    n_steps = chunk["steps"]
    n_lanes = len(chunk["tail"])
    last = np.full(n_lanes, -1)
    for pos, _ in chunk["rec"]:
        last[pos % n_lanes] = pos // n_lanes
    return np.arange(n_steps)[None] > last[:, None]


def _row_blocks(rowptr, colptr, data, row, blk):
    """[(column or -1, values)] of one row, read by the note's own formulas."""
    begin, lane = rowptr[row], row % 32
    blocks = []
    for b in range((rowptr[row + 32] - begin) // (32 * blk)):
        column = int(colptr[(begin - lane) // blk + lane + 32 * b])
        values = [float(data[begin + 32 * (b * blk + j)]) for j in range(blk)]
        blocks.append((max(column, -1), values))
    return blocks
