"""AnnData's files, ``.h5ad`` (HDF5) and Zarr hierarchies of version 2 or 3: a matrix in one of their groups.

=================  ==============================================================================
``encoding-type``  what the group is
=================  ==============================================================================
``csr_matrix``     the attribute ``shape``; 1-D arrays ``indptr``, ``indices`` and ``data``
``csc_matrix``     the same by columns
``array``          a dense array of two dimensions, as is one without an ``encoding-type``
=================  ==============================================================================

Groups that anndata wrote before 0.7 have ``h5sparse_format`` and ``h5sparse_shape`` in place of these attributes.

Names of rows and columns are in data frames: of ``X`` and ``layers`` in ``obs`` and ``var``, of other places see
``_FRAMES``. A data frame's attribute ``_index`` says which of its arrays has the names: strings, or codes and categories.

h5py and zarr read the files. The contents of arrays are checked as those of any file. Zarr chunks that are pickles are
refused; a missing Zarr chunk holds the array's fill value, as Zarr specifies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..core.extensions import optional
from ..core.progress import Update
from ..core.tables import CSR
from ..input import coercion, limits
from .guards import naming

PIECE = 32 << 20  #: bytes of an array that are read at a time
_NAME_BYTES = 64  # of a name as an object of Python's, at least
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_VERSIONS = {"csr_matrix": ("", "0.1.0"), "csc_matrix": ("", "0.1.0"), "array": ("", "0.1.0", "0.2.0"), "": ("",)}

#: Group of an AnnData -> the data frames with the names of its matrices' rows and columns; "" where there is none.
_FRAMES = {
    "X": ("obs", "var"), "layers": ("obs", "var"), "obsp": ("obs", "obs"), "varp": ("var", "var"), "obsm": ("obs", ""),
    "varm": ("var", ""),
}  # fmt: skip


Piece = tuple[np.ndarray, np.ndarray, np.ndarray]  # row, col, val


class Names(NamedTuple):
    """What rows and columns are called: arrays of as many texts, or None."""

    rows: np.ndarray | None = None
    columns: np.ndarray | None = None


def recognised(path: str) -> bool:
    """Whether `path` is an HDF5 file, or a folder that is a Zarr hierarchy."""
    if os.path.isdir(path):
        return any(os.path.exists(os.path.join(path, name)) for name in ("zarr.json", ".zgroup", ".zarray"))
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE


@contextmanager
def opened(path: str, group: str | None, max_bytes: int | str | None = None) -> Iterator[Matrix]:
    """The matrix in `group` of an open file. Default: the root, if that is a matrix, else ``"X"``.

    Raises
    ------
    TypeError
        `group` is no text.
    ImportError
        h5py, or zarr, is not installed.
    ValueError
        The file is damaged, has no such group, or the group is no matrix; the message names file, group and encoding.
    """
    if not isinstance(group, str | None):
        raise TypeError(f"group must be a text such as 'layers/counts'; got {group!r}")
    with ExitStack() as stack:
        if os.path.isdir(path):
            with optional("reading a Zarr hierarchy", "zarr", "zarr"):
                import zarr
            with _naming(path):
                root = zarr.open(path, mode="r")
        else:
            with optional("reading an HDF5 file", "h5py", "h5ad"):
                import h5py
            with _naming(path):
                root = stack.enter_context(h5py.File(path, "r"))
        with _naming(path):
            place = group if group is not None else "" if _is_matrix(root) else "X"
            place = "/".join(part for part in place.split("/") if part)
            matrix = Matrix(path, root, place, max_bytes)
        yield matrix


class Matrix:
    """A matrix of an open file. Only its offsets are read here; :meth:`csr`, :meth:`rows` and :meth:`pieces` read entries.

    Parameters
    ----------
    path : str
    root : h5py.File, zarr.Group or zarr.Array
    place : str
        Names from the root on, joined by ``"/"``.
    max_bytes : int or str, optional
        What may be asked for, as :class:`Limit` takes it.
    """

    def __init__(self, path: str, root: Any, place: str, max_bytes: int | str | None):
        with naming(f"group {place or '/'}"):
            found = _at(root, place)
        if found is None:
            there = ", ".join(islice(_matrices(root), 20)) or "(none)"
            raise ValueError(f"must have a group {place!r}; the matrices in it are {there}. Name one of them as group")
        files = _statuses(path, place, found)
        size, changed = sum(file.st_size for file in files), max((file.st_mtime_ns for file in files), default=0)
        self.place, self._root, self._limit = place, root, limits.Limit(size, max_bytes)
        #: The source that `resume` compares: another file, or a changed one, has another name.
        self.name = f"{os.path.basename(path)}, group {place or '/'}, {size} bytes of {changed}"
        self.encoding, self.shape = _encoding(found, place), (0, 0)
        self._subject = f"{path}: group {place or '/'} ({self.encoding})"
        with naming(self._subject[len(path) + 2 :]):  # the caller names the path
            if self.encoding == "array":
                self._data = _plain(found, 2)
                self.shape = coercion.check_shape(self._data.shape)
            else:
                self.shape = _shape(found)
                self._indptr, self._indices, self._data = (_member(found, name) for name in ("indptr", "indices", "data"))
            if self._data.dtype.kind not in "biufc":
                raise ValueError(f"data must hold numbers; got {self._data.dtype}")
            self.dtype = coercion.check_dtype(self._data.dtype)
            self._limit.require_matrix(self.shape, 0, "shape")
            if self.encoding == "array":
                self._limit.require(self.shape[1] * self._data.dtype.itemsize, "a row needs")
            else:
                self.indptr = self._offsets()

    def _offsets(self) -> np.ndarray:
        """(rows + 1,) int64, of a CSC (columns + 1,): checked."""
        along, n = ("rows", self.shape[0]) if self.encoding == "csr_matrix" else ("columns", self.shape[1])
        self._limit.require(limits.ROW_BYTES * n, f"shape: {n} {along} need")
        if self._indptr.shape[0] != n + 1:
            raise ValueError(f"indptr must have n_{along} + 1 = {n + 1} entries; got {self._indptr.shape[0]}")
        if self._indices.shape != self._data.shape:
            raise ValueError(f"indices and data must have one length; got {self._indices.shape[0]} and {self._data.shape[0]}")
        for name, array in (("indptr", self._indptr), ("indices", self._indices)):
            if array.dtype.kind not in "iu":
                raise ValueError(f"{name} must hold integers; got {array.dtype}")
        indptr = coercion.as_integers(self._indptr[...], "indptr").astype(np.int64, copy=False)
        falls = np.flatnonzero(indptr[1:] < indptr[:-1])
        if indptr[0] != 0:
            raise ValueError(f"indptr must begin with 0; got {indptr[0]}")
        if falls.size:
            raise ValueError(f"indptr must never decrease; it does from {along[:-1]} {falls[0]} to {falls[0] + 1}")
        if indptr[-1] != self._data.shape[0]:
            raise ValueError(f"indptr must end with the number of nonzeros, {self._data.shape[0]}; got {indptr[-1]}")
        self._limit.require_matrix(self.shape, int(indptr[-1]), "data")  # a panel may hold them all; the disk, too
        return np.asarray(indptr)

    @property
    def by_rows(self) -> bool:
        """Whether :meth:`rows` can be asked for."""
        return self.encoding == "csr_matrix"

    def csr(self, update: Update) -> CSR:
        """All of it as canonical CSR."""
        with _naming(self._subject):
            if self.encoding == "array":
                found, n = list[Piece](), 0
                for piece in self._dense_pieces():
                    found.append(piece)
                    n += piece[0].size
                    self._limit.require_matrix(self.shape, n, "data")
                    update(n)
                row, col, val = map(np.concatenate, zip(*found, strict=True))
                return coercion.from_triplets(row, col, val, self.shape)
            n = int(self.indptr[-1])
            indices, data = (_taken(array, 0, n, update) for array in (self._indices, self._data))
            build = coercion.from_parts if self.by_rows else coercion.from_csc
            return build(self.indptr, indices, data, self.shape)

    def rows(self, first: int, last: int) -> CSR:
        """Rows ``first .. last - 1`` as canonical CSR."""
        start, stop = int(self.indptr[first]), int(self.indptr[last])
        with _naming(f"{self._subject}: entries {start} to {stop}, rows {first} to {last}"):
            indices, data = (_taken(array, start, stop) for array in (self._indices, self._data))
            return coercion.from_parts(self.indptr[first : last + 1] - start, indices, data, (last - first, self.shape[1]))

    def pieces(self) -> Iterator[Piece]:
        """All entries, of about PIECE bytes at a time: (row, col, val), of a CSC in its order, column by column."""
        with _naming(self._subject):
            yield from self._dense_pieces() if self.encoding == "array" else self._column_pieces()

    def _column_pieces(self) -> Iterator[Piece]:
        indptr, step = self.indptr, PIECE // self.dtype.itemsize
        for start in range(0, max(1, int(indptr[-1])), step):
            stop = min(start + step, int(indptr[-1]))
            first = max(0, int(np.searchsorted(indptr, start, "right")) - 1)
            last = int(np.searchsorted(indptr, stop, "left"))
            counts = np.diff(indptr[first : last + 1].clip(start, stop))
            columns = np.repeat(np.arange(first, first + counts.size), counts)
            rows, values = _taken(self._indices, start, stop), _taken(self._data, start, stop)
            bad = np.flatnonzero((rows < 0) | (rows >= self.shape[0]))
            if bad.size:
                what = f"got {rows[bad[0]]} at position {start + bad[0]}"
                raise ValueError(f"indices must lie in [0, {self.shape[0]}), the rows; {what}")
            yield rows, columns, values

    def _dense_pieces(self) -> Iterator[Piece]:
        step = max(1, PIECE // max(1, self.shape[1] * self.dtype.itemsize))
        chunk = (getattr(self._data, "chunks", None) or (1,))[0]
        step = max(1, step // chunk) * chunk if chunk <= 2 * step else step
        for first in range(0, max(1, self.shape[0]), step):
            rows = self._data[first : min(first + step, self.shape[0])]
            row, col = np.nonzero(rows)
            yield row + first, col, rows[row, col]

    def names(self) -> Names:
        """What its rows and columns are called in the file."""
        *above, last = self.place.split("/")
        base, kind = (above, "X") if last == "X" else (above[:-1], above[-1] if above else "")
        along, across = (self._index(base, frame, n) for frame, n in zip(_FRAMES.get(kind, ("", "")), self.shape, strict=True))
        return Names(along, across)

    def _index(self, base: list[str], frame: str, n: int) -> np.ndarray | None:
        """The `n` names in a data frame; None where there is no such frame."""
        if frame == "obs" and base[-1:] == ["raw"]:  # which has a var of its own
            base = base[:-1]
        place = "/".join([*base, frame])
        with _naming(f"{self._subject}: names in {place}"):
            found = _at(self._root, place) if frame else None
            if found is None:
                return None
            texts = np.empty(n, object)
            texts[:] = _texts(found, n, self._limit)
            return texts


@contextmanager
def _naming(subject: str) -> Iterator[None]:
    """As :func:`naming`, also of what the libraries raise on metadata of the wrong type."""
    try:
        with naming(subject):
            yield
    except (AttributeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"{subject}: cannot be read ({type(error).__name__}: {error})") from error


def _statuses(path: str, place: str, found: Any) -> list[os.stat_result]:
    """What the system says of the file, and of the one that an external link leads to; or of the files of a Zarr group."""
    if not os.path.isdir(path):
        return [os.stat(file) for file in sorted({path, found.file.filename})]
    folders = os.walk(os.path.join(path, place))
    return [os.stat(os.path.join(folder, name)) for folder, _, names in folders for name in names]


def _at(root: Any, place: str) -> Any:
    """The group or array at a place; None where nothing is."""
    if not place:
        return root
    try:
        return root[place]
    except (KeyError, IndexError):  # a Zarr array, which is no group, has an IndexError
        return None


def _is_array(item: Any) -> bool:
    return hasattr(item, "dtype") and hasattr(item, "shape")  # no group has


def _attribute(item: Any, name: str) -> str:
    """An attribute that is a text, or ``""``."""
    value = item.attrs.get(name, "")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_matrix(item: Any) -> bool:
    if _is_array(item):
        return len(item.shape or ()) == 2 and item.dtype.kind in "biufc"
    return _attribute(item, "encoding-type") in ("csr_matrix", "csc_matrix") or "h5sparse_format" in item.attrs


def _matrices(root: Any, depth: int = 2) -> Iterator[str]:
    """Places of matrices: in the first 50 members of a group, `depth` groups deep."""
    for name in islice(() if _is_array(root) else root, 50):
        with suppress(Exception):  # links in a circle, say: what cannot be opened is no matrix
            item = _at(root, name)
            if item is not None and _is_matrix(item):
                yield name
            elif item is not None and depth > 0 and not _is_array(item):
                yield from (f"{name}/{inner}" for inner in _matrices(item, depth - 1))


def _encoding(item: Any, place: str) -> str:
    """``"csr_matrix"``, ``"csc_matrix"`` or ``"array"``, of the group or array at a place."""
    encoding, version = (_attribute(item, f"encoding-{name}") for name in ("type", "version"))
    if not encoding and "h5sparse_format" in item.attrs:
        encoding = f"{_attribute(item, 'h5sparse_format')}_matrix"
    known = ("array", "") if _is_array(item) else ("csr_matrix", "csc_matrix")
    if encoding not in known or version not in _VERSIONS[encoding]:
        kind = f"an array of {item.dtype}" if _is_array(item) else "a group"
        raise ValueError(
            f"group {place or '/'} must be a csr_matrix, a csc_matrix or an array, of the encoding-version 0.1.0 or 0.2.0; "
            f"it is {kind} with encoding-type {encoding[:80]!r}, encoding-version {version[:80]!r}"
        )
    return encoding or "array"


def _shape(group: Any) -> tuple[int, int]:
    name = "shape" if "shape" in group.attrs else "h5sparse_shape"
    stated = group.attrs.get(name)
    sizes = np.asarray(stated)
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu":
        raise ValueError(f"attribute {name} must be two integers, the rows and columns; got {str(stated)[:200]}")
    return coercion.check_shape(sizes.tolist())


def _member(group: Any, name: str) -> Any:
    """An array of one dimension in a group."""
    found = _at(group, name)
    if found is None:
        raise ValueError(f"must have an array {name}; it has {', '.join(islice(group, 20)) or '(nothing)'}")
    with naming(name):
        return _plain(found, 1)


def _plain(array: Any, ndim: int) -> Any:
    """`array`, if it has so many dimensions and its chunks are no pickles."""
    if not _is_array(array) or len(array.shape or ()) != ndim:
        raise ValueError(f"must be an array of {ndim} dimensions; got {array!r}")
    metadata = getattr(array, "metadata", None)  # of Zarr
    codecs = [getattr(metadata, "compressor", None), *(getattr(metadata, "filters", None) or ())]
    if any(getattr(codec, "codec_id", "") == "pickle" for codec in codecs):
        raise ValueError("holds Python objects (pickles), which are never loaded. Save plain numbers and texts")
    return array


def _texts(frame: Any, n: int, limit: limits.Limit) -> list[str]:
    """The index of a data frame of `n` rows: of a group, or of the records that anndata wrote before 0.7."""
    if _is_array(frame):
        fields = frame.dtype.names or ()
        if not fields:
            raise ValueError(f"must be a data frame; got {frame!r}")
        values = _whole(_plain(frame, 1), limit, n)["index" if "index" in fields else fields[0]]
    else:
        name = _attribute(frame, "_index") or "_index"
        index = _at(frame, name)
        if index is None:
            raise ValueError(f"must have the array {name!r} that its attribute _index names")
        if _is_array(index):
            values = _whole(_plain(index, 1), limit, n)
        elif _at(index, "categories") is not None:
            codes, categories = _whole(_member(index, "codes"), limit, n), _whole(_member(index, "categories"), limit)
            if codes.dtype.kind not in "iu":
                raise ValueError(f"codes must hold integers; got {codes.dtype}")
            if codes.size and not (0 <= codes.min() and codes.max() < categories.size):
                raise ValueError(f"codes must lie in [0, {categories.size}); got {codes.min()} to {codes.max()}")
            values = categories[codes]
        else:  # of texts that may be missing
            values = _whole(_member(index, "values"), limit, n)
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()]


def _whole(array: Any, limit: limits.Limit, n: int | None = None) -> np.ndarray:
    """All of an array of names, which must be `n`."""
    size = array.shape[0]
    if n not in (None, size):
        raise ValueError(f"must be as many as the matrix has, {n}; got {size}")
    limit.require(size * max(_NAME_BYTES, array.dtype.itemsize), f"{size} names need")
    return np.asarray(array[...])


def _taken(array: Any, start: int, stop: int, update: Update = lambda *done: None) -> np.ndarray:
    """Entries ``start .. stop - 1`` of an array of one dimension, read in whole chunks, some at a time."""
    chunk = (getattr(array, "chunks", None) or (1,))[0]
    step = max(1, PIECE // array.dtype.itemsize // chunk) * chunk
    out = np.empty(stop - start, array.dtype)
    for at in range(start // step * step, stop, step):
        first, last = max(at, start), min(at + step, stop)
        out[first - start : last - start] = array[first:last]
        update(last * array.dtype.itemsize, stop * array.dtype.itemsize)
    return out
