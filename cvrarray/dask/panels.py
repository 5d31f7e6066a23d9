"""``to_dask``: a matrix cut into panels of rows, or another dask array converted chunk by chunk."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ..array.format import FormatArray
from ..choice.construct import asarray
from ..choice.panels import block_size, decided, panel_rows
from ..core import devices
from ..core.progress import shown
from ..formats import named
from ..input import coercion, partition
from . import registry
from .arrays import PanelArray


def to_dask(obj: Any, chunks: Any = "auto", *, format: str = "auto", device: Any = None, **parameters: Any) -> da.Array:
    """A dask array whose chunks are our arrays.

    Parameters
    ----------
    obj : any matrix that :func:`cvrarray.asarray` takes, or a dask array
        A matrix is converted here, panel by panel of its rows. A dask array of pydata COO, SciPy, CuPy or dense chunks
        is converted chunk by chunk as it is computed, where its tasks run: persist the result to convert once.
    chunks : "auto", int, str, or tuple of int
        Rows of a panel (an int, or one for each; in :func:`cvrarray.to_store` an int is bytes), or its bytes (a string such
        as ``"64 MiB"``); ``"auto"`` takes Dask's ``array.chunk-size``. Rows are taken as they are: multiples of the block
        size keep blocks whole. Bytes are stored bytes, of which all panels have about the same; panels begin at multiples
        of 32 rows and of the block size. For a dask array only ``"auto"``, its own.
    format, device, **parameters
        As for :func:`cvrarray.asarray`. ``"auto"`` decides from a matrix as a whole; chunks of a dask array become CVR,
        which suits any matrix.

    Returns
    -------
    dask.array.Array
        Of shape (n_rows, n_cols), with one chunk a panel; of a dask array, with the same chunks. Its repr has stored
        bytes.

    Raises
    ------
    TypeError, ValueError
        `obj` is no matrix, or `chunks` do not fit it.
    ModuleNotFoundError
        Dask is not installed.

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([1.0, 2, 4]), chunks=2, format="cvr", device="cpu")
    >>> A.chunks, type(A.blocks[0].compute()).__name__
    (((2, 1), (3,)), 'CVRArray')
    >>> (A @ np.ones(3)).compute()
    array([1., 2., 4.])
    """
    registry.register()
    if isinstance(obj, da.Array):
        return _from_chunks(obj, chunks, format, device, parameters)
    if isinstance(obj, FormatArray) and format == "auto" and not parameters.keys() - {"values"}:
        format, parameters = obj.format, parameters | obj._parameters()
        device = device or obj.device
    csr = coercion.as_csr(obj)
    target = devices.parse(device) if device is not None else devices.of(csr.data)
    if target.kind == "cpu" and device is None:
        target = devices.default()
    format, parameters = decided(csr, format, parameters, target.kind)
    rows = _rows(csr, chunks, block_size(format, parameters))
    panels = []
    with shown("converting", len(rows) - 1, "panels") as update:
        for pair in pairwise(rows):
            panels.append(asarray(partition.rows(csr, *pair), format=format, device=target, **parameters))
            update(len(panels))
    name = f"to_dask-{tokenize(*panels)}"
    graph = HighLevelGraph.from_collections(name, {(name, k, 0): panel for k, panel in enumerate(panels)})
    sizes = tuple(int(n) for n in np.diff(rows))
    array = da.Array(graph, name, (sizes, (csr.shape[1],)), meta=_empty(type(panels[0]), panels[0]))
    n_bytes = [panel.nbytes for panel in panels]
    return PanelArray.of(array, (sum(n_bytes), max(n_bytes)))


def _from_chunks(array: da.Array, chunks: Any, format: str, device: Any, parameters: dict[str, Any]) -> da.Array:
    """A dask array of any chunks, converted chunk by chunk."""
    if chunks != "auto":
        raise ValueError(f"chunks of a dask array stay as they are; got chunks={chunks!r}. Use rechunk on it first")
    if array.ndim != 2:
        raise ValueError(f"a matrix must have 2 dimensions; got a dask array of shape {array.shape}")
    format = "cvr" if format == "auto" else format
    cls = named(format)
    kind = "cpu" if device is None and not devices.gpu_count() else device
    meta = cls(np.zeros((0, 0), coercion.check_dtype(array.dtype)), device=kind, **parameters)
    return PanelArray.of(array.map_blocks(_convert, format=format, device=device, dtype=array.dtype, meta=meta, **parameters))


def _convert(chunk: Any, **how: Any) -> FormatArray:
    """A chunk as an array of ours; a function of its own, so that tests can count its calls."""
    array: FormatArray = asarray(chunk, **how)
    return array


def _rows(csr: Any, chunks: Any, block_size: int | None) -> list[int]:
    """The first row of each panel, and n_rows, as `chunks` asks."""
    n_rows = csr.shape[0]
    if isinstance(chunks, str):
        size = dask.config.get("array.chunk-size") if chunks == "auto" else chunks
        return panel_rows(csr, partition.n_bytes(size, "chunks"), block_size)
    if _is_count(chunks) and chunks > 0:
        return [*range(0, n_rows, int(chunks)), n_rows] if n_rows else [0, 0]
    if isinstance(chunks, tuple | list) and chunks and all(map(_is_count, chunks)) and sum(chunks) == n_rows:
        return [0, *np.cumsum(chunks).tolist()]
    raise ValueError(
        f"chunks must be 'auto', bytes such as '64 MiB', rows of a panel, or rows of each, {n_rows} together; got {chunks!r}"
    )


def _is_count(value: Any) -> bool:
    """Whether `value` is an integer, NumPy's or Python's, from 0."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)


def _empty(cls: type[FormatArray], like: FormatArray) -> FormatArray:
    """An array of no rows and columns, for Dask's meta."""
    return cls(np.zeros((0, 0), like.dtype), device=like.device, **like._parameters())
