"""Tables that no conversion made: check() refuses them before anything is read by them, or they have one meaning."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import zoo

import cvrarray


def chunks():
    """Narrow and wide chunks of 4 lanes, cut rows, rows that are shared by lanes, pads and empty rows."""
    row = np.concatenate([np.repeat([1, 3, 4, 6], [30, 2, 40, 5]), [8, 8, 9, 9]])
    col = np.concatenate([np.arange(30), [4, 7], np.arange(40), [1, 4, 5, 6, 7], [0, 70_000, 3, 69_999]])
    return cvrarray.CVRArray(zoo.entries((12, 70_001), row, col).astype(float), n_lanes=4, n_chunks=6, split="nnz")


def many_rows():
    """One chunk of 8 lanes, each fed several times, in which lanes steal."""
    lengths = np.append(np.arange(60) % 5 + 1, 30)
    return cvrarray.CVRArray((np.arange(40) < lengths[:, None]).astype(float), n_lanes=8, n_chunks=1)


def bins():
    """A narrow bin and a wide one, blocks with holes, a block that the right edge cuts."""
    row = np.concatenate([np.repeat(np.arange(32), 2), [40, 41, 41]])
    col = np.concatenate([np.tile([0, 5], 32), [2, 3, 300_000]])
    return cvrarray.BBCSRArray(zoo.entries((64, 300_001), row, col).astype(float), block_size=3)


def whole_blocks():
    """Three bins of whole blocks, so that there are no marks."""
    return cvrarray.BBCSRArray(np.kron(np.tri(32, 4, 2), np.ones((3, 3))), block_size=3)


def whole_blocks_in_two_bins():
    """Block row 10 has two rows in the first bin, and one in the second."""
    return cvrarray.BBCSRArray(np.kron(np.arange(5) < np.full((32, 1), 3), np.ones((3, 3))), block_size=3)


def forged(A, **tables):
    """`A` with other tables: values, or functions that change a copy of the one that is there."""
    for name, change in tables.items():
        if callable(change):
            tables[name] = np.array(getattr(A._tables, name))
            change(tables[name])
    return type(A)._from_tables(A._tables._replace(**tables))


def put(place, value):
    return lambda table: table.__setitem__(place, value)


def add(place, value):
    return lambda table: table.__setitem__(place, table[place] + np.array(value, table.dtype))


def swap(i, j):
    return lambda table: table.__setitem__([i, j], table[[j, i]])


FORGERIES = {
    "cvr-offsets-wrap": (  # by differences that all look right, as 32 lanes times 2^59 is 0
        lambda: cvrarray.CVRArray(np.ones((12, 32)), n_lanes=32, n_chunks=3),
        {"step_ptr": add([1, 2], [11 << 59, (22 << 59) - (1 << 64)])},
        "1",
    ),
    "cvr-records-wrap": (chunks, {"rec_ptr": add([1, 2], [3 << 61, -(3 << 61)])}, "1"),
    "cvr-duplicate-in-lane": (chunks, {"col_narrow": put(4, 0)}, "of columns"),
    "cvr-duplicate-over-lanes": (chunks, {"col_narrow": add(1, 1)}, "of columns"),
    "cvr-duplicate-over-chunks": (chunks, {"col_narrow": put(slice(16, 32), 0)}, "of columns"),
    "cvr-carry-from-no-row": (chunks, {"carry_row": put(1, -1)}, "of columns"),
    "cvr-carry-of-another-row": (chunks, {"carry_row": put(1, 3)}, "of columns"),
    "cvr-carry-missing": (chunks, {"carry_row": np.zeros(1, np.int32)}, "4"),
    "cvr-one-row-for-all": (many_rows, {"rec_wb": lambda wb: wb.__setitem__(wb >= 0, 0)}, "of columns"),
    "cvr-all-records-in-tail": (  # more than a chunk can have
        lambda: cvrarray.CVRArray(np.eye(300), n_lanes=32, n_chunks=1),
        {"rec_wb": put(slice(None), -1)},
        "of (columns|nnz)",
    ),
    "cvr-base-not-smallest": (many_rows, {"col_narrow": add(slice(None), 1), "shape": (61, 41)}, "of col_base"),
    "cvr-base-below": (chunks, {"col_base": put(0, -2)}, "2"),
    "cvr-pad-of-nan": (chunks, {"val": put(12, np.nan)}, "of val"),
    "cvr-rows-not-ascending": (many_rows, {"rec_wb": swap(0, 1)}, "of rec_wb"),
    "cvr-entries-exchanged": (many_rows, {"rec_wb": lambda wb: swap(np.argmax(wb < 0), -1)(wb)}, "of columns"),
    "cvr-tail-exchanged": (
        many_rows,
        {"tail": lambda tail: tail.__setitem__(0, tail[0][::-1].copy())},
        "of (tail|rec_wb|rec_mask|rec_ptr|col_narrow)",
    ),
    "cvr-record-in-another-lane": (many_rows, {"rec_mask": lambda m: put(3, (m[3] << 1 | m[3] >> 7) & 255)(m)}, "of columns"),
    "cvr-more-rows": (chunks, {"shape": (1 << 30, 70_001)}, "5"),
    "cvr-negative-shape": (chunks, {"shape": (-12, 70_001)}, "0"),
    "cvr-lanes-beyond": (chunks, {"n_lanes": 33}, "0"),
    "bbcsr-offsets-wrap": (
        lambda: cvrarray.BBCSRArray(np.eye(96), block_size=1),
        {
            "bin_rowptr": np.array([0, 1 << 62, -(1 << 63) + 2048, 96]),
            "col_ptr": np.array([0, 1 << 62, -(1 << 63) + 2048]),
        },
        "1",
    ),
    "bbcsr-rows-of-a-block-differ": (whole_blocks, {"col_narrow": put([1, 33, 65, 97], 3)}, "of nnz"),
    "bbcsr-rows-in-two-bins-differ": (whole_blocks_in_two_bins, {"col_narrow": put(160, 3)}, "of bin_rowptr"),
    "bbcsr-step-of-padding": (
        lambda: cvrarray.BBCSRArray(np.zeros((32, 7)), block_size=2),
        {
            "bin_rowptr": np.array([0, 64]),
            "data": np.zeros(64),
            "col_base": np.array([3], np.int32),
            "col_narrow": np.full(32, 65535, np.uint16),
        },
        "of bin_rowptr",
    ),
    "bbcsr-base-beyond": (whole_blocks, {"col_base": put(2, 4)}, "2"),
    "bbcsr-base-not-smallest": (whole_blocks, {"col_base": put(0, -1), "col_narrow": add(slice(None), 1)}, None),
    "bbcsr-marks-beyond-the-block": (bins, {"present": put(slice(None), 255)}, "2"),
    "bbcsr-block-over-the-edge": (whole_blocks, {"shape": (96, 11)}, "of columns"),
    "bbcsr-hole-of-nan": (bins, {"data": lambda data: data.__setitem__(data == 0, np.nan)}, "of data"),
    "bbcsr-more-rows": (bins, {"shape": (1 << 30, 300_001)}, "1"),
    "bbcsr-huge-blocks": (bins, {"block_size": 1 << 62}, "0"),
    "other-byte-order": (bins, {"bin_rowptr": np.array([0, 192, 576], ">i8")}, "0"),
    "other-dtype": (bins, {"col_wide": np.zeros(64, np.uint32)}, "0"),
    "other-dimensions": (chunks, {"empty_row": np.zeros((6, 1), np.int32)}, "0"),
    "not-contiguous": (chunks, {"step_ptr": np.arange(14)[::2]}, "0"),
    "objects": (chunks, {"val": np.array([None])}, "0"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgery_is_refused(name, device):
    build, tables, invariant = FORGERIES[name]
    A = build()
    A.check()
    with pytest.raises(ValueError, match=f"breaks invariant ({invariant}):" if invariant else "breaks invariant"):
        forged(A, **tables).check()


def test_check_where_the_array_lives(device):
    """Of an array on a GPU the tables are copied to the host first."""
    A = forged(chunks(), col_narrow=put(4, 0)).to_device(device)
    with pytest.raises(ValueError, match="of columns: they ascend"):
        A.check()


@pytest.mark.parametrize("name", ["cvr-offsets-wrap", "cvr-duplicate-in-lane", "bbcsr-offsets-wrap", "bbcsr-hole-of-nan"])
def test_file_of_forged_tables_is_refused(name, tmp_path):
    """Its checksums are right: `save` made them."""
    build, tables, _ = FORGERIES[name]
    cvrarray.save(tmp_path / "forged.cvra", forged(build(), **tables))
    for load in (cvrarray.load, cvrarray.read):
        with pytest.raises(ValueError, match=r"forged.cvra: .*breaks invariant"):
            load(tmp_path / "forged.cvra")


@pytest.mark.parametrize("build", [chunks, many_rows, bins, whole_blocks])
def test_mutated_tables_are_refused_or_have_one_meaning(build):
    A, rng = build(), np.random.default_rng(7)
    n_passed = 0
    for _ in range(300):
        B = mutated(A, rng)
        try:
            B.check()
        except ValueError as error:
            assert "breaks invariant" in str(error)
            continue
        n_passed += 1
        csr = B.tocsr()
        assert csr.has_canonical_format
        assert csr.nnz == B.nnz
        x, X, z = (rng.integers(-4, 5, shape).astype(float) for shape in (B.shape[1], (B.shape[1], 3), B.shape[0]))
        np.testing.assert_allclose(B @ x, csr @ x)
        np.testing.assert_allclose(B @ X, csr @ X)
        np.testing.assert_allclose(B.T @ z, csr.T @ z)
        numbers = np.arange(1.0, B.nnz + 1)
        np.testing.assert_array_equal(B.with_values(numbers).tocsr().data, numbers)
    assert 0 < n_passed < 300


def mutated(A, rng):
    """`A` with one number of one table changed."""
    tables = {name: table for name, table in A._tables._asdict().items() if isinstance(table, np.ndarray) and table.size}
    name = rng.choice(list(tables))
    table = tables[name].copy()
    at = rng.integers(table.size)
    if table.dtype.kind == "f":
        table.flat[at] = rng.integers(4)
    else:
        bit = table.dtype.type(1) << table.dtype.type(
            rng.integers(8 * table.itemsize - 1) if rng.integers(2) else rng.integers(4)
        )
        table.flat[at] ^= bit
    return type(A)._from_tables(A._tables._replace(**{name: table}))


@pytest.mark.parametrize("build", [chunks, bins])
def test_pickle_whose_buffer_is_cut_is_refused(build):
    A, buffers = build(), []
    header = pickle.dumps(A, protocol=5, buffer_callback=buffers.append)
    contents = [bytes(buffer.raw()) for buffer in buffers]
    np.testing.assert_array_equal(pickle.loads(header, buffers=contents).tocsr().toarray(), A.tocsr().toarray())
    for k, content in enumerate(contents):
        with pytest.raises(ValueError, match=r"pickle of an array is damaged: \w+ has "):
            pickle.loads(header, buffers=[*contents[:k], content[:-1], *contents[k + 1 :]])
    rebuild, (array_class, text, *tables) = A.__reduce_ex__(4)
    with pytest.raises(ValueError, match="zip"):
        rebuild(array_class, text, *tables[:-1])


@pytest.mark.parametrize("build", [chunks, bins])
def test_pickle_is_of_the_values_that_are_there(build):
    A = build()
    S = A.tocsr()
    pickle.dumps(A, protocol=5)
    A.with_values(S.data + 1, out=A)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(A, protocol=5)).tocsr().data, S.data + 1)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("build", [chunks, bins])
def test_pickle_has_no_object_of_numpy(build, protocol):
    content = pickle.dumps(build(), protocol=protocol)
    assert b"numpy" not in content
    np.testing.assert_array_equal(pickle.loads(content).tocsr().toarray(), build().tocsr().toarray())


def test_pickle_of_a_newer_version_is_refused(monkeypatch):
    from cvrarray.array import serialized

    monkeypatch.setattr(serialized, "PLAIN_VERSION", 9)
    content = pickle.dumps(bins())
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"the pickle has version 9; .*reads up to 2"):
        pickle.loads(content)


def test_checksum_covers_every_byte():
    """More than one block of words, which threads sum up, and the bytes after the last whole word."""
    from cvrarray.cpu.checksum import BLOCK, checksum

    content = np.random.default_rng(3).integers(0, 256, 40 * 8 * BLOCK + 13, np.uint8)
    whole = checksum(content)
    for at in (0, 8 * BLOCK, 100 * BLOCK + 7, content.size - 6, content.size - 1):
        changed = content.copy()
        changed[at] ^= 128
        assert checksum(changed) != whole
    exchanged = content.copy()
    exchanged[:8], exchanged[160 * BLOCK :][:8] = content[160 * BLOCK :][:8], content[:8]
    assert checksum(exchanged) != whole
