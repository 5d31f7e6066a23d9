"""Pictures of docs/formats.md: what they show is what the tables hold."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.sparse
from checks import get
from test_golden import CVR

import cvrarray

sys.path.append(str(Path(__file__).parent.parent / "docs"))
import drawing

SVG = "{http://www.w3.org/2000/svg}"
GOLDEN = scipy.sparse.csr_array(
    (np.array(CVR["val"], float), CVR["col_idx"], CVR["row_ptr"]), shape=(CVR["n_rows"], CVR["n_cols"])
)


def parsed(picture):
    return ElementTree.fromstring(str(picture))


def texts(picture):
    return [element.text for element in parsed(picture).iter(f"{SVG}text")]


@pytest.fixture
def cvr(device):
    return cvrarray.CVRArray(GOLDEN, n_lanes=4, n_chunks=2, split="nnz", device=device)


@pytest.mark.parametrize("number", [0, 1])
def test_chunk_shows_values_columns_records_and_tail(cvr, number):
    found = texts(drawing.draw(cvr, number))
    chunk, golden = cvr.chunk(number), CVR["chunks"][number]
    begin = found.index("lane 0")
    shown = []  # lane by lane: value and column of every slot, then the entry of tail
    last = {pos % 4: pos for pos, _ in golden["rec"]}  # of ascending positions the last stays
    for lane in range(4):
        kept = [slot for slot in range(golden["steps"]) if slot * 4 + lane <= last[lane]]
        shown.append(f"lane {lane}")
        for step in kept:
            shown += [f"{get(chunk.val)[lane, step]:.3g}", str(get(chunk.col_idx)[lane, step])]
        shown.append(str(get(chunk.tail)[lane]))
    assert found[begin : begin + len(shown)] == shown
    records = [title.text for title in parsed(drawing.draw(cvr, number)).iter(f"{SVG}title")][1:]
    assert len(records) == len(golden["rec"])
    for text, (pos, wb) in zip(records, golden["rec"], strict=True):
        target = "row" if pos < golden["lr_rec"] else "tail entry"
        assert text == f"record at slot {pos}: the sum of lane {pos % 4} goes to {target} {wb}"


@pytest.mark.parametrize("block_size", [1, 3, 6])
def test_bin_shows_values_and_block_columns(device, block_size):
    A = cvrarray.BBCSRArray(GOLDEN, block_size=block_size, device=device)
    found = texts(drawing.draw(A))
    found = found[found.index("entry k") :]
    begin = found.index("row 0")
    shown = found[begin : found.index("15 to 31")]
    rows = " ".join(shown).split("row ")[1:]
    colptr, rowptr, data = get(A.colptr), get(A.rowptr), get(A.padded_data)
    for row, line in enumerate(rows):
        expected = [str(row)]
        for k in range((rowptr[row + 32] - rowptr[row]) // 32):
            block, within = divmod(k, block_size)
            column = colptr[(rowptr[row] - row % 32) // block_size + row % 32 + 32 * block]
            if column >= 0 and (value := data[rowptr[row] + 32 * k]) != 0:
                expected.append(f"{value:.3g}")
            if column >= 0 and within == 0:
                expected.append(str(column))
        assert line.split() == expected
    assert len(rows) == 15
