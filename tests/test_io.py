"""Files: every kind that is read, every way in which one can be broken, and what save promises of a file."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import itertools
import json
import os
import re
import stat
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import sparse
import zoo
from checks import assert_same_bits, assert_same_csr, assert_same_tables, at_home, bbcsr, cvr, get, in_turn, npy, put
from scipy.sparse import csr_array

import cvrarray
from cvrarray import files
from cvrarray.core import atomic, tables
from cvrarray.cpu import text
from cvrarray.files import cvra, guards
from cvrarray.formats import FORMATS

GOLDEN = Path(__file__).parent / "golden"
DTYPES = ["bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))]
DTYPES += ["float32", "float64", "complex64", "complex128"]
SMALL = "rows_of_mixed_length"  # of the zoo


def banner(layout="coordinate", field="real", symmetry="general"):
    return f"%%MatrixMarket matrix {layout} {field} {symmetry}\n"


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Matrix Market

nan, inf = float("nan"), float("inf")
GOOD = {
    "real": (banner() + "2 3 2\n1 2 -1.5\n2 3 2e3\n", [[0, -1.5, 0], [0, 0, 2000]]),
    "integer": (banner(field="integer") + "1 2 1\n1 2 -9007199254740993\n", [[0, -9007199254740993]]),
    "unsigned": (banner(field="unsigned-integer") + f"1 1 1\n1 1 {2**64 - 1}\n", [[2**64 - 1]]),
    "complex": (banner(field="complex") + "1 2 1\n1 2 1.5 -2\n", [[0, 1.5 - 2j]]),
    "pattern": (banner(field="pattern") + "2 2 2\n2 1\n1 1\n", [[1, 0], [1, 0]]),
    "duplicates": (banner() + "1 2 3\n1 2 1\n1 1 5\n1 2 10\n", [[5, 11]]),
    "symmetric": (banner(symmetry="symmetric") + "2 2 2\n2 1 3\n2 2 4\n", [[0, 3], [3, 4]]),
    "symmetric, upper half": (banner(symmetry="symmetric") + "2 2 2\n1 2 3\n2 2 4\n", [[0, 3], [3, 4]]),
    "symmetric, either half": (
        banner(symmetry="symmetric") + "3 3 2\n1 2 3\n3 1 4\n",
        [[0, 3, 4], [3, 0, 0], [4, 0, 0]],
    ),
    "symmetric pattern": (banner(field="pattern", symmetry="symmetric") + "2 2 1\n2 1\n", [[0, 1], [1, 0]]),
    "skew-symmetric": (banner(symmetry="skew-symmetric") + "2 2 1\n2 1 3\n", [[0, -3], [3, 0]]),
    "hermitian": (
        banner(field="complex", symmetry="hermitian") + "2 2 2\n1 1 5 0\n2 1 3 4\n",
        [[5, 3 - 4j], [3 + 4j, 0]],
    ),
    "array": (banner("array") + "2 2\n1\n0\n3\n4\n", [[1, 3], [0, 4]]),
    "complex array": (banner("array", "complex") + "1 2\n1 2\n3 -4\n", [[1 + 2j, 3 - 4j]]),
    "integer array": (banner("array", "integer") + "1 1\n-7\n", [[-7]]),
    "symmetric array": (banner("array", symmetry="symmetric") + "2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
    "skew-symmetric array": (banner("array", symmetry="skew-symmetric") + "2 2\n2\n", [[0, -2], [2, 0]]),
    "hermitian array": (banner("array", "complex", "hermitian") + "2 2\n1 0\n2 3\n4 0\n", [[1, 2 - 3j], [2 + 3j, 4]]),
    "array without rows": (banner("array") + "0 3\n", np.zeros((0, 3))),
    "array without columns": (banner("array") + "3 0\n\n", np.zeros((3, 0))),
    "no rows": (banner() + "0 3 0\n", np.zeros((0, 3))),
    "no rows, blank lines": (banner(field="complex") + "0 3 0\n \n\n", np.zeros((0, 3), complex)),
    "array without rows, blank lines": (banner("array") + "0 3\n\n", np.zeros((0, 3))),
    "explicit zeros": (banner() + "2 2 2\n2 1 0\n2 2 0\n", np.zeros((2, 2))),
    "no entries": (banner() + "2 3 0", np.zeros((2, 3))),
    "comments, blank lines, spaces": (
        banner() + "% " + "long " * 20_000 + "\n\n%\n 2\t2  2 \n\n 1 1   1 \n\t2 2 2\n\n",
        [[1, 0], [0, 2]],
    ),
    "CRLF": ((banner() + "2 2 2\n1 1 1\n2 2 2\n").replace("\n", "\r\n"), [[1, 0], [0, 2]]),
    "no newline at the end": (banner() + "2 2 2\n1 1 1\n2 2 2", [[1, 0], [0, 2]]),
    "upper-case banner": (banner().upper().replace("MATRIXMARKET", "MatrixMarket") + "1 1 1\n1 1 2\n", [[2]]),
    "spellings of numbers": (
        banner() + "1 9 9\n1 1 .5\n1 2 5.\n1 3 1E+2\n1 4 -1e-2\n1 5 NaN\n1 6 -inf\n1 7 Infinity\n1 8 007\n1 9 1e999\n",
        [[0.5, 5, 100, -0.01, nan, -inf, inf, 7, inf]],
    ),
    "30 digits": (banner() + "1 1 1\n1 1 8.38307952503158926305123456789e-3\n", [[8.38307952503158926305123456789e-3]]),
}


@pytest.mark.parametrize("name", GOOD)
def test_matrix_market(name, tmp_path):
    text, dense = GOOD[name]
    dense = np.array(dense, {"unsigned": np.uint64}.get(name))
    if "integer" not in name and name != "unsigned":
        dense = dense.astype(np.result_type(dense, np.float64))
    for content in (text, gzip.compress(text.encode())):
        csr = files.read_csr(write(tmp_path / "m.mtx", content))
        assert type(csr) is csr_array
        assert csr.has_canonical_format
        assert csr.dtype == dense.dtype
        assert csr.nnz == (2 if name == "explicit zeros" else np.count_nonzero(dense))
        np.testing.assert_array_equal(csr.toarray(), dense)


@pytest.mark.parametrize("layout", ["coordinate", "array"])
@pytest.mark.parametrize(
    ("dtype", "symmetry"),
    [("int64", "general"), ("float64", "symmetric"), ("int64", "skew-symmetric"), ("complex128", "hermitian"),
     ("complex128", "general")],
)  # fmt: skip
def test_matrix_market_as_scipy_reads_it(dtype, symmetry, layout, tmp_path):
    """Files of SciPy's writer, of several blocks and of all threads' shares, come back bit by bit."""
    rng = np.random.default_rng(5)
    size, n = (5000, 60_000) if layout == "coordinate" else (700, 300_000)
    row, col = rng.integers(0, size, (2, n))
    val = zoo.float_vector(n, dtype) if dtype != "int64" else rng.integers(-1000, 1000, n)
    if layout == "array":
        val = np.round(8 * val) / 8  # whose sums are exact, as many meet
    coo = scipy.sparse.coo_array((val.astype(dtype), (row, col)), shape=(size, size))
    other = {"general": 0 * coo, "symmetric": coo.T, "skew-symmetric": -coo.T, "hermitian": coo.conj().T}[symmetry]
    path, matrix = tmp_path / "m.mtx", coo + other
    scipy.io.mmwrite(path, matrix if layout == "coordinate" else matrix.toarray(), symmetry=symmetry)
    assert path.stat().st_size > guards.BLOCK / 2
    expected = csr_array(scipy.io.mmread(path, spmatrix=False))
    expected.sort_indices()
    found = files.read_csr(path)
    if layout == "coordinate":
        assert_same_csr(found, expected)
    else:  # SciPy loses signs of zero parts
        assert found.dtype == expected.dtype and found.nnz == np.count_nonzero(expected.data)
        np.testing.assert_array_equal(found.toarray(), expected.toarray())


BROKEN_MTX = {
    "cut after a line": (banner() + "3 3 2\n1 1 1\n", "Truncated"),
    "cut in a line": (banner() + "3 3 2\n1 1 1\n2 2", "line 4: must read 'row column number'; got '2 2'"),
    "cut in an exponent": (banner() + "3 3 2\n1 1 1\n2 2 1e", "line 4: .* got '2 2 1e'"),
    "one entry too many": (banner() + "3 3 1\n1 1 1\n2 2 1\n", "Line 4: Too many"),
    "entries where none are promised": (banner() + "3 3 0\n1 1 1\n", "Too many"),
    "row 0": (banner() + "3 3 2\n1 1 1\n0 2 1\n", "Line 4: Row index out of bounds"),
    "column 0": (banner() + "3 3 2\n1 1 1\n1 0 1\n", "Line 4: Column index out of bounds"),
    "negative row": (banner() + "3 3 1\n-1 1 1\n", "line 3: .*'-1 1 1'"),
    "row beyond the last": (banner() + "3 3 2\n1 1 1\n4 2 1\n", "Line 4: Row index out of bounds"),
    "column beyond the last": (banner() + "3 3 2\n1 1 1\n1 4 1\n", "Line 4: Column index out of bounds"),
    "row of 2^32 + 1": (banner() + "3 3 1\n4294967297 1 1\n", "Line 3: Integer out of range"),
    "row of 2^64 + 1": (banner() + "3 3 1\n18446744073709551617 1 1\n", "Line 3: Integer out of range"),
    "fraction for a row": (banner() + "3 3 1\n1.5 1 1\n", "line 3: .*'1.5 1 1'"),
    "word for a value": (banner() + "3 3 1\n1 1 abc\n", "line 3: .*'1 1 abc'"),
    "letters after a value": (banner() + "3 3 1\n1 1 1.0x\n", "line 3: .*'1 1 1.0x'"),
    "Fortran's exponent": (banner() + "3 3 1\n1 1 1.0D+05\n", "line 3: .*'1 1 1.0D.05'"),
    "plus sign, as SciPy has it": (banner() + "3 3 1\n1 1 +1.5\n", r"line 3: .*'1 1 \+1.5'"),
    "hexadecimal": (banner() + "3 3 1\n1 1 0x10\n", "line 3: .*'1 1 0x10'"),
    "decimal comma": (banner() + "3 3 1\n1 1 1,5\n", "line 3: .*'1 1 1,5'"),
    "two dots": (banner() + "3 3 1\n1 1 1.2.3\n", "line 3: .*'1 1 1.2.3'"),
    "NUL after a number": (banner() + "3 3 1\n1 1 8.3e-0\0\n", "line 3: must read"),
    "NULs after the end": (banner() + "3 3 1\n1 1 1\n\0\0\0\0", "line 4: must read"),
    "value too many": (banner() + "3 3 1\n1 1 1 2\n", "line 3: .*'1 1 1 2'"),
    "value too few": (banner() + "3 3 2\n1 1\n2 2 1\n", "line 3: .*'1 1'"),
    "value in a pattern": (banner(field="pattern") + "3 3 1\n1 1 5\n", "line 3: must read 'row column'; got '1 1 5'"),
    "half a complex value": (banner(field="complex") + "3 3 1\n1 1 5\n", "'row column real-part imaginary-part'"),
    "fraction in integers": (banner(field="integer") + "3 3 1\n1 1 1.5\n", "line 3: must read 'row column integer'"),
    "integer of 2^64": (banner(field="integer") + f"3 3 1\n1 1 {2**64}\n", "Line 3: Integer out of range"),
    "minus in unsigned": (banner(field="unsigned-integer") + "3 3 1\n1 1 -1\n", "line 3: must read"),
    "comment among entries": (banner() + "3 3 1\n% c\n1 1 1\n", "line 3: .*'% c'"),
    "fault far down": (banner() + "9 9 200000\n" + "1 1 1.25\n" * 150_000 + "1 x 1.25\n" * 50_000, "line 150003: "),
    "endless line": (banner() + "9 9 9\n" + "1" * (3 << 20), "line 3: must be shorter"),
    "endless comment": (banner() + "%" * (3 << 20), "line 2: must be shorter"),
    "no sizes": (banner() + "% nothing follows\n", "ends at line 3"),
    "sizes missing": (banner() + "3 3\n1 1 1\n", "line 2: must read 'rows columns entries'; got '3 3'"),
    "size too many": (banner() + "3 3 1 7\n1 1 1\n", "line 2: must read 'rows columns entries'; got"),
    "entry count for an array": (banner("array") + "1 1 1\n1\n", "line 2: must read 'rows columns'; got '1 1 1'"),
    "negative size": (banner() + "-3 3 1\n1 1 1\n", "line 2: must read 'rows columns entries'; got"),
    "negative count": (banner() + "3 3 -1\n1 1 1\n", "line 2: must read 'rows columns entries'; got"),
    "nan for a count": (banner() + "3 3 nan\n1 1 1\n", "line 2: must read 'rows columns entries'; got"),
    "count of terabytes": (banner() + "3 3 4000000000000\n1 1 1\n", "line 2: promises 4000000000000 entries"),
    "count past 64 bits": (banner() + f"3 3 {10**30}\n1 1 1\n", "line 2: must read 'rows columns entries'; got"),
    "count of 5000 digits": (banner() + f"3 3 {'9' * 5000}\n1 1 1\n", "line 2: must read 'rows columns entries'; got"),
    "rows of exabytes": (banner() + f"{10**17} 3 1\n1 1 1\n", "line 2: 100000000000000000 rows need"),
    "array of terabytes": (banner("array") + "2000000 2000000\n1\n", "line 2: promises 4000000000000 entries"),
    "array past 64 bits": (banner("array") + f"{10**17} {10**17}\n1\n", "line 2: promises 10000000"),
    "cut array": (banner("array") + "2 2\n1\n2\n3\n", "promises 4 numbers, but holds 3"),
    "cut symmetric array": (banner("array", symmetry="symmetric") + "2 2\n1\n2\n", "promises 3 numbers, but holds 2"),
    "cut complex array": (banner("array", "complex") + "1 2\n1 2\n", "promises 4 numbers, but holds 2"),
    "long array": (banner("array") + "2 2\n1\n2\n3\n4\n5\n", "promises 4 numbers, but holds 5"),
    "values of no array": (banner("array") + "0 3\n1\n", "promises 0 numbers, but holds 1"),
    "array pattern": (banner("array", "pattern") + "2 2\n1\n", "line 1: "),
    "symmetric, not square": (banner(symmetry="symmetric") + "3 2 1\n2 1 1\n", "line 2: .* square; got 3 x 2"),
    "symmetric array, not square": (banner("array", symmetry="symmetric") + "300 2\n" + "1\n" * 599, "got 300 x 2"),
    "symmetric, both halves": (banner(symmetry="symmetric") + "3 3 2\n3 1 1\n1 3 1\n", r"\(1, 3\) and \(3, 1\)"),
    "skew-symmetric diagonal": (banner(symmetry="skew-symmetric") + "3 3 1\n2 2 1\n", "row 2: .* no diagonal"),
    "skew-symmetric, unsigned": (banner("array", "unsigned-integer", "skew-symmetric") + "1 1\n", "line 1: .* sign"),
    "hermitian diagonal": (banner(field="complex", symmetry="hermitian") + "2 2 1\n2 2 1 1\n", "row 2: .* real"),
    "hermitian array diagonal": (banner("array", "complex", "hermitian") + "1 1\n1 1\n", "row 1: .* real diagonal"),
    "no banner": ("3 3 1\n1 1 1\n", r"%%MatrixMarket.*begins with b'3 3 1"),
    "blank line before the banner": ("\n" + banner() + "1 1 1\n1 1 1\n", "begins with b'.nn?%%"),
    "byte order mark": ("\ufeff" + banner() + "1 1 1\n1 1 1\n", "begins with b'.xef"),
    "vector": (banner().replace("matrix", "vector", 1) + "3 3 1\n1 1 1\n", "[Ll]ine"),
    "banner misspelt": (banner().replace("Market", "Marketing") + "1 1 1\n1 1 1\n", "line 1: must have 5 words, "),
    "banner of 6 words": (banner(symmetry="general extra") + "1 1 1\n1 1 1\n", "line 1: .*5 words.*general extra"),
    "banner of 4 words": (banner(symmetry="") + "1 1 1\n1 1 1\n", "line 1: .*5 words"),
    "tensor": (banner().replace("matrix", "tensor", 1) + "1 1 1\n1 1 1\n", "line 1: .*announce a matrix.*tensor"),
    "no negative": (
        banner(field="integer", symmetry="skew-symmetric") + f"2 2 1\n2 1 {-(2**63)}\n",
        "2, 1.*no negative",
    ),
    "no negative in an array": (
        banner("array", "integer", "skew-symmetric") + f"2 2\n{-(2**63)}\n",
        "2, 1.*no negative",
    ),
    "after comments": (banner() + "% c\n\n" * 10 + "3 3 2\n1 1 1\n4 1 1\n", "Line 24: Row index out of bounds"),
    "unknown layout": (banner("coord") + "3 3 1\n1 1 1\n", "line 1: .*coord"),
    "unknown field": (banner(field="quaternion") + "3 3 1\n1 1 1\n", "line 1: .*quaternion"),
    "unknown symmetry": (banner(symmetry="none") + "3 3 1\n1 1 1\n", "line 1: .*none"),
    "old Macintosh": ((banner() + "1 1 1\n1 1 1\n").replace("\n", "\r"), "ends at line 2"),
}


def packed_example() -> bytes:
    return gzip.compress((banner() + "9 9 999\n" + "".join(f"3 4 {i}.5\n" for i in range(999))).encode(), mtime=0)


BROKEN_GZIP = {
    "cut": (packed_example()[:-400], "end-of-stream"),
    "checksum cut": (packed_example()[:-4], "end-of-stream"),
    "checksum wrong": (packed_example()[:-8] + b"\0" * 8, "CRC"),
    "damaged": (packed_example()[:300] + b"\xff\0" * 40 + packed_example()[380:], ""),
    "tail": (packed_example() + b"more", "gzipped"),
    "magic only": (b"\x1f\x8b", "end-of-stream"),
    "nothing": (gzip.compress(b""), "begins with b''"),
    "text": (gzip.compress(b"text"), "begins with b'text'"),
    "tar": (gzip.compress(b"m/m.mtx".ljust(257, b"\0") + b"ustar".ljust(300, b"\0")), "tar archive. Unpack it"),
    "promise": (gzip.compress((banner() + "3 3 100000\n1 1 1\n").encode()), "promises 100000 entries"),
}


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(ValueError, match=r"nothing.mtx: is empty"):
        files.read_csr(write(tmp_path / "nothing.mtx", b""))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        files.read_csr(tmp_path / "nowhere.mtx")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cvrarray.load(tmp_path / "nowhere.cvra")
    for function in (files.read_csr, cvrarray.read, cvrarray.load):
        with pytest.raises(IsADirectoryError, match=tmp_path.name):
            function(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.mtx")
    with pytest.raises(ValueError, match=r"pipe.mtx: must be a regular file"):
        files.read_csr(tmp_path / "pipe.mtx")


# npz of SciPy and of pydata/sparse


@pytest.mark.parametrize(
    ("format", "dtype"),
    [("csr_array", "bool"), ("csr_matrix", "int8"), ("csc_array", "uint64"), ("csc_matrix", "float32"), ("coo_array", "int64"),
     ("coo_matrix", "float64"), ("bsr_array", "complex64"), ("bsr_matrix", "uint16"), ("dia_array", "complex128")],
)  # fmt: skip
def test_scipy_npz(format, dtype, tmp_path):
    csr = zoo.integers("explicit_zeros", dtype)
    for compressed in (False, True):
        scipy.sparse.save_npz(tmp_path / "m.npz", getattr(scipy.sparse, format)(csr), compressed=compressed)
        found = files.read_csr(tmp_path / "m.npz")
        assert type(found) is csr_array
        if format.startswith("cs"):
            assert_same_csr(found, csr)
        else:
            assert found.dtype == csr.dtype
            np.testing.assert_array_equal(found.toarray(), csr.toarray())


def test_scipy_npz_without_order(tmp_path):
    """Unsorted columns and duplicates, in 64 bits and big-endian: what other programs write."""
    indptr, indices = np.array([0, 3, 4], ">i8"), np.array([2, 0, 2, 1], ">i8")
    members = csr_members(indptr=indptr, indices=indices, data=np.arange(4, dtype=">f4"))
    np.savez(tmp_path / "m.npz", **members)
    expected = csr_array((np.array([1, 2, 3], "f4"), np.int32([0, 2, 1]), np.int32([0, 2, 3])), shape=(2, 3))
    assert_same_csr(files.read_csr(tmp_path / "m.npz"), expected)


@pytest.mark.parametrize(("array", "compressed"), [("COO", True), ("GCXS rows", False), ("GCXS columns", True)])
def test_pydata_npz(array, compressed, tmp_path):
    csr = zoo.floats(SMALL)
    given = sparse.COO.from_scipy_sparse(csr)
    if array != "COO":
        given = sparse.GCXS(given, compressed_axes=[0 if "rows" in array else 1])
    sparse.save_npz(tmp_path / "m.npz", given, compressed=compressed)
    assert_same_csr(files.read_csr(tmp_path / "m.npz"), csr)


def test_pydata_npz_of_older_versions(tmp_path):
    """They wrote no member "format"."""
    csr = zoo.floats(SMALL)
    coo, gcxs = sparse.COO.from_scipy_sparse(csr), sparse.GCXS.from_scipy_sparse(csr)
    np.savez(tmp_path / "a.npz", data=coo.data, coords=coo.coords, shape=coo.shape, fill_value=coo.fill_value)
    names = ("data", "indices", "indptr", "compressed_axes", "shape", "fill_value")
    np.savez(tmp_path / "b.npz", **{name: getattr(gcxs, name) for name in names})
    assert_same_csr(files.read_csr(tmp_path / "a.npz"), csr)
    assert_same_csr(files.read_csr(tmp_path / "b.npz"), csr)


def csr_members(**changes):
    """The arrays of a SciPy .npz of a 2 x 3 matrix, with `changes`; None leaves one out."""
    members = {
        "format": np.array(b"csr"),
        "shape": np.array([2, 3]),
        "indptr": np.array([0, 2, 3]),
        "indices": np.array([0, 2, 1]),
        "data": np.array([1.0, 2.0, 3.0]),
    }
    members |= {name: np.asarray(value) for name, value in changes.items()}
    return {name: value for name, value in members.items() if value.dtype != object or value.shape}


def coo_members(**changes):
    coo = {"format": b"coo", "row": [0, 1, 1], "col": [0, 1, 2], "indptr": None, "indices": None}
    return csr_members(**(coo | changes))


BROKEN_NPZ = {
    "no format": (csr_members(format=None), "got no format and members shape, indptr, indices, data"),
    "unknown format": (csr_members(format=b"lil"), "got format 'lil'"),
    "format of two words": (csr_members(format=[b"csr", b"csc"]), "member format"),
    "format not ASCII": (csr_members(format=b"\xff"), ""),
    "no data": (csr_members(data=None), "must have a member data; it has format, shape, indptr, indices"),
    "no shape": (csr_members(shape=None), "must have a member shape"),
    "shape of 3": (csr_members(shape=[2, 3, 4]), "member shape: .* two integers"),
    "negative shape": (csr_members(shape=[-2, 3]), "shape"),
    "shape of exabytes": (coo_members(shape=[10**17, 3]), "100000000000000000 rows need"),
    "column beyond the last": (csr_members(indices=[0, 3, 1]), "indices must lie in .0, 3.*got 3 at position 1"),
    "negative column": (csr_members(indices=[0, -1, 1]), "indices .* got -1"),
    "short indices": (csr_members(indices=[0, 2]), "indices and data"),
    "decreasing indptr": (csr_members(indptr=[0, 4, 3]), "indptr must never decrease"),
    "long doubles": (csr_members(data=np.ones(3, np.longdouble)), "values must be"),
    "texts": (csr_members(data=["a", "b", "c"]), "<U1"),
    "dates": (csr_members(data=np.zeros(3, "M8[s]")), "datetime64"),
    "records": (csr_members(data=np.zeros(3, "i4,i4")), "got"),
    "objects": (csr_members(data=np.array([1, "x", None], object)), "member data.npy: .*objects"),
    "csc column beyond the last": (csr_members(format=b"csc", indptr=[0, 1, 2, 3], indices=[0, 2, 1]), "indices"),
    "bsr decreasing indptr": (csr_members(format=b"bsr", data=np.ones((3, 1, 1)), indptr=[0, 9, 3]), "indptr"),
    "bsr of empty blocks": (csr_members(format=b"bsr", data=np.ones((3, 0, 0))), ""),
    "dia without offsets": (csr_members(format=b"dia", data=np.ones((1, 3))), "must have a member offsets"),
    "dia of fractions": (csr_members(format=b"dia", data=np.ones((1, 3)), offsets=[0.5]), "offsets"),
    "coo row beyond the last": (coo_members(row=[0, 1, 2]), "row must lie in .0, 2.*got 2"),
    "coo short row": (coo_members(row=[0, 1]), "one length"),
    "coo without col": (coo_members(col=None), "must have a member col"),
    "coords of 3 dimensions": (coo_members(row=None, coords=np.zeros((3, 3), int)), "member coords: .*2, nnz.*3, 3"),
    "no coords": (coo_members(row=None), "must have a member coords"),
    "fill value": (coo_members(fill_value=7.0), "fill value 0; got 7.0. Subtract"),
    "fill values": (coo_members(fill_value=[0.0, 0.0]), "fill value 0; got"),
    "gcxs of both axes": (csr_members(format="gcxs", compressed_axes=[0, 1]), "compressed_axes: .*got .0, 1"),
    "of one's own": ({"x": np.arange(3)}, "got no format and members x"),
    "without members": ({}, r"\(none\)"),
}


def npz_bytes(compress_type=zipfile.ZIP_STORED, **changes: bytes) -> bytes:
    """A SciPy .npz of a 2 x 3 matrix, whose members' bytes are changed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compress_type) as archive:
        for name, value in csr_members().items():
            member = io.BytesIO()
            np.save(member, value)
            archive.writestr(f"{name}.npy", changes.get(name, member.getvalue()))
    return buffer.getvalue()


NPY = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}"
BROKEN_ZIP = {
    "cut at the end": (npz_bytes()[:-30], "zip"),
    "cut in half": (npz_bytes()[:500], "zip"),
    "wrong checksum": (npz_bytes().replace(np.float64(3).tobytes(), np.float64(4).tobytes()), "member data.npy: .*CRC"),
    "first bytes": (b"PK", "zip"),
    "first header": (b"PK\x03\x04 and no more", "zip"),
    "LZMA": (npz_bytes(zipfile.ZIP_LZMA), "compression method 14"),
    "a member twice": (npz_bytes().replace(b"format.npy", b"indptr.npy"), "zip directory that cannot be right"),
    "another member": (npz_bytes().replace(b"data.npy", b"date.npy", 1), "member data.npy: File name in directory"),
    "text for an array": (npz_bytes(data=b"no array"), "member data.npy: has no readable npy header"),
    "nothing for an array": (npz_bytes(data=b""), "member data.npy: has no readable npy header"),
    "array cut": (npz_bytes(data=npy(NPY, b"\0" * 8)), "member data.npy: .*it holds 8 bytes"),
    "array of terabytes": (npz_bytes(data=npy(NPY.replace("3", str(10**14)))), "member data.npy: .*it holds 0 bytes"),
    "negative length": (npz_bytes(data=npy(NPY.replace("3", "-3"), b"\0" * 24)), "member data.npy"),
    "array's header cut": (npz_bytes(data=npy(NPY[:-3])), "member data.npy: has no readable npy header"),
    "code": (npz_bytes(data=npy("__import__('os').abort()")), "member data.npy: has no readable npy header"),
    "pickle": (npz_bytes(data=npy(NPY.replace("<f8", "|O"), b"cos\nabort\n(tR.")), "member data.npy: .*objects"),
    "unknown npy version": (npz_bytes(data=npy(NPY, version=b"\x09\0")), "has no readable npy header"),
}


BROKEN = {"mtx": BROKEN_MTX, "gz": BROKEN_GZIP, "npz": BROKEN_NPZ, "zip": BROKEN_ZIP}


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in BROKEN for name in BROKEN[kind]])
def test_broken_files(kind, name, tmp_path):
    """A text also where it is packed; of an .npz its members or all of its bytes."""
    made, words = BROKEN[kind][name]
    if isinstance(made, dict):
        np.savez(tmp_path / "broken.npz", **made)
        contents = [(tmp_path / "broken.npz").read_bytes()]
    else:
        contents = [made.encode(), gzip.compress(made.encode())] if isinstance(made, str) else [made]
    for content in contents:
        path = write(tmp_path / "broken", content)
        with pytest.raises(ValueError, match=f"(?s)^{path}: .*{words}"):
            files.read_csr(path)


def test_the_kind_shows_in_the_content(tmp_path):
    """Suffixes do not matter."""
    csr = zoo.floats(SMALL)
    scipy.io.mmwrite(tmp_path / "m.mtx", csr)
    text = (tmp_path / "m.mtx").read_bytes()
    scipy.sparse.save_npz(tmp_path / "m.npz", csr)
    cvrarray.save(tmp_path / "m.cvra", cvrarray.CVRArray(csr))
    contents = [text, gzip.compress(text), (tmp_path / "m.npz").read_bytes(), (tmp_path / "m.cvra").read_bytes()]
    for content, suffix in itertools.product(contents, [".mtx", ".mtx.gz", ".npz", ".cvra", ""]):
        assert_same_csr(files.read_csr(write(tmp_path / f"any{suffix}", content)), csr)


@pytest.mark.parametrize("format", ["auto", "cvr", "bbcsr"])
@pytest.mark.parametrize("suffix", [".mtx", ".npz", ".cvra"])
def test_read(suffix, format, tmp_path, device):
    csr = zoo.floats(SMALL)
    path = tmp_path / f"m{suffix}"
    if suffix == ".mtx":
        scipy.io.mmwrite(path, csr)
    elif suffix == ".npz":
        scipy.sparse.save_npz(path, csr)
    else:
        cvrarray.save(path, cvrarray.CVRArray(csr))
    A = cvrarray.read(path, format=format, device=device)
    assert A.device == device
    assert format in ("auto", A.format)
    assert_same_csr(A.to_scipy(), csr)


# save and load


def table_arrays(A):
    return {name: value for name, value in A._tables._asdict().items() if hasattr(value, "dtype")}


@in_turn("build, dtype", at_home(DTYPES))
def test_round_trip(build, dtype, tmp_path, device):
    A = build(zoo.integers("explicit_zeros_beside_holes", dtype), device)
    A._plan = "because"
    cvrarray.save(tmp_path / "a.cvra", A)
    B = cvrarray.load(tmp_path / "a.cvra", device=device)
    assert type(B) is type(A)
    assert (B.device, B.plan, B.dtype) == (device, "because", A.dtype)
    assert_same_tables(B._tables, A._tables)


@pytest.mark.parametrize("name", [*list(zoo.ZOO)[::6], "shape_without_entries_0_0", "block_column_span_6_65535", "power_law"])
def test_round_trip_of_the_zoo(name, tmp_path):
    for build in (cvr(4, 5, "nnz"), bbcsr(1), bbcsr(6), bbcsr(12), bbcsr(20)):  # all widths of masks
        A = build(zoo.integers(name, np.float64))
        cvrarray.save(tmp_path / "a.cvra", A)
        assert_same_tables(cvrarray.load(tmp_path / "a.cvra")._tables, A._tables)


@pytest.mark.parametrize("build", [cvr(4, 5, "nnz"), bbcsr(6)], ids=str)
def test_loaded_tables_lie_in_the_file(build, tmp_path):
    """Read-only views of one memory map, each at a multiple of 64 bytes; the file holds them byte by byte."""
    A = build(zoo.floats(SMALL))
    path = tmp_path / "a.cvra"
    cvrarray.save(path, A)
    content = path.read_bytes()
    for name, array in table_arrays(cvrarray.load(path)).items():
        assert type(array) is np.ndarray
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable
        assert array.flags.aligned
        if array.size:
            assert array.ctypes.data % 64 == 0
            first = array.ctypes.data - array.base.ctypes.data
            assert content[first : first + array.nbytes] == get(table_arrays(A)[name]).tobytes()


@pytest.mark.parametrize("build", [cvr(4, 5, "nnz"), bbcsr(6)], ids=str)
def test_numpy_opens_it(build, tmp_path):
    A = build(zoo.floats(SMALL))
    cvrarray.save(tmp_path / "a.npz", A)
    with np.load(tmp_path / "a.npz") as arrays:
        header = json.loads(arrays["cvrarray.json"])
        assert set(arrays.files) == {"cvrarray.json", *table_arrays(A)}
        for name, array in table_arrays(A).items():
            assert_same_bits(arrays[name], array)
            assert header["arrays"][name] == {"dtype": array.dtype.str, "shape": list(array.shape)}
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:  # the pads in the headers are well-formed
        assert archive.testzip() is None
    assert (header["format"], header["shape"], header["version"]) == (A.format, list(A.shape), 1)


def test_the_same_array_makes_the_same_file(tmp_path):
    A = cvrarray.CVRArray(zoo.floats(SMALL))
    cvrarray.save(tmp_path / "a.cvra", A)
    cvrarray.save(tmp_path / "b.cvra", cvrarray.load(tmp_path / "a.cvra"))
    assert (tmp_path / "a.cvra").read_bytes() == (tmp_path / "b.cvra").read_bytes()


def test_members_past_the_limit_of_plain_zips(tmp_path, monkeypatch):
    """Members of 4 GiB and more use zip64 fields; here the limit is 256 bytes instead."""
    A = cvrarray.CVRArray(zoo.floats(SMALL))
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 256)
    cvrarray.save(tmp_path / "a.cvra", A)
    monkeypatch.undo()
    B = cvrarray.load(tmp_path / "a.cvra")
    assert_same_tables(B._tables, A._tables)
    assert all(array.ctypes.data % 64 == 0 for array in table_arrays(B).values() if array.size)
    assert_same_tables(tables.CVRTables(**np_load(tmp_path / "a.cvra", A)), A._tables)


def np_load(path, A):
    """The fields of A's tables, with the arrays that np.load finds."""
    with np.load(path) as arrays:
        return A._tables._asdict() | {name: arrays[name] for name in table_arrays(A)}


def test_the_layout_names_every_field():
    """A field added to the tables must be added to the file's layout (and its version raised)."""
    for name, cls in FORMATS.items():
        scalars = {"cvr": ("shape", "nnz", "n_lanes"), "bbcsr": ("shape", "nnz", "block_size")}[name]
        assert cls._table_type._fields == (*scalars, *cls._stored)


def test_save_takes_only_ours(tmp_path):
    with pytest.raises(TypeError, match=r"save needs a CVRArray or BBCSRArray; got csr_array. Use cvrarray.asarray"):
        cvrarray.save(tmp_path / "a.cvra", zoo.floats(SMALL))
    assert not list(tmp_path.iterdir())


# A file is there whole, or not at all


@pytest.fixture
def saved(tmp_path):
    """A saved array, and a path to it in an otherwise empty folder."""
    A = cvrarray.CVRArray(zoo.floats(SMALL))
    cvrarray.save(tmp_path / "a.cvra", A)
    return A, tmp_path / "a.cvra"


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("at", ["write_array", "fsync", "replace"])
def test_a_failed_save_leaves_the_old_file(at, error, saved, monkeypatch):
    A, path = saved
    before = path.read_bytes()
    owner = {"write_array": np.lib.format, "fsync": os, "replace": os}[at]
    calls, original = itertools.count(), getattr(owner, at)

    def failing(*arguments, **keywords):
        if at != "write_array" or next(calls) == 5:
            raise type(error)(*error.args)
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, at, failing)
    with pytest.raises(type(error)) as found:
        cvrarray.save(path, cvrarray.BBCSRArray(zoo.floats("one_row")))
    monkeypatch.undo()
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == before
    if isinstance(error, OSError):
        assert found.value.filename == str(path)
    assert_same_tables(cvrarray.load(path)._tables, A._tables)


def test_a_save_replaces_a_file_in_use(saved):
    """Arrays loaded from the old file keep it."""
    A, path = saved
    B = cvrarray.load(path)
    cvrarray.save(path, cvrarray.CVRArray(zoo.floats("one_row")))
    assert_same_tables(B._tables, A._tables)
    cvrarray.save(path, B)
    assert_same_tables(cvrarray.load(path)._tables, A._tables)


def test_concurrent_saves(saved):
    """Writers of one path do not collide, and a reader meets whole files only."""
    _, path = saved
    arrays = [cvrarray.CVRArray(zoo.floats(SMALL), n_chunks=n) for n in range(1, 5)]
    failures = []

    def save_often(A):
        try:
            for _ in range(10):
                cvrarray.save(path, A)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=save_often, args=(A,)) for A in arrays]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        cvrarray.load(path)
    assert not failures
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="locks and pipes of POSIX")
def test_what_a_save_removes(saved):
    """What a killed writer of the same file left, and not what a living one writes, nor other files and programs."""
    A, path = saved
    start = f".{zlib.crc32(b'a.cvra'):08x}"
    left, others = (
        path.with_name(f"{start}01234567.tmp"),
        [path.with_name(name) for name in (f"{start}.tmp", ".0123456789abcdef.tmp")],
    )
    for other in (left, *others):
        other.write_bytes(b"half of it")
    os.mkfifo(path.with_name(f"{start}89abcdef.tmp"))
    with files.replacing(path) as file:
        file.write(b"slowly")
        (being_written,) = {*path.parent.iterdir()} - {path, *others}
        cvrarray.save(path, A)
        assert being_written.exists()
        assert path.stat().st_size > len(b"slowly")
    assert path.read_bytes() == b"slowly"
    assert {*path.parent.iterdir()} == {path, *others}


@pytest.mark.skipif(not hasattr(atomic.fcntl, "flock"), reason="this system has no such locks")
def test_a_file_system_without_locks(saved, monkeypatch):
    A, path = saved

    def unsupported(*_):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(atomic.fcntl, "flock", unsupported)
    cvrarray.save(path, A)
    assert list(path.parent.iterdir()) == [path]


def test_where_a_save_cannot_go(tmp_path, saved):
    A, _ = saved
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cvrarray.save(tmp_path / "nowhere" / "a.cvra", A)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        cvrarray.save(tmp_path / "folder", A)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.cvra", "folder"]


@pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")
def test_permissions_and_links(saved):
    """A new file may be read by whom the umask allows, and a link stays one."""
    A, path = saved
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    link = path.with_name("link.cvra")
    link.symlink_to(path)
    cvrarray.save(link, cvrarray.CVRArray(zoo.floats("one_row")))
    assert link.is_symlink()
    assert cvrarray.load(path).shape != A.shape


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o600, 0o444])
def test_a_save_keeps_the_mode_of_the_file_it_replaces(saved, mode, monkeypatch):
    """From when it comes into being: nobody reads the new file who might not read the old one."""
    A, path = saved
    path.chmod(mode)
    seen, opened = [], os.open

    def watched(name, *how, **keywords):
        descriptor = opened(name, *how, **keywords)
        if str(name).endswith(".tmp"):
            seen.append(os.fstat(descriptor).st_mode & 0o777)
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    cvrarray.save(path, A)
    assert set(seen) == {mode}
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.skipif(not hasattr(os, "O_DIRECTORY"), reason="this system opens no folders")
def test_a_save_syncs_the_folder_after_the_rename(saved, monkeypatch):
    A, path = saved
    events = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("rename"), replace(*paths)))
    cvrarray.save(path, A)
    assert events == ["file", "rename", "folder"]

    def unsupported(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no such thing here")

    monkeypatch.setattr(os, "fsync", unsupported)
    cvrarray.save(path, A)  # some file systems cannot: the rename is done all the same


def test_read_stored(saved, tmp_path):
    """A file of ours gives the array that it holds, any other a CSR."""
    A = cvrarray.BBCSRArray(zoo.floats(SMALL), block_size=3)
    path = tmp_path / "b.cvra"
    cvrarray.save(path, A)
    found = files.read_stored(path)
    assert found.block_size == 3
    assert_same_tables(found._tables, A._tables)
    scipy.sparse.save_npz(tmp_path / "b.npz", A.to_scipy())
    assert_same_csr(files.read_stored(tmp_path / "b.npz"), A.to_scipy())


def test_check_target(tmp_path, monkeypatch):
    """What replacing would refuse, and what it would not."""
    assert files.check_target(tmp_path / "new") == os.path.realpath(tmp_path / "new")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        files.check_target(tmp_path / "new")


# Files of ours that are broken


def rewritten(path: Path, header=lambda header: None, drop=(), compress=(), arrays=None, extra=()) -> Path:
    """The file at `path` with other members, in a zip whose checksums and alignment are right again."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    description = json.loads(members["cvrarray.json"])
    changed = header(description)
    members["cvrarray.json"] = json.dumps(description if changed is None else changed).encode()
    for name, array in (arrays or {}).items():
        stream = io.BytesIO()
        np.save(stream, array)
        members[f"{name}.npy"] = stream.getvalue()
    with open(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in [*members.items(), *extra]:
            if name in drop:
                continue
            member = cvra._aligned_member(name, file.tell())
            member.compress_type = zipfile.ZIP_DEFLATED if name in compress else zipfile.ZIP_STORED
            with archive.open(member, "w", force_zip64=True) as stream:
                stream.write(content)
    return path


def setting(*keys, value):
    """A change of a header: header[keys[0]][keys[1]].. = value."""

    def change(header):
        for key in keys[:-1]:
            header = header[key]
        header[keys[-1]] = value

    return change


BROKEN_CVRA = {
    "missing member": ({"drop": ["val.npy"]}, "missing or surplus: val.npy"),
    "missing header": ({"drop": ["cvrarray.json"]}, "no member cvrarray.json"),
    "surplus member": ({"extra": [("more.npy", b"")]}, "missing or surplus: more.npy"),
    "compressed member": ({"compress": ["val.npy"]}, "member val.npy: is compressed"),
    "compressed header": ({"compress": ["cvrarray.json"]}, "member cvrarray.json: is compressed"),
    "newer version": (
        {"header": setting("version", value=3)},
        f"version 3 of the file format; cvrarray {re.escape(cvrarray.__version__)} reads versions up to 2",
    ),
    "version 0": ({"header": setting("version", value=0)}, "version must be"),
    "version true": ({"header": setting("version", value=True)}, "version must be"),
    "version in words": ({"header": setting("version", value="1")}, "version must be"),
    "other magic": ({"header": setting("magic", value="x")}, "magic"),
    "header of a list": ({"header": lambda header: [header]}, "magic"),
    "unknown format": ({"header": setting("format", value="csr")}, "format must be one of cvr, bbcsr; got 'csr'"),
    "format of a list": ({"header": setting("format", value=["cvr"])}, "format must be"),
    "another format": ({"header": setting("format", value="bbcsr")}, "parameters must be"),
    "shape of 3": ({"header": setting("shape", value=[1, 2, 3])}, "shape must be two counts"),
    "negative shape": ({"header": setting("shape", value=[-1, 2])}, "shape must be two counts"),
    "shape of bools": ({"header": setting("shape", value=[True, True])}, "shape must be two counts"),
    "another shape": ({"header": setting("shape", value=[10**9, 10**9])}, "invariant"),
    "shape of exabytes": ({"header": setting("shape", value=[10**18, 10**18])}, ""),
    "unknown dtype": ({"header": setting("dtype", value="|O")}, "dtype must be"),
    "another dtype": ({"header": setting("dtype", value="<f4")}, "val must be 1-dimensional of <f4"),
    "plan of numbers": ({"header": setting("plan", value=1)}, "plan must be"),
    "no lanes": ({"header": setting("parameters", "n_lanes", value=0)}, "parameters must be"),
    "33 lanes": ({"header": setting("parameters", "n_lanes", value=33)}, "parameters must be"),
    "other lanes": ({"header": setting("parameters", "n_lanes", value=5)}, "invariant"),
    "other nnz": ({"header": setting("parameters", "nnz", value=5)}, "invariant"),
    "surplus parameter": ({"header": setting("parameters", "more", value=5)}, "parameters must be"),
    "no parameters": ({"header": setting("parameters", value=None)}, "parameters must be"),
    "no arrays": ({"header": setting("arrays", value=[])}, "arrays must be"),
    "arrays without val": ({"header": lambda header: header["arrays"].pop("val") and None}, "arrays must be"),
    "array of another length": ({"arrays": {"val": np.ones(3)}}, "member val.npy: must hold <f8 of shape"),
    "array of another dtype": ({"arrays": {"rec_mask": np.ones(3, np.int32)}}, "member rec_mask.npy: must hold <u4"),
    "array of 2 dimensions": ({"header": setting("arrays", "val", "shape", value=[5, 1])}, "val must be 1-dimensional"),
    "array of terabytes": ({"header": setting("arrays", "val", "shape", value=[10**13])}, "member val.npy: must hold"),
    "objects": ({"arrays": {"val": np.array([None])}}, "member val.npy: .*objects"),
    "no array": ({"header": setting("arrays", "val", value=None)}, "val must be 1-dimensional"),
}


@pytest.mark.parametrize("name", BROKEN_CVRA)
def test_broken_file_of_ours(name, saved):
    _, path = saved
    changes, words = BROKEN_CVRA[name]
    rewritten(path, **changes)
    with pytest.raises(ValueError, match=f"^{path}: .*{words}"):
        cvrarray.load(path)


def test_rewritten_is_not_what_breaks_them(saved):
    A, path = saved
    assert_same_tables(cvrarray.load(rewritten(path))._tables, A._tables)


def test_files_that_are_none_of_ours(tmp_path):
    with pytest.raises(ValueError, match=r"m.mtx: must be a file of cvrarray.save; .* b'%%.*Try cvrarray.read"):
        cvrarray.load(write(tmp_path / "m.mtx", GOOD["real"][0]))
    scipy.sparse.save_npz(tmp_path / "m.npz", zoo.floats(SMALL))
    with pytest.raises(ValueError, match=r"m.npz: must be a file of cvrarray.save; .* no member .*Try cvrarray.read"):
        cvrarray.load(tmp_path / "m.npz")
    with pytest.raises(ValueError, match=r"empty: must be a file of cvrarray.save"):
        cvrarray.load(write(tmp_path / "empty", b""))


def test_a_flipped_bit_names_the_member(saved):
    """In each array's first value; without verification the same file loads."""
    _, path = saved
    content = path.read_bytes()
    for name, array in table_arrays(cvrarray.load(path)).items():
        if not array.size:
            continue
        damaged = bytearray(content)
        damaged[array.ctypes.data - array.base.ctypes.data] ^= 1
        write(path.with_name("damaged.cvra"), bytes(damaged))
        with pytest.raises(ValueError, match=f"damaged.cvra: member {name}.npy: does not match its checksum"):
            cvrarray.load(path.with_name("damaged.cvra"))
        cvrarray.load(path.with_name("damaged.cvra"), verify=False)


def cut_examples(folder) -> dict[str, bytes]:
    text = banner(field="complex", symmetry="hermitian") + "% comment\n3 3 3\n1 1 1.5 0\n3 1 2 -2e3\n3 2 1 1\n"
    array = banner("array", symmetry="symmetric") + "3 3\n1\n2\n3\n4.5\n5\n6\n"
    csr = zoo.floats("explicit_zeros")[:6, :8]
    scipy.sparse.save_npz(folder / "deflated", csr.tobsr((2, 2)))
    sparse.save_npz(folder / "pydata", sparse.COO.from_scipy_sparse(csr), compressed=False)
    cvrarray.save(folder / "ours", cvrarray.BBCSRArray(csr, block_size=2))
    content = {"text": text.encode(), "array": array.encode(), "gz": gzip.compress(text.encode(), mtime=0)}
    saved = {"deflated": "deflated.npz", "pydata": "pydata.npz", "ours": "ours"}
    return content | {name: (folder / file).read_bytes() for name, file in saved.items()}


@pytest.mark.parametrize("name", ["text", "array", "gz", "deflated", "pydata", "ours"])
def test_cut_anywhere(name, tmp_path):
    """A good matrix, where only digits and spaces at the very end are missing, or a ValueError that names the file.

    tests/fuzz changes files in all other ways.
    """
    content, path, n_read = cut_examples(tmp_path)[name], tmp_path / "cut", 0
    for end in range(0, len(content), 3 if name == "ours" else 1):
        path.unlink(missing_ok=True)  # a mapped file must not be written to
        try:
            found = cvrarray.load(write(path, content[:end])) if name == "ours" else files.read_csr(write(path, content[:end]))
        except ValueError as error:
            assert str(error).startswith(f"{path}: "), end
        else:
            found.check_format(full_check=True)
            n_read += 1
    assert n_read <= (4 if name in ("text", "array") else 0)


# Frozen files


def frozen_arrays():
    """The arrays in tests/golden/*_v1.cvra. A deliberate change of the layout raises cvra.VERSION and adds files."""
    slides = json.loads((GOLDEN / "cvr_15x15.json").read_text())
    csr = csr_array((np.array(slides["val"], float), slides["col_idx"], slides["row_ptr"]), shape=(15, 15))
    return slides, {
        "cvr_v1.cvra": cvrarray.CVRArray(csr, n_lanes=4, n_chunks=2, split="nnz"),
        "bbcsr_v1.cvra": cvrarray.BBCSRArray(csr, block_size=3),
    }


@pytest.mark.parametrize("name", ["cvr_v1.cvra", "bbcsr_v1.cvra"])
def test_frozen_file(name, tmp_path, device):
    """It loads, multiplies as ever, and is what would be written today."""
    slides, fresh = frozen_arrays()
    A = cvrarray.load(GOLDEN / name, device=device)
    np.testing.assert_array_equal(get(A @ put(np.array(slides["x"], float), device)), slides["y"])
    assert_same_tables(A._tables, fresh[name]._tables)
    cvrarray.save(tmp_path / name, fresh[name])
    with zipfile.ZipFile(GOLDEN / name) as frozen, zipfile.ZipFile(tmp_path / name) as today:
        assert json.loads(frozen.read("cvrarray.json")) == json.loads(today.read("cvrarray.json"))
        assert frozen.namelist() == today.namelist()


def test_lines_beyond_the_end_do_not_count():
    """A buffer holds what was read into it before."""
    before = np.frombuffer(b"1 2\n\n3\n" + 60 * b"4\n", np.uint8)
    buffer = np.full(text.LEAD + before.size + text.PAD, ord("\n"), np.uint8)
    buffer[text.LEAD : text.LEAD + before.size] = before
    for end, expected in ((0, (0, 0)), (4, (1, 1)), (5, (2, 1)), (7, (3, 2)), (9, (4, 3)), (73, (36, 35))):
        assert text.count_lines(buffer, text.LEAD + end) == expected


def test_bzip2_and_blanks_before_the_banner(tmp_path):
    """As SciPy reads them; a damaged one is named."""
    S = scipy.sparse.random_array((60, 50), density=0.1, rng=0, format="csr")
    scipy.io.mmwrite(tmp_path / "a.mtx", S)
    text = b" \t" + (tmp_path / "a.mtx").read_bytes()
    for name, content in (("blanks.mtx", text), ("a.mtx.bz2", bz2.compress(text)), ("a.mtx.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(content)
        np.testing.assert_array_equal(cvrarray.read(tmp_path / name, device="cpu").todense(), S.toarray())
        cvrarray.to_store(tmp_path / name, tmp_path / f"{name}.store", device="cpu")
        with cvrarray.Stored(tmp_path / f"{name}.store", device="cpu") as store:
            np.testing.assert_allclose(store @ np.ones(50), S @ np.ones(50))
    cut = bz2.compress(text)
    for damaged in (cut[: len(cut) // 2], cut[:40] + b"xx" + cut[42:]):
        (tmp_path / "cut.mtx.bz2").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cut\.mtx\.bz2"):
            cvrarray.read(tmp_path / "cut.mtx.bz2")
