"""Files: matrices in other programs' formats in, arrays of ours out and in.

====================================  ============================================
:mod:`cvrarray.files.matrix_market`   ``.mtx``, also compressed by gzip or bzip2
:mod:`cvrarray.files.npz`             ``.npz`` of SciPy and of pydata/sparse
:mod:`cvrarray.files.anndata`         AnnData's ``.h5ad``, and Zarr hierarchies
:mod:`cvrarray.files.cvra`            ``.cvra``: ours, which is mapped into memory
====================================  ============================================

What a file is shows in its first bytes and its members; its name does not matter. A file is never trusted: one that is
cut, damaged or dishonest is a ValueError that names the file, the fault and the place; nothing in a file is ever
executed (no pickles), and sizes that it claims are held against the file's length before memory is asked for: reading
takes at most ``limits.MAX_BYTES`` (256 MiB) or 100 times the file's size, whichever is more, unless `max_bytes` or the
environment's ``CVRARRAY_MAX_BYTES`` allows more (:class:`cvrarray.input.limits.Limit`). A MemoryError stays one.
Refused here: what is no regular file (a Zarr hierarchy is a folder), an archive of files, and any format but these.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, BinaryIO

from ..array.base import SparseArray
from ..array.transposed import TransposedArray
from ..choice.construct import asarray
from ..core import atomic, devices
from ..core.progress import Update, shown
from ..core.tables import CSR
from ..input import coercion
from ..input.limits import Limit
from . import anndata, cvra, matrix_market, npz
from .guards import members, naming, uncompressed


def read(
    path: str | os.PathLike[str],
    *,
    group: str | None = None,
    format: str = "auto",
    device: Any = None,
    max_bytes: int | str | None = None,
) -> SparseArray:
    """The matrix in a file as an array of ours, as :func:`cvrarray.asarray` makes it.

    Of AnnData's files, the names of cells and genes are the attributes `row_names` and `column_names` of the array: arrays
    of texts, or None. Arrays that are computed from it do not have them.

    Parameters
    ----------
    path
        Matrix Market, plain or compressed by gzip or bzip2; ``.npz`` of ``scipy.sparse.save_npz`` or ``sparse.save_npz``;
        a file of :func:`save`; AnnData's ``.h5ad`` (``pip install 'cvrarray[h5ad]'``), or the folder of a Zarr hierarchy of
        version 2 or 3 (``'cvrarray[zarr]'``).
    group
        Where in an ``.h5ad`` or a Zarr hierarchy the matrix is: ``"layers/counts"``, ``"raw/X"``, ``"obsp/distances"``. It
        is a ``csr_matrix``, a ``csc_matrix``, or a dense array, of which what is not 0 is read. Default: ``"X"``, or the
        root where that is a matrix.
    format
        ``"auto"``, ``"cvr"`` or ``"bbcsr"``.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: the GPU when there is one.
    max_bytes
        Memory that reading a small file may ask for: a count, or a text such as ``"4 GiB"``. A few bytes can promise
        any number of rows, and a compressed file can hold a thousand times its size; what takes more than `max_bytes`,
        and more than 100 times the file's size, is refused. Raise it for a matrix of very many empty rows, from a
        source that you trust. Default: the environment variable ``CVRARRAY_MAX_BYTES``, else 256 MiB.

    Raises
    ------
    ValueError
        The file is damaged, not one of these or asks for more memory than `max_bytes`; the message names it and, where
        that can be known, the line or member, or the group and its encoding.
    ImportError
        h5py or zarr is not installed.
    MemoryError
        There is not enough memory.
    FileNotFoundError, IsADirectoryError, PermissionError
        As :func:`open` raises them.

    Examples
    --------
    >>> import cvrarray, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tall.mtx"
    >>> _ = path.write_text("%%MatrixMarket matrix coordinate real general\\n100000 3 1\\n7 2 1.5\\n")
    >>> cvrarray.read(path).shape
    (100000, 3)
    >>> cvrarray.read(path, max_bytes="1 MiB")
    Traceback (most recent call last):
    ...
    ValueError: ...tall.mtx: line 2: 100000 rows need 1.6 MiB; the limit for a file of 65 bytes is 1 MiB. ...
    """
    found, names = _read(path, max_bytes, group)
    array = asarray(found, format=format, device=device)
    array.row_names, array.column_names = names
    return array


def read_csr(path: str | os.PathLike[str], *, group: str | None = None, max_bytes: int | str | None = None) -> Any:
    """The matrix in a file as a canonical ``scipy.sparse.csr_array``; parameters and errors of :func:`read`.

    Explicit zeros are kept. float16, which SciPy does not hold, becomes float32.
    """
    return _as_scipy(_read(path, max_bytes, group)[0])


def read_stored(path: str | os.PathLike[str], *, group: str | None = None, max_bytes: int | str | None = None) -> Any:
    """The matrix in a file as it is stored: an array of ours on the CPU from a file of ours, else as :func:`read_csr`."""
    found, _ = _read(path, max_bytes, group)
    return found if isinstance(found, SparseArray) else _as_scipy(found)


def _as_scipy(found: CSR | SparseArray) -> Any:
    from scipy.sparse import csr_array

    csr = coercion.as_csr(found)
    return csr_array((csr.data.astype(coercion.wide(csr.data.dtype), copy=False), csr.indices, csr.indptr), shape=csr.shape)


def save(path: str | os.PathLike[str], A: SparseArray) -> None:
    """Write an array of ours to a file, by convention ``*.cvra``, that :func:`load` maps into memory.

    Where values are stored in few bytes (``A.plan`` says so), the file has version 2 of the format, else version 1. To
    write version 1 of any matrix, make the array with ``values="plain"``.

    The file appears whole or not at all: what stood at `path` before stays until all is on the disk. An array on a GPU
    is copied to the host table by table; a transposed view is converted first.

    Parameters
    ----------
    path
        A link stays one, and a file that is replaced hands on its mode.
    A
        A :class:`cvrarray.CVRArray` or :class:`cvrarray.BBCSRArray`.

    Raises
    ------
    TypeError
        `A` is no array of ours.
    OSError
        The file cannot be written. Nothing is left behind, and an older file is as it was.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/matrix.cvra"
    >>> cvrarray.save(path, cvrarray.CVRArray([[1.0, 0], [0, 2.0]]))
    >>> cvrarray.load(path) @ np.ones(2)
    array([1., 2.])
    """
    if not isinstance(A, SparseArray):
        raise TypeError(f"save needs a CVRArray or BBCSRArray; got {type(A).__name__}. Use cvrarray.asarray first")
    if isinstance(A, TransposedArray):  # a file holds tables, and a view has none
        A = A.copy()
    with shown(f"writing {os.path.basename(os.fsdecode(path))}", A.nbytes, "B") as update:
        with replacing(path, update) as file:
            cvra.write(file, A)


def load(path: str | os.PathLike[str], *, device: Any = None, verify: bool = True) -> SparseArray:
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

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/matrix.cvra"
    >>> cvrarray.save(path, cvrarray.CVRArray([[1.0, 0], [0, 2.0]], n_lanes=4))
    >>> A = cvrarray.load(path)
    >>> A.shape, A.n_lanes, A.device
    ((2, 2), 4, 'cpu')
    """
    path = os.fsdecode(path)
    target = devices.CPU if device is None else devices.parse(device)
    with _reading(path) as update, naming(path), _open(path, update) as file:
        head = file.peek(_HEAD)[:24]
        if not head.startswith(_ZIP):
            raise ValueError(f"must be a file of cvrarray.save; it begins with {head!r}. Try cvrarray.read")
        with zipfile.ZipFile(file) as archive:
            A = cvra.read(file, archive, verify)
        if verify:
            A.check()
    return A.to_device(target)


# ------------------------------------------------------------------------------------------------ what a file is

_HEAD = 512  # bytes that show a file's kind
_BUFFER = 1 << 16  # bytes: what is larger is read past it
_ZIP, _BANNERS = b"PK", (b"%%MatrixMarket", b"%MatrixMarket")


def _reading(path: str | os.PathLike[str]) -> AbstractContextManager[Update]:
    return shown(f"reading {os.path.basename(os.fsdecode(path))}", unit="B")


def _read(
    path: str | os.PathLike[str], max_bytes: int | str | None, group: str | None
) -> tuple[CSR | SparseArray, anndata.Names]:
    """The matrix in a file of any kind, an array of ours where it is a file of ours; and its names."""
    path = os.fsdecode(path)
    Limit(0, max_bytes)  # a wrong one is no fault of the file
    if anndata.recognised(path):
        with _reading(path) as update, anndata.opened(path, group, max_bytes) as matrix:
            return matrix.csr(update), matrix.names()
    check_no_group(path, group)
    found: CSR | SparseArray
    with _reading(path) as update, naming(path), _open(path, update) as file:
        size = os.fstat(file.fileno()).st_size
        limit = Limit(size, max_bytes)
        head = file.peek(_HEAD)
        if not head:
            raise ValueError("is empty")
        if head.startswith(_ZIP):
            with zipfile.ZipFile(file) as archive:
                if cvra.HEADER in members(archive):
                    found = array = cvra.read(file, archive, verify=True)
                    array.check()
                else:
                    found = npz.read(archive, limit)
        else:
            text, most = uncompressed(file, head)
            found = _read_text(text, most * size, limit)
        update(size, size)
    return found, anndata.Names()


def check_no_group(path: str, group: str | None) -> None:
    """ValueError where a `group` is asked of a file that has none."""
    if group is not None and os.path.exists(path):
        raise ValueError(f"{path}: must be an HDF5 file or a Zarr hierarchy to have a group {group!r}. Leave the group out")


def _read_text(file: BinaryIO | gzip.GzipFile, size: int, limit: Limit) -> CSR:
    """The matrix in a text of at most `size` bytes."""
    head = file.read(_HEAD)
    file.seek(0)
    if head[257:262] == b"ustar":
        raise ValueError("is a tar archive. Unpack it, and read the .mtx file in it")
    if not head.lstrip(b" \t").startswith(_BANNERS):  # as SciPy reads
        raise ValueError(
            "must be a Matrix Market file (whose first line begins with %%MatrixMarket), an .npz of scipy.sparse or of "
            f"sparse, AnnData's .h5ad (HDF5), or a file of cvrarray.save; it begins with {head[:24]!r}"
        )
    return matrix_market.read(file, size, limit)


# ------------------------------------------------------------------------------------------------ open and replace


class _MeteredFile(io.FileIO):
    """A file that tells how far it has been read or written, and how long it is."""

    def __init__(self, path: str, update: Update, mode: str = "r", opener: Callable[[str, int], int] | None = None):
        super().__init__(path, mode, opener=opener)
        self._update, self._size = update, os.fstat(self.fileno()).st_size

    def readinto(self, buffer: Any) -> int | None:
        n_bytes = super().readinto(buffer)
        self._update(self.tell(), self._size)
        return n_bytes

    def write(self, buffer: Any) -> int:
        n_bytes = super().write(buffer)
        self._update(self.tell(), self._size)
        return n_bytes


def _open(path: str, update: Update) -> io.BufferedReader:
    """A regular file, open for reading. (Opening a pipe could wait for ever.)"""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError("must be a regular file. Write the data to one first")
    return io.BufferedReader(_MeteredFile(path, update), _BUFFER)


def check_target(path: str | os.PathLike[str]) -> str:
    """Where :func:`replacing` would put `path`, links resolved: to be asked before work whose result is to go there.

    Raises
    ------
    OSError
        There is no such folder, it may not be written to, or `path` is a folder.
    """
    target = os.path.realpath(os.fsdecode(path))  # a link stays one
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):  # else the error would name the temporary file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    if os.path.isdir(target):  # else there would be none until all is written
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
    return target


@contextmanager
def replacing(path: str | os.PathLike[str], update: Update = lambda *done: None) -> Iterator[BinaryIO]:
    """A new file, open for writing, that takes the place of `path` once all went well and is gone if not.

    It has the mode of the file that it replaces, from the start, so that nobody reads it who might not read that one.
    `update` is called with the bytes written so far.
    """
    with atomic.replacing(check_target(path), partial(_MeteredFile, update=update, mode="x")) as file:
        yield file
