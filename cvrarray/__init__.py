"""Sparse arrays whose ``A @ x`` is fast, on an NVIDIA GPU and on a plain CPU.

Two formats, :class:`CVRArray` and :class:`BBCSRArray`; :func:`asarray` chooses between them, :func:`tune` by
measuring, :func:`read` takes a file.
Names are imported on first use, so that ``import cvrarray`` loads NumPy and nothing heavier.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from .core import extensions

_HOME = {
    "CVRArray": "formats",
    "BBCSRArray": "formats",
    "Assembly": "choice.assembly",
    "asarray": "choice.construct",
    "statistics": "choice.model",
    "tune": "choice.tuning",
    "sddmm": "array.sampled",
    "get_num_threads": "core.threads",
    "set_num_threads": "core.threads",
    "read": "files",
    "save": "files",
    "load": "files",
    "generate": "generate",
    "linalg": "linalg",
    "dask": "dask",
    "torch": "torch",
    "sklearn": "sklearn",
    "to_store": "store.sources",
    "Stored": "store.stream",
    "open_store": "dask.stores",
    "to_dask": "dask.panels",
}

__all__ = [
    "Assembly",
    "BBCSRArray",
    "CVRArray",
    "Stored",
    "asarray",
    "generate",
    "get_num_threads",
    "linalg",
    "load",
    "open_store",
    "read",
    "save",
    "sddmm",
    "set_num_threads",
    "statistics",
    "to_dask",
    "to_store",
    "tune",
]

#: Names that need a package which is not always installed: extras.
_NEEDS = {"dask": "dask", "to_dask": "dask", "open_store": "dask", "torch": "torch", "sklearn": "sklearn"}


def _is_there(name: str) -> bool:
    return name not in _NEEDS or importlib.util.find_spec(_NEEDS[name]) is not None


if not TYPE_CHECKING:
    __all__ = [name for name in __all__ if _is_there(name)]  # else `from cvrarray import *` fails

#: What lower layers ask for when a call needs it.
for _name, _module in {
    "formats": "formats",
    "construct": "choice.construct",
    "assembly": "choice.assembly",
    "dask": "dask",
    "dask_tall": "dask.tall",
    "torch": "torch",
}.items():
    extensions.declare(_name, partial(importlib.import_module, f"cvrarray.{_module}"))

if TYPE_CHECKING:
    __version__: str
    from . import dask as dask
    from . import generate, linalg
    from .array.sampled import sddmm
    from .bbcsr import BBCSRArray
    from .choice.assembly import Assembly
    from .choice.construct import asarray
    from .choice.model import statistics
    from .choice.tuning import tune
    from .core.threads import get_num_threads, set_num_threads
    from .cvr import CVRArray
    from .dask.panels import to_dask
    from .dask.stores import open_store
    from .files import load, read, save
    from .store.sources import to_store
    from .store.stream import Stored


if not TYPE_CHECKING:  # a type checker reads the imports above, and should notice any other name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return _version()
        if name not in _HOME:
            raise AttributeError(f"module 'cvrarray' has no attribute {name!r}")
        with extensions.optional(f"cvrarray.{name}", "Dask", "dask") if "dask" in _HOME[name] else nullcontext():
            module = importlib.import_module(f".{_HOME[name]}", __name__)
        value = module if name == _HOME[name] else getattr(module, name)
        globals()[name] = value
        return value


@cache
def _version() -> str:
    """The installed distribution's, which its tag in Git names; of a folder that is not installed nobody knows it."""
    from importlib import metadata

    try:
        return metadata.version("cvrarray")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    """Names that can be had: ``help(cvrarray)`` asks for each."""
    return [*filter(_is_there, _HOME), "__version__"]
