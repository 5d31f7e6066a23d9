"""Conversions: tables equal to the slow definition's and to the other device's, invariants, and the way back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import sparse
import zoo
from checks import (
    BBCSR,
    BUILDS,
    CVR,
    TYPICAL,
    Build,
    assert_same_bits,
    assert_same_csr,
    assert_same_tables,
    at_home,
    bbcsr,
    cvr,
    get,
    in_turn,
    put,
)
from scipy.sparse import csr_array

import cvrarray
from cvrarray.core.tables import CSR, BBCSRTables, CVRTables

VARIED = ["rows_of_mixed_length", "explicit_zeros_beside_holes", "one_dense_row", "narrow_and_wide_tiles", "power_law"]
DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float32", "float64", "complex64", "complex128"]
TYPICAL_BUILDS = pytest.mark.parametrize("build", TYPICAL, ids=str)


# The definition


@in_turn("name, build", zoo.ZOO, CVR, times=2)
def test_chunks_are_the_definitions(build, name, device):
    """Every chunk equals the definition carried out step by step; pads too, which are 0 at the smallest column."""
    csr = zoo.integers(name, np.float64)
    A = build(csr, device)
    n_chunks = build.keywords.get("n_chunks") or A.n_chunks
    split = build.keywords.get("split", "rows" if device == "cpu" else "even")
    cuts = reference.cuts(csr.indptr, n_chunks, A.n_lanes, split)
    expected = reference.cvr_chunks(csr.indptr, csr.indices, csr.data, csr.shape[0], A.n_lanes, cuts)
    assert A.n_chunks == len(expected)
    for k, chunk in enumerate(expected):
        found = A.chunk(k)
        for field in ("val", "col_idx", "tail", "rec_pos", "rec_wb"):
            np.testing.assert_array_equal(get(getattr(found, field)), chunk[field], err_msg=f"{field} of chunk {k}")
        assert found.lr_rec == chunk["lr_rec"]
        assert get(found.val).dtype == csr.dtype
        _assert_facts(chunk, A.n_lanes)


@in_turn("name, build", zoo.ZOO, BBCSR, times=2)
def test_bins_are_the_definitions(build, name, device):
    """data, colptr, rowptr and bin_rowptr equal the definition's, padding included."""
    csr = zoo.integers(name, np.float64)
    A = build(csr, device)
    expected = reference.bbcsr(csr.indptr, csr.indices, csr.data, csr.shape, A.block_size)
    for field, table in expected.items():
        found = A.padded_data if field == "data" else getattr(A, field)
        np.testing.assert_array_equal(get(found), table, err_msg=field)
    assert A.padded_data.dtype == csr.dtype
    assert A.n_bins == math.ceil(csr.shape[0] / 32)


@in_turn("name, build", zoo.ZOO, CVR)
def test_narrow_chunks(build, name, device):
    """A chunk whose columns span less than 2^16 is stored narrow, from its smallest column; any other wide."""
    A = build(zoo.integers(name, np.float64), device)
    base = get(A._tables.col_base)
    assert base.shape == (A.n_chunks,)
    for k in range(A.n_chunks):
        col = get(A.chunk(k).col_idx)
        assert base[k] == (col.min() if col.max() - col.min() < 2**16 else -1)


@pytest.mark.parametrize("span", [65534, 65535, 65536])
def test_rows_of_a_block_that_are_alike_and_end_in_a_part_of_one(span, device):
    """The last column decides how far a bin reaches, also where it is the only one of its block."""
    entries = [1.0, 2, 3, 4, 5, 6], [0, 1, 2 * span, 0, 1, 2 * span], [0, 3, 6]
    csr = csr_array(entries, shape=(2, 2 * span + 2))
    A = cvrarray.BBCSRArray(csr, block_size=2, device=device)
    A.check()
    assert (get(A._tables.col_base)[0] >= 0) == (span < 65535)
    assert_same_csr(A.to_scipy(), csr)


@in_turn("name, build", zoo.ZOO, BBCSR)
def test_narrow_bins(build, name, device):
    """A bin whose block columns span less than 2^16 - 1 is stored narrow; one without blocks too, from 0."""
    A = build(zoo.integers(name, np.float64), device)
    base, colptr = get(A._tables.col_base), get(A.colptr) // A.block_size
    ends = get(A.bin_rowptr) // A.block_size
    assert base.shape == (A.n_bins,)
    for k in range(A.n_bins):
        col = colptr[ends[k] : ends[k + 1]]
        col = col[col >= 0] if (col >= 0).any() else np.zeros(1, int)
        assert base[k] == (col.min() if col.max() - col.min() < 2**16 - 1 else -1)


@in_turn("name, build", zoo.ZOO, BBCSR)
def test_presence_bits(build, name, device):
    """None where every column of every row's blocks is an entry, else the smallest integers with a bit a column."""
    csr = zoo.integers(name, np.float64)
    A = build(csr, device)
    present, size = A._tables.present, A.block_size
    if (get(A.colptr) >= 0).sum() * size == csr.nnz:
        assert present is None
    else:
        assert present.dtype == (np.uint8 if size <= 8 else np.uint16 if size <= 16 else np.uint32)
        bits = np.unpackbits(np.ascontiguousarray(get(present)).view(np.uint8))
        assert bits.sum() == csr.nnz


def _assert_facts(chunk, n_lanes):
    """What holds of every chunk; here of the definition itself, which the tables have just been equal to."""
    nnz = int(chunk["real"].sum())
    n_steps = chunk["val"].shape[1]
    assert n_steps == math.ceil(nnz / n_lanes)
    assert n_steps * n_lanes - nnz < n_lanes
    assert (np.diff(chunk["real"].astype(int), axis=1) <= 0).all(), "pads stand at lane ends"
    assert (np.diff(chunk["rec_pos"]) > 0).all()
    rows = {wb for pos, wb in zip(chunk["rec_pos"], chunk["rec_wb"], strict=True) if pos < chunk["lr_rec"]}
    rows |= {row for row in chunk["tail"] if row >= 0}
    assert len(chunk["rec_pos"]) <= len(rows) + n_lanes - 1


@in_turn("name, build", zoo.ZOO, CVR)
def test_lanes_steal_at_most_once(build, name):
    """A thief steals once and is never a victim: a lane has at most one record from step lr_rec on but for its own."""
    csr = zoo.integers(name, np.float64)
    A = build(csr)
    for k in range(A.n_chunks):
        chunk = A.chunk(k)
        in_tail = chunk.rec_pos >= chunk.lr_rec
        lane, entry = chunk.rec_pos[in_tail] % A.n_lanes, chunk.rec_wb[in_tail]
        assert (np.bincount(lane[entry != lane], minlength=1) <= 1).all()


# Both devices


@in_turn("name, build", zoo.ZOO, BUILDS, times=2)
def test_devices_agree(build, name, gpu):
    """The GPU's conversion gives the CPU's tables, field by field and bit by bit."""
    csr = zoo.floats(name, np.float64)
    A = build(csr, gpu)
    if build == Build("cvr", {}):
        build = cvr(A.n_lanes, A.n_chunks or None, "even")  # the defaults differ by device
    assert_same_tables(A._tables, build(csr, "cpu")._tables)


@TYPICAL_BUILDS
@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_devices_agree_in_every_dtype(build, name, dtype, gpu):
    csr = zoo.integers(name, dtype)
    assert_same_tables(build(csr, gpu)._tables, build(csr, "cpu")._tables)


@pytest.mark.parametrize("build", [Build("cvr", {}), bbcsr(1), bbcsr(3)], ids=str)
@pytest.mark.parametrize("kind", ["blocks", "uneven"])
def test_memory_of_a_conversion(build, kind, gpu):
    """Beside the CSR that is there, a conversion on the GPU holds at its peak the result and a tenth of both."""
    import cupy

    class Peak(cupy.cuda.MemoryHook):
        name = "peak"
        now = most = 0

        def malloc_postprocess(self, **block):
            self.now += block["mem_size"]
            self.most = max(self.most, self.now)

        def free_postprocess(self, **block):
            self.now -= block["mem_size"]

    n_rows, n_cols = 3 * 2**16, 3 * 2**17
    length = np.full(n_rows, 27) if kind == "blocks" else 9 + (np.arange(n_rows) * 7919 % 64) ** 2 // 64
    indptr = np.concatenate([[0], np.cumsum(length)])
    first = np.arange(n_rows) // 3 * 3
    indices = np.arange(indptr[-1]) - np.repeat(indptr[:-1] - first, length)
    values = np.random.default_rng(0).standard_normal(indptr[-1])
    parts = [cupy.asarray(a) for a in (indptr, indices.astype(np.int32), values)]
    csr_bytes = sum(part.nbytes for part in parts)
    build(CSR(*parts, (n_rows, n_cols)))  # compiles
    with Peak() as peak:
        A = build(CSR(*parts, (n_rows, n_cols)))
    assert peak.most <= A.nbytes + 0.1 * (csr_bytes + A.nbytes)


# The way back


@in_turn("name, build", zoo.ZOO, BUILDS, times=2)
def test_check_and_round_trip(build, name, device):
    """check() finds nothing, and every stored entry comes back: explicit zeros, places, bits."""
    csr = zoo.floats(name, np.float64)
    A = build(csr, device)
    A.check()
    assert A.nnz == csr.nnz
    assert A.shape == csr.shape
    assert_same_csr(A.to_scipy(), csr)
    assert_same_csr(A.tocsr(), csr)
    if A.size <= zoo.DENSE_SIZE:
        assert_same_bits(A.todense(), csr.toarray())


@in_turn("build, dtype, name", at_home(DTYPES), VARIED)
def test_round_trip_in_every_dtype(build, name, dtype, device):
    csr = zoo.integers(name, dtype)
    A = build(csr, device)
    A.check()
    assert_same_csr(A.to_scipy(), csr)
    if device == "cpu":
        assert_same_csr(A.tocsr(), csr)
    if A.size <= zoo.DENSE_SIZE:
        assert_same_bits(A.todense(), csr.toarray())


@TYPICAL_BUILDS
def test_values_keep_every_bit(build, device):
    """Conversion moves values and computes nothing: -0.0, denormals, inf and a nan's payload survive."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    special = np.array([-0.0, 5e-324, np.inf, -np.inf, np.nan], np.float64)
    csr.data[:5] = special
    csr.data.view(np.uint64)[5] = 0x7FF0_0000_DEAD_BEEF  # a signalling nan
    assert_same_csr(build(csr, device).to_scipy(), csr)


@in_turn("name, build", [*VARIED, "all_rows_empty"], TYPICAL)
def test_to_pydata(build, name, device):
    """tocoo() has the entries of the matrix, sorted, explicit zeros among them, and fill value 0."""
    csr = zoo.integers(name, np.float64)
    coo = build(csr, device).tocoo()
    assert isinstance(coo, sparse.COO)
    assert coo.shape == csr.shape
    assert coo.dtype == csr.dtype
    assert coo.fill_value == 0
    expected = csr.tocoo()
    np.testing.assert_array_equal(coo.coords, np.stack(expected.coords))
    np.testing.assert_array_equal(coo.data, expected.data)


@in_turn("name, build", zoo.ZOO, BUILDS)
def test_to_device_and_back(build, name, gpu):
    """Moving copies tables as they are."""
    A = build(zoo.floats(name, np.float32), "cpu")
    there = A.to_device(gpu)
    assert there.device == gpu
    assert A.device == "cpu"
    assert_same_tables(there._tables, A._tables)
    assert_same_tables(there.to_device("cpu")._tables, A._tables)


@pytest.mark.parametrize("name", VARIED)
def test_tocsr_by_device(name, device):
    """SciPy on the CPU, CuPy on a GPU."""
    found = cvrarray.CVRArray(zoo.floats(name), device=device).tocsr()
    if device == "cpu":
        assert isinstance(found, csr_array)
    else:
        from cupyx.scipy.sparse import csr_matrix

        assert isinstance(found, csr_matrix)


def test_tocsr_of_integers_on_a_gpu(gpu):
    """CuPy has no sparse integers: the error names the way that works."""
    A = cvrarray.CVRArray(zoo.integers("power_law", np.int64), device=gpu)
    with pytest.raises(TypeError, match="to_scipy"):
        A.tocsr()
    assert_same_csr(A.to_scipy(), zoo.integers("power_law", np.int64))


# Figures


def test_fill_ratio(device):
    """Stored slots over nonzeros: one entry fills a bin of one block."""
    csr = zoo.integers("only_last_entry", np.float64)
    assert cvrarray.BBCSRArray(csr, block_size=6, device=device).fill_ratio == 32 * 6
    full = zoo.entries((96, 144), *np.divmod(np.arange(96 * 24), 24))  # rows of full blocks that fill their bins
    assert cvrarray.BBCSRArray(full, block_size=6, device=device).fill_ratio == 1
    assert math.isnan(cvrarray.BBCSRArray(zoo.integers("all_rows_empty"), device=device).fill_ratio)


@pytest.mark.parametrize("n_lanes", [1, 2, 3, 5, 8, 15, 16, 17, 24, 31, 32])
def test_every_lane_count(n_lanes, device):
    """Powers of two are nothing special."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    x = zoo.vector(csr.shape[1])
    A = cvrarray.CVRArray(csr, n_lanes=n_lanes, n_chunks=3, device=device)
    A.check()
    assert A.n_lanes == n_lanes
    assert_same_csr(A.to_scipy(), csr)
    np.testing.assert_array_equal(get(A @ put(x, device)), csr @ x)


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 6, 8, 9, 16, 17, 32])
def test_every_block_size(block_size, device):
    """Presence bits in uint8, uint16 and uint32; block rows that share a bin and bins that share a block row."""
    for name in ("power_law", "tridiagonal_97"):
        csr = zoo.integers(name, np.float64)
        x = zoo.vector(csr.shape[1])
        A = cvrarray.BBCSRArray(csr, block_size=block_size, device=device)
        A.check()
        assert A.block_size == block_size
        assert_same_csr(A.to_scipy(), csr)
        np.testing.assert_array_equal(get(A @ put(x, device)), csr @ x)


@in_turn("n_chunks, split", [1, 2, 3, 7, 50, 300, 301, 10**6], ["rows", "nnz", "even"])
def test_every_chunk_count(split, n_chunks, device):
    """As many chunks as asked for, but never more than nonzeros, and none empty."""
    csr = zoo.integers("rows_of_mixed_length", np.float64)
    A = cvrarray.CVRArray(csr, n_lanes=4, n_chunks=n_chunks, split=split, device=device)
    A.check()
    assert A.n_chunks == min(n_chunks, csr.nnz)
    assert_same_csr(A.to_scipy(), csr)


def test_index_dtype_is_int32_while_it_fits(device):
    A = cvrarray.CVRArray(zoo.floats("narrow_and_wide_tiles"), device=device)
    assert A._tables.rec_wb.dtype == A._tables.col_wide.dtype == np.int32
    assert A._tables.step_ptr.dtype == A._tables.col_ptr.dtype == np.int64


# check()

PAD = 12  # in the first chunk below, 14 nonzeros of one row on 4 lanes: lane 0 was stolen from and pads its last steps

CORRUPTIONS = [  # (format, field, what is done to it, words of the invariant that breaks)
    ("cvr", "step_ptr", lambda t: _set(t.step_ptr, 0, 1), "step_ptr"),
    ("cvr", "step_ptr", lambda t: t.step_ptr[:-1], "step_ptr"),
    ("cvr", "step_ptr", lambda t: _set(t.step_ptr, 1, t.step_ptr[2]), "step_ptr"),
    ("cvr", "val", lambda t: t.val[:-1], "val"),
    ("cvr", "val", lambda t: _set(t.val, PAD, 1), r"val\[12\] is 1.0 instead of 0.0"),
    ("cvr", "col_base", lambda t: t.col_base[:-1], "col_base"),
    ("cvr", "col_base", lambda t: _set(t.col_base, 0, t.shape[1]), "columns|col_"),
    ("cvr", "col_ptr", lambda t: _set(t.col_ptr, 0, 16), "col_ptr"),
    ("cvr", "col_narrow", lambda t: t.col_narrow[:-1], "col_ptr|col_narrow|narrow"),
    ("cvr", "col_narrow", lambda t: _set(t.col_narrow, PAD, 1), r"col_narrow\[12\] is 1 instead of 0"),
    ("cvr", "col_wide", lambda t: t.col_wide[:-1], "col_ptr|col_wide|wide"),
    ("cvr", "col_wide", lambda t: _set(t.col_wide, 3, t.shape[1]), "columns"),
    ("cvr", "col_wide", lambda t: _set(t.col_wide, 3, -1), "columns"),
    ("cvr", "rec_mask", lambda t: _set(t.rec_mask, 0, t.rec_mask[0] ^ 1), "rec_mask"),
    ("cvr", "rec_mask", lambda t: _set(t.rec_mask, 0, 1 << 20), "rec_mask"),
    ("cvr", "rec_ptr", lambda t: _set(t.rec_ptr, -1, 0), "rec_ptr"),
    ("cvr", "rec_wb", lambda t: _set(t.rec_wb, 0, t.shape[0]), "rec_wb"),
    ("cvr", "rec_wb", lambda t: _set(t.rec_wb, 0, -9), "rec_wb"),
    ("cvr", "rec_wb", lambda t: _set(t.rec_wb, np.argmax(t.rec_wb >= 0), 0), "columns: they ascend"),
    ("cvr", "tail", lambda t: _set(t.tail, (0, 0), t.shape[0]), "tail holds rows"),
    ("cvr", "tail", lambda t: _set(t.tail, (0, 0), -1), "nnz: it counts"),
    ("cvr", "tail", lambda t: t.tail[:, :-1], "tail"),
    ("cvr", "carry_row", lambda t: _set(t.carry_row, 0, 0), "carry|cut_|columns: they ascend"),
    ("cvr", "carry_row", lambda t: _set(t.carry_row, 1, t.shape[0]), "carry|columns: they ascend"),
    ("cvr", "cut_row", lambda t: _set(t.cut_row, 0, t.cut_row[0] + 1), "cut_row"),
    ("cvr", "cut_ptr", lambda t: _set(t.cut_ptr, (0, 1), t.cut_ptr[0, 1] + 1), "cut_ptr"),
    ("cvr", "empty_row", lambda t: t.empty_row[:-1], r"empty_row: .*; its shape is \(5,\) instead of \(6,\)"),
    ("cvr", "empty_row", lambda t: _set(t.empty_row, 0, t.rec_wb[0]), r"empty_row\[0\] is"),
    ("cvr", "nnz", lambda t: t.nnz + 1, "nnz"),
    ("bbcsr", "bin_rowptr", lambda t: _set(t.bin_rowptr, 0, 1), "bin_rowptr"),
    ("bbcsr", "bin_rowptr", lambda t: t.bin_rowptr[:-1], "bin_rowptr"),
    ("bbcsr", "bin_rowptr", lambda t: _set(t.bin_rowptr, 1, t.bin_rowptr[1] + 1), "bins"),
    ("bbcsr", "data", lambda t: t.data[:-1], "bin_rowptr|data"),
    ("bbcsr", "data", lambda t: np.ones_like(t.data), r"data\[32\] is 1.0 instead of 0.0"),
    ("bbcsr", "col_base", lambda t: t.col_base[:-1], "col_base"),
    ("bbcsr", "col_base", lambda t: _set(t.col_base, 0, t.shape[1]), "column"),
    ("bbcsr", "col_ptr", lambda t: _set(t.col_ptr, -1, 1), "col_ptr"),
    ("bbcsr", "col_narrow", lambda t: t.col_narrow[:-1], "col_ptr|narrow"),
    ("bbcsr", "col_narrow", lambda t: _set(t.col_narrow, 0, 65534), "columns: they ascend"),
    ("bbcsr", "col_narrow", lambda t: _set(t.col_narrow, 32, t.col_narrow[0]), "col_narrow"),
    ("bbcsr", "col_wide", lambda t: t.col_wide[:-1], "col_ptr|wide"),
    ("bbcsr", "col_wide", lambda t: _set(t.col_wide, 0, t.shape[1]), "col_wide"),
    ("bbcsr", "present", lambda t: t.present[:-1], "present"),
    ("bbcsr", "present", lambda t: _set(t.present, 0, t.present[0] ^ 1), "stored|nnz|holes"),
    ("bbcsr", "present", lambda t: _set(t.present, 0, 1 << 7), "present has no bit"),
    ("bbcsr", "present", lambda t: None, "nnz"),
    ("bbcsr", "nnz", lambda t: t.nnz - 1, "nnz"),
]


@pytest.mark.parametrize(
    ("format", "field", "corrupt", "words"), CORRUPTIONS, ids=[f"{c[0]}-{c[1]}-{k}" for k, c in enumerate(CORRUPTIONS)]
)
def test_check_names_the_broken_invariant(format, field, corrupt, words, device):
    A = _several_chunks() if format == "cvr" else _several_bins()
    A.to_device(device).check()
    broken = type(A)._from_tables(A._tables._replace(**{field: corrupt(A._tables)})).to_device(device)
    with pytest.raises(ValueError, match=words):
        broken.check()


@pytest.mark.parametrize("tables", [CVRTables, BBCSRTables])
def test_every_field_is_corrupted(tables):
    """The table above keeps up with the tables."""
    format = tables.__name__.removesuffix("Tables").lower()
    corrupted = {field for owner, field, *_ in CORRUPTIONS if owner == format}
    elsewhere = {"distinct"}  # tests/test_few_values.py
    assert corrupted | {"shape", "n_lanes", "block_size"} | elsewhere >= set(tables._fields)


def _several_chunks():
    """Narrow and wide chunks, cut rows, tails and empty rows."""
    row = np.concatenate([np.repeat([1, 3, 4, 6], [30, 2, 40, 5]), [8, 8, 9, 9]])
    col = np.concatenate([np.arange(30), [4, 7], np.arange(40), [1, 4, 5, 6, 7], [0, 70_000, 3, 69_999]])
    csr = zoo.entries((12, 70_001), row, col).astype(np.float64)
    A = cvrarray.CVRArray(csr, n_lanes=4, n_chunks=6, split="nnz")
    assert all(table.size for table in A._tables if hasattr(table, "size"))
    return A


def _several_bins():
    """A narrow bin and a wide one, blocks with holes."""
    row = np.concatenate([np.repeat(np.arange(32), 2), [40, 41, 41]])
    col = np.concatenate([np.tile([0, 5], 32), [2, 3, 300_000]])
    csr = zoo.entries((64, 300_001), row, col).astype(np.float64)
    A = cvrarray.BBCSRArray(csr, block_size=3)
    assert all(table.size for table in A._tables if hasattr(table, "size"))
    return A


def _set(table, place, value):
    table = table.copy()
    table[place] = value
    return table


@pytest.mark.small
def test_prefix_sums_with_cuda(gpu):
    import cupy

    from cvrarray.gpu import look, prefix

    rng = np.random.default_rng(2)
    pointer, numbers = look.host()
    for n in (1, 2, 255, 2048, 2049, 70_000, 3_000_000):
        counts = rng.integers(0, 1 << 30, n)
        for n_parts in (1, 1 + (n % 2 == 0), 1 + 3 * (n % 4 == 0)):
            given = cupy.asarray(np.concatenate([counts, np.zeros(prefix.n_states(n), np.int64)]))
            expected = np.cumsum(counts)
            assert np.array_equal(prefix.sums(given, n, pointer, n_parts).get(), expected)
            assert np.array_equal(numbers[:n_parts], expected[n // n_parts - 1 :: n // n_parts])
