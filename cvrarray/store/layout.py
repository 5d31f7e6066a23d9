"""What lies on the disk: a Zarr v3 hierarchy, one array of bytes a panel, written so that a panel is there or is not.

::

    matrix.zarr/
      zarr.json                 group: what all panels share (Root)
      panels/zarr.json          group
      panels/00000003/c/0       the one chunk, uncompressed: the panel's tables one after the other
      panels/00000003/zarr.json array of n_bytes uint8; its attribute "cvrarray" is the manifest (Panel)

1. Every table begins at a multiple of 256 bytes, little-endian, C order, in the order of :mod:`cvrarray.files.cvra`.
2. The manifest holds the rows, what ``cvrarray.json`` of a ``.cvra`` holds, the offset of each table, the CRC-32 of each
   piece of the bytes, and the store's id. ``crc32`` is the CRC-32 of the manifest itself without it, as sorted JSON.
3. The bytes are on the disk before the manifest takes its name by a rename: a panel counts when its manifest is there.
4. Panel k + 1 begins with the row after panel k's last.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import __version__
from ..array.base import SparseArray
from ..core import devices
from ..cpu.runtime import memory
from ..files import cvra
from ..files.guards import naming

VERSION = 1  #: of the stores that are written, and the newest that is read
PIECE = 4 << 20  #: bytes under one checksum; read and checked by one thread, in cache

_MAGIC = "cvrarray store"
_KEY = "cvrarray"  # the attribute that holds what is ours
_ALIGNMENT = 256  # as cudaMalloc aligns


class Root(NamedTuple):
    """What all panels share. A field is None while it is not known."""

    id: str  # of this store: a panel of another does not count
    n_rows: int | None  # known at the end where panels are appended
    n_cols: int
    dtype: str | None  # as on the disk, "<f4"; from the first panel on
    format: str | None  # "cvr" or "bbcsr"; from the first panel on
    parameters: dict[str, int]  # keywords of the format's class
    rows: list[int] | None  # the first row of each panel, and n_rows; None where panels are appended
    source: str | None  # what the panels are made of: another source cannot go on with them
    n_panels: int | None  # None while the store is being written
    version: int = VERSION

    @property
    def complete(self) -> bool:
        """Whether all panels are there."""
        return self.n_panels is not None


class Panel(NamedTuple):
    """The manifest of one panel."""

    store: str  # the store's id
    rows: tuple[int, int]  # first row, and the one after the last
    n_bytes: int
    header: dict[str, Any]  # see cvrarray.files.cvra
    offsets: dict[str, int]  # where each table begins
    pieces: list[int]  # CRC-32 of each PIECE bytes

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return self.header["parameters"]["nnz"]


def folder(path: str, k: int) -> str:
    """Where panel `k` lies."""
    return os.path.join(path, "panels", f"{k:08d}")


def data_file(path: str, k: int) -> str:
    """The file with panel `k`'s bytes."""
    return os.path.join(folder(path, k), "c", "0")


def manifest_file(path: str, k: int) -> str:
    """The file whose being there makes panel `k` count."""
    return os.path.join(folder(path, k), "zarr.json")


# ------------------------------------------------------------------------------------------------ root


def create(path: str, root: Root) -> None:
    """A new store without panels.

    Raises
    ------
    FileExistsError
        Something is at `path` already.
    """
    os.makedirs(os.path.join(path, "panels"))
    write_json(os.path.join(path, "panels", "zarr.json"), _group({}))
    write_json(os.path.join(path, "zarr.json"), _group(_sealed({"magic": _MAGIC, **root._asdict()})))
    _sync_folder(os.path.dirname(os.path.abspath(path)))


def replace_root(path: str, root: Root) -> None:
    """Write what all panels share anew, atomically."""
    write_json(os.path.join(path, "zarr.json"), _group(_sealed({"magic": _MAGIC, **root._asdict()})))


def read_root(path: str) -> Root:
    """What all panels of the store at `path` share.

    Raises
    ------
    FileNotFoundError
        There is no store.
    ValueError
        The store is damaged, of a newer version, or not ours; the message names the file.
    """
    file = os.path.join(path, "zarr.json")
    with _read_json(file) as metadata:
        found = _ours(metadata)
        if found.get("magic") != _MAGIC:
            raise ValueError(f"must be a store of cvrarray.to_store, with the magic {_MAGIC!r}")
        version = found.get("version")
        if type(version) is int and version > VERSION:
            raise ValueError(
                f"has version {version} of the store; cvrarray {__version__} reads versions up to {VERSION}. Update cvrarray"
            )
        return Root(**{name: _unsealed(found)[name] for name in Root._fields})


def remove(path: str) -> None:
    """Remove the store at `path`, and nothing that is no store: its ``zarr.json`` goes first, so that no half is read.

    Raises
    ------
    ValueError
        What is there is no store of ours.
    """
    with suppress(FileNotFoundError):
        read_root(path)
        os.unlink(os.path.join(path, "zarr.json"))
        shutil.rmtree(path)


# ------------------------------------------------------------------------------------------------ a panel


def write_panel(path: str, store: str, k: int, first_row: int, A: SparseArray, pool: Executor | None = None) -> Panel:
    """Write `A` as panel `k`, and return its manifest once all of it is on the disk.

    Raises
    ------
    OSError
        The disk is full or cannot be written; the message names panel and file, and the panel does not count.
    """
    header, arrays = cvra.describe(A)
    offsets, n_bytes = {}, 0
    for name, array in arrays.items():
        offsets[name] = n_bytes
        n_bytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    n_bytes = max(n_bytes, _ALIGNMENT)
    content = memory.empty(n_bytes, np.uint8)
    content[:] = 0
    for name, array in arrays.items():
        # a table's bytes as they are; the disk is little-endian
        host = np.ascontiguousarray(devices.move(array, devices.CPU), array.dtype.newbyteorder("<"))
        content[offsets[name] : offsets[name] + host.nbytes] = host.reshape(-1).view(np.uint8)
    spans = range(0, n_bytes, PIECE)
    crcs = (map if pool is None else pool.map)(lambda start: zlib.crc32(content[start : start + PIECE]), spans)
    panel = Panel(store, (first_row, first_row + A.shape[0]), n_bytes, header, offsets, list(crcs))
    data, manifest = data_file(path, k), manifest_file(path, k)
    try:
        with suppress(FileNotFoundError):
            os.unlink(manifest)  # a panel that is written again does not count until it is whole
        os.makedirs(os.path.dirname(data), exist_ok=True)
        temporary = f"{data}.{secrets.token_hex(4)}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, data)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        for name in (os.path.dirname(data), folder(path, k)):
            _sync_folder(name)
        write_json(manifest, _array(n_bytes, _sealed(panel._asdict())))
        _sync_folder(os.path.join(path, "panels"))
    except OSError as error:
        raise _naming_panel(error, path, k, data) from error
    return panel


def read_manifest(path: str, k: int, root: Root) -> Panel:
    """The manifest of panel `k`.

    Raises
    ------
    FileNotFoundError
        The panel is not there.
    ValueError
        Its manifest is damaged or does not belong to the store.
    """
    file = manifest_file(path, k)
    try:
        with _read_json(file) as metadata:
            found = _unsealed(_ours(metadata))
            panel = Panel(**{name: found[name] for name in Panel._fields})
            panel = panel._replace(rows=tuple(panel.rows))
            cvra.check_header(panel.header)
            if panel.store != root.id:
                raise ValueError(f"belongs to another store, {panel.store}; this one is {root.id}. {_REMEDY}")
            shape = panel.rows[1] - panel.rows[0], root.n_cols
            if tuple(panel.header["shape"]) != shape:
                raise ValueError(f"must hold {shape[0]} x {shape[1]}; its header says {panel.header['shape']}. {_REMEDY}")
            expected = root.format, root.dtype
            if (panel.header["format"], panel.header["dtype"]) != expected:
                raise ValueError(f"must hold {expected}, as the store; got {panel.header['format'], panel.header['dtype']}")
            for name, table in panel.header["arrays"].items():
                size = int(np.prod(table["shape"], dtype=object)) * np.dtype(table["dtype"]).itemsize
                if not 0 <= panel.offsets[name] <= panel.n_bytes - size or panel.offsets[name] % _ALIGNMENT:
                    raise ValueError(f"table {name} must lie inside the panel, at a multiple of {_ALIGNMENT} bytes")
            if len(panel.pieces) != -(-panel.n_bytes // PIECE):
                raise ValueError("must have a checksum a piece")
            return panel
    except FileNotFoundError as error:
        raise _naming_panel(error, path, k, file) from error
    except ValueError as error:
        raise ValueError(f"panel {k} of {path}: {error}") from error


def is_whole(path: str, k: int, panel: Panel) -> bool:
    """Whether the file with the panel's bytes is there and as long as its manifest says; nothing is read."""
    with suppress(FileNotFoundError):
        return os.path.getsize(data_file(path, k)) == panel.n_bytes
    return False


def read_panel(path: str, k: int, panel: Panel, out: np.ndarray, verify: bool = True) -> None:
    """The bytes of panel `k` into `out`, (panel.n_bytes,) uint8.

    Raises
    ------
    FileNotFoundError
        The file is missing.
    ValueError
        The file is shorter or longer than the manifest says, or a piece does not match its checksum.
    """
    for i in range(len(panel.pieces)):
        read_piece(path, k, panel, i, out, verify)


def read_piece(path: str, k: int, panel: Panel, i: int, out: np.ndarray, verify: bool) -> None:
    """Piece `i` of :func:`read_panel`: pieces may be read by several threads at once."""
    name = data_file(path, k)
    start = i * PIECE
    content = memoryview(out)[start : min(start + PIECE, panel.n_bytes)]
    try:
        with open(name, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != panel.n_bytes:
                raise ValueError(f"panel {k} of {path}: {name} must have {panel.n_bytes} bytes; it has {size}. {_REMEDY}")
            file.seek(start)
            done = 0
            while done < len(content):
                n_bytes = file.readinto(content[done:])
                if not n_bytes:
                    raise ValueError(f"panel {k} of {path}: {name} ends at byte {start + done}. {_REMEDY}")
                done += n_bytes
    except OSError as error:
        raise _naming_panel(error, path, k, name) from error
    if verify and zlib.crc32(content) != panel.pieces[i]:
        raise ValueError(
            f"panel {k} of {path}: bytes {start} to {start + len(content)} of {name} do not match their checksum. {_REMEDY}"
        )


def assemble(panel: Panel, content: Any) -> SparseArray:
    """The array in a panel's bytes, a uint8 array on any device that lives on: tables are views of it."""
    arrays = {}
    for name, table in panel.header["arrays"].items():
        dtype, start = np.dtype(table["dtype"]), panel.offsets[name]
        n_bytes = int(np.prod(table["shape"])) * dtype.itemsize
        values = content[start : start + n_bytes].view(dtype).reshape(table["shape"])
        arrays[name] = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
    return cvra.assemble(panel.header, arrays)


_REMEDY = "The file is damaged: remove the panel's folder, and write it again with to_store(..., resume=True)"


def _naming_panel(error: OSError, path: str, k: int, file: str) -> OSError:
    """`error` of the same kind and number, with panel and file in it."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(
            errno.ENOENT, f"panel {k} of {path} is missing; write it again with to_store(..., resume=True)", file
        )
    return OSError(error.errno, f"panel {k} of {path}: {os.strerror(error.errno) if error.errno else error}", file)


# ------------------------------------------------------------------------------------------------ Zarr's metadata


def _group(attributes: dict[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": {_KEY: attributes} if attributes else {}}


def _array(n_bytes: int, attributes: dict[str, Any]) -> dict[str, Any]:
    """The metadata of n_bytes uint8 in one chunk as it is."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [n_bytes],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [n_bytes]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {_KEY: attributes},
    }


def _ours(metadata: Any) -> dict[str, Any]:
    found = metadata.get("attributes", {}).get(_KEY) if isinstance(metadata, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"must be a Zarr v3 node with the attribute {_KEY!r}")
    return found


def _sealed(attributes: dict[str, Any]) -> dict[str, Any]:
    return {**attributes, "crc32": _crc(attributes)}


def _unsealed(attributes: dict[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in attributes.items() if name != "crc32"}
    if attributes.get("crc32") != _crc(content):
        raise ValueError(f"does not match its checksum. {_REMEDY}")
    return content


def _crc(attributes: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(attributes, sort_keys=True, separators=(",", ":")).encode())


def write_json(file: str, content: dict[str, Any]) -> None:
    """`file` with `content`, atomically: as it was before, or all of it."""
    temporary = f"{file}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as stream:
            stream.write(json.dumps(content, indent=1).encode())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(os.path.dirname(file))


@contextmanager
def _read_json(file: str) -> Iterator[Any]:
    """The JSON in `file`; what is wrong with it, there or in the body, is a ValueError that names it."""
    text = Path(file).read_bytes()
    with naming(file):
        yield json.loads(text)


def _sync_folder(name: str) -> None:
    """Make the names in a folder survive a crash of the machine; Windows cannot and needs not."""
    if sys.platform == "win32":
        return
    descriptor = os.open(name, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
