"""Kernels compiled by Numba, and kept on disk under names that can be mistaken for no other.

Numba numbers the files with a function's compiled versions, and writes the index of them before the file. So two
processes that compile at the same time, as Dask's workers do at their first product, may give two versions one
number. A reader may also find an old file under a new number for a moment: a TypeError at best. And Numba looks only
at the source file of a function, not at the functions that it inlines. Here a file's name is a digest of its content:
the signature, and all sources that kernels are compiled from. The index names a file once it is there. Where two
processes write the index at the same time, one entry may be lost; that version is compiled again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import typeof, types
from numba.core.caching import IndexDataCacheFile
from numba.np import numpy_support

#: Options of a kernel: threads run it at the same time, it is cached on disk, and it uses arrays without making any.
#: ``_nrt=False``: otherwise Numba counts references to every array around every call, two atomic additions each, which
#: cost more than the products.
OPTIONS = {"nogil": True, "cache": True, "_nrt": False, "no_cfunc_wrapper": True}


def njit(signature: str | None = None, **options: Any) -> Callable[[Callable], Callable]:
    """As ``numba.njit``; with a signature the function is compiled at once, for these types alone."""

    def decorate(function: Callable) -> Callable:
        dispatcher = numba.njit(**options)(function)
        files = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
        if isinstance(files, IndexDataCacheFile):  # not where nothing is cached, nor compiled
            files.__class__, files._source_stamp = CacheFiles, STAMP
        if signature and hasattr(dispatcher, "compile"):
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher

    return decorate


def kernel(function: Callable) -> Callable:
    """Decorator of a kernel: ``njit`` with :data:`OPTIONS`."""
    return njit(**OPTIONS)(function)


def inlined(function: Callable) -> Callable:
    """Decorator of a function that LLVM inlines wherever a kernel calls it."""
    return njit(**OPTIONS, forceinline=True)(function)


def compiled(function: Callable, *args: Any) -> Callable:
    """The version of a kernel for arguments of these types. A call of it saves Numba's choice of a version, 1 to 3 us.

    Arrays must be contiguous, aligned and in native byte order; one version serves writable and read-only ones. The
    version checks none of that: call it with arguments of these types only.
    """
    return function.compile(tuple(_type(arg) for arg in args))


def _type(arg: Any) -> types.Type:
    """Numba's type of an argument. ``typeof`` takes 16 us for an array, and tells apart what is the same here."""
    if isinstance(arg, np.ndarray):
        return _array_type(arg.dtype, arg.ndim)
    if isinstance(arg, tuple) and hasattr(arg, "_fields"):
        return types.NamedTuple([_type(value) for value in arg], type(arg))
    if isinstance(arg, tuple):  # of integers
        return _tuple_type(len(arg))
    return typeof(arg)


@cache
def _tuple_type(length: int) -> types.BaseTuple:
    return types.UniTuple(types.intp, length) if length else types.Tuple(())


@cache
def _array_type(dtype: np.dtype, ndim: int) -> types.Array:
    return types.Array(numpy_support.from_dtype(dtype), ndim, "C")


class CacheFiles(IndexDataCacheFile):
    """The index and the files of one function."""

    def save(self, key: Any, data: Any) -> None:
        """Write a compiled version: `key` is its signature, the machine and the function's own code."""
        digest = hashlib.sha256(repr((key, self._source_stamp)).encode()).hexdigest()
        name = f"{self._index_name.removesuffix('.nbi')}.{digest[:24]}.nbc"
        self._save_data(name, data)
        versions = self._load_index()  # as late as possible: other processes add theirs
        versions[key] = name
        self._save_index(versions)


def sources() -> list[Path]:
    """The files that kernels are compiled from: all of ``cvrarray/cpu``, and the tables that they take."""
    cpu = Path(__file__).parent.parent
    return [*sorted(cpu.rglob("*.py")), cpu.parent / "core" / "tables.py"]


def _stamp() -> str:
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.relative_to(path.parents[2]).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


STAMP = _stamp()  #: of all these sources: code compiled from others is not used
