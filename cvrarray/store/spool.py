"""Entries in any order -> panels of rows, with little memory: an external sort by rows.

Entries are written to *buckets*, files that each take a range of rows, as they come; meanwhile every row's entries are
counted. The counts tell where panels begin. A bucket that a panel's end cuts is written once more, into its parts. A
panel is then its files, read whole. Within a row, entries stay in the order in which they came.

In memory are 8 bytes a row, a buffer of entries, and one panel's entries. On the disk, an entry takes its row, its
column and its value until the writer ends. A writer that goes on for one that was killed sets all entries aside anew.

A folder that holds anything but files of the names that are given here is not written to, and not removed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import xxhash

from ..core.tables import CSR
from ..input import coercion, partition

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
        self.checksum = xxhash.xxh3_64()  #: of all entries, in the order in which they came

    @property
    def dtype(self) -> np.dtype:
        """dtype of the values."""
        dtype: np.dtype = self._entry["val"]
        return dtype

    def _set_dtype(self, dtype: np.dtype) -> None:
        index = coercion.index_dtype(self.shape)
        self._entry = np.dtype([("row", index), ("col", index), ("val", coercion.check_dtype(dtype))])

    def fill(self, pieces: Iterable[tuple[Any, Any, Any]]) -> None:
        """Take all entries from `pieces`, triplets of (row, col, val) arrays, in place of what a killed writer left.

        Parameters
        ----------
        pieces : iterable
            At least one, which may be empty: the first decides the dtype.

        Raises
        ------
        TypeError, ValueError
            A piece has the wrong kind of dtype, disagreeing lengths, or an index out of range; the message has its
            number.
        FileExistsError
            The folder is there, and is no spool's. It stays as it is.
        OSError
            The disk is full.
        """
        remove(self.folder)
        if os.path.lexists(self.folder):
            what = "must be a folder of entries set aside; it is something else. Move it away"
            raise FileExistsError(errno.EEXIST, what, self.folder)
        os.mkdir(self.folder)
        self._counts = np.zeros(self.shape[0], np.int64)
        buffer, size = list[np.ndarray](), 0
        for number, piece in enumerate(pieces):
            entries = self._checked(piece, number)
            self.checksum.update(entries)
            buffer.append(entries)
            size += entries.nbytes
            if size >= BUFFER:
                self._flush(buffer)
                buffer, size = [], 0
        if self._entry is None:
            raise ValueError("pieces must hold one piece at least, to tell the dtype; it may be empty")
        self._flush(buffer)

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

    def _flush(self, buffer: list[np.ndarray]) -> None:
        entries = np.concatenate(buffer) if buffer else np.empty(0, self._entry)
        if not entries.size:
            return
        self._counts += np.bincount(entries["row"], minlength=self.shape[0])
        bucket = (entries["row"] // self._bucket_rows).astype(np.int16)  # 16 bits are sorted by radix
        order = np.argsort(bucket, kind="stable")
        entries, bucket = entries.take(order), bucket[order]  # of records, four times as fast as entries[order]
        starts = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
        for start, stop in zip(starts, [*starts[1:], bucket.size], strict=True):
            self._append(f"bucket-{bucket[start]}", entries[start:stop])

    def _append(self, name: str, entries: np.ndarray) -> None:
        path = os.path.join(self.folder, name)
        try:
            with open(path, "ab") as file:
                file.write(entries)
        except OSError as error:
            raise OSError(error.errno, f"entries cannot be set aside: {os.strerror(error.errno or 0)}", path) from error

    def cut(self, target: int, align: int, block_size: int | None) -> np.ndarray:
        """The first row of each panel of about `target` bytes, and n_rows; counts of duplicates are taken for entries."""
        before = partition.bytes_before(self._counts, self.dtype.itemsize, self._entry["col"].itemsize, block_size)
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

    def _read(self, name: str) -> np.ndarray:
        """What was written to a file; nothing where no entry was."""
        path = os.path.join(self.folder, name)
        return np.fromfile(path, self._entry) if os.path.exists(path) else np.empty(0, self._entry)

    def _split(self, bucket: int, rows: np.ndarray) -> None:
        """Write a bucket's entries into a file a panel, a buffer at a time."""
        path = os.path.join(self.folder, f"bucket-{bucket}")
        if not os.path.exists(path):
            return
        with open(path, "rb") as file:
            while (entries := np.fromfile(file, self._entry, BUFFER // self._entry.itemsize)).size:
                panel = np.searchsorted(rows, entries["row"], side="right") - 1
                for k in np.unique(panel):
                    self._append(f"part-{bucket}-{k}", entries[panel == k])


_NAMES = re.compile(r"bucket-\d+|part-\d+-\d+")


def remove(folder: str) -> None:
    """Remove a spool's `folder`, whoever has left it there. What holds anything but a spool's files stays."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        return
    with os.scandir(folder) as found:
        is_ours = all(_NAMES.fullmatch(file.name) and file.is_file(follow_symlinks=False) for file in found)
    if is_ours:
        shutil.rmtree(folder)
