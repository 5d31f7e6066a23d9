"""Writing a store: panels in any order, each by whoever has it."""

from __future__ import annotations

import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from .. import formats
from ..array import encoding
from ..array.format import FormatArray
from ..choice.construct import asarray
from ..core import atomic, devices
from ..input import coercion
from . import layout
from .lock import WriterLock


class Writer:
    """Writes a store panel by panel; a panel that :meth:`write` has returned for stays, whatever happens then.

    The first panel decides the store's dtype and, unless it is given, the format. Use it in a ``with`` statement: the
    store is complete once the body ends without an exception. A store that was left incomplete is gone on with by
    ``resume=True``.

    A store has one writer at a time: from the beginning until the statement ends, or :meth:`close`, others are refused.
    A copy in another process (a pickled one) writes panels on this writer's behalf.

    Parameters
    ----------
    path : str, os.PathLike[str] or WriterLock
        Where the store shall be, by convention ``*.store``; or the lock of that place, where the caller holds it
        already.
    n_cols : int
        Columns of the matrix.
    rows : sequence of int
        The first row of each panel, and the number of rows.
    format : {"auto", "cvr", "bbcsr"}
        Of all panels; ``"auto"`` chooses what suits the first one.
    device : str, optional
        Where panels are converted. Default: the GPU when there is one.
    source : str, optional
        Names what the matrix is made of; `resume` with another name is an error.
    resume : bool
        Go on with the store at `path` if there is one.
    overwrite : bool
        Remove the store at `path` first, if there is one.
    names : (row names, column names)
        Each a sequence of texts, or None. A store that is gone on with keeps its own.
    **parameters
        Keywords of the format's class; ``values="plain"`` stores values as they are, in every panel.

    Raises
    ------
    BlockingIOError
        The store has a writer already; the message names it.
    FileExistsError
        Something is at `path`, and neither `resume` nor `overwrite` says what to do.
    ValueError
        The store to go on with is of another shape, format, source or panels; or what is there is no store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | WriterLock,
        n_cols: int,
        rows: Any,
        *,
        format: str = "auto",
        device: Any = None,
        source: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
        names: tuple[Any, Any] = (None, None),
        **parameters: Any,
    ):
        lock = path if isinstance(path, WriterLock) else WriterLock(os.path.realpath(os.fsdecode(path)))
        self.path = lock.path
        formats.check(format, auto=True)
        if resume and overwrite:
            raise ValueError("resume and overwrite exclude each other")
        self._values = "auto" if encoding.checked(parameters.pop("values", "auto")) else "plain"
        self._format, self._parameters = format, parameters
        self._target = devices.default() if device is None else devices.parse(device)
        n_cols = coercion.check_shape((0, n_cols))[1]
        self._lock = None if lock is path else lock  # the caller's stays with the caller
        try:
            if self._lock is not None:
                self._lock.__enter__()
            self._root = self._open(n_cols, [int(row) for row in rows], source, resume, overwrite, names)
        except BaseException:
            self.release()
            raise

    def _open(
        self, n_cols: int, rows: list[int], source: str | None, resume: bool, overwrite: bool, names: tuple[Any, Any]
    ) -> layout.Root:
        """What all panels share: of the store that is there, or of one that is begun here."""
        packed = layout.pack_names(names, (rows[-1], n_cols))
        if os.path.lexists(self.path):
            if not (resume or overwrite):
                raise FileExistsError(
                    f"{self.path} must not exist. Go on with the store in it with resume=True, "
                    "or replace it with overwrite=True"
                )
            if resume and not layout.remains(self.path):
                return self._go_on(n_cols, rows, source)
            layout.remove(self.path)
        checksum = None if packed is None else layout.checksum(packed)
        root = layout.Root(secrets.token_hex(16), n_cols, rows, source, names=checksum)
        os.makedirs(self.path, exist_ok=True)
        atomic.sync_folder(os.path.dirname(self.path))
        layout.replace_root(self.path, root)
        if packed is not None:
            with atomic.replacing(layout.names_file(self.path)) as file:
                file.write(packed)
        return root

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def _go_on(self, n_cols: int, rows: list[int], source: str | None) -> layout.Root:
        root = layout.read_root(self.path)
        for name, found, wanted in (
            ("columns", root.n_cols, n_cols),
            ("panels that begin with rows", root.rows, rows),
            ("source", root.source, source),
        ):
            if found != wanted:
                found, wanted = (str(v) if len(str(v)) < 200 else f"{str(v)[:200]}..." for v in (found, wanted))
                remedy = f"Where it is the same nevertheless, pass name={found!r}; else" if name == "source" else "Use"
                raise ValueError(
                    f"{self.path} can be gone on with only for the same {name}: it has {found}; got {wanted}. "
                    f"{remedy} overwrite=True in place of resume=True"
                )
        named = self._format not in ("auto", root.format) and root.format is not None
        if named or any(root.parameters.get(name, value) != value for name, value in self._parameters.items()):
            raise ValueError(
                f"{self.path} holds {root.format} {root.parameters}; got {self._format} {self._parameters}. Leave them out"
            )
        layout.tidy(self.path)
        return root

    @property
    def complete(self) -> bool:
        """Whether all panels are there and the store says so."""
        return self._root.complete

    @property
    def started(self) -> bool:
        """Whether a panel has decided the store's dtype and format."""
        return self._root.format is not None

    def refresh(self) -> None:
        """See what other writers of the same store, in other processes, have decided."""
        self._root = layout.read_root(self.path)

    def missing(self) -> list[int]:
        """The panels of `rows` that are not there yet, or whose bytes are not all there."""
        return [k for k in range(len(self._root.rows) - 1) if not self._is_there(k)]

    def _is_there(self, k: int) -> bool:
        if self._root.format is None:
            return False
        with suppress(FileNotFoundError):
            panel = layout.read_manifest(self.path, k, self._root)
            with suppress(ValueError):
                layout.require_whole(self.path, k, panel)
                return True
        return False

    # ------------------------------------------------------------------------------------------------ panels

    def write(self, k: int, panel: Any) -> None:
        """Write panel `k` of `rows`, any matrix of its shape; on return it is on the disk.

        Raises
        ------
        TypeError, ValueError
            It is no matrix, has another shape, or another dtype than the store.
        OSError
            The disk is full, or cannot be written; the panels before stay.
        """
        first, last = self._root.rows[k : k + 2]
        if panel.shape[0] != last - first:
            raise ValueError(f"panel {k} must have {last - first} rows; got {panel.shape[0]}")
        array = self.convert(panel)
        # who this copy wrote for is gone, and another has begun anew
        if layout.read_root(self.path).id != self._root.id:
            raise ValueError(f"{self.path} must be the store {self._root.id}, which is written; another writer has replaced it")
        if self._root.format is None:
            dtype = array.dtype.newbyteorder("<").str
            self._root = self._root._replace(dtype=dtype, format=array.format, parameters=array._parameters())
            layout.replace_root(self.path, self._root)
        if array.dtype != np.dtype(self._root.dtype).newbyteorder("="):
            what = f"panel {k} of {self.path} must have the store's dtype, {self._root.dtype}; got {array.dtype}"
            raise ValueError(f"{what}. Use astype on it")
        with ThreadPoolExecutor() as pool:
            layout.write_panel(self.path, self._root.id, k, first, array, pool)

    def convert(self, panel: Any) -> FormatArray:
        """A panel as an array in the store's format: itself where it is one, else converted on the writer's device."""
        if len(panel.shape) != 2 or panel.shape[1] != self._root.n_cols:
            raise ValueError(f"a panel must have {self._root.n_cols} columns; got shape {tuple(panel.shape)}")
        format, parameters = self._root.format or self._format, self._root.parameters or self._parameters
        if isinstance(panel, FormatArray) and format in ("auto", panel.format):  # auto: the format that the user chose
            own = panel._parameters()
            if all(own.get(name) == value for name, value in parameters.items()):
                return panel if self._values == "auto" else encoding.decompressed(panel)
        return asarray(panel, format=format, device=str(self._target), values=self._values, **parameters)

    # ------------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Mark the store as complete, and let others write it.

        Raises
        ------
        ValueError
            A panel is missing; the store stays incomplete.
        """
        try:
            missing = [] if self.complete else self.missing()
            if missing:
                raise ValueError(f"{self.path} must have all panels to be complete; panel {missing[0]} is missing")
            if not self.complete:
                self._root = self._root._replace(complete=True)
                layout.replace_root(self.path, self._root)
        finally:
            self.release()

    def release(self) -> None:
        """Let others write the store, as it is."""
        if self._lock is not None:
            self._lock.__exit__()
            self._lock = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.release()
