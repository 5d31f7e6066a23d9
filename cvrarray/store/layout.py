"""What lies on the disk: a folder of files, two a panel, written so that a panel is there or is not.

::

    matrix.store/
      store.json       what all panels share (Root)
      names.json       what rows and columns are called, where they have names
      00000003.tables  the panel's tables one after the other
      00000003.json    its manifest (Panel)

1. Every table begins at a multiple of 256 bytes, little-endian, C order, in the order of :mod:`cvrarray.files.cvra`.
2. The manifest holds the rows, what ``cvrarray.json`` of a ``.cvra`` holds, the offset of each table, the checksum of
   each piece of the bytes, and the store's id. ``checksum`` is that of the manifest itself without it, as sorted JSON.
   Checksums are XXH3 of 64 bits.
3. The bytes are on the disk before the manifest takes its name by a rename: a panel counts when its manifest is there.
4. The root has the first row of each panel from the beginning; panels may come in any order.
5. The root has the checksum of the names. These are on the disk before the first panel.
6. A root without a format is that of a store without panels, whatever lies beside it: what a writer was stopped in that
   had only begun, or had only begun to remove a store. It is as good as nothing, and so is a folder with nothing in it.
"""

from __future__ import annotations

import errno
import json
import math
import operator
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xxhash

from .. import formats
from ..array import serialized
from ..array.base import SparseArray
from ..core import atomic, devices
from ..cpu.runtime import memory
from ..files import cvra
from ..files.guards import naming
from ..input import coercion

VERSION = 2  #: of the stores that are written and read; those with CRC-32 checksums, of earlier checkouts, had 1
PIECE = 4 << 20  #: bytes under one checksum, read at once by one thread: smaller ones make threads wait for the GIL

_MAGIC = "cvrarray store"
_FILES = re.compile(r"[0-9]{8,}\.(tables|json)|names\.json")  # of panels, and names
_ALIGNMENT = 256  # as cudaMalloc aligns


class Root(NamedTuple):
    """What all panels share."""

    id: str  # of this store: a panel of another does not count
    n_cols: int
    rows: list[int]  # the first row of each panel, and n_rows
    source: str | None  # what the panels are made of: another source cannot go on with them
    dtype: str | None = None  # as on the disk, "<f4"; None until there is a panel
    format: str | None = None  # "cvr" or "bbcsr"; None until there is a panel
    parameters: dict[str, int] = {}  # keywords of the format's class  # noqa: RUF012
    complete: bool = False  # whether all panels are there
    version: int = VERSION
    names: int | None = None  # checksum of the file with names, where there is one


class Panel(NamedTuple):
    """The manifest of one panel."""

    store: str  # the store's id
    rows: list[int]  # first row, and the one after the last
    n_bytes: int
    header: dict[str, Any]  # see cvrarray.files.cvra
    offsets: dict[str, int]  # where each table begins
    pieces: list[int]  # checksum of each PIECE bytes

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return int(self.header["parameters"]["nnz"])


def root_file(path: str) -> str:
    """The file with what all panels share."""
    return os.path.join(path, "store.json")


def data_file(path: str, k: int) -> str:
    """The file with panel `k`'s bytes."""
    return os.path.join(path, f"{k:08d}.tables")


def manifest_file(path: str, k: int) -> str:
    """The file whose being there makes panel `k` count."""
    return os.path.join(path, f"{k:08d}.json")


def names_file(path: str) -> str:
    """The file with the names of rows and columns."""
    return os.path.join(path, "names.json")


def layer_name(path: str) -> str:
    """How the names of the layers of Dask's graphs begin that read the store at `path`."""
    return f"open_store-{checksum(os.fsencode(os.path.realpath(path))):016x}-"


# ------------------------------------------------------------------------------------------------ root


def replace_root(path: str, root: Root) -> None:
    """Write what all panels share anew, atomically."""
    write_json(root_file(path), sealed({"magic": _MAGIC, **root._asdict()}))


def read_root(path: str) -> Root:
    """What all panels of the store at `path` share.

    Raises
    ------
    FileNotFoundError
        There is no store.
    ValueError
        The store is damaged, of a newer version, or not ours; the message names the file.
    """
    with _read_json(root_file(path)) as found:
        if found.get("magic") != _MAGIC:
            raise ValueError(f"must be a store of cvrarray.to_store, with the magic {_MAGIC!r}")
        version = found.get("version")
        if type(version) is int and version != VERSION:
            from .. import __version__

            remedy = "Update cvrarray" if version > VERSION else "Write the store anew"
            raise ValueError(f"has version {version} of the store; cvrarray {__version__} reads version {VERSION}. {remedy}")
        content = unsealed(found, "The file is damaged: remove the folder of the store, and write all of it again")
        root = Root(**{name: content[name] for name in Root._fields if name in content or name != "names"})
        _check_root(root)
        return root


def pack_names(names: Sequence[Any], shape: tuple[int, int]) -> bytes | None:
    """The contents of ``names.json`` for the names of rows and of columns, each a sequence of texts or None; None
    where there are neither.

    Raises
    ------
    ValueError
        They are not as many as there are rows, or columns.
    """
    texts = [None if of_axis is None else list(map(str, of_axis)) for of_axis in names]
    for axis, found, n in zip(("row", "column"), texts, shape, strict=True):
        if found is not None and len(found) != n:
            raise ValueError(f"{axis}_names must be as many as {axis}s, {n}; got {len(found)}")
    return None if texts == [None, None] else json.dumps({"rows": texts[0], "columns": texts[1]}).encode()


def read_names(path: str, root: Root) -> tuple[np.ndarray | None, np.ndarray | None]:
    """What rows and columns of the store at `path` are called: arrays of texts, or None.

    Raises
    ------
    FileNotFoundError, ValueError
        The file with the names is missing or damaged.
    """
    if root.names is None:
        return None, None
    with _read_json(names_file(path), root.names) as found:
        return _names(found.get("rows"), root.rows[-1]), _names(found.get("columns"), root.n_cols)


def _names(texts: Any, n: int) -> np.ndarray | None:
    if texts is None:
        return None
    if not (isinstance(texts, list) and len(texts) == n and all(isinstance(text, str) for text in texts)):
        raise ValueError(f"must hold {n} texts for each axis that has names")
    names = np.empty(n, object)
    names[:] = texts
    return names


def _check_root(root: Root) -> None:
    """ValueError unless every field is of the right kind and agrees with the others."""
    require = partial(_require, root)
    require("version", root.version == VERSION, f"version {VERSION}")
    require("id", isinstance(root.id, str), "a text")
    require("source", isinstance(root.source, str | None), "a text or null")
    require("n_cols", _is_count(root.n_cols), "a count")
    ascend = isinstance(root.rows, list) and len(root.rows) > 1 and all(map(_is_count, root.rows))
    ascend = ascend and root.rows[0] == 0 and all(map(operator.le, root.rows[:-1], root.rows[1:]))
    require("rows", ascend, "the first rows of panels in ascending order from 0, and n_rows")
    require("names", root.names is None or type(root.names) is int, "a checksum or null")
    require("complete", root.complete is False or (root.complete is True and root.format is not None), "true or false")
    require(
        "parameters", isinstance(root.parameters, dict) and "device" not in root.parameters, "keywords of the format's class"
    )
    if root.format is None:
        require("dtype", root.dtype is None and not root.parameters, "null, and no parameters, where there is no format")
    else:
        formats.check(root.format)
        coercion.check_dtype(np.dtype(root.dtype))


def _is_count(value: Any) -> bool:
    """Whether `value` is an int (and no bool) from 0 to 2^63 - 1."""
    return type(value) is int and 0 <= value < 1 << 63


def _require(found: NamedTuple, name: str, holds: bool, what: str) -> None:
    if not holds:
        value = repr(getattr(found, name))
        raise ValueError(f"{name} must be {what}; got {value if len(value) < 200 else value[:200] + '...'}")


def remains(path: str) -> bool:
    """Whether at `path` is what a writer leaves who was stopped before the first panel, or nothing at all.

    Raises
    ------
    ValueError
        There is something that is no store of ours.
    """
    try:
        return read_root(path).format is None
    except FileNotFoundError:
        if not os.path.lexists(path) or _is_empty(path):
            return True
    except NotADirectoryError:
        pass
    raise ValueError(f"{path} must be a store of cvrarray; it is something else. Move it away, or write to another path")


def remove(path: str) -> None:
    """Remove the store at `path`, or what is left of it, and nothing that is no store: other files in its folder stay,
    beside what :func:`remains`.

    Stopped anywhere, it leaves :func:`remains`: the first change is the one file that makes the panels count no more.

    Raises
    ------
    ValueError
        What is there is no store of ours.
    """
    if not remains(path):
        root = read_root(path)
        replace_root(path, Root(secrets.token_hex(16), root.n_cols, root.rows, None))
    if not os.path.lexists(path):
        return
    _unlink(path, lambda name: True)
    if set(os.listdir(path)) - {"store.json"}:
        return
    with suppress(FileNotFoundError):
        os.unlink(root_file(path))
    with suppress(OSError):  # where a file system is mounted, say; an empty folder is as good as none
        os.rmdir(path)


def tidy(path: str) -> None:
    """Remove what a writer who was stopped left unfinished in the store at `path`: temporary files and half panels."""
    _unlink(path, lambda name: name.endswith(".tables") and not os.path.exists(os.path.join(path, f"{name[:-7]}.json")))


def _unlink(path: str, removed: Callable[[str], bool]) -> None:
    """Remove temporary files, and those of panels whose names are to be `removed`. Folders stay."""
    for name in os.listdir(path):
        file = os.path.join(path, name)
        is_ours = atomic.TEMPORARY.fullmatch(name) or (_FILES.fullmatch(name) and removed(name))
        if is_ours and (os.path.islink(file) or not os.path.isdir(file)):
            os.unlink(file)


def _is_empty(path: str) -> bool:
    """Whether `path` is a folder with nothing in it but files that a stopped writer left unfinished."""
    return os.path.isdir(path) and all(map(atomic.TEMPORARY.fullmatch, os.listdir(path)))


# ------------------------------------------------------------------------------------------------ a panel


def write_panel(path: str, store: str, k: int, first_row: int, A: SparseArray, pool: Executor | None = None) -> Panel:
    """Write `A` as panel `k`, and return its manifest once all of it is on the disk.

    Raises
    ------
    OSError
        The disk is full or cannot be written; the message names panel and file, and the panel does not count.
    """
    header, arrays = serialized.describe(A)
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
    checksums = (map if pool is None else pool.map)(lambda start: checksum(content[start : start + PIECE]), spans)
    panel = Panel(store, [first_row, first_row + A.shape[0]], n_bytes, header, offsets, list(checksums))
    data, manifest = data_file(path, k), manifest_file(path, k)
    try:
        with suppress(FileNotFoundError):
            os.unlink(manifest)  # a panel that is written again does not count until it is whole
        with atomic.replacing(data) as file:
            file.write(content)
        write_json(manifest, sealed(panel._asdict()))
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
            found = unsealed(metadata)
            panel = Panel(**{name: found[name] for name in Panel._fields})
            cvra.check_header(panel.header)
            _check_panel(panel, k, root)
            return panel
    except FileNotFoundError as error:
        raise _naming_panel(error, path, k, file) from error
    except ValueError as error:
        raise ValueError(f"panel {k} of {path}: {error}") from error


def _check_panel(panel: Panel, k: int, root: Root) -> None:
    """ValueError unless every field is of the right kind and agrees with the header, which is checked, and with the
    root.
    """
    require, header = partial(_require, panel), panel.header
    if panel.store != root.id:
        raise ValueError(f"belongs to another store, {panel.store}; this one is {root.id}. {_REMEDY}")
    require("rows", all(map(_is_count, panel.rows)) and panel.rows == root.rows[k : k + 2], f"{root.rows[k : k + 2]}")
    shape = [panel.rows[1] - panel.rows[0], root.n_cols]
    if header["shape"] != shape:
        raise ValueError(f"must hold {shape[0]} x {shape[1]}; its header says {header['shape']}. {_REMEDY}")
    scalars = header["parameters"]
    found = header["format"], header["dtype"], {name: scalars.get(name, value) for name, value in root.parameters.items()}
    if found != (root.format, root.dtype, root.parameters):
        raise ValueError(f"must hold {root.format, root.dtype, root.parameters}, as the store; got {found}")
    require("n_bytes", _is_count(panel.n_bytes) and panel.n_bytes > 0, "a count from 1")
    require("offsets", isinstance(panel.offsets, dict) and all(map(_is_count, panel.offsets.values())), "counts")
    for name, table in header["arrays"].items():
        size = math.prod(table["shape"]) * np.dtype(table["dtype"]).itemsize
        if not 0 <= panel.offsets[name] <= panel.n_bytes - size or panel.offsets[name] % _ALIGNMENT:
            raise ValueError(f"table {name} must lie inside the panel, at a multiple of {_ALIGNMENT} bytes")
    counts = isinstance(panel.pieces, list) and all(type(piece) is int for piece in panel.pieces)
    require("pieces", counts and len(panel.pieces) == -(-panel.n_bytes // PIECE), f"a checksum for each {PIECE} bytes")


def require_whole(path: str, k: int, panel: Panel) -> os.stat_result:
    """What the system says of the file with the panel's bytes, which tells it from every other that lies there later.

    To be asked before memory for the bytes is: a manifest may claim any number of them.

    Raises
    ------
    FileNotFoundError
        The file is missing.
    ValueError
        It is no regular file, or shorter or longer than the manifest says.
    """
    name = data_file(path, k)
    try:
        status = os.stat(name)
    except OSError as error:
        raise _naming_panel(error, path, k, name) from error
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"panel {k} of {path}: {name} must be a regular file. {_REMEDY}")
    if status.st_size != panel.n_bytes:
        raise ValueError(
            f"panel {k} of {path}: {name} must have {panel.n_bytes} bytes; it has {status.st_size}. {_remedy(path, panel)}"
        )
    return status


def read_piece(path: str, k: int, panel: Panel, i: int, out: np.ndarray, verify: bool) -> None:
    """Piece `i` of panel `k` to its place in `out`, (panel.n_bytes,) uint8. Pieces may be read by several threads.

    Raises
    ------
    FileNotFoundError
        The file is missing.
    ValueError
        The file is shorter or longer than the manifest says, or the piece does not match its checksum.
    """
    name, start = data_file(path, k), i * PIECE
    content = out[start : start + PIECE]
    require_whole(path, k, panel)
    try:
        with open(name, "rb") as file:
            file.seek(start)
            n_bytes = file.readinto(content)
    except OSError as error:
        raise _naming_panel(error, path, k, name) from error
    if n_bytes < content.size or (verify and checksum(content) != panel.pieces[i]):
        raise ValueError(
            f"panel {k} of {path}: bytes {start} to {start + content.size} of {name} do not match their checksum. "
            f"{_remedy(path, panel)}"
        )


def assemble(panel: Panel, content: Any) -> SparseArray:
    """The array in a panel's bytes, a uint8 array on any device that lives on: tables are views of it."""
    arrays = {}
    for name, table in panel.header["arrays"].items():
        dtype, start = np.dtype(table["dtype"]), panel.offsets[name]
        n_bytes = math.prod(table["shape"]) * dtype.itemsize
        values = content[start : start + n_bytes].view(dtype).reshape(table["shape"])
        arrays[name] = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
    return cvra.assemble(panel.header, arrays)


_REMEDY = "The file is damaged: remove the panel's files, and write it again with to_store(..., resume=True)"


def _remedy(path: str, panel: Panel) -> str:
    """What to do where a panel's bytes are not those of its manifest, which was read when the store was opened."""
    with suppress(OSError, ValueError):
        if read_root(path).id != panel.store:
            return "Another store has been written there since this one was opened: open it anew"
    return _REMEDY


def _naming_panel(error: OSError, path: str, k: int, file: str) -> OSError:
    """`error` of the same kind and number, with panel and file in it."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(
            errno.ENOENT, f"panel {k} of {path} is missing; write it again with to_store(..., resume=True)", file
        )
    return OSError(error.errno, f"panel {k} of {path}: {os.strerror(error.errno) if error.errno else error}", file)


# ------------------------------------------------------------------------------------------------ checksums and JSON


def checksum(*parts: Any) -> int:
    """XXH3 of the bytes of `parts`. Other threads run meanwhile, unlike in google-crc32c."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return int(state.intdigest())


def sealed(attributes: dict[str, Any]) -> dict[str, Any]:
    """`attributes` with their checksum."""
    return {**attributes, "checksum": _checksum(attributes)}


def unsealed(attributes: dict[str, Any], remedy: str = _REMEDY) -> dict[str, Any]:
    """What was sealed; a ValueError with the `remedy` where it has changed since."""
    content = {name: value for name, value in attributes.items() if name != "checksum"}
    if attributes.get("checksum") != _checksum(content):
        raise ValueError(f"does not match its checksum. {remedy}")
    return content


def _checksum(attributes: dict[str, Any]) -> int:
    return checksum(json.dumps(attributes, sort_keys=True, separators=(",", ":")).encode())


def write_json(file: str, content: dict[str, Any]) -> None:
    """`file` with `content`, atomically: as it was before, or all of it."""
    with atomic.replacing(file) as stream:
        stream.write(json.dumps(content, indent=1).encode())


@contextmanager
def _read_json(file: str, expected: int | None = None) -> Iterator[Any]:
    """The JSON in `file`, with the checksum `expected`; what is wrong with it, there or in the body, is a ValueError
    that names it.
    """
    if not stat.S_ISREG(os.stat(file).st_mode):  # opening a pipe could wait for ever
        raise ValueError(f"{file}: must be a regular file")
    with open(file, "rb") as stream:
        text = stream.read()
    with naming(file):
        if expected is not None and checksum(text) != expected:
            raise ValueError("does not match the checksum in the store. Write the store anew")
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("must be a JSON object")
        yield found
