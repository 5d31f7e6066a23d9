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
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from ..core import devices
from ..core.tables import CSR
from ..input import coercion
from ..input.limits import Limit
from .guards import BLOCK
from .lines import Block, Lines

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

#: dtypes of values, by field; a pattern has none.
_DTYPES = {"pattern": "", "integer": "i8", "unsigned-integer": "u8", "real": "f8", "complex": "c16"}

_HEADER_BYTES = 1 << 12  # read at a time until the entries begin
_LEFT = 1 << 10  #: lines of a block that compiled code leaves at a time

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

    Compiled code (:mod:`cvrarray.cpu.text`) reads the plain entries of a block of lines while other threads read those
    of others; :class:`_Reader` reads what it leaves, or refuses it.

    Raises
    ------
    ValueError
        See the module.
    """
    header, lines = _read_header(file, text_size, limit)
    row, col, val = _parse(header, lines)
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
    header, lines = _read_header(file, text_size, Limit(os.fstat(file.fileno()).st_size))
    if header.layout == "array":
        raise ValueError(f"line {header.line}: must list entries to be read in pieces; it is an array. Use cvrarray.read")
    return (header.n_rows, header.n_cols), _pieces(header, lines, n_bytes)


def _pieces(header: _Header, lines: Lines, n_bytes: int) -> Iterator[tuple[np.ndarray, ...]]:
    found, before, triangles = 0, -1, set()
    while before < lines.n_bytes:
        before = lines.n_bytes
        most = min(header.n_entries - found, (n_bytes + BLOCK) // _least_bytes(header))
        reader = _Reader(header, most)
        lines.restart()
        lines.each(reader.read, n_bytes)
        found += reader.found
        if reader.found > most:
            break
        if not reader.found:
            continue
        row, col, val = reader.entries()
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


def _parse(header: _Header, lines: Lines) -> tuple[np.ndarray, ...]:
    """(row, col, val) of all entries; of an array only `val` counts."""
    reader = _Reader(header, header.n_entries)
    lines.each(reader.read)
    n, found = header.n_entries, reader.found
    if header.layout == "array" and found != n:
        each = len(header.words)
        raise ValueError(f"promises {n * each} numbers, but holds {found * each}")
    if found > n:
        raise ValueError(f"Line {reader.surplus}: Too many entries; the file promises {n}")
    if found < n:
        raise ValueError(f"Truncated: promises {n} entries, but holds {found}")
    return reader.entries()


class _Reader:
    """The entries of a file, `most` of them at most, in the order of its lines."""

    def __init__(self, header: _Header, most: int):
        self._kernels, empty = devices.CPU.backend("text"), devices.CPU.backend("runtime.memory").empty
        has_places, shape = header.layout == "coordinate", (header.n_rows, header.n_cols)
        numbers = header.words.keys() - _PLACE.keys()
        index, n_places = coercion.index_dtype(shape), most * has_places
        bits = empty(most * len(numbers), np.uint64)
        kind = {_COUNT: self._kernels.UNSIGNED, _REAL: self._kernels.REAL}
        kinds = {kind.get(header.words[name], self._kernels.INTEGER) for name in numbers} or {self._kernels.REAL}
        self._to = self._kernels.Entries(empty(n_places, index), empty(n_places, index), bits, most)
        self._form = self._kernels.form(2 * has_places, len(numbers), kinds.pop(), shape)
        self._header = header
        words = rb"[ \t]++".join(b"(%b)" % word for word in header.words.values())
        self._line = re.compile(rb"[ \t]*+%b[ \t\r]*+" % words)
        self.found = 0  #: entries, also those for which there was no room
        self.surplus = 0  #: number of the first line for which there was none

    def entries(self) -> tuple[np.ndarray, ...]:
        """(row, col, val), of those that were found."""
        row, col, bits, _ = self._to
        dtype = _DTYPES[self._header.field]
        val = bits.view(dtype)[: self.found] if dtype else np.ones(self.found)
        return row[: self.found], col[: self.found], val

    def read(self, block: Block) -> None:
        """Read the entries of a block, which threads may do at the same time."""
        if block.before + block.n_lines > self.found:
            self.found = block.before + block.n_lines
        k, at = block.begin, block.before
        left = np.empty((_LEFT, 2), np.int64)
        while k < block.end and at < self._to.most:
            k, at, n_left = self._kernels.parse(block.text, k, block.end, at, self._to, self._form, left)
            for begin, place in left[:n_left].tolist():
                self._read_line(*block.at(begin), place)
        if k < block.end and block.before <= self._to.most < block.before + block.n_lines:
            self.surplus, line = block.at(k)
            self._words(self.surplus, line)

    def _words(self, number: int, line: bytes) -> list[bytes]:
        """The words of an entry; ValueError where a line has others."""
        words = self._line.fullmatch(line)
        if words is None:
            wrong = line[:60].decode("latin-1")
            raise ValueError(f"line {number}: must read '{' '.join(self._header.words)}'; got {wrong!r}")
        return list(words.groups())

    def _read_line(self, number: int, line: bytes, place: int) -> None:
        """The entry in a line, whose place is given; ValueError where it is none."""
        row, col, bits, _ = self._to
        values = self._words(number, line)
        if self._header.layout == "coordinate":
            for name, to, n in (("Row", row, self._header.n_rows), ("Column", col, self._header.n_cols)):
                index = _integer(values.pop(0), to.dtype, number)
                if not 1 <= index <= n:
                    raise ValueError(f"Line {number}: {name} index out of bounds: must lie in [1, {n}]; got {index}")
                to[place] = index - 1
        for part, value in enumerate(values):
            if self._form.kind == self._kernels.REAL:
                bits.view(np.float64)[self._form.values * place + part] = float(value)
            else:
                dtype = np.dtype(_DTYPES[self._header.field])
                bits.view(dtype)[place] = _integer(value, dtype, number)


def _integer(word: bytes, dtype: np.dtype, line: int) -> int:
    """Digits that may have a sign, as an integer of `dtype`."""
    number = int(word) if len(word.lstrip(b"-0")) < 25 else None  # Python makes no number of thousands of digits
    if number is None or not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise ValueError(f"Line {line}: Integer out of range of {dtype}: got {word[:40].decode()}")
    return number


def _least_bytes(header: _Header) -> int:
    """Of the text of an entry: a word is a byte at least, and so is what parts it from the next."""
    return 2 * len(header.words)


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


def _read_header(file: BinaryIO | gzip.GzipFile, text_size: int, limit: Limit) -> tuple[_Header, Lines]:
    """What stands above the entries, and the lines below it. Memory for all of them may be asked for."""
    lines = Lines(cast(BinaryIO, file), limit, BLOCK)
    buffer, banner, line = lines.buffer(), b"", 1
    while block := lines.take(buffer, _HEADER_BYTES):
        text, begin = buffer[block.begin : block.end], 0
        if not banner:
            begin = text.index(b"\n") + 1
            banner = text[:begin]
        begin = _SKIPPED.match(text, begin).end()  # type: ignore[union-attr]  # it matches nothing at least
        line = block.line + text.count(b"\n", 0, begin)
        if begin < len(text):
            break
    else:
        raise ValueError(f"ends at line {line}, before the line with the sizes")
    end = text.index(b"\n", begin)
    header = _parse_header(banner, text[begin:end], line)
    lines.restart(text[end + 1 :])
    at = f"line {header.line}"
    if header.n_entries * _least_bytes(header) > text_size:
        raise ValueError(f"{at}: promises {header.n_entries} entries, more than fit in the file")
    half = header.symmetry != "general"
    limit.require_matrix((header.n_rows, header.n_cols), header.n_entries * (1 + half), at)
    return header, lines


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


# ------------------------------------------------------------------------------------------------ symmetry


def _mirrored(row: np.ndarray, col: np.ndarray, val: np.ndarray, header: _Header) -> tuple[np.ndarray, ...]:
    """The triplets of a matrix of which a half is given where it has a symmetry; either half will do, never both."""
    symmetry = header.symmetry
    if symmetry == "general":
        return row, col, val
    below, above = np.count_nonzero(row > col), np.count_nonzero(row < col)
    if symmetry != "symmetric" and below + above < row.size:
        _check_diagonal(row, col, val, symmetry)
    if symmetry == "skew-symmetric" and val.dtype.kind == "i" and (val == np.iinfo(val.dtype).min).any():
        i, j = row[val.argmin()] + 1, col[val.argmin()] + 1
        raise ValueError(f"entry ({i}, {j}): {val.min()} has no negative in {val.dtype}, for entry ({j}, {i})")
    if below and above:
        _require_one_of_each(row, col, header)
    off = row != col
    mirrored = val[off].conj() if symmetry == "hermitian" else -val[off] if symmetry == "skew-symmetric" else val[off]
    halves = [(row, col, val), (col[off], row[off], mirrored)]  # entries in order of rows or columns stay so
    return tuple(map(np.concatenate, zip(*halves[:: -1 if above > below else 1], strict=True)))


def _check_diagonal(row: np.ndarray, col: np.ndarray, val: np.ndarray, symmetry: str) -> None:
    """ValueError unless the diagonal is 0 where the matrix is skew-symmetric, and real where it is hermitian."""
    on = row == col
    if symmetry == "hermitian":
        _require_real(row[on], val[on])
    elif (val[on] != 0).any():
        raise ValueError(f"row {row[on][val[on] != 0][0] + 1}: a skew-symmetric matrix has no diagonal entry but 0")


def _require_one_of_each(row: np.ndarray, col: np.ndarray, header: _Header) -> None:
    """ValueError where an entry and its mirror image are both given."""
    from scipy.sparse import csr_array

    off = row != col
    stored = csr_array((np.ones(int(off.sum()), bool), (row[off], col[off])), shape=(header.n_rows, header.n_cols))
    both = stored.multiply(stored.T).tocoo()
    if both.nnz:
        i, j = both.row[0] + 1, both.col[0] + 1
        raise ValueError(f"a {header.symmetry} file must store one of entries ({i}, {j}) and ({j}, {i}); it stores both")


def _require_real(row: np.ndarray, diagonal: np.ndarray) -> None:
    """ValueError unless the entries of a hermitian `diagonal`, in rows `row`, are real."""
    bad = np.flatnonzero(diagonal.imag != 0)
    if bad.size:
        raise ValueError(f"row {row[bad[0]] + 1}: a hermitian matrix has a real diagonal; got {diagonal[bad[0]]}")
