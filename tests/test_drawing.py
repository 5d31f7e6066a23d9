"""Pictures: well formed, and what they show is what the tables hold."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import get
from test_golden import CVR

import cvrarray
from cvrarray import drawing

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
    found = texts(cvrarray.draw(cvr, number))
    chunk, golden = cvr.chunk(number), CVR["chunks"][number]
    begin = found.index("lane 0")
    shown = []  # lane by lane: value and column of every slot, then the entry of tail
    for lane in range(4):
        kept = [slot for slot in range(golden["steps"]) if slot * 4 + lane in _slots_in_use(golden)]
        shown.append(f"lane {lane}")
        for step in kept:
            shown += [f"{get(chunk.val)[lane, step]:.3g}", str(get(chunk.col_idx)[lane, step])]
        shown.append(str(get(chunk.tail)[lane]))
    assert found[begin : begin + len(shown)] == shown
    records = [title.text for title in parsed(cvrarray.draw(cvr, number)).iter(f"{SVG}title")][1:]
    assert len(records) == len(golden["rec"])
    for text, (pos, wb) in zip(records, golden["rec"], strict=True):
        target = "row" if pos < golden["lr_rec"] else "tail entry"
        assert text == f"record at slot {pos}: the sum of lane {pos % 4} goes to {target} {wb}"


def _slots_in_use(golden):
    """Slots up to each lane's last record."""
    last = {pos % 4: pos for pos, _ in golden["rec"]}  # of ascending positions the last stays
    return {slot for slot in range(golden["steps"] * 4) if slot <= last[slot % 4]}


def test_slots_have_the_colour_of_their_row(cvr):
    """Chunk 0's picture holds as many slots of a row as the matrix has entries, in one colour."""
    fills = [rect.get("fill") for rect in parsed(cvrarray.draw(cvr, 0)).iter(f"{SVG}rect")]
    per_row = np.diff(GOLDEN.indptr)
    for row in range(7):
        colour = drawing.COLOURS[row]
        tail = sum(entry == row for entry in CVR["chunks"][0]["tail"])
        assert fills.count(colour) == per_row[row] + tail
    assert fills.count("url(#pad)") == CVR["chunks"][0]["n_pad"]


def test_the_matrix_is_drawn_with_all_of_it(cvr):
    """Its entries have the colours of their rows, and a red line shows where chunk 1 begins."""
    picture = parsed(cvrarray.draw(cvr))
    assert sum(rect.get("stroke") == "#fff" for rect in picture.iter(f"{SVG}rect")) == GOLDEN.nnz
    (cut,) = (line for line in picture.iter(f"{SVG}line") if line.get("stroke") == drawing.MARK)
    assert cut.get("y1") == cut.get("y2")  # chunk 1 begins with row 7


@pytest.mark.parametrize(("steps", "records", "tail"), [(0, 0, False), (2, 1, False), (3, 2, True), (5, 3, True), (7, 7, True)])
def test_steps_done_so_far(cvr, steps, records, tail):
    picture = parsed(cvrarray.draw(cvr, 0, steps=steps))
    assert len(list(picture.iter(f"{SVG}title"))) == 1 + records
    assert ("tail" in texts(cvrarray.draw(cvr, 0, steps=steps))) == tail
    assert sum(rect.get("stroke-dasharray") is not None for rect in picture.iter(f"{SVG}rect")) == (4 if steps < 7 else 0)


@pytest.mark.parametrize("block_size", [1, 3, 6])
def test_bin_shows_values_and_block_columns(device, block_size):
    A = cvrarray.BBCSRArray(GOLDEN, block_size=block_size, device=device)
    found = texts(cvrarray.draw(A))
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


@pytest.mark.parametrize("name", zoo.ZOO)
def test_whatever_is_small_enough_is_drawn(name):
    """Every matrix of the zoo: a picture that is well formed, or an error that says what to do."""
    csr = zoo.floats(name)
    for A in (cvrarray.CVRArray(csr, n_lanes=4), cvrarray.BBCSRArray(csr, block_size=3)):
        try:
            picture = cvrarray.draw(A)
        except ValueError as error:
            assert re.search(r"Name one: draw\(A, 0\)|Draw a smaller matrix", str(error))
        else:
            width, height = (float(parsed(picture).get(side)) for side in ("width", "height"))
            assert width > 0
            assert height > 0


@pytest.mark.parametrize(
    ("dtype", "text"), [(np.complex128, "1.5-2j"), (np.float32, "1.5"), (np.int64, "1"), (np.bool_, "1"), (np.uint8, "1")]
)
def test_values_of_every_kind(dtype, text):
    value = 1.5 - 2j if np.dtype(dtype).kind == "c" else dtype(1.5)
    A = cvrarray.CVRArray(np.array([[value]], dtype))
    assert text in texts(cvrarray.draw(A))


def test_save_and_notebooks(tmp_path, cvr):
    picture = cvrarray.draw(cvr)
    picture.save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == str(picture) == picture._repr_svg_()


def test_pictures_follow_the_colours_of_the_page(cvr):
    """Text beside cells has the page's colour, in cells a dark one; nothing is white; a file brings both colour
    schemes.
    """
    picture = cvrarray.draw(cvr)
    outside = {text.get("fill") for text in parsed(picture).iter(f"{SVG}text") if text.get("text-anchor") == "end"}
    assert outside == {"currentColor"}
    assert not [rect for rect in parsed(picture).iter(f"{SVG}rect") if rect.get("fill") == "#fff"]
    assert "prefers-color-scheme:dark" in str(picture)
    inline = picture._repr_html_()
    assert "<style" not in inline  # it would be the whole page's
    assert "overflow-x:auto" in inline
    ids = [re.findall('id="(.+?)"', cvrarray.draw(cvr, number)._repr_html_()) for number in (0, 1)]
    assert len({*ids[0], *ids[1]}) == 4
    for found, number in zip(ids, (0, 1), strict=True):
        used = set(re.findall(r"url\(#(.+?)\)", cvrarray.draw(cvr, number)._repr_html_()))
        assert used <= set(found)


def test_what_cannot_be_drawn(device):
    A = cvrarray.CVRArray(cvrarray.generate.poisson7(12), n_chunks=50, device=device)
    with pytest.raises(ValueError, match=r"at most 4 chunks at once; this array has \d+. Name one: draw\(A, 0\)"):
        cvrarray.draw(A)
    assert "chunk 7:" in " ".join(texts(cvrarray.draw(A, 7)))
    with pytest.raises(IndexError, match=r"a chunk in \[0, \d+\); got -1"):
        cvrarray.draw(A, -1)
    with pytest.raises(ValueError, match="steps must lie in"):
        cvrarray.draw(A, 0, steps=99)
    with pytest.raises(ValueError, match="at most 96 steps"):
        cvrarray.draw(cvrarray.CVRArray(np.ones((1, 100)), n_lanes=1, n_chunks=1, device=device))
    B = cvrarray.BBCSRArray(np.eye(300), device=device)
    with pytest.raises(ValueError, match="at most 4 bins"):
        cvrarray.draw(B)
    with pytest.raises(ValueError, match="steps is for CVR"):
        cvrarray.draw(B, 0, steps=1)
    with pytest.raises(TypeError, match="needs a CVRArray or BBCSRArray; got ndarray"):
        cvrarray.draw(np.eye(3))
