"""Files: matrices in other programs' formats in, arrays of ours out and in.

:func:`read` and :func:`read_csr` take Matrix Market (``.mtx``, also gzipped), the ``.npz`` of SciPy and of
pydata/sparse, and our own ``.cvra``, which :func:`save` and :func:`load` write and map. What a file is shows in its
first bytes and its members; its name does not matter. A file is never trusted: one that is cut, damaged or dishonest
is a ValueError that names the file, the fault and the place; nothing in a file is ever executed (no pickles), and
sizes that it claims are held against the file's length before memory is asked for.

The ``.cvra`` file, version 1
-----------------------------
An uncompressed zip, and so an ``.npz`` that ``numpy.load`` opens::

    cvrarray.json   magic, version, format, shape, dtype, parameters (the tables' scalars), plan, and the
                    dtype and shape of every array
    step_ptr.npy    a member for every array of the format's tables (:mod:`cvrarray._tables`), in their order:
    val.npy         version 1.0 of the npy format, little-endian, C order
    ...

1. The arrays are those of ``_ARRAYS``; one that is None in the tables (BBCSR's ``present``) has no member.
2. The first byte of an array's values stands at a multiple of 64 in the file, by a pad in the member's zip header: so
   the arrays can be used where they are, in a read-only memory map.
3. The zip's CRC-32 of each member is the checksum.
4. The same array makes the same file, byte by byte: there are no times and no names of machines in it.
"""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import json
import math
import os
import re
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import numpy as np

from . import _csr, _device
from ._array import SparseArray
from ._tables import CSR, WARP, BBCSRTables, CVRTables
from .bbcsr import BBCSRArray
from .cvr import CVRArray

VERSION = 1  #: of the .cvra files that are written, and the newest that is read

_MAGIC = "cvrarray"
_HEADER = "cvrarray.json"
_ALIGNMENT = 64
_FORMATS = {"cvr": (CVRArray, CVRTables), "bbcsr": (BBCSRArray, BBCSRTables)}

#: The arrays of a .cvra file: their dtypes ("index" and "value" are the matrix's own) and numbers of dimensions.
_ARRAYS = {
    "cvr": {
        "step_ptr": ("<i8", 1),
        "val": ("value", 1),
        "col_base": ("index", 1),
        "col_ptr": ("<i8", 1),
        "col_narrow": ("<u2", 1),
        "col_wide": ("index", 1),
        "rec_mask": ("<u4", 1),
        "rec_ptr": ("<i8", 1),
        "rec_wb": ("index", 1),
        "tail": ("index", 2),
        "carry_row": ("index", 1),
        "cut_row": ("index", 1),
        "cut_ptr": ("<i8", 2),
        "empty_row": ("index", 1),
    },
    "bbcsr": {
        "bin_rowptr": ("<i8", 1),
        "data": ("value", 1),
        "col_base": ("index", 1),
        "col_ptr": ("<i8", 1),
        "col_narrow": ("<u2", 1),
        "col_wide": ("index", 1),
        "present": ("mask", 1),
    },
}

#: dtypes that values may have in a file
_VALUE_DTYPES = ["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f4", "<f8", "<c8", "<c16"]

_BLOCK = 1 << 20  # bytes read at a time; also the longest line of a text file
_MOST_INFLATION = 1032  # deflate's best: one byte of a compressed file holds at most so many


def read(path: str | os.PathLike, *, format: str = "auto", device: Any = None) -> SparseArray:
    """The matrix in a file as an array of ours, as :func:`cvrarray.asarray` makes it.

    Parameters
    ----------
    path
        Matrix Market, gzipped or not; ``.npz`` of ``scipy.sparse.save_npz`` or ``sparse.save_npz``; a file of
        :func:`save`.
    format
        ``"auto"``, ``"cvr"`` or ``"bbcsr"``.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: the GPU when there is one.

    Raises
    ------
    ValueError
        The file is damaged or not one of these; the message names it and, where that can be known, the line or member.
    FileNotFoundError, IsADirectoryError, PermissionError
        As :func:`open` raises them.
    """
    from ._plan import asarray

    path = os.fsdecode(path)
    with _naming(path), _open(path) as file:
        own = _kind(file) == "cvra"
    return asarray(load(path) if own else read_csr(path), format=format, device=device)


def read_csr(path: str | os.PathLike, progress: Callable[[int, int], object] | None = None) -> Any:
    """The matrix in a file as a canonical ``scipy.sparse.csr_array``: sorted, duplicates summed, explicit zeros kept.

    Parameters
    ----------
    path
        As for :func:`read`. Matrix Market: all of its fields (a pattern's entries are 1.0) and symmetries, coordinates
        and dense arrays (whose zeros are not stored).
    progress
        Called with (bytes read, bytes of the file) as reading goes on.

    Raises
    ------
    As :func:`read` does.
    """
    from scipy.sparse import csr_array

    path = os.fsdecode(path)
    with _naming(path), _open(path, progress) as file:
        size = os.fstat(file.fileno()).st_size
        kind = _kind(file)
        if kind == "npz":
            csr = _from_npz(_read_npz(file))
        elif kind == "mtx":
            csr = _read_matrix_market(file, text_size=size)
        elif kind == "gz":
            with gzip.GzipFile(fileobj=file, mode="rb") as text:
                csr = _read_matrix_market(text, text_size=_MOST_INFLATION * size)
    if kind == "cvra":
        csr = load(path)._canonical_csr()
    if progress is not None:
        progress(size, size)
    return csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape)


def save(path: str | os.PathLike, A: SparseArray) -> None:
    """Write an array of ours to a file, by convention ``*.cvra``, that :func:`load` maps into memory.

    The file appears whole or not at all: what stood at `path` before stays until all is on the disk. An array on a GPU
    is copied to the host table by table.

    Raises
    ------
    TypeError
        `A` is no array of ours.
    OSError
        The file cannot be written. Nothing is left behind, and an older file is as it was.
    """
    if not isinstance(A, SparseArray):
        raise TypeError(f"save needs a CVRArray or BBCSRArray; got {type(A).__name__}. Use cvrarray.asarray first")
    fields = A._tables._asdict()
    arrays = {name: fields.pop(name) for name in _ARRAYS[A.format] if fields[name] is not None}
    header = {
        "magic": _MAGIC,
        "version": VERSION,
        "format": A.format,
        "shape": [int(n) for n in fields.pop("shape")],
        "dtype": _on_disk(A.dtype).str,
        "parameters": {name: int(value) for name, value in fields.items() if value is not None},
        "plan": A.plan,
        "arrays": {name: {"dtype": _on_disk(a.dtype).str, "shape": list(a.shape)} for name, a in arrays.items()},
    }
    with _replacing(os.fsdecode(path)) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_aligned_member(_HEADER, file.tell()), json.dumps(header, indent=1))
        for name, array in arrays.items():
            host = np.ascontiguousarray(_device.move(array, _device.CPU))
            member = _aligned_member(f"{name}.npy", file.tell())
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, host.astype(_on_disk(host.dtype), copy=False), version=(1, 0))


def load(path: str | os.PathLike, *, device: Any = None, verify: bool = True) -> SparseArray:
    """The array in a file of :func:`save`.

    On the CPU its tables are read-only and stay in the file: pages come in as they are used.

    Parameters
    ----------
    path
        The file. While the array lives it must not be written to in place; :func:`save` may replace it.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: the CPU.
    verify
        Whether to read the whole file once, compare its checksums and check the array's invariants. Without it only
        the members' presence, places, dtypes and shapes are checked: for files from a source you trust.

    Raises
    ------
    ValueError
        The file is damaged, is none of ours, or comes from a newer version; the message names the member.
    FileNotFoundError, IsADirectoryError, PermissionError
        As :func:`open` raises them.
    """
    path = os.fsdecode(path)
    target = _device.CPU if device is None else _device.parse(device)
    with _naming(path):
        A = _load(path, verify)
    A = A.to_device(target)
    if verify:
        with _naming(path):
            A.check()
    return A


# ------------------------------------------------------------------------------------------------ what a file is


class _MeteredFile(io.FileIO):
    """A file that tells how far it has been read."""

    def __init__(self, path: str, progress: Callable[[int, int], object]):
        super().__init__(path)
        self._progress, self._size = progress, os.fstat(self.fileno()).st_size

    def readinto(self, buffer) -> int:
        n_bytes = super().readinto(buffer)
        self._progress(min(self.tell(), self._size), self._size)
        return n_bytes


def _open(path: str, progress: Callable[[int, int], object] | None = None) -> BinaryIO:
    """A regular file, open for reading. (Opening a pipe could wait for ever.)"""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError("must be a regular file. Write the data to one first")
    raw = io.FileIO(path) if progress is None else _MeteredFile(path, progress)
    return io.BufferedReader(raw, _BLOCK)


def _kind(file: BinaryIO) -> str:
    """``"mtx"``, ``"gz"`` (of a Matrix Market file), ``"npz"`` or ``"cvra"``."""
    head = _head(file)
    if not head:
        raise ValueError("is empty")
    if head.startswith(b"PK"):
        with zipfile.ZipFile(file) as archive:
            kind = "cvra" if _HEADER in _members(archive) else "npz"
        file.seek(0)
        return kind
    kind = "mtx"
    if head.startswith(b"\x1f\x8b"):
        kind = "gz"
        with gzip.GzipFile(fileobj=file, mode="rb") as text:
            head = _head(text)
        file.seek(0)
        if head[257:262] == b"ustar":
            raise ValueError("is a gzipped tar archive. Unpack it, and read the .mtx file in it")
    if head.startswith((b"%%MatrixMarket", b"%MatrixMarket")):
        return kind
    raise ValueError(
        "must be a Matrix Market file (whose first line begins with %%MatrixMarket), an .npz of scipy.sparse or of "
        f"sparse, or a file of cvrarray.save; it begins with {head[:24]!r}"
    )


def _head(file: BinaryIO) -> bytes:
    head = file.read(512)
    file.seek(0)
    return head


@contextmanager
def _naming(subject: str) -> Iterator[None]:
    """What broken contents raise, in our own checks or in the libraries that read, as a ValueError about `subject`."""
    try:
        yield
    except (
        ArithmeticError,
        EOFError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
        gzip.BadGzipFile,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(f"{subject}: {error}") from error


# ------------------------------------------------------------------------------------------------ Matrix Market

_REAL = rb"-?+(?:(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?+\d++)?+|(?i:nan|inf(?:inity)?+))"
_COUNT = rb"\d++"
_PLACE = {"row": _COUNT, "column": _COUNT}
#: The words of a line: those of an entry's value by the header's field.
_VALUE = {
    "pattern": {},
    "integer": {"integer": rb"-?+\d++"},
    "unsigned-integer": {"unsigned-integer": _COUNT},
    "real": {"number": _REAL},
    "complex": {"real-part": _REAL, "imaginary-part": _REAL},
}


def _read_matrix_market(file: BinaryIO, text_size: int) -> CSR:
    """Canonical CSR of a Matrix Market file that holds at most `text_size` bytes of text.

    SciPy's compiled reader does the reading, but it trusts the text: it takes 1.5 for 1 in an integer file and 1.0D+05
    for 1.0, overlooks what follows the last number it wants, writes outside its arrays for a symmetric file that is
    not square, and dies of a NUL, or of no rows in an array file. So it is handed only what has been checked.
    """
    from scipy.io import mminfo, mmread

    header = _read_header(file)
    at = f"line {len(header)}"
    sizes, names = header[-1].split(), ["rows", "columns", *([] if b"array" in header[0].lower() else ["entries"])]
    if len(sizes) != len(names) or not all(size.isdigit() and len(size) < 19 for size in sizes):
        raise ValueError(f"{at}: must read '{' '.join(names)}'; got {header[-1][:60].decode('latin-1').strip()!r}")
    n_rows, n_cols, _, layout, field, symmetry = mminfo(io.BytesIO(b"".join(header)))
    words = _VALUE[field] if layout == "array" else _PLACE | _VALUE[field]
    if header[0].split()[1].lower() != b"matrix" or not words:
        raise ValueError(f"line 1: must announce a matrix, and values where it is an array; got {header[0]!r}")
    if (field, symmetry) == ("unsigned-integer", "skew-symmetric"):
        raise ValueError("line 1: a skew-symmetric matrix must have values with a sign; got unsigned-integer")
    n_entries = _promised_entries(sizes, layout, symmetry, n_rows, n_cols)
    if symmetry != "general" and n_rows != n_cols:
        raise ValueError(f"{at}: a {symmetry} matrix must be square; got {n_rows} x {n_cols}")
    if n_entries * 2 * len(words) > text_size:
        raise ValueError(f"{at}: promises {n_entries} entries, more than fit in the file")
    _require_memory(n_rows, at)

    blocks = _checked_blocks(file, words, len(header) + 1)
    if layout == "array":
        blocks = _counted_blocks(blocks, n_entries * len(words))
        dense = np.zeros((n_rows, n_cols)) if 0 in (n_rows, n_cols) else mmread(_Text(header, blocks), spmatrix=False)
        _read_rest(blocks)
        if symmetry == "hermitian":
            _require_hermitian_diagonal(np.arange(n_rows), dense.diagonal())
        return _csr.as_csr(dense)
    header[0] = b"%%%%MatrixMarket matrix coordinate %s general\n" % field.encode()  # mirrored below, once checked
    coo = mmread(_Text(header, blocks), spmatrix=False)
    _read_rest(blocks)
    row, col, val = coo.row, coo.col, coo.data
    if symmetry != "general":
        row, col, val = _mirrored(row, col, val, symmetry, n_rows)
    return _csr.from_triplets(row, col, val, (n_rows, n_cols))


def _read_header(file: BinaryIO) -> list[bytes]:
    """The lines up to the one with the sizes: banner, comments, blank lines, sizes."""
    header = []
    while not header or not header[-1].strip() or header[-1].lstrip().startswith(b"%"):
        header.append(file.readline(_BLOCK))
        if len(header[-1]) == _BLOCK:
            raise ValueError(f"line {len(header)}: must be shorter than {_BLOCK} bytes")
        if not header[-1]:
            raise ValueError(f"ends at line {len(header)}, before the line with the sizes")
    if not header[-1].endswith(b"\n"):
        header[-1] += b"\n"
    return header


def _promised_entries(sizes: list[bytes], layout: str, symmetry: str, n_rows: int, n_cols: int) -> int:
    """Entries that the file should list, by its line with the sizes."""
    if layout == "coordinate":
        return int(sizes[2])
    if symmetry == "general":
        return n_rows * n_cols
    return n_rows * (n_rows - 1 if symmetry == "skew-symmetric" else n_rows + 1) // 2


def _checked_blocks(file: BinaryIO, words: dict[str, bytes], number: int) -> Iterator[bytes]:
    """The rest of `file`, from line `number` on, in blocks of whole lines; ValueError at one without these `words`."""
    # as many lines as possible, never looking back
    lines = re.compile(rb"(?:[ \t]*+(?:" + rb"[ \t]++".join(words.values()) + rb")?+[ \t\r]*+\n)*+")
    rest = b""
    while block := file.read(_BLOCK) or (rest and b"\n"):
        end = block.rfind(b"\n") + 1
        if end == 0 and len(rest) + len(block) > _BLOCK:
            raise ValueError(f"line {number}: must be shorter than {_BLOCK} bytes")
        text, rest = (rest + block[:end], block[end:]) if end else (b"", rest + block)
        good = lines.match(text).end()
        if good < len(text):
            number += text.count(b"\n", 0, good)
            line = text[good : text.index(b"\n", good)].decode("latin-1")
            raise ValueError(f"line {number}: must read '{' '.join(words)}'; got {line[:60]!r}")
        number += text.count(b"\n")
        if text:
            yield text


def _counted_blocks(blocks: Iterator[bytes], n_words: int) -> Iterator[bytes]:
    """The `blocks` of an array file; ValueError unless they hold `n_words`, which SciPy does not always count."""
    found = 0
    for block in blocks:
        found += len(block.split())
        yield block
    if found != n_words:
        raise ValueError(f"promises {n_words} numbers, but holds {found}")


class _Text:
    """What SciPy's reader needs of a file: text made of `header` and of `blocks`."""

    def __init__(self, header: list[bytes], blocks: Iterator[bytes]):
        self._blocks = itertools.chain(header, blocks)
        self._block, self._at = b"", 0

    def read(self, n_bytes: int) -> bytes:
        if self._at == len(self._block):
            self._block, self._at = next(self._blocks, b""), 0
        piece = self._block[self._at : self._at + n_bytes]
        self._at += len(piece)
        return piece


def _read_rest(blocks: Iterator[bytes]) -> None:
    """Read what SciPy's reader left, which is blank: faults, and a gzip's checksum, may still come."""
    for _ in blocks:
        pass


def _mirrored(row: np.ndarray, col: np.ndarray, val: np.ndarray, symmetry: str, n: int) -> tuple[np.ndarray, ...]:
    """The triplets of a `symmetry` matrix of `n` rows whose one half is given; either half will do, never both."""
    from scipy.sparse import csr_array

    off = row != col
    if symmetry == "skew-symmetric" and (val[~off] != 0).any():
        raise ValueError(f"row {row[~off][val[~off] != 0][0] + 1}: a skew-symmetric matrix has no diagonal entry but 0")
    if symmetry == "hermitian":
        _require_hermitian_diagonal(row[~off], val[~off])
    row_off, col_off, val_off = row[off], col[off], val[off]
    if (row_off > col_off).any() and (row_off < col_off).any():
        stored = csr_array((np.ones(row_off.size, bool), (row_off, col_off)), shape=(n, n))
        both = stored.multiply(stored.T).tocoo()
        if both.nnz:
            i, j = both.row[0] + 1, both.col[0] + 1
            raise ValueError(f"a {symmetry} file must store one of entries ({i}, {j}) and ({j}, {i}); it stores both")
    other = {"symmetric": val_off, "skew-symmetric": -val_off, "hermitian": val_off.conj()}[symmetry]
    return np.concatenate((row, col_off)), np.concatenate((col, row_off)), np.concatenate((val, other))


def _require_hermitian_diagonal(row: np.ndarray, diagonal: np.ndarray) -> None:
    if (diagonal.imag != 0).any():
        bad = np.flatnonzero(diagonal.imag != 0)[0]
        raise ValueError(f"row {row[bad] + 1}: a hermitian matrix has a real diagonal; got {diagonal[bad]}")


def _require_memory(n_rows: int, at: str) -> None:
    """ValueError where row offsets and one result do not fit this machine: the system might kill us, not refuse."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on this system
        memory = 1 << 46
    if 16 * n_rows > memory:
        raise ValueError(f"{at}: {n_rows} rows need {16 * n_rows >> 30} GiB or more; this machine has {memory >> 30}")


# ------------------------------------------------------------------------------------------------ .npz


def _read_npz(file: BinaryIO) -> dict[str, np.ndarray]:
    """All arrays of an .npz, by name."""
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for name, member in _members(archive).items():
            with _naming(f"member {name}"):
                arrays[name.removesuffix(".npy")] = _read_array(archive, member)
    return arrays


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """A zip's members by name; none stands there twice, or before the file's beginning."""
    members = {member.filename: member for member in archive.infolist()}
    if len(members) != len(archive.infolist()) or any(member.header_offset < 0 for member in members.values()):
        raise ValueError("has a zip directory that cannot be right. The file is damaged")
    return members


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"must be stored or deflated, as NumPy does; got compression method {member.compress_type}")
    if member.file_size > _MOST_INFLATION * (member.compress_size + 1):
        raise ValueError(f"promises {member.file_size} bytes, more than its {member.compress_size} can hold")
    content = archive.read(member)
    stream = io.BytesIO(content)
    shape, fortran_order, dtype = _read_npy_header(stream)
    n_bytes = len(content) - stream.tell()
    if math.prod(shape) * dtype.itemsize != n_bytes:
        raise ValueError(f"must hold {dtype} values of shape {shape}; it holds {n_bytes} bytes")
    return np.ndarray(shape, dtype, content, stream.tell(), order="F" if fortran_order else "C")


def _read_npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether in Fortran order, and dtype, which is no object's."""
    try:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran_order, dtype = readers[version](stream)
    except Exception as error:  # a damaged header is Python source: tokenizer, parser and warnings have their say
        raise ValueError("has no readable npy header") from error
    if dtype.hasobject:
        raise ValueError("holds Python objects (a pickle), which are never loaded. Save plain numbers")
    return shape, fortran_order, dtype


def _from_npz(arrays: dict[str, np.ndarray]) -> CSR:
    """Canonical CSR from the arrays of SciPy's or pydata/sparse's .npz."""
    from scipy.sparse import bsr_array, csc_array, dia_array

    name = _npz_format(arrays)
    shape = _member(arrays, "shape")
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise ValueError(f"member shape: must be two integers, the rows and columns of a matrix; got {shape.tolist()}")
    shape = _csr.check_shape(shape.tolist())
    _require_memory(shape[0], "member shape")
    fill_value = arrays.get("fill_value", np.zeros(()))
    if fill_value.size != 1 or fill_value.item() != 0:
        raise ValueError(f"must have fill value 0; got {fill_value.tolist()}. Subtract it first")
    _csr.check_dtype(_member(arrays, "data").dtype)

    if name == "coo" and "row" in arrays:
        return _csr.from_triplets(*(_member(arrays, key) for key in ("row", "col", "data")), shape)
    if name == "coo":
        coords = _member(arrays, "coords")
        if coords.ndim != 2 or coords.shape[0] != 2:
            raise ValueError(f"member coords: must have shape (2, nnz); got {coords.shape}")
        return _csr.from_triplets(*coords, arrays["data"], shape)
    if name == "dia":
        matrix = dia_array((arrays["data"], _integers(arrays, "offsets")), shape=shape)
        return _csr.as_csr(matrix)
    parts = _integers(arrays, "indptr"), _integers(arrays, "indices"), arrays["data"]
    if name == "csr":
        return _csr.from_parts(*parts, shape)
    if name == "csc":
        transposed = _csr.from_parts(*parts, shape[::-1])
        matrix = csc_array((transposed.data, transposed.indices, transposed.indptr), shape=shape)
        return _csr.as_csr(matrix)
    matrix = bsr_array((parts[2], parts[1], parts[0]), shape=shape)
    matrix.check_format(full_check=True)
    return _csr.as_csr(matrix)


def _npz_format(arrays: dict[str, np.ndarray]) -> str:
    """``"csr"``, ``"csc"``, ``"bsr"``, ``"dia"`` or ``"coo"``. pydata/sparse did not always write a format."""
    default = "gcxs" if "compressed_axes" in arrays else "coo" if "coords" in arrays else ""
    stored = arrays.get("format", np.asarray(default))
    if stored.dtype.kind not in "SU" or stored.size != 1:
        raise ValueError(f"member format: must be one word; got {stored.tolist()}")
    name = stored.astype(str).item()
    if name == "gcxs":
        axes = _member(arrays, "compressed_axes").tolist()
        if axes not in ([0], [1]):
            raise ValueError(f"member compressed_axes: must be [0] or [1]; got {axes}")
        return ("csr", "csc")[axes[0]]
    if name not in ("csr", "csc", "bsr", "dia", "coo"):
        raise ValueError(
            "must be an .npz of scipy.sparse.save_npz or sparse.save_npz, in format csr, csc, bsr, dia, coo or gcxs; "
            f"got format {name!r} and members {', '.join(arrays) or '(none)'}"
        )
    return name


def _member(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    if name not in arrays:
        raise ValueError(f"must have a member {name}; it has {', '.join(arrays)}")
    return arrays[name]


def _integers(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    array = _member(arrays, name)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"member {name}: must be a list of integers; got {array.dtype} of shape {array.shape}")
    return array


# ------------------------------------------------------------------------------------------------ .cvra


@contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A new file, open for writing, that takes the place of `path` once all went well and is gone if not."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    for wrong, code, subject in (
        (os.path.isdir(target), errno.EISDIR, path),
        (not os.path.isdir(folder), errno.ENOENT, folder),
    ):
        if wrong:
            raise OSError(code, os.strerror(code), subject)
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.cvra.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if os.name == "posix":  # elsewhere a folder cannot be opened, and its entries need no telling
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _aligned_member(name: str, offset: int) -> zipfile.ZipInfo:
    """A zip member whose content begins at a multiple of 64 when its header stands at `offset`.

    The pad is the extra field 0xD935 (alignment, then zeros), known to Android's zipalign and Apache Commons Compress.
    An npy header is a multiple of 64 long, so the values are aligned too.
    """
    local_header, pad_header, zip64_extra = 30, 6, 20
    pad = -(offset + local_header + len(name) + pad_header + zip64_extra) % _ALIGNMENT
    member = zipfile.ZipInfo(name)
    member.create_system = 3  # Unix, wherever we are: so that the same array makes the same file
    member.extra = struct.pack("<HHH", 0xD935, 2 + pad, _ALIGNMENT) + bytes(pad)
    return member


def _on_disk(dtype: np.dtype) -> np.dtype:
    return dtype.newbyteorder("<")


def _load(path: str, verify: bool) -> SparseArray:
    """The array in a file, mapped; its invariants are not checked, the checksums where `verify` says so."""
    with _open(path) as file:
        if not _head(file).startswith(b"PK"):
            raise ValueError(f"must be a file of cvrarray.save; it begins with {_head(file)[:24]!r}. Try cvrarray.read")
        with zipfile.ZipFile(file) as archive:
            members = _members(archive)
        buffer = np.memmap(file, np.uint8, mode="r")
    if _HEADER not in members:
        raise ValueError(f"must be a file of cvrarray.save; it has no member {_HEADER}. Try cvrarray.read")
    with _naming(f"member {_HEADER}"):
        header = _parse_header(buffer[_content(buffer, members[_HEADER], verify=True)].tobytes())
    listed = {_HEADER, *(f"{name}.npy" for name in header["arrays"])}
    if members.keys() != listed:
        odd = ", ".join(sorted(members.keys() ^ listed))
        raise ValueError(f"must have the members that {_HEADER} lists and no other; missing or surplus: {odd}")
    cls, tables = _FORMATS[header["format"]]
    fields = {"shape": tuple(header["shape"]), **dict.fromkeys(_ARRAYS[header["format"]]), **header["parameters"]}
    for name, kind in header["arrays"].items():
        with _naming(f"member {name}.npy"):
            fields[name] = _map_array(buffer, members[f"{name}.npy"], kind["dtype"], tuple(kind["shape"]), verify)
    return cls._from_tables(tables(**fields), header["plan"])


def _parse_header(text: bytes) -> dict[str, Any]:
    """The JSON member; every entry is there and of the right kind."""
    header = json.loads(text)
    if not isinstance(header, dict) or header.get("magic") != _MAGIC:
        raise ValueError(f"must hold the magic {_MAGIC!r}")
    version = header.get("version")
    if _is_count(version) and version > VERSION:
        from . import __version__

        raise ValueError(
            f"has version {version} of the file format; cvrarray {__version__} reads versions up to {VERSION}. "
            "Update cvrarray, or save the array with this one"
        )
    _require(header, "version", _is_count(version) and version > 0, f"a version up to {VERSION}")
    _require(header, "format", header.get("format") in list(_FORMATS), f"one of {', '.join(_FORMATS)}")
    _require(header, "shape", _is_shape(header.get("shape"), 2), "two counts")
    _require(header, "dtype", header.get("dtype") in _VALUE_DTYPES, f"one of {', '.join(_VALUE_DTYPES)}")
    _require(header, "plan", isinstance(header.get("plan"), str | None), "a text or null")

    kinds, tables = _ARRAYS[header["format"]], _FORMATS[header["format"]][1]
    scalars, parameters = set(tables._fields) - {"shape"} - kinds.keys(), header.get("parameters")
    counts = isinstance(parameters, dict) and parameters.keys() == scalars and all(map(_is_count, parameters.values()))
    in_range = counts and all(1 <= parameters[name] <= WARP for name in scalars - {"nnz"})
    _require(header, "parameters", in_range, f"counts of {', '.join(sorted(scalars))}, all but nnz from 1 to {WARP}")
    arrays = header.get("arrays")
    complete = isinstance(arrays, dict) and kinds.keys() - {"present"} <= arrays.keys() <= kinds.keys()
    _require(header, "arrays", complete, f"the dtypes and shapes of {', '.join(kinds)}")
    index = _on_disk(_csr.index_dtype(tuple(header["shape"]))).str
    own = {"index": index, "value": header["dtype"], "mask": _mask_dtype(parameters.get("block_size", 1))}
    for name, found in arrays.items():
        kind, ndim = kinds[name]
        dtype = own.get(kind, kind)
        fits = isinstance(found, dict) and found.get("dtype") == dtype and _is_shape(found.get("shape"), ndim)
        _require(arrays, name, fits, f"{ndim}-dimensional of {dtype}")
    return header


def _require(header: dict[str, Any], key: str, holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{key} must be {what}; got {header.get(key)!r}")


def _mask_dtype(block_size: int) -> str:
    """The smallest unsigned integer with a bit a column of a block."""
    return "|u1" if block_size <= 8 else "<u2" if block_size <= 16 else "<u4"


def _is_shape(value: Any, ndim: int) -> bool:
    return isinstance(value, list) and len(value) == ndim and all(map(_is_count, value))


def _is_count(value: Any) -> bool:
    """Whether `value` is an int (and no bool) from 0 to 2^63 - 1."""
    return type(value) is int and 0 <= value < 1 << 63


def _content(buffer: np.ndarray, member: zipfile.ZipInfo, verify: bool) -> slice:
    """Where a member's content lies in `buffer`, the mapped file."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise ValueError("is compressed or encrypted, and so cannot be mapped. Save the array again")
    name_size, extra_size = struct.unpack_from("<HH", buffer, member.header_offset + 26)
    name = slice(member.header_offset + 30, member.header_offset + 30 + name_size)
    content = slice(name.stop + extra_size, name.stop + extra_size + member.file_size)
    if bytes(buffer[name]) != member.filename.encode() or content.stop > buffer.size:
        raise ValueError("is not where the zip's directory says. The file is damaged")
    if verify and _crc(buffer[content]) != member.CRC:
        raise ValueError("does not match its checksum. The file is damaged")
    return content


def _crc(content: np.ndarray) -> int:
    """CRC-32, a block at a time: of a large file only these pages need be in memory."""
    crc = 0
    for first in range(0, content.size, _BLOCK):
        crc = zlib.crc32(content[first : first + _BLOCK], crc)
    return crc


def _map_array(
    buffer: np.ndarray, member: zipfile.ZipInfo, dtype: str, shape: tuple[int, ...], verify: bool
) -> np.ndarray:
    """A member's array where it lies in `buffer`, the mapped file; on a big-endian machine a copy."""
    content = _content(buffer, member, verify)
    stream = io.BytesIO(buffer[content][:_BLOCK].tobytes())
    found = _read_npy_header(stream)
    if found != (shape, False, np.dtype(dtype)):
        raise ValueError(f"must hold {dtype} of shape {shape}, as {_HEADER} says; got {found[2].str}, {found[0]}")
    first = content.start + stream.tell()
    if content.stop - first != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"must hold {dtype} of shape {shape}; it holds {content.stop - first} bytes")
    if first % _ALIGNMENT:
        raise ValueError(f"must have values at a multiple of {_ALIGNMENT} bytes; got {first}. Save the array again")
    array = np.ndarray(shape, dtype, buffer, first)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
