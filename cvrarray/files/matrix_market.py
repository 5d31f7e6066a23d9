"""Matrix Market, ``.mtx``: a text of one matrix, by coordinates or dense.

::

    %%MatrixMarket matrix coordinate real symmetric     banner: layout, field, symmetry
    % comments and blank lines
    3 3 2                                               rows columns entries; of an array: rows columns
    1 1 2.5                                             row column value, counted from 1; of an array: values,
    3 1 -1e3                                            column by column

All layouts, fields and symmetries of the definition are read; a pattern's entries are 1.0, duplicates are summed.
Refused, with the line where that can be known: a line that is not what the banner promises (a fraction among integers,
Fortran's ``1.0D+05``, a comment among the entries, a plus sign before a number, which SciPy's reader refuses too), other
than the promised number of entries, an index out of range, a symmetric matrix that is not square, stores both of a pair,
or has a diagonal that its symmetry rules out, and sizes that this file or this machine cannot hold.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from ..core.tables import CSR
from ..input import coercion
from .guards import BLOCK, require_memory

_REAL = rb"-?+(?:(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?+\d++)?+|(?i:nan|inf(?:inity)?+))"
_COUNT = rb"\d++"
_PLACE = {"row": _COUNT, "column": _COUNT}
#: The words of an entry's value, by field.
_VALUE = {
    "pattern": {},
    "integer": {"integer": rb"-?+\d++"},
    "unsigned-integer": {"unsigned-integer": _COUNT},
    "real": {"number": _REAL},
    "complex": {"real-part": _REAL, "imaginary-part": _REAL},
}


class _Header(NamedTuple):
    """What stands above the entries."""

    lines: list[bytes]  # banner, comments, blank lines, sizes
    n_rows: int
    n_cols: int
    n_entries: int  # that the file should list
    layout: str  # "coordinate" or "array"
    field: str  # a key of _VALUE
    symmetry: str  # "general", "symmetric", "skew-symmetric" or "hermitian"


def read(file: BinaryIO | gzip.GzipFile, text_size: int) -> CSR:
    """Canonical CSR of a Matrix Market file that holds at most `text_size` bytes of text.

    SciPy's compiled reader does the reading, but it trusts the text: it takes 1.5 for 1 in an integer file and 1.0D+05
    for 1.0, overlooks what follows the last number it wants, writes outside its arrays for a symmetric file that is
    not square, and dies of a NUL, or of no rows in an array file. So it is handed only what has been checked.

    Raises
    ------
    ValueError
        See the module.
    """
    header = _parse_header(_read_header(file))
    words = _VALUE[header.field] if header.layout == "array" else _PLACE | _VALUE[header.field]
    at = f"line {len(header.lines)}"
    if header.n_entries * 2 * len(words) > text_size:  # a word is a byte, and so is what parts it from the next
        raise ValueError(f"{at}: promises {header.n_entries} entries, more than fit in the file")
    require_memory(header.n_rows, at)
    blocks = _checked_blocks(file, words, len(header.lines) + 1)
    if header.layout == "array":
        return _read_array(header, _counted_blocks(blocks, header.n_entries * len(words)))
    return _read_coordinates(header, blocks)


def read_pieces(file: BinaryIO, text_size: int, n_bytes: int) -> tuple[tuple[int, int], Iterator[tuple[np.ndarray, ...]]]:
    """The shape of a Matrix Market file, and an iterator over its entries, (row, col, val), for files larger than memory.

    Parameters
    ----------
    file, text_size
        As for :func:`read`.
    n_bytes : int
        Text that a piece holds, about.

    Raises
    ------
    ValueError
        As :func:`read`; also for an array file, and for one that keeps only half of the matrix but not to one triangle
        (whether it stores both of a pair can be told only from all of it). Much of it is raised by the iterator.
    """
    header = _parse_header(_read_header(file))
    at = f"line {len(header.lines)}"
    if header.layout == "array":
        raise ValueError(f"{at}: must list entries to be read in pieces; it is an array. Use cvrarray.read")
    words = _PLACE | _VALUE[header.field]
    if header.n_entries * 2 * len(words) > text_size:
        raise ValueError(f"{at}: promises {header.n_entries} entries, more than fit in the file")
    require_memory(header.n_rows, at)
    blocks = _checked_blocks(file, words, len(header.lines) + 1)
    return (header.n_rows, header.n_cols), _pieces(header, blocks, n_bytes)


def _pieces(header: _Header, blocks: Iterator[bytes], n_bytes: int) -> Iterator[tuple[np.ndarray, ...]]:
    from scipy.io import mmread

    banner = b"%%%%MatrixMarket matrix coordinate %s general\n" % header.field.encode()
    found, triangles = 0, set()
    while text := list(itertools.islice(blocks, max(1, n_bytes // BLOCK))):
        n_entries = sum(map(_count_lines, text))
        found += n_entries
        if found > header.n_entries:
            break
        sizes = b"%d %d %d\n" % (header.n_rows, header.n_cols, n_entries)
        coo = mmread(_Text([banner, sizes], iter(text)), spmatrix=False)
        row, col, val = coo.row, coo.col, coo.data
        if header.symmetry != "general":
            triangles |= {name for name, there in (("lower", coo.row > coo.col), ("upper", coo.row < coo.col)) if there.any()}
            if len(triangles) > 1:
                raise ValueError(
                    f"a {header.symmetry} file must keep to one triangle to be read in pieces; it has entries of both. "
                    "Use cvrarray.read"
                )
            row, col, val = _mirrored(row, col, val, header.symmetry, header.n_rows)
        yield row, col, val
    if found != header.n_entries:
        raise ValueError(f"promises {header.n_entries} entries, but holds {'more' if found > header.n_entries else found}")


def _count_lines(block: bytes) -> int:
    """The lines of a block that are not blank."""
    bare = block.translate(None, b" \t\r")
    if bare.startswith(b"\n") or b"\n\n" in bare:
        return sum(map(bool, bare.split(b"\n")))
    return bare.count(b"\n")


def _read_array(header: _Header, blocks: Iterator[bytes]) -> CSR:
    """The matrix of a dense file; its zeros are not stored."""
    from scipy.io import mmread

    shape = header.n_rows, header.n_cols
    dense = np.zeros(shape) if 0 in shape else mmread(_Text(header.lines, blocks), spmatrix=False)
    _read_rest(blocks)
    if header.symmetry == "hermitian":
        _require_real(np.arange(header.n_rows), dense.diagonal())
    return coercion.as_csr(dense)


def _read_coordinates(header: _Header, blocks: Iterator[bytes]) -> CSR:
    from scipy.io import mmread

    # SciPy reads a general matrix: the other half is made here, once this one is checked
    banner = b"%%%%MatrixMarket matrix coordinate %s general\n" % header.field.encode()
    coo = mmread(_Text([banner, *header.lines[1:]], blocks), spmatrix=False)
    _read_rest(blocks)
    row, col, val = coo.row, coo.col, coo.data
    if header.symmetry != "general":
        row, col, val = _mirrored(row, col, val, header.symmetry, header.n_rows)
    return coercion.from_triplets(row, col, val, (header.n_rows, header.n_cols))


# ------------------------------------------------------------------------------------------------ header


def _read_header(file: BinaryIO | gzip.GzipFile) -> list[bytes]:
    """The lines up to the one with the sizes: banner, comments, blank lines, sizes. All end with a newline."""
    lines: list[bytes] = []
    while not lines or not lines[-1].strip() or lines[-1].lstrip().startswith(b"%"):
        lines.append(_read_line(file, len(lines) + 1))
        if not lines[-1]:
            raise ValueError(f"ends at line {len(lines)}, before the line with the sizes")
    return [line.removesuffix(b"\n") + b"\n" for line in lines]


def _parse_header(lines: list[bytes]) -> _Header:
    from scipy.io import mminfo

    at = f"line {len(lines)}"
    names = ["rows", "columns"] if b"array" in lines[0].lower() else ["rows", "columns", "entries"]
    sizes = lines[-1].split()
    if len(sizes) != len(names) or not all(size.isdigit() and len(size) < 19 for size in sizes):
        raise ValueError(f"{at}: must read '{' '.join(names)}'; got {lines[-1][:60].decode('latin-1').strip()!r}")
    n_rows, n_cols, _, layout, field, symmetry = mminfo(io.BytesIO(b"".join(lines)))
    if lines[0].split()[1].lower() != b"matrix" or (layout, field) == ("array", "pattern"):
        raise ValueError(f"line 1: must announce a matrix, and values where it is an array; got {lines[0]!r}")
    if (field, symmetry) == ("unsigned-integer", "skew-symmetric"):
        raise ValueError("line 1: a skew-symmetric matrix must have values with a sign; got unsigned-integer")
    if symmetry != "general" and n_rows != n_cols:
        raise ValueError(f"{at}: a {symmetry} matrix must be square; got {n_rows} x {n_cols}")
    triangle = n_rows * (n_rows - 1 if symmetry == "skew-symmetric" else n_rows + 1) // 2
    dense = n_rows * n_cols if symmetry == "general" else triangle
    n_entries = dense if layout == "array" else int(sizes[2])
    return _Header(lines, n_rows, n_cols, n_entries, layout, field, symmetry)


# ------------------------------------------------------------------------------------------------ entries


def _read_line(file: BinaryIO | gzip.GzipFile, number: int) -> bytes:
    """The next line, or the rest of it; line `number` is what an error calls it."""
    line = file.readline(BLOCK)
    if len(line) == BLOCK:
        raise ValueError(f"line {number}: must be shorter than {BLOCK} bytes")
    return line


def _checked_blocks(file: BinaryIO | gzip.GzipFile, words: dict[str, bytes], number: int) -> Iterator[bytes]:
    """The rest of `file`, from line `number` on, in blocks of whole lines; ValueError at one without these `words`."""
    # as many lines as possible, never looking back
    lines = re.compile(rb"(?:[ \t]*+(?:" + rb"[ \t]++".join(words.values()) + rb")?+[ \t\r]*+\n)*+")
    while block := file.read(BLOCK):
        if not block.endswith(b"\n"):  # the rest of the line; the file's last may lack its newline
            block += _read_line(file, number + block.count(b"\n")).removesuffix(b"\n") + b"\n"
        good = lines.match(block).end()  # type: ignore[union-attr]  # it matches nothing at least
        if good < len(block):
            line = block[good : block.index(b"\n", good)].decode("latin-1")
            number += block.count(b"\n", 0, good)
            raise ValueError(f"line {number}: must read '{' '.join(words)}'; got {line[:60]!r}")
        number += block.count(b"\n")
        yield block


def _counted_blocks(blocks: Iterator[bytes], n_words: int) -> Iterator[bytes]:
    """The `blocks` of an array file; ValueError unless they hold `n_words`, which SciPy does not always count."""
    found = 0
    for block in blocks:
        found += len(block.split())
        yield block
    if found != n_words:
        raise ValueError(f"promises {n_words} numbers, but holds {found}")


class _Text:
    """What SciPy's reader needs of a file: text made of `lines` and of `blocks`."""

    def __init__(self, lines: list[bytes], blocks: Iterator[bytes]):
        self._pieces = itertools.chain(lines, blocks)
        self._rest = memoryview(b"")

    def read(self, n_bytes: int) -> bytes:
        self._rest = self._rest or memoryview(next(self._pieces, b""))
        piece, self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        return bytes(piece)


def _read_rest(blocks: Iterator[bytes]) -> None:
    """Read what SciPy's reader left, which is blank: faults, and a gzip's checksum, may still come."""
    for _ in blocks:
        pass


# ------------------------------------------------------------------------------------------------ symmetry


def _mirrored(row: np.ndarray, col: np.ndarray, val: np.ndarray, symmetry: str, n: int) -> tuple[np.ndarray, ...]:
    """The triplets of a `symmetry` matrix of `n` rows whose one half is given; either half will do, never both."""
    from scipy.sparse import csr_array

    off = row != col
    if symmetry == "skew-symmetric" and (val[~off] != 0).any():
        raise ValueError(f"row {row[~off][val[~off] != 0][0] + 1}: a skew-symmetric matrix has no diagonal entry but 0")
    if symmetry == "hermitian":
        _require_real(row[~off], val[~off])
    row_off, col_off, val_off = row[off], col[off], val[off]
    if (row_off > col_off).any() and (row_off < col_off).any():
        stored = csr_array((np.ones(row_off.size, bool), (row_off, col_off)), shape=(n, n))
        both = stored.multiply(stored.T).tocoo()
        if both.nnz:
            i, j = both.row[0] + 1, both.col[0] + 1
            raise ValueError(f"a {symmetry} file must store one of entries ({i}, {j}) and ({j}, {i}); it stores both")
    other = {"symmetric": val_off, "skew-symmetric": -val_off, "hermitian": val_off.conj()}[symmetry]
    return np.concatenate((row, col_off)), np.concatenate((col, row_off)), np.concatenate((val, other))


def _require_real(row: np.ndarray, diagonal: np.ndarray) -> None:
    """ValueError unless the entries of a hermitian `diagonal`, in rows `row`, are real."""
    bad = np.flatnonzero(diagonal.imag != 0)
    if bad.size:
        raise ValueError(f"row {row[bad[0]] + 1}: a hermitian matrix has a real diagonal; got {diagonal[bad[0]]}")
