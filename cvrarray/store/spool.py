"""Entries in any order -> panels of rows, with little memory: an external sort by rows.

Entries are written to *buckets*, files that each take a range of rows, as they come; meanwhile every row's entries are
counted. The counts tell where panels begin. A bucket that a panel's end cuts is written once more, into its parts. A
panel is then its files, read whole. Within a row, entries stay in the order in which they came.

In memory are 8 bytes a row, a buffer of entries, and one panel's entries. On the disk, an entry takes its row, its
column and its value until the store is complete.

``spool.json``, written last, lists the files with their lengths and checksums: what is read again was written here.

A folder that holds anything but files of the names that are given here is not written to, and not removed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..core import atomic
from ..core.tables import CSR
from ..input import coercion, partition
from . import layout

MOST_BUCKETS = 2048
BUFFER = 512 << 20  #: bytes of entries that are collected before they are written


class Spool:
    """The entries of a matrix of `shape`, in files below `folder`.

    Parameters
    ----------
    folder : str
        Made by :meth:`fill`, removed by :func:`remove`.
    shape : (n_rows, n_cols)
    """

    def __init__(self, folder: str, shape: tuple[int, int]):
        self.folder, self.shape = folder, shape
        groups = -(-shape[0] // partition.alignment())
        self._bucket_rows = max(1, -(-groups // MOST_BUCKETS)) * partition.alignment()
        self._entry: Any = None  # of the entries on the disk, from the first piece on
        self._files: dict[str, list[int]] = {}  # (bytes, their CRC-32) of each file
        self.checksum = 0  #: CRC-32 of all entries, in the order in which they came

    @property
    def dtype(self) -> np.dtype:
        """dtype of the values."""
        dtype: np.dtype = self._entry["val"]
        return dtype

    def _set_dtype(self, dtype: np.dtype) -> None:
        index = coercion.index_dtype(self.shape)
        self._entry = np.dtype([("row", index), ("col", index), ("val", coercion.check_dtype(dtype))])

    @property
    def _done_file(self) -> str:
        return os.path.join(self.folder, "spool.json")

    def is_filled(self, name: str | None) -> bool:
        """Whether :meth:`fill` came to its end before for a matrix of the same shape and name; then it need not be
        called.

        Entries without a name could be of any matrix: they count as not filled.
        """
        if not is_ours(self.folder):
            return False
        try:
            with open(self._done_file) as file:
                found = layout.unsealed(json.load(file))
            files, checksum, dtype = found["files"], int(found["checksum"]), np.dtype(found["dtype"])
            if any(os.path.getsize(os.path.join(self.folder, file)) != size for file, (size, _) in files.items()):
                return False
            known = found["shape"], found["name"], found["bucket_rows"]
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return False
        if name is None or known != ([*self.shape], name, self._bucket_rows):
            return False
        self._set_dtype(dtype)
        self.checksum, self._files = checksum, files
        return True

    def fill(self, pieces: Iterable[tuple[Any, Any, Any]], name: str | None) -> None:
        """Take all entries from `pieces`, triplets of (row, col, val) arrays, in place of whatever was here.

        Parameters
        ----------
        pieces : iterable
            At least one, which may be empty: the first decides the dtype.
        name : str or None
            What :meth:`is_filled` shall know the matrix by.

        Raises
        ------
        TypeError, ValueError
            A piece has the wrong kind of dtype, disagreeing lengths, or an index out of range; the message has its
            number.
        FileExistsError
            The folder is there, and is no spool's. It stays as it is.
        OSError
            The disk is full. Nothing is left then, or after any other error.
        """
        remove(self.folder)
        if os.path.lexists(self.folder):
            raise FileExistsError(
                errno.EEXIST,
                "must be a folder of entries set aside; it is something else. Move it away",
                self.folder,
            )
        try:
            self._fill(pieces, name)
        except BaseException:
            remove(self.folder)
            raise

    def _fill(self, pieces: Iterable[tuple[Any, Any, Any]], name: str | None) -> None:
        os.mkdir(self.folder)
        self._files = {}
        counts = np.zeros(self.shape[0], np.int64)
        buffer, size, self._entry, self.checksum = [], 0, None, 0
        for number, piece in enumerate(pieces):
            entries = self._checked(piece, number)
            self.checksum = zlib.crc32(entries.view(np.uint8), self.checksum)
            buffer.append(entries)
            size += entries.nbytes
            if size >= BUFFER:
                self._flush(buffer, counts)
                buffer, size = [], 0
        if self._entry is None:
            raise ValueError("pieces must hold one piece at least, to tell the dtype; it may be empty")
        self._flush(buffer, counts)
        self._append("counts", counts)
        for file_name in self._files:
            with self._writing(file_name, "ab") as file:
                os.fsync(file.fileno())
        done = {"name": name, "shape": list(self.shape), "bucket_rows": self._bucket_rows, "dtype": self.dtype.str}
        layout.write_json(self._done_file, layout.sealed({**done, "checksum": self.checksum, "files": self._files}))

    def _checked(self, piece: tuple[Any, Any, Any], number: int) -> np.ndarray:
        try:
            if not isinstance(piece, tuple | list | np.ndarray) or len(piece) != 3:
                raise TypeError(f"must be a triplet (row, col, val) of arrays; got {type(piece).__name__}")
            if any(isinstance(part, np.ma.MaskedArray) for part in piece):
                raise TypeError("row, col and val must hold all their numbers; got a masked array. Use compressed() on each")
            row, col, val = (np.asarray(part) for part in piece)
            if self._entry is None:
                self._set_dtype(val.dtype)
            for name, index, n in (("row", row, self.shape[0]), ("col", col, self.shape[1])):
                if index.ndim != 1 or index.size != val.size:
                    raise ValueError(f"{name} must be 1-D and as long as val, {val.size}; got shape {index.shape}")
                if index.size and index.dtype.kind not in "iu":
                    raise TypeError(f"{name} must hold integers; got {index.dtype}")
                if index.size and not (0 <= int(index.min()) and int(index.max()) < n):
                    raise ValueError(f"{name} must lie in [0, {n}); got {int(index.min())} to {int(index.max())}")
            if coercion.check_dtype(val.dtype) != self.dtype:  # in any byte order
                raise TypeError(f"val must have the dtype of the first piece, {self.dtype}; got {val.dtype}. Use astype on it")
        except (TypeError, ValueError) as error:
            raise type(error)(f"piece {number}: {error}") from error
        entries = np.empty(val.size, self._entry)
        entries["row"], entries["col"], entries["val"] = row, col, val
        return entries

    def _flush(self, buffer: list[np.ndarray], counts: np.ndarray) -> None:
        entries = np.concatenate(buffer) if buffer else np.empty(0, self._entry)
        if not entries.size:
            return
        counts += np.bincount(entries["row"], minlength=counts.size)
        bucket = (entries["row"] // self._bucket_rows).astype(np.int16)  # 16 bits are sorted by radix
        order = np.argsort(bucket, kind="stable")
        entries, bucket = entries[order], bucket[order]
        starts = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
        for start, stop in zip(starts, [*starts[1:], bucket.size], strict=True):
            self._append(f"bucket-{bucket[start]}", entries[start:stop])

    def _append(self, name: str, content: np.ndarray) -> None:
        with self._writing(name, "ab") as file:
            file.write(content)
        size, crc = self._files.get(name, (0, 0))
        self._files[name] = [size + content.nbytes, zlib.crc32(content.view(np.uint8), crc)]

    @contextmanager
    def _writing(self, name: str, mode: str) -> Iterator[Any]:
        """A file here, open; an OSError says what it was for."""
        path = os.path.join(self.folder, name)
        try:
            with open(path, mode) as file:
                yield file
        except OSError as error:
            raise OSError(error.errno, f"entries cannot be set aside: {os.strerror(error.errno or 0)}", path) from error

    def cut(self, target: int, align: int, block_size: int | None) -> np.ndarray:
        """The first row of each panel of about `target` bytes, and n_rows; counts of duplicates are taken for entries."""
        counts = self._read("counts", np.dtype(np.int64))
        before = partition.bytes_before(counts, self.dtype.itemsize, self._entry["col"].itemsize, block_size)
        return partition.cut(before, target, align)

    def panels(self, rows: np.ndarray, wanted: Iterable[int]) -> Iterator[tuple[int, CSR]]:
        """(number, canonical CSR) of the panels in `wanted`, ascending, that begin at `rows`; duplicates are summed."""
        split: set[int] = set()
        for k in wanted:
            first, last = int(rows[k]), int(rows[k + 1])
            parts = []
            for bucket in range(first // self._bucket_rows, -(-last // self._bucket_rows)):
                begin, end = bucket * self._bucket_rows, min((bucket + 1) * self._bucket_rows, self.shape[0])
                if begin >= first and end <= last:
                    parts.append(self._read(f"bucket-{bucket}"))
                    continue
                if bucket not in split:
                    self._split(bucket, rows)
                    split.add(bucket)
                parts.append(self._read(f"part-{bucket}-{k}"))
            entries = np.concatenate(parts) if parts else np.empty(0, self._entry)
            row, col, val = (np.ascontiguousarray(entries[name]) for name in ("row", "col", "val"))
            del parts, entries
            yield k, coercion.from_triplets(row - row.dtype.type(first), col, val, (last - first, self.shape[1]))

    def _read(self, name: str, dtype: np.dtype | None = None) -> np.ndarray:
        """What was written to a file; nothing where no entry was."""
        if name not in self._files:
            return np.empty(0, dtype or self._entry)
        content = np.fromfile(os.path.join(self.folder, name), np.uint8)
        self._require(name, content.size, zlib.crc32(content))
        return content.view(dtype or self._entry)

    def _require(self, name: str, size: int, crc: int) -> None:
        if [size, crc] != self._files[name]:
            raise ValueError(
                f"{os.path.join(self.folder, name)} does not match its checksum. The file is damaged: remove the folder "
                f"{self.folder}, and set the entries aside again with to_store(..., resume=True)"
            )

    def _split(self, bucket: int, rows: np.ndarray) -> None:
        """Write a bucket's entries into a file a panel, a buffer at a time."""
        for name in os.listdir(self.folder):
            if name.startswith(f"part-{bucket}-"):  # of a writer that was stopped
                os.unlink(os.path.join(self.folder, name))
        name = f"bucket-{bucket}"
        if name not in self._files:
            return
        size = crc = 0
        with open(os.path.join(self.folder, name), "rb") as file:
            while (entries := np.fromfile(file, self._entry, BUFFER // self._entry.itemsize)).size:
                size, crc = size + entries.nbytes, zlib.crc32(entries.view(np.uint8), crc)
                panel = np.searchsorted(rows, entries["row"], side="right") - 1
                for k in np.unique(panel):
                    self._append(f"part-{bucket}-{k}", entries[panel == k])
        self._require(name, size, crc)


_NAMES = re.compile(rf"spool\.json|counts|bucket-\d+|part-\d+-\d+|{atomic.TEMPORARY.pattern}")


def is_ours(folder: str) -> bool:
    """Whether `folder` is one that holds nothing but files of a spool."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        return False
    with os.scandir(folder) as found:
        return all(_NAMES.fullmatch(file.name) and file.is_file(follow_symlinks=False) for file in found)


def remove(folder: str) -> None:
    """Remove a spool's `folder`, whoever has left it there. What is none stays."""
    if is_ours(folder):
        shutil.rmtree(folder)
