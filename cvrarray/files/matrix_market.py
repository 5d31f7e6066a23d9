"""Matrix Market, ``.mtx``: a text of one matrix, by coordinates or dense.

::

    %%MatrixMarket matrix coordinate real symmetric     banner: layout, field, symmetry
    % comments and blank lines
    3 3 2                                               rows columns entries; of an array: rows columns
    1 1 2.5                                             row column value, counted from 1; of an array: values,
    3 1 -1e3                                            column by column

All layouts, fields and symmetries of the definition are read; a pattern's entries are 1.0, duplicates are summed.
Refused, with the line where that can be known: a line that is not what the banner promises (a fraction among integers,
Fortran's ``1.0D+05``, a comment among the entries, a plus sign before a number, which SciPy's reader refuses too),
other than the promised number of entries, an index out of range, a symmetric matrix that is not square, stores both of
a pair, or has a diagonal that its symmetry rules out, a value that its symmetry mirrors to what its dtype cannot hold,
words after the banner's five, and sizes that this file, its :class:`~cvrarray.input.limits.Limit` or this machine
cannot hold. Comments and blank lines are skipped as they come in: they take no memory, and count as text.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from ..core import devices
from ..core.tables import CSR
from ..input import coercion
from ..input.limits import Limit
from .guards import BLOCK

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


#: The words of a banner: what it announces, layout, field, symmetry. SciPy calls double what the definition calls real.
_LAYOUTS, _SYMMETRIES = ("coordinate", "array"), ("general", "symmetric", "skew-symmetric", "hermitian")
_FIELDS = {**dict(zip(_VALUE, _VALUE, strict=True)), "double": "real"}

#: Comments and blank lines, as many as there are, never looking back.
_SKIPPED = re.compile(rb"(?:[ \t\r]*+%[^\n]*+\n|[ \t\r]*+\n)*+")


class _Header(NamedTuple):
    """What stands above the entries."""

    line: int  # number of the line with the sizes
    n_rows: int
    n_cols: int
    n_entries: int  # that the file should list
    layout: str  # "coordinate" or "array"
    field: str  # a key of _VALUE
    symmetry: str  # "general", "symmetric", "skew-symmetric" or "hermitian"

    @property
    def words(self) -> dict[str, bytes]:
        """The words of an entry, by name."""
        return _VALUE[self.field] if self.layout == "array" else _PLACE | _VALUE[self.field]


def read(file: BinaryIO | gzip.GzipFile, text_size: int, limit: Limit) -> CSR:
    """Canonical CSR of a Matrix Market file that holds at most `text_size` bytes of text and may ask for `limit`.

    SciPy's compiled reader does the reading, but it trusts the text: it takes 1.5 for 1 in an integer file and 1.0D+05
    for 1.0, overlooks what follows the last number it wants, writes outside its arrays for a symmetric file that is
    not square, and dies of a NUL, or of no rows in an array file; and it adds an array's values to zeros, which loses
    the sign of -0.0. So it is handed only what has been checked: as a general matrix by coordinates, or as an array of
    one column where the signs of zeros do not matter, because real zeros are not stored.

    Raises
    ------
    ValueError
        See the module.
    """
    header, blocks = _read_header(file, text_size, limit)
    if header.layout == "array":
        blocks = _counted_blocks(blocks, header.n_entries, len(header.words))
    row, col, val = _parse(header, header.n_entries, blocks, header.line + 1)
    for _ in blocks:  # what SciPy's reader left is blank, but faults, and a gzip's checksum, may still come
        pass
    if header.layout == "array":
        row, col, val = _places(header, val)
    row, col, val = _mirrored(row, col, val, header)
    return coercion.from_triplets(row, col, val, (header.n_rows, header.n_cols))


def read_pieces(file: BinaryIO, text_size: int, n_bytes: int) -> tuple[tuple[int, int], Iterator[tuple[np.ndarray, ...]]]:
    """The shape of a Matrix Market file, and an iterator over its entries, (row, col, val), for files larger than
    memory.

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
    header, blocks = _read_header(file, text_size, Limit(os.fstat(file.fileno()).st_size))
    if header.layout == "array":
        raise ValueError(f"line {header.line}: must list entries to be read in pieces; it is an array. Use cvrarray.read")
    return (header.n_rows, header.n_cols), _pieces(header, blocks, n_bytes)


def _pieces(header: _Header, blocks: Iterator[bytes], n_bytes: int) -> Iterator[tuple[np.ndarray, ...]]:
    found, line, triangles = 0, header.line + 1, set()
    while text := list(itertools.islice(blocks, max(1, n_bytes // BLOCK))):
        n_entries = sum(map(_count_lines, text))
        found += n_entries
        if found > header.n_entries:
            break
        row, col, val = _parse(header, n_entries, iter(text), line)
        line += sum(map(_n_newlines, text))
        if header.symmetry != "general":
            triangles |= {name for name, there in (("lower", row > col), ("upper", row < col)) if there.any()}
            if len(triangles) > 1:
                raise ValueError(
                    f"a {header.symmetry} file must keep to one triangle to be read in pieces; it has entries of both. "
                    "Use cvrarray.read"
                )
        yield _mirrored(row, col, val, header)
    if found != header.n_entries:
        raise ValueError(f"promises {header.n_entries} entries, but holds {'more' if found > header.n_entries else found}")


def _parse(header: _Header, n_entries: int, blocks: Iterator[bytes], line: int) -> tuple[np.ndarray, ...]:
    """(row, col, val) of checked text that begins at `line` of the file; of an array only `val` counts."""
    from scipy.io import mmread

    is_column = header.layout == "array" and header.field != "complex" and n_entries > 0
    sizes = (n_entries, 1) if is_column else (header.n_rows, header.n_cols, n_entries)
    layout = "array" if is_column else "coordinate"
    first = f"%%MatrixMarket matrix {layout} {header.field} general\n{' '.join(map(str, sizes))}\n"
    if header.layout == "array" and not is_column:
        blocks = _numbered(blocks)
    try:
        found = mmread(_Text(first.encode(), blocks), spmatrix=False)
    except ValueError as error:  # SciPy counts from the two lines above
        place = re.match(r"Line (\d+): ", str(error))
        if not place:
            raise
        raise ValueError(f"Line {int(place[1]) + line - 3}: {str(error)[place.end() :]}") from error
    if is_column:
        return np.empty(0, np.int64), np.empty(0, np.int64), found.reshape(-1)
    return found.row, found.col, found.data


def _count_lines(block: bytes) -> int:
    """The lines of a block that are not blank."""
    bare = block.translate(None, b" \t\r")
    if bare.startswith(b"\n") or b"\n\n" in bare:
        return sum(map(bool, bare.split(b"\n")))
    return _n_newlines(bare)


def _n_newlines(block: bytes) -> int:
    """``block.count(b"\\n")``, in a tenth of the time."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))


def _places(header: _Header, val: np.ndarray) -> tuple[np.ndarray, ...]:
    """(row, col, val) of what is not 0 in an array file, whose values stand column by column; of a triangle, the lower."""
    if header.symmetry == "general":
        col, row = np.nonzero(val.reshape(header.n_cols, header.n_rows))
        return row, col, val[val != 0]
    k = np.flatnonzero(val)
    above = int(header.symmetry == "skew-symmetric")  # entries of a column that its diagonal has, but the file has not
    lengths = header.n_rows - above - np.arange(header.n_cols)
    ends = np.cumsum(lengths)
    col = np.searchsorted(ends, k, side="right")
    row = k - (ends - lengths)[col] + col + above
    return row, col, val[k]


# ------------------------------------------------------------------------------------------------ header


def _read_header(file: BinaryIO | gzip.GzipFile, text_size: int, limit: Limit) -> tuple[_Header, Iterator[bytes]]:
    """What stands above the entries, and the checked blocks of lines below it. Memory for all of them may be asked for."""
    blocks = _whole_lines(file, limit)
    first = next(blocks, b"")
    banner, _, rest = first.partition(b"\n")
    line = 1  # of what is read last
    for block in itertools.chain([rest], blocks):
        begin = _SKIPPED.match(block).end()  # type: ignore[union-attr]  # it matches nothing at least
        line += block.count(b"\n", 0, begin)
        if begin < len(block):
            break
    else:
        raise ValueError(f"ends at line {line + 1}, before the line with the sizes")
    end = block.index(b"\n", begin)
    header = _parse_header(banner, block[begin:end], line + 1)
    at = f"line {header.line}"
    if header.n_entries * 2 * len(header.words) > text_size:  # a word is a byte, and so is what parts it from the next
        raise ValueError(f"{at}: promises {header.n_entries} entries, more than fit in the file")
    half = header.symmetry != "general"
    limit.require_matrix((header.n_rows, header.n_cols), header.n_entries * (1 + half), at)
    return header, _checked_blocks(itertools.chain([block[end + 1 :]], blocks), header.words, header.line + 1)


def _parse_header(banner: bytes, sizes: bytes, line: int) -> _Header:
    """The banner and the sizes, which stand in line `line`."""
    at = f"line {line}"
    words = banner.decode("latin-1").split()
    shown = f"got {banner[:80].decode('latin-1').strip()!r}"
    if len(words) != 5 or words[0].lstrip("%") != "MatrixMarket":
        raise ValueError(f"line 1: must have 5 words, '%%MatrixMarket matrix', layout, field and symmetry; {shown}")
    kind, layout, field, symmetry = (word.lower() for word in words[1:])
    for name, word, known in (("layout", layout, _LAYOUTS), ("field", field, _FIELDS), ("symmetry", symmetry, _SYMMETRIES)):
        if word not in known:
            raise ValueError(f"line 1: the {name} must be one of {', '.join(known)}; got {word[:80]!r}")
    field = _FIELDS[field]
    if kind != "matrix" or (layout, field) == ("array", "pattern"):
        raise ValueError(f"line 1: must announce a matrix, and values where it is an array; {shown}")
    if (field, symmetry) == ("unsigned-integer", "skew-symmetric"):
        raise ValueError("line 1: a skew-symmetric matrix must have values with a sign; got unsigned-integer")
    names = ["rows", "columns"] if layout == "array" else ["rows", "columns", "entries"]
    counts = sizes.split()
    if len(counts) != len(names) or not all(count.isdigit() and len(count) < 19 for count in counts):
        raise ValueError(f"{at}: must read '{' '.join(names)}'; got {sizes[:60].decode('latin-1').strip()!r}")
    n_rows, n_cols = map(int, counts[:2])
    if symmetry != "general" and n_rows != n_cols:
        raise ValueError(f"{at}: a {symmetry} matrix must be square; got {n_rows} x {n_cols}")
    triangle = n_rows * (n_rows - 1 if symmetry == "skew-symmetric" else n_rows + 1) // 2
    dense = n_rows * n_cols if symmetry == "general" else triangle
    n_entries = dense if layout == "array" else int(counts[2])
    return _Header(line, n_rows, n_cols, n_entries, layout, field, symmetry)


# ------------------------------------------------------------------------------------------------ entries


def _whole_lines(file: BinaryIO | gzip.GzipFile, limit: Limit) -> Iterator[bytes]:
    """The text of `file` in blocks of whole lines, the last of which gets its newline where it has none."""
    line, n_bytes = 1, 0
    while block := file.read(BLOCK):
        line += _n_newlines(block)
        n_bytes += len(block)
        if not block.endswith(b"\n"):
            rest = file.readline(BLOCK)
            if len(rest) == BLOCK:
                raise ValueError(f"line {line}: must be shorter than {BLOCK} bytes")
            block += rest.removesuffix(b"\n") + b"\n"
            line += 1
        limit.require(n_bytes, f"line {line}: the text up to here has")
        yield block


def _checked_blocks(blocks: Iterator[bytes], words: dict[str, bytes], line: int) -> Iterator[bytes]:
    """The `blocks` of lines from number `line` on; ValueError at one without these `words`."""
    # as many lines as possible, never looking back
    lines = re.compile(rb"(?:[ \t]*+(?:" + rb"[ \t]++".join(words.values()) + rb")?+[ \t\r]*+\n)*+")
    text = devices.CPU.backend("text")
    kinds = tuple({_COUNT: text.COUNT, _REAL: text.REAL}.get(word, text.INTEGER) for word in words.values())
    for block in blocks:
        good = len(block)
        # in a tenth of the time of the expression, which also finds the wrong line
        if not text.are_lines(block, kinds):
            good = lines.match(block).end()  # type: ignore[union-attr]  # it matches nothing at least
        if good < len(block):
            wrong = block[good : block.index(b"\n", good)].decode("latin-1")
            line += block.count(b"\n", 0, good)
            raise ValueError(f"line {line}: must read '{' '.join(words)}'; got {wrong[:60]!r}")
        line += _n_newlines(block)
        yield block


def _counted_blocks(blocks: Iterator[bytes], n_entries: int, n_words: int) -> Iterator[bytes]:
    """The checked `blocks` of an array file; ValueError unless they hold `n_entries` of `n_words`: SciPy names
    coordinates.
    """
    found = 0
    for block in blocks:
        found += _count_lines(block)
        if found <= n_entries:
            yield block
    if found != n_entries:
        raise ValueError(f"promises {n_entries * n_words} numbers, but holds {found * n_words}")


def _numbered(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The `blocks` of an array file as those of a coordinate file, whose entries all stand at (1, 1)."""
    for block in blocks:
        yield re.sub(rb"(?m)^[ \t]*+(?=[^\s])", b"1 1 ", block)


class _Text:
    """What SciPy's reader needs of a file: text made of `first` and of `blocks`."""

    def __init__(self, first: bytes, blocks: Iterator[bytes]):
        self._pieces = itertools.chain([first], blocks)
        self._rest = memoryview(b"")

    def read(self, n_bytes: int) -> bytes:
        while not self._rest:
            following = next(self._pieces, None)
            if following is None:
                return b""
            self._rest = memoryview(following)
        piece, self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        return bytes(piece)


# ------------------------------------------------------------------------------------------------ symmetry


def _mirrored(row: np.ndarray, col: np.ndarray, val: np.ndarray, header: _Header) -> tuple[np.ndarray, ...]:
    """The triplets of a matrix of which a half is given where it has a symmetry; either half will do, never both."""
    from scipy.sparse import csr_array

    symmetry, n = header.symmetry, header.n_rows
    if symmetry == "general":
        return row, col, val
    off = row != col
    if symmetry == "skew-symmetric":
        if (val[~off] != 0).any():
            raise ValueError(f"row {row[~off][val[~off] != 0][0] + 1}: a skew-symmetric matrix has no diagonal entry but 0")
        if val.dtype.kind == "i" and (val == np.iinfo(val.dtype).min).any():
            i, j = row[val.argmin()] + 1, col[val.argmin()] + 1
            raise ValueError(f"entry ({i}, {j}): {val.min()} has no negative in {val.dtype}, for entry ({j}, {i})")
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
