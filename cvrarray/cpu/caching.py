"""Numba's ``njit``, whose compiled code stays on disk under names that can be mistaken for no other.

Numba numbers the files with a function's compiled versions, and writes the index of them before the file. So two processes that
compile side by side, as Dask's workers do at their first product, may give two versions one number; and what an older version
of this package has left behind may be read in the moment between: a TypeError at best. It also looks only at the source file
that a function is in, not at what it inlines. Here a file's name says what is in it, for which sources of this whole folder,
and the index names it once it is there. What two processes add to the index at once may be lost, and is compiled again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import IndexDataCacheFile


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


class CacheFiles(IndexDataCacheFile):
    """The index and the files of one function."""

    def save(self, key: Any, data: Any) -> None:
        """Write a compiled version: `key` is its signature, the machine and the function's own code."""
        digest = hashlib.sha256(repr((key, self._source_stamp)).encode()).hexdigest()
        name = f"{self._index_name.removesuffix('.nbi')}.{digest[:24]}.nbc"
        self._save_data(name, data)
        versions = self._load_index()  # as late as can be: other processes add theirs
        versions[key] = name
        self._save_index(versions)


def _stamp() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


STAMP = _stamp()  #: of all sources in this folder: code compiled from others is not used
