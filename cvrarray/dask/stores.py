"""Stores on disk as Dask's arrays: ``open_store``."""

from __future__ import annotations

import os
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ..core import devices
from ..formats import named
from ..store import layout, stream
from . import registry
from .arrays import PanelArray


def open_store(path: str | os.PathLike[str], *, device: Any = None, verify: bool = True, incomplete: bool = False) -> da.Array:
    """A lazy dask array of the panels of a store that :func:`cvrarray.to_store` wrote.

    Nothing but the manifests is read now; a panel is read, in one go, when its chunk is computed. For products without
    Dask, with reading and computing overlapped, see :class:`cvrarray.Stored`.

    Parameters
    ----------
    path : str or os.PathLike[str]
    device : str, optional
        Where chunks shall be, ``"cpu"`` or ``"cuda"``. Default: the current GPU of the worker when there is one here.
    verify : bool
        Whether to compare the checksums of all that is read, and to verify the tables of each panel when it is first
        read in a process; see :class:`cvrarray.Stored`.
    incomplete : bool
        Whether to open a store that is still being written: its rows so far.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no store, or it is damaged, incomplete, or of a newer version. Computing raises the same for a panel.
    ModuleNotFoundError
        Dask is not installed.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/matrix.store"
    >>> cvrarray.to_store(np.diag(np.arange(96.0)), path, chunks=1000, format="cvr", device="cpu")
    >>> A = cvrarray.open_store(path, device="cpu")
    >>> A.chunks, float((A @ np.ones(96)).sum().compute())
    (((64, 32), (96,)), 4560.0)
    """
    registry.register()
    path = os.path.abspath(os.fsdecode(path))
    root, manifest = stream.manifest(path, incomplete)
    device = devices.default().kind if device is None else str(device)
    name = f"{layout.layer_name(path)}{tokenize(path, root.id, [panel.pieces for panel in manifest], device, verify)}"
    graph = {(name, k, 0): (_load, path, k, panel, device, verify) for k, panel in enumerate(manifest)}
    sizes = tuple(last - first for first, last in (panel.rows for panel in manifest))
    assert root.format is not None  # a store that can be opened has a panel, and so a format
    meta = named(root.format)(np.zeros((0, 0), np.dtype(root.dtype).newbyteorder("=")), device=device, **root.parameters)
    array = da.Array(HighLevelGraph.from_collections(name, graph), name, (sizes, (root.n_cols,)), meta=meta)
    n_bytes = [panel.n_bytes for panel in manifest]
    return PanelArray.of(array, (sum(n_bytes), max(n_bytes)))


def _load(path: str, k: int, panel: layout.Panel, device: str, verify: bool) -> Any:
    return stream.load(path, k, panel, devices.parse(device), verify)
