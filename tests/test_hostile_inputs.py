"""What a matrix in memory or another program's file may not do: crash, wrap, take any memory, or blame in vain.

Every case here once ended in a wrong number, in gigabytes, in a message without its end, or outside SciPy's arrays.
"""

from __future__ import annotations

import errno
import gzip
import io
import mmap
import os
import re
import tracemalloc
import zipfile

import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from checks import DEFAULTS, assert_same_bits, assert_same_csr, from_csr, get, npy, put
from scipy.sparse import csr_array

import cvrarray
from cvrarray import files
from cvrarray.array.invariants import integer
from cvrarray.cpu.runtime import regions
from cvrarray.files import guards, npz
from cvrarray.input import coercion, limits, partition

COORDINATES, ARRAY = (f"%%MatrixMarket matrix {layout} " for layout in ("coordinate", "array"))


def forged(matrix, **attributes):
    """`matrix` with attributes that its class would have refused."""
    for name, value in attributes.items():
        setattr(matrix, name, value)
    return matrix


# Arrays in memory


def displaced(array, n_bytes=1):
    """The same numbers on the GPU, `n_bytes` beyond a multiple of their size."""
    import cupy

    content = np.ascontiguousarray(array)
    memory = cupy.empty(content.nbytes + n_bytes, np.uint8)
    memory[n_bytes:] = cupy.asarray(content.reshape(-1).view(np.uint8))
    return memory[n_bytes:].view(content.dtype).reshape(content.shape)


@pytest.mark.parametrize("build", DEFAULTS, ids=str)
def test_numbers_between_the_multiples_of_their_size(build, gpu):
    """A kernel that loads one would end every later call of the process, whatever it calls."""
    import cupy

    csr = zoo.floats("power_law", np.float32)
    A, n = build(csr, gpu), csr.shape[1]
    x, wide = put(zoo.float_vector(n, np.float32), gpu), cupy.zeros((n, 5), np.uint8)[:, 1:].view(np.float32)
    complexes = displaced(np.ones(n, np.complex64), 4)  # each real part would do
    for product in (
        lambda: A @ displaced(get(x)),
        lambda: A @ displaced(np.ones((n, 3), np.float32), 2),
        lambda: A @ displaced(np.ones((3, n), np.float32)).T,
        lambda: A @ wide,
        lambda: A @ wide.reshape(-1),
        lambda: A.T @ complexes,
        lambda: A @ complexes,
        lambda: A.matvec(x, out=displaced(np.ones(n, np.float32))),
        lambda: A.matmat(put(np.ones((n, 2), np.float32), gpu), out=displaced(np.ones((n, 2), np.float32))),
        lambda: A.with_values(displaced(csr.data)),
        lambda: A * displaced(np.ones(n, np.float32)),
        lambda: cvrarray.linalg.cg(A, displaced(np.ones(n, np.float32))),
        lambda: from_csr(type(A), *(put(part, gpu) for part in (csr.indptr, csr.indices)), displaced(csr.data), csr.shape),
        lambda: from_csr(type(A), put(csr.indptr, gpu), displaced(csr.indices), put(csr.data, gpu), csr.shape),
        lambda: from_csr(type(A), displaced(csr.indptr), put(csr.indices, gpu), put(csr.data, gpu), csr.shape),
        lambda: type(A)(displaced(np.eye(4))),
        lambda: cvrarray.BBCSRArray.from_blocks(put(np.arange(2), gpu), put(np.arange(2), gpu), displaced(np.ones((2, 3, 3)))),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=r"must lie at multiples of \d+ bytes, the size of its numbers"):
                product()
        assert_same_bits(A @ x, A @ x)
    for x in (put(np.ones(n + 1, np.float32), gpu)[1:], put(np.ones(2 * n + 2, np.float32), gpu)[2:].view(np.complex64)):
        np.testing.assert_allclose(get(A @ x), csr @ get(x), rtol=1e-4)


def bsr(**attributes):
    """4 x 6 in blocks of 2 x 3, which lie on the diagonal, with `attributes` forged."""
    data = np.ones((2, 2, 3))
    return forged(scipy.sparse.bsr_array((data, [0, 1], [0, 1, 2]), shape=(4, 6)), **attributes)


def dia(**attributes):
    return forged(scipy.sparse.dia_array((np.ones((2, 4)), [0, 1]), shape=(4, 4)), **attributes)


def lil(part, *lists):
    """4 x 4 with a 1 in the first place, and other lists in one of its parts."""
    matrix = scipy.sparse.lil_array((4, 4))
    matrix[0, 0] = 1.0
    for k, entries in enumerate(lists):
        getattr(matrix, part)[k] = entries
    return matrix


def dok(key, like=None):
    matrix = scipy.sparse.dok_array((4, 4)) if like is None else like
    (matrix._dict if like is None else matrix.data)[key] = 1.0
    return matrix


def gcxs(axis=0, **attributes):
    return forged(sparse.GCXS.from_numpy(np.eye(4), compressed_axes=[axis]), **attributes)


def coo(**attributes):
    return forged(sparse.COO.from_numpy(np.eye(4)), **attributes)


NO_BLOCKS = np.zeros((0, 2, 3))
FORGED = {
    "bsr offsets that end with 0": (lambda: bsr(indptr=np.int32([0, 3, 0])), "indptr must end with .* 2; got 0"),
    "bsr offsets beyond the blocks": (
        lambda: bsr(indptr=np.int32([0, 3, 0]), indices=np.zeros(0, np.int32), data=NO_BLOCKS),
        "indptr must never decrease; it does from block_row 1 to block_row 2",
    ),
    "bsr offsets that wrap": (lambda: bsr(indptr=np.array([0, -(2**63), 2])), "indptr must never decrease"),
    "bsr offset not 0 at first": (lambda: bsr(indptr=np.int32([1, 1, 2])), "indptr must begin with 0; got 1"),
    "bsr too few offsets": (lambda: bsr(indptr=np.int32([0, 2])), "n_block_rows . 1 = 3 entries; got 2"),
    "bsr column of blocks beyond": (lambda: bsr(indices=np.int32([0, 2])), r"\[0, 2\), the block_columns; got 2 at position 1"),
    "bsr column below 0": (lambda: bsr(indices=np.int32([-1, 1])), r"got -1 at position 0"),
    "bsr column of 2^32": (lambda: bsr(indices=np.array([0, 2**32])), "got 4294967296 at position 1"),
    "bsr one block less": (lambda: bsr(data=np.ones((1, 2, 3))), "one length; got 2 and 1"),
    "bsr 7 columns in blocks of 3": (lambda: bsr(_shape=(4, 7)), "4 x 7 in blocks of 2 x 3. Pad"),
    "bsr 5 rows in blocks of 2": (lambda: bsr(_shape=(5, 6)), "5 x 6 in blocks of 2 x 3"),
    "bsr blocks of other size": (lambda: bsr(data=np.ones((2, 3, 3))), "4 x 6 in blocks of 3 x 3"),
    "bsr flat values": (lambda: bsr(data=np.ones(12)), r"must hold blocks.*got \(12,\)"),
    "dia offset without data": (lambda: dia(offsets=np.int32([0, 1, 2])), r"row for each offset, \(3, .*\(2, 4\)"),
    "dia data without offset": (lambda: dia(data=np.ones((3, 4))), r"row for each offset, \(2, .*\(3, 4\)"),
    "dia flat data": (lambda: dia(data=np.ones(2)), r"row for each offset, .*\(2,\)"),
    "dia one offset twice": (lambda: dia(offsets=np.int32([1, 1])), "offsets of a DIA must differ; got 1 twice"),
    "dia offset beyond 63 bits": (lambda: dia(offsets=np.uint64([0, 2**63])), "offsets must fit 64-bit"),
    "lil more values than columns": (lambda: lil("data", [1.0] * 1000), r"got lengths \[1 0 0 0\] and \[1000    0    0    0\]"),
    "lil no list": (lambda: lil("rows", 0), "must hold lists of columns"),
    "lil column beyond": (lambda: lil("rows", [4]), r"\[0, 4\), the columns; got 4"),
    "lil column beyond 64 bits": (lambda: lil("rows", [2**70]), "columns of at most 64 bits"),
    "lil one row less": (lambda: forged(lil("rows"), rows=lil("rows").rows[:3]), r"got lengths \[.* and \["),
    "dok row beyond": (lambda: dok((4, 0)), r"row must lie in \[0, 4\); got 4"),
    "dok row of 2^32": (lambda: dok((2**32, 0)), r"row must lie in \[0, 4\); got 4294967296"),
    "dok row beyond 64 bits": (lambda: dok((2**70, 0)), "integers of at most 64 bits"),
    "dok fraction": (lambda: dok((0.5, 0)), "integers of at most 64 bits"),
    "dok key of three": (lambda: dok((0, 0, 0)), "must be pairs"),
    "coo of three coordinates": (
        lambda: forged(scipy.sparse.coo_array(np.eye(2)), coords=(np.arange(2),) * 3),
        "rows and columns; got 3 arrays",
    ),
    "pydata gcxs offsets beyond": (lambda: gcxs(indptr=np.array([0, 10**6, 2, 3, 4])), "indptr must never decrease"),
    "pydata gcxs offsets of 2^40": (lambda: gcxs(indptr=np.array([0, 1, 2, 3, 2**40])), "indptr must end with"),
    "pydata gcxs column beyond": (lambda: gcxs(indices=np.array([0, 1, 2, 9])), "got 9 at position 3"),
    "pydata gcxs row beyond": (lambda: gcxs(1, indices=np.array([0, 1, 2, 9])), "got 9 at position 3"),
    "pydata gcxs of both axes": (lambda: gcxs(_compressed_axes=(0, 1)), "compressed_axes .* got"),
    "pydata coo row beyond": (lambda: coo(coords=np.array([[0, 1, 2, 9], [0, 1, 2, 3]])), "row must lie .* got 9"),
    "pydata coo of three": (lambda: coo(coords=np.zeros((3, 4), int)), "rows and columns; got 3 arrays"),
    "pydata dok row beyond": (lambda: dok((4, 0), sparse.DOK.from_numpy(np.eye(4))), r"row must lie in \[0, 4\); got 4"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_matrices(name):
    make, words = FORGED[name]
    with pytest.raises(ValueError, match=words):
        coercion.as_csr(make())


def test_forged_matrices_are_forged_in_one_thing():
    """The helpers above build good matrices where nothing is forged."""
    for matrix in (bsr(), dia(), lil("rows", [0]), dok((0, 0)), gcxs(), gcxs(1), coo()):
        assert coercion.as_csr(matrix).shape == matrix.shape


@pytest.mark.parametrize("offset", [4, -4, 2**31, 2**32 + 1, -(2**32) + 1, 2**63 - 1, -(2**63)])
def test_diagonals_outside_the_matrix_hold_nothing(offset, tmp_path):
    """In memory and in a file; 2^32 + 1 is not 1."""
    expected = csr_array(2 * np.eye(4, k=-1))
    data, offsets = np.array([[7.0] * 4, [2.0] * 4]), np.array([offset, -1])
    assert_same_csr(cvrarray.CVRArray(dia(data=data, offsets=offsets)).tocsr(), expected)
    np.savez(tmp_path / "m.npz", format=b"dia", shape=[4, 4], data=data, offsets=offsets)
    assert_same_csr(files.read_csr(tmp_path / "m.npz"), expected)


@pytest.mark.parametrize(
    ("n_values", "dtype"), [(0, "float64"), (2, "float16"), (4, "float64"), (9, "float16"), (9, "float64")]
)
def test_diagonals_of_any_length(n_values, dtype, device):
    """Shorter and longer than the matrix is wide, for the dtypes that SciPy converts and for the one that it does not."""
    data = np.arange(1, 2 * n_values + 1, dtype=dtype).reshape(2, n_values)
    dense = np.zeros((3, 4), dtype)
    for values, offset in zip(data, (1, -2), strict=True):
        for col in range(min(n_values, 4)):
            if 0 <= col - offset < 3:
                dense[col - offset, col] = values[col]
    csr = coercion.from_dia(put(np.array([1, -2]), device), put(data, device), (3, 4))
    np.testing.assert_array_equal(get(cvrarray.CVRArray(csr).todense()), dense)


@pytest.mark.parametrize("dtype", ["float16", ">f4", "bool", "int8", "complex128"])
def test_bsr_of_every_kind_of_dtype(dtype):
    """Also unsorted, with a block twice, and with 64-bit indices."""
    data = np.arange(-9, 9).astype(dtype).reshape(3, 2, 3)
    given = scipy.sparse.bsr_array((4, 6), blocksize=(2, 3))
    given = forged(given, data=data, indices=np.array([1, 0, 1]), indptr=np.array([0, 3, 3]))
    dense = np.zeros((4, 6), data.dtype.newbyteorder("="))
    for block, col in zip(data, (1, 0, 1), strict=True):
        dense[:2, 3 * col : 3 * col + 3] += block
    A = cvrarray.CVRArray(given)
    assert A.dtype == dense.dtype
    np.testing.assert_array_equal(A.todense(), dense)


def test_nonzeros_of_large_blocks_are_counted_in_64_bits():
    """SciPy counts them in the dtype of the offsets: 2^32 would be 0, and what it writes beyond its arrays 2^32 values."""
    side, n_blocks = 1 << 10, 1 << 12
    data = np.broadcast_to(np.ones((1, 1, 1), bool), (n_blocks, side, side))
    offsets, columns = np.arange(n_blocks + 1, dtype=np.int32), np.zeros(n_blocks, np.int32)
    shape = (n_blocks * side, side)
    matrix = coercion._trusted_bsr(offsets, columns, data, shape)
    assert matrix.nnz == 2**32


@pytest.mark.parametrize("format", ["csr", "csc", "dia", "coo"])
def test_forged_cupy_matrices(format, gpu):
    """CuPy's conversions trust indices as SciPy's do."""
    import cupyx.scipy.sparse

    csr = csr_array(np.eye(4) + np.eye(4, k=1))
    good = getattr(cupyx.scipy.sparse, f"{format}_matrix")(getattr(scipy.sparse, f"{format}_matrix")(csr))
    assert_same_csr(cvrarray.CVRArray(good).to_scipy(), cvrarray.CVRArray(csr).to_scipy())
    part = {"csr": "indices", "csc": "indices", "dia": "offsets", "coo": "row"}[format]
    wrong = getattr(good, part).copy()
    wrong[0] = wrong[1] if format == "dia" else 1 << 30
    with pytest.raises(ValueError, match="offsets of a DIA must differ" if format == "dia" else "must lie in"):
        cvrarray.CVRArray(forged(good, **{part: wrong}))


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([0, 1 << 30, 4, 6, 7], "never decrease"),
        ([0, -(1 << 30), 4, 6, 7], "never decrease"),
        ([1 << 30] * 5, "begin with 0"),
        ([0, 2, 4, 6, 1 << 30], "end with"),
    ],
)
def test_forged_offsets_on_a_gpu(offsets, words, gpu):
    """What is counted for the choice of a format, while the check runs, is not counted by offsets that are wrong."""
    import cupy
    import cupyx.scipy.sparse

    good = cupyx.scipy.sparse.csr_matrix(csr_array(np.eye(4) + np.eye(4, k=1)))
    with pytest.raises(ValueError, match=words):
        cvrarray.asarray(forged(good, indptr=cupy.asarray(offsets, np.int32)))
    assert float(cupy.ones(3).sum()) == 3


# Files of other programs


def npz_file(path, **members):
    np.savez(path, **members)
    return path


def text_file(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("text", [ARRAY + "complex general\n2 2\n%s", COORDINATES + "complex general\n2 2 4\n%s"])
def test_signs_of_zero_parts(text, tmp_path):
    """Every part of a complex value has the sign that its file gives it."""
    values = ["1 -0.0", "-0 2", "-0e5 -3", "4 0"]
    if "coordinate" in text:
        values = [f"{place} {value}" for place, value in zip(("1 1", "2 1", "1 2", "2 2"), values, strict=True)]
    found = files.read_csr(text_file(tmp_path / "m.mtx", text % "\n".join(values))).data  # row by row
    expected = np.array([complex(1, -0.0), complex(-0.0, -3), complex(-0.0, 2), complex(4, 0)])
    np.testing.assert_array_equal(found.view(np.uint64), expected.view(np.uint64))


def test_lines_are_counted_with_the_comments(tmp_path):
    path = text_file(tmp_path / "m.mtx", COORDINATES + "real general\n" + "% c\n\n" * 10 + "3 3 2\n1 1 1\n4 1 1\n")
    with pytest.raises(ValueError, match="Line 24: Row index out of bounds"):
        cvrarray.to_store(path, tmp_path / "m.zarr")


# Memory

TALL = COORDINATES + "real general\n30000000 3 1\n7 2 1.5\n"


def test_rows_that_a_file_only_promises(tmp_path):
    """The message names what the header asks for, the limit and how to raise it; nothing is asked for."""
    mtx = text_file(tmp_path / "m.mtx", TALL)
    packed = text_file(tmp_path / "m.mtx.gz", gzip.compress(TALL.encode()))
    coo = {"format": b"coo", "row": [6], "col": [1], "data": [1.5]}
    archive = npz_file(tmp_path / "m.npz", shape=[30_000_000, 3], **coo)
    wide = npz_file(tmp_path / "wide.npz", shape=[30, 10**9], **coo)
    words = r"rows need 457.8 MiB; the limit for a file of .* is 256 MiB.*max_bytes=480000000 or more.*CVRARRAY_MAX_BYTES"
    tracemalloc.start()
    for path in (mtx, packed, archive):
        with pytest.raises(ValueError, match=f"^{path}: .*30000000 {words}"):
            cvrarray.read(path)
    with pytest.raises(ValueError, match=r"1000000000 columns need 953.7 MiB; the limit"):
        cvrarray.read(wide)
    with pytest.raises(ValueError, match=f"^{mtx}: .*30000000 {words}"):
        cvrarray.to_store(mtx, tmp_path / "m.zarr")
    assert tracemalloc.get_traced_memory()[1] < 30 << 20
    tracemalloc.stop()


def test_the_limit_can_be_set(tmp_path, monkeypatch):
    """By keyword and by the environment; a large file may ask for more by itself."""
    path = text_file(tmp_path / "m.mtx", COORDINATES + "real general\n200000 3 1\n7 2 1.5\n")
    for set_limit in (lambda: None, lambda: monkeypatch.setenv(limits.VARIABLE, "1 MiB")):
        set_limit()
        assert cvrarray.read(path, max_bytes="4 MiB").shape == (200_000, 3)
        assert files.read_csr(path, max_bytes=4 << 20).nnz == files.read_stored(path, max_bytes="4MiB").nnz == 1
        for read in (cvrarray.read, files.read_csr, files.read_stored):
            with pytest.raises(ValueError, match=r"200000 rows need 3.1 MiB; the limit .* 1 MiB"):
                read(path, max_bytes=1 << 20)
    with pytest.raises(ValueError, match=r"200000 rows need 3.1 MiB; the limit .* 1 MiB"):
        cvrarray.read(path)
    comment = "%" + 99 * " " + "\n"
    text_file(path, COORDINATES + "real general\n" + 400 * comment + "200000 3 1\n7 2 1.5\n")
    assert cvrarray.read(path).nnz == 1  # 40 kB: 100 times as much is allowed
    monkeypatch.setenv(limits.VARIABLE, "much")
    with pytest.raises(ValueError, match=r"CVRARRAY_MAX_BYTES must be a number of bytes.*'much'"):
        cvrarray.read(path)


@pytest.mark.parametrize("wrong", [True, 0, -1, 1.5, "many"])
def test_no_limit(wrong, tmp_path):
    with pytest.raises(ValueError, match=r"^max_bytes must be a number of bytes"):
        cvrarray.read(text_file(tmp_path / "m.mtx", TALL), max_bytes=wrong)


@pytest.mark.parametrize("line", [b"%\n", b"\n", b"% " + b"x" * 70 + b"\r\n"], ids=["comments", "blank", "long comments"])
def test_comments_take_no_memory(line, tmp_path):
    """20 MB of them, in 20 kB: skipped as they come in, and counted as text."""
    text = b"".join([COORDINATES.encode(), b"real general\n", line * (20_000_000 // len(line)), b"2 3 1\n1 2 5\n"])
    path = text_file(tmp_path / "m.mtx.gz", gzip.compress(text))
    tracemalloc.start()
    A = files.read_csr(path)
    assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.stop()
    np.testing.assert_array_equal(A.toarray(), [[0, 5, 0], [0, 0, 0]])
    with pytest.raises(ValueError, match=r"line \d+: the text up to here has .* MiB; the limit .* is 10 MiB"):
        files.read_csr(path, max_bytes="10 MiB")


def test_blank_lines_after_the_entries_are_text_too(tmp_path):
    text = COORDINATES.encode() + b"real general\n2 3 1\n1 2 5\n" + b"\n" * 9_000_000
    path = text_file(tmp_path / "m.mtx.gz", gzip.compress(text))
    assert files.read_csr(path).nnz == 1
    for read in (files.read_csr, files.read_stored):
        with pytest.raises(ValueError, match="the text up to here has"):
            read(path, max_bytes="4 MiB")


def test_entries_of_a_compressed_file(tmp_path):
    """A thousand bytes of text in one of the file's."""
    path = tmp_path / "m.mtx.gz"
    text_file(path, gzip.compress(COORDINATES.encode() + b"pattern symmetric\n3 3 100000\n" + b"1 1\n" * 100_000))
    with pytest.raises(ValueError, match=r"100000 entries|200000 entries need 9.2 MiB; the limit"):
        files.read_csr(path, max_bytes="1 MiB")
    assert files.read_csr(path).toarray()[0, 0] == 100_000


def test_members_are_opened_before_any_is_read(tmp_path, monkeypatch):
    """In Python 3.12 and 3.13 a member that is opened while a thread reads another one may begin anywhere."""
    A = scipy.sparse.random_array((300, 300), density=0.02, format="csr", random_state=2)
    scipy.sparse.save_npz(tmp_path / "m.npz", A)
    calls, opening, reading = [], zipfile.ZipFile.open, zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *of, **how: calls.append("open") or opening(*of, **how))
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda *of: calls.append("read") or reading(*of))
    found = files.read_csr(tmp_path / "m.npz")
    assert (found != A).nnz == 0
    n_opened = calls.count("open")
    assert n_opened == 5
    assert "read" not in calls[:n_opened]


def test_arrays_of_a_compressed_archive(tmp_path):
    np.savez_compressed(tmp_path / "m.npz", format=b"dia", shape=[9, 9], offsets=[0], data=np.zeros((1, 5_000_000)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"the arrays promised need 38.2 MiB; the limit .* is 8 MiB"):
        files.read_csr(tmp_path / "m.npz", max_bytes="8 MiB")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert files.read_csr(tmp_path / "m.npz").nnz == 0


@pytest.mark.parametrize("name", ["shape", "format", "fill_value", "compressed_axes", "data"])
def test_arrays_without_bytes(name, tmp_path):
    """10^12 texts of no letters fit in no bytes; a message that listed them would take all memory."""
    path = tmp_path / "m.npz"
    csr = {"format": np.array("gcxs"), "shape": np.array([2, 2]), "indptr": np.zeros(3, int), "indices": np.zeros(0, int)}
    csr |= {"data": np.zeros(0), "compressed_axes": np.array([0]), "fill_value": np.array(0.0)}
    with zipfile.ZipFile(path, "w") as archive:
        for member, array in csr.items():
            stream = io.BytesIO()
            np.save(stream, array)
            content = npy("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}")
            archive.writestr(f"{member}.npy", content if member == name else stream.getvalue())
    with pytest.raises(ValueError, match=rf"member {name}.npy: must hold <U0 values of shape \(1000000000000,\)"):
        files.read_csr(path)


def test_messages_are_short(tmp_path):
    """They show no more of a file than a line."""
    good = {"format": b"bsr", "shape": [4, 6], "data": np.ones((2, 2, 3)), "indices": [0, 1], "indptr": [0, 1, 2]}
    for changes in ({"format": np.array("x" * 10**6)}, {"shape": np.arange(10**6)}, {"fill_value": np.ones(10**6)}):
        path = npz_file(tmp_path / "m.npz", **(good | changes))
        with pytest.raises(ValueError, match=f"^{path}: ") as caught:
            files.read_csr(path)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "header",
    [
        "{'shape': (3L,), 'descr': '<f8', 'fortran_order': False}\n",
        "{'descr':'<f8','fortran_order':False,'shape':(3,),}",
        "{ 'descr': '<f8', 'fortran_order': False, 'shape': (3, ), }      \n",
    ],
    ids=["Python 2", "close", "wide"],
)
def test_headers_as_programs_write_them(header):
    assert npz.read_npy_header(io.BytesIO(npy(header))) == ((3,), False, np.dtype("<f8"))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "-" * 9000 + "3,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': " + "(" * 4000 + "3" + ")" * 4000 + "}",
        "{'descr': '<f8', 'descr': '<f4', 'shape': (3,)}",
        "{'descr': '<f8'" + " " * 9900 + "x",
        "{'descr': '(9999,9999)f8', 'fortran_order': False, 'shape': (3,)}",
    ],
    ids=["signs", "brackets", "twice", "blanks", "arrays in arrays"],
)
def test_headers_are_not_run_through_python(header, monkeypatch):
    """Deep expressions overflow the stack of Python's own parser."""
    monkeypatch.setattr("ast.literal_eval", lambda text: pytest.fail("was evaluated"))
    with pytest.raises(ValueError, match="has no readable npy header"):
        npz.read_npy_header(io.BytesIO(npy(header)))


# Errors


def small_file(suffix, folder):
    """A good file of that kind."""
    path, csr = folder / f"m{suffix}", zoo.floats("one_row")
    if suffix == ".cvra":
        cvrarray.save(path, cvrarray.CVRArray(csr))
    elif suffix == ".npz":
        scipy.sparse.save_npz(path, csr)
    else:
        text = COORDINATES.encode() + b"real general\n1 1 1\n1 1 1\n"
        text_file(path, gzip.compress(text) if suffix == ".mtx.gz" else text)
    return path


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz", ".npz", ".cvra"])
def test_a_memory_error_stays_one(suffix, tmp_path, monkeypatch):
    """It is no fault of the file."""
    path = small_file(suffix, tmp_path)

    def fail(*arguments, **keywords):
        raise MemoryError

    for name in ("from_triplets", "from_parts"):
        monkeypatch.setattr(coercion, name, fail)
    monkeypatch.setattr(cvrarray.CVRArray, "check", fail)
    with pytest.raises(MemoryError):
        cvrarray.read(path)


@pytest.mark.parametrize("suffix", [".mtx", ".cvra"])
def test_no_addresses_left_is_a_memory_error(suffix, tmp_path, monkeypatch):
    """The system says so with an OSError where memory is mapped."""
    path = small_file(suffix, tmp_path)

    def fail(*arguments, **keywords):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", fail)
    with pytest.raises(MemoryError, match=f"{re.escape(str(path))}: there is not enough memory"):
        cvrarray.read(path)


def test_no_message_ends_in_nothing():
    for error in (EOFError(), ValueError(""), RuntimeError(" ")):
        with pytest.raises(ValueError, match=rf"^m.npz: cannot be read \({type(error).__name__}\)$"), guards.naming("m.npz"):
            raise error
    with pytest.raises(ValueError, match=r"^m.npz: x{1000} \.\.\.$"), guards.naming("m.npz"):
        raise ValueError("x" * 10**6)


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_a_bool_is_no_count(value):
    eye = np.eye(3)
    for cls, name in (
        (cvrarray.BBCSRArray, "block_size"),
        (cvrarray.CVRArray, "n_lanes"),
        (cvrarray.CVRArray, "n_chunks"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be an integer .* got .*{bool(value)}"):
            cls(eye, **{name: value})
    with pytest.raises(ValueError, match="n must be an integer of at least 0"):
        integer(value, "n", 0)
    with pytest.raises(ValueError, match="chunks must be a number of bytes"):
        partition.n_bytes(value, "chunks")
    with pytest.raises(ValueError, match="shape must be two integers"):
        coercion.check_shape((3, value))


# ------------------------------------------------------------------------------------------------ rows without number


def of_many_rows(n_rows, build=scipy.sparse.coo_array):
    """A matrix with one entry whose shape was changed afterwards."""
    matrix = build(([1.0], ([0], [0])), shape=(5, 5))
    matrix._shape = (n_rows, 5)
    return matrix


@pytest.mark.parametrize(
    ("n_rows", "obj"),
    [
        (1 << 44, of_many_rows(1 << 44)),
        (1 << 58, of_many_rows(1 << 58, lambda *args, **shape: scipy.sparse.coo_array(*args, **shape).tocsc())),
        (1 << 44, (1 << 44, 5)),
        (1 << 44, ([1.0], ([(1 << 44) - 1], [4]))),
    ],
    ids=["coo", "csc", "shape", "triplets"],
)
def test_more_rows_than_memory(n_rows, obj):
    """Refused before memory is asked for."""
    for make in (cvrarray.asarray, cvrarray.CVRArray, cvrarray.BBCSRArray):
        with pytest.raises(MemoryError, match=f"a matrix of {n_rows} x 5 needs .* for its rows.*this machine has"):
            make(obj, device="cpu")


def test_object_with_more_rows_than_a_container_has(monkeypatch):
    monkeypatch.setattr(regions, "installed", lambda: 1 << 29)
    with pytest.raises(MemoryError, match=r"this machine has 512 MiB"):
        cvrarray.CVRArray(of_many_rows(1 << 26), device="cpu")


def test_object_with_more_rows_than_the_environment_allows(monkeypatch):
    monkeypatch.setenv(limits.VARIABLE, "300 MiB")
    with pytest.raises(ValueError, match=r"needs 16 GiB for its rows, .*CVRARRAY_MAX_BYTES allows 300 MiB"):
        cvrarray.asarray(of_many_rows(1 << 30), device="cpu")
    coercion.as_csr(of_many_rows(1 << 20))
    monkeypatch.setattr(limits, "PROPORTION", 1 << 60)
    with pytest.raises(MemoryError, match=r"needs 16384 TiB"):
        coercion.as_csr(of_many_rows(1 << 50))


def test_memory_error_names_the_shape(monkeypatch):
    """Also where the memory was there when it was counted."""
    from cvrarray.cpu import csr, cvr

    def full(*args, **keywords):
        raise MemoryError("Unable to allocate 4.00 GiB")

    matrix = scipy.sparse.eye_array(4, format="csr")
    for module, name, obj in ((csr, "canonical", matrix.tocoo()), (cvr, "convert", matrix)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            with pytest.raises(MemoryError, match=r"a matrix of 4 x 4 needs more memory than there is: Unable"):
                cvrarray.CVRArray(obj, device="cpu")


@pytest.mark.parametrize("dtype", [bool, float])
def test_coordinates_are_integers(dtype):
    coords = np.array([[0, 1], [1, 0]], dtype)
    obj = sparse.COO(np.array([[0, 1], [1, 0]]), np.ones(2), shape=(2, 2))
    obj.coords = coords
    with pytest.raises(TypeError, match="row must hold integers"):
        cvrarray.asarray(obj, device="cpu")
    obj = scipy.sparse.coo_array(np.eye(2))
    obj.coords = (obj.coords[0], coords[1])
    with pytest.raises(TypeError, match="col must hold integers"):
        cvrarray.asarray(obj, device="cpu")


@pytest.mark.parametrize("dtype", [float, bool])
@pytest.mark.parametrize("values", [[None], ["1.5"], ["0"], b"a", {7: "x"}, [[1]], [1j], [300]], ids=str)
def test_values_of_lists_that_are_no_numbers(values, dtype):
    matrix = scipy.sparse.lil_array((1, 3), dtype=dtype)
    matrix.rows[0], matrix.data[0] = [1], values
    if dtype is float and values == [300]:
        assert cvrarray.CVRArray(matrix, device="cpu").data == 300
        return
    with pytest.raises(ValueError, match="LIL must hold lists"):
        cvrarray.CVRArray(matrix, device="cpu")


@pytest.mark.parametrize("axes", [[], None, [0, 1]])
def test_compressed_axes_that_are_none(axes):
    array = sparse.GCXS.from_numpy(np.eye(3))
    array._compressed_axes = axes
    with pytest.raises(ValueError, match="compressed_axes"):
        cvrarray.CVRArray(array, device="cpu")
