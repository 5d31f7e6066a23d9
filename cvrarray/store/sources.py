"""``to_store``: what a store is made of. Every source becomes panels of rows, none is ever held whole."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from ..array.format import FormatArray
from ..bbcsr import BLOCK_SIZES
from ..choice.panels import block_size, decided, panel_rows
from ..core import devices
from ..core.progress import Update, shown
from ..files import anndata, check_no_group, matrix_market, read_csr
from ..files.guards import BLOCK, naming, uncompressed
from ..input import coercion, partition
from . import layout, spool
from .lock import WriterLock, beside
from .stream import Stored
from .writer import Writer

_NOT_PARAMETERS = ("format", "device", "resume", "overwrite", "values", "names")  # of a format's class

#: Text of a Matrix Market file that is parsed at a time.
TEXT_BYTES = 64 << 20


def to_store(
    source: Any,
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, int] | None = None,
    group: str | None = None,
    chunks: int | str = "auto",
    format: str = "auto",
    device: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    name: str | None = None,
    **parameters: Any,
) -> None:
    """Write a matrix that need not fit in memory to a store on disk, panel of rows by panel of rows.

    Panels are converted to one of our formats here, so that reading them is all that a product has to do. What is on
    the disk is never lost: after a full disk or a kill, the same call with ``resume=True`` goes on.

    Parameters
    ----------
    source : dask array, path, Stored, iterable of pieces, or any matrix that :func:`cvrarray.asarray` takes
        A dask array's rows of chunks are the panels; its chunks may be of ours, pydata COO, SciPy, CuPy or dense. It is
        computed by Dask's scheduler; with several machines `path` must be on a disk that they share.
        A path is that of a Matrix Market file (plain, gzip or bzip2) or of an HDF5 file or a Zarr hierarchy of AnnData's,
        which are read in pieces, or of any other file that :func:`cvrarray.read` takes, which is read whole. Of AnnData's
        a `csr_matrix` is read panel by panel; a `csc_matrix` and a dense array are set aside by rows on the disk first,
        16 bytes and more an entry beside the store. Names of cells and genes are kept: see :attr:`Stored.row_names`.
        A :class:`Stored` is written with its functions applied, in its panels: ``to_store(np.log1p(S), path)``.
        Pieces are triplets (row, col, val) of arrays, with `shape` given: any order, duplicates are summed.
    path : str or os.PathLike[str]
        A folder that does not exist yet, by convention ``*.store``.
    shape : (n_rows, n_cols), optional
        For pieces, and only for them.
    group : str, optional
        Of an HDF5 file or a Zarr hierarchy, as for :func:`cvrarray.read`.
    chunks : int or str
        Bytes of a panel, such as ``"512 MiB"``, an int too: rows are meant by :func:`cvrarray.to_dask` alone. ``"auto"`` is
        256 MiB. For a dask array its own chunks count, of a
        `Stored` its panels: rechunk the former.
    format, device, **parameters
        As for :func:`cvrarray.asarray`; ``"auto"`` chooses what suits the first panel, and all are made so.
    resume : bool
        Go on with the store at `path`; write it anew if there is none. Panels that are there are not made again, but
        entries in any order are all read again. Nothing is done for a store that is complete.
    overwrite : bool
        Remove the store at `path` first.
    name : str, optional
        What the source is called in the store; `resume` needs the same. Default: a file's name, size and time of
        change, a dask array's name, shape, dtype and checksum of any other. A dask array of ``dask.delayed`` has another
        name in each process, unless it is ``dask.delayed(load, pure=True)``: pass a name to resume.

    Raises
    ------
    BlockingIOError
        Another process or thread is writing the store; the message names it. A store has one writer at a time.
    FileExistsError
        Something is at `path`, and neither `resume` nor `overwrite` is asked for.
    OSError
        The disk is full, or cannot be written; the message names the panel. Panels before it stay.
    TypeError, ValueError
        `source` is no matrix, or a piece of it is not; `resume` finds a store of another source, or `overwrite` would
        remove the store that `source` is read from.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/matrix.store"
    >>> pieces = [([0, 1], [0, 2], [1.0, 2.0]), ([3, 0], [1, 0], [4.0, 3.0])]
    >>> cvrarray.to_store(pieces, path, shape=(4, 3), device="cpu")
    >>> cvrarray.Stored(path, device="cpu") @ np.ones(3)
    array([4., 2., 0., 4.])
    """
    bytes_of_panel = partition.PANEL_BYTES if chunks == "auto" else partition.n_bytes(chunks, "chunks")
    if resume and overwrite:
        raise ValueError("resume and overwrite exclude each other")
    if group is not None and not isinstance(source, str | os.PathLike):
        raise ValueError(f"group needs the path of a file; got {type(source).__name__}. Leave the group out")
    path = os.path.realpath(os.fsdecode(path))
    with WriterLock(path) as lock:
        common = {"format": format, "device": device, "resume": resume, "overwrite": overwrite, **parameters}
        try:
            if shape is not None:
                _from_pieces(iter(source), coercion.check_shape(shape), lock, bytes_of_panel, name, common)
            elif isinstance(source, Stored):
                _from_stored(source, lock, name, common)
            elif hasattr(source, "__dask_graph__"):
                _from_dask(source, lock, name or source.name, common)
            elif isinstance(source, str | os.PathLike):
                _from_file(os.fsdecode(source), group, lock, bytes_of_panel, name, common)
            elif isinstance(source, Iterator):
                raise TypeError(
                    f"pieces of a matrix must come with its shape; got {type(source).__name__} alone. "
                    "Pass shape=(n_rows, n_cols)"
                )
            else:
                _from_matrix(source, lock, bytes_of_panel, name, common)
        finally:
            spool.remove(beside(path, "spool"))  # that of a writer who was killed, too


def _from_file(
    source: str, group: str | None, lock: WriterLock, bytes_of_panel: int, name: str | None, common: dict[str, Any]
) -> None:
    """A file: by rows or in pieces where it lists entries so, else whole."""
    if anndata.recognised(source):
        with anndata.opened(source, group) as matrix:
            _from_anndata(matrix, lock, bytes_of_panel, name, common)
        return
    check_no_group(source, group)
    status = os.stat(source)
    name = name or f"{os.path.basename(source)}, {status.st_size} bytes of {status.st_mtime_ns}"
    with open(source, "rb") as raw:
        head = raw.read(16)
        raw.seek(0)
        file, most = uncompressed(raw, head)
        with naming(source):
            banner = file.readline(BLOCK).lower().lstrip(b" \t")
            file.seek(0)
            lists_entries = banner.startswith(b"%") and b"coordinate" in banner
            if lists_entries:
                shape, pieces = matrix_market.read_pieces(file, most * status.st_size, TEXT_BYTES)
        if lists_entries:
            _from_pieces(_named(source, pieces), shape, lock, bytes_of_panel, name, common)
            return
    _from_matrix(read_csr(source), lock, bytes_of_panel, name, common)


def _from_anndata(
    matrix: anndata.Matrix, lock: WriterLock, bytes_of_panel: int, name: str | None, common: dict[str, Any]
) -> None:
    """A matrix of AnnData's: panels of rows as they come where it lies by rows, else in pieces."""
    name, common = name or matrix.name, {**common, "names": matrix.names()}
    if not matrix.by_rows:
        _from_pieces(matrix.pieces(), matrix.shape, lock, bytes_of_panel, name, common)
        return
    size, align = _cutting(common)
    index = coercion.index_dtype(matrix.shape).itemsize
    before = partition.bytes_before(np.diff(matrix.indptr), matrix.dtype.itemsize, index, size)
    rows = partition.cut(before, bytes_of_panel, align)
    with shown("writing", len(rows) - 1, "panels") as update:
        with Writer(lock, matrix.shape[1], rows, source=name, **common) as writer, ThreadPoolExecutor(1) as pool:
            missing = writer.missing()
            reads = (pool.submit(matrix.rows, *rows[k : k + 2]) for k in missing)  # begun when it is asked for
            ahead = list(islice(reads, 1))
            for k in missing:
                update(k)
                csr = ahead.pop().result()
                ahead.extend(islice(reads, 1))  # the next panel is read while this one is converted and written
                writer.write(k, csr)


def _cutting(common: dict[str, Any]) -> tuple[int | None, int]:
    """The block size to reckon with, and the multiple of rows at which panels may begin, before there is a matrix."""
    size = block_size(common["format"], common)
    align = math.lcm(*BLOCK_SIZES) if common["format"] == "auto" else size or 1  # any that may be chosen
    return size, partition.alignment(align)


def _from_stored(source: Stored, lock: WriterLock, name: str | None, common: dict[str, Any]) -> None:
    """Another store, with what its functions make of its panels; these stay as they are cut."""
    if os.path.realpath(source.path) == lock.path:
        raise ValueError(f"what is written must not be read from the same store; got {lock.path}. Write to another")
    if common["format"] == "auto":
        common = {**common, "format": source.format, **source._root.parameters}
    name = name or f"store {source._root.id}, functions {layout.checksum(pickle.dumps(source._steps))}"
    names = source.row_names, source.column_names
    with shown("writing", source.n_panels, "panels") as update:
        with Writer(lock, source.shape[1], source.rows, source=name, names=names, **common) as writer:
            for k in writer.missing():
                update(k)
                writer.write(k, source.panel(k))


def _named(source: str, pieces: Iterator[Any]) -> Iterator[Any]:
    with naming(source):
        yield from pieces


def _from_matrix(source: Any, lock: WriterLock, bytes_of_panel: int, name: str | None, common: dict[str, Any]) -> None:
    """A matrix in memory."""
    if isinstance(source, FormatArray):
        common = {**common, "names": (source.row_names, source.column_names)}
        if common["format"] == "auto":
            common = {**common, "format": source.format, **source._parameters()}
    csr = coercion.as_csr(source)
    target = devices.default() if common["device"] is None else devices.parse(common["device"])
    how = {key: value for key, value in common.items() if key not in _NOT_PARAMETERS}
    format, how = decided(csr, common["format"], how, target.kind)
    common = {**common, "format": format, **how}
    rows = panel_rows(csr, bytes_of_panel, block_size(format, how))
    if name is None:
        checksum = layout.checksum(*(devices.move(part, devices.CPU) for part in csr[:3]))
        name = f"matrix of shape {csr.shape}, {csr.data.dtype}, {csr.nnz} entries, checksum {checksum}"
    with shown("writing", len(rows) - 1, "panels") as update:
        with Writer(lock, csr.shape[1], rows, source=name, **common) as writer:
            for k in writer.missing():
                update(k)
                writer.write(k, partition.rows(csr, *rows[k : k + 2]))


def _from_pieces(
    pieces: Iterable[Any],
    shape: tuple[int, int],
    lock: WriterLock,
    bytes_of_panel: int,
    name: str | None,
    common: dict[str, Any],
) -> None:
    """Entries in any order: set aside by rows beside the store, then panel by panel."""
    entries = spool.Spool(beside(lock.path, "spool"), shape)
    if common["overwrite"]:
        layout.remove(lock.path)
    elif not common["resume"]:
        if os.path.lexists(lock.path):
            Writer(lock, shape[1], [0, shape[0]])  # raises
    elif not layout.remains(lock.path):
        root = layout.read_root(lock.path)
        writer = Writer(lock, shape[1], root.rows, source=root.source if name is None else name, **common)
        writer.release()
        if writer.complete and not writer.missing():
            return
    with shown("setting entries aside", unit="pieces") as update:
        entries.fill(_counted(pieces, update))
    size, align = _cutting(common)
    rows = entries.cut(bytes_of_panel, align, size)
    name = name or f"entries of shape {shape}, {entries.dtype}, checksum {entries.checksum.hexdigest()}"
    with shown("writing", len(rows) - 1, "panels") as update:
        with Writer(lock, shape[1], rows, source=name, **common) as writer:
            for k, csr in entries.panels(rows, writer.missing()):
                update(k)
                writer.write(k, csr)


def _counted(pieces: Iterable[Any], update: Update) -> Iterator[Any]:
    for k, piece in enumerate(pieces):
        update(k)
        yield piece


def _from_dask(source: Any, lock: WriterLock, name: str, common: dict[str, Any]) -> None:
    """The chunks of a dask array: a task a panel, in Dask's scheduler, each of which writes what it has."""
    import dask

    if source.ndim != 2:
        raise ValueError(f"a matrix must have 2 dimensions; got a dask array of shape {source.shape}")
    if any(np.isnan(n) for sizes in source.chunks for n in sizes):
        raise ValueError("the chunks of a dask array must have known sizes. Call compute_chunk_sizes() first")
    if common["overwrite"] and _reads(source, lock.path):
        raise ValueError(
            f"what is written must not be read from the store that is overwritten; got {lock.path}. Write to another"
        )
    rows = [0, *np.cumsum(source.chunks[0]).tolist()]
    with Writer(lock, source.shape[1], rows, source=name, **common) as writer:
        missing = writer.missing()
        blocks = source.rechunk({1: -1}).to_delayed().ravel()  # chunks side by side become one
        write = dask.delayed(Writer.write, pure=False)
        if missing and not writer.started:  # the first decides the format of all
            dask.compute(write(writer, missing[0], blocks[missing[0]]))
            writer.refresh()
            del missing[0]
        dask.compute([write(writer, k, blocks[k]) for k in missing])


def _reads(source: Any, path: str) -> bool:
    """Whether a dask array comes from ``open_store(path)``; its tasks may be fused, and lie in the arguments of others."""
    return any(name.startswith(layout.layer_name(path)) for name in _names(dict(source.__dask_graph__())))


def _names(part: Any) -> Iterator[str]:
    """All texts in a part of Dask's graph, names of its tasks among them."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        yield from _names(tuple(part.items()))
    elif isinstance(part, tuple | list):
        for inner in part:
            yield from _names(inner)
    elif hasattr(part, "args") and hasattr(part, "kwargs"):  # a task
        yield from _names((part.args, part.kwargs))
