"""Numba's ``njit``, whose compiled code stays on disk where it can, and is compiled again where it cannot.

A file holds one compiled version of one function. Its name says what is in it: the function, its arguments' types, the
machine, and the sources of all kernels, for Numba looks only at the source file that a function is in, not at what it
inlines. So processes that compile side by side, as Dask's workers do at their first product, write different files or
the same one, and no file of an older version is read. (Numba numbers its files, and lists them in an index that two
processes may write at once.) A file begins with its checksum: one that is cut or damaged is compiled anew and replaced.

The folder is ``CVRARRAY_CACHE_DIR`` where that is set, else the one that Numba finds: ``NUMBA_CACHE_DIR``,
``__pycache__`` beside the source, or the user's cache folder. Nothing that is wrong with it stops a kernel: it is
compiled, and one warning says so.

A process that forks waits until no thread compiles: the child would have the compiler's locks, and no thread to open
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import pickle
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import ffi
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
    UserProvidedCacheLocator,
)
from numba.core.compiler_lock import global_compiler_lock

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable], Callable]:
    """As ``numba.njit``, but for the cache."""

    def decorate(function: Callable) -> Callable:
        dispatcher = numba.njit(**options)(function)
        if not hasattr(dispatcher, "compile"):
            raise RuntimeError(
                "the CPU's kernels must be compiled: they call what has no meaning in Python. NUMBA_DISABLE_JIT is set, which"
                " switches the compiler off: unset it"
            )
        if cache:
            dispatcher._cache = _cache_of(function)
        return dispatcher

    return decorate


def _cache_of(function: Callable) -> FunctionCache | NullCache:
    try:
        return Cache(function)
    except RuntimeError:  # no folder can be written to
        beside = os.path.join(os.path.dirname(function.__code__.co_filename), "__pycache__")
        _warn(f"compiled code cannot be saved in {beside}, nor in the user's cache folder. {_REMEDY}")
        return NullCache()


def folder() -> str | None:
    """Where compiled code is saved, in this folder or in ``__pycache__`` of those below it; None where it is not saved."""
    saved = _cache_of(_cache_of)
    if isinstance(saved, NullCache):
        return None
    path = Path(saved.cache_path)
    return str(path.parents[1] if path.name == "__pycache__" else path)


class CacheFiles(IndexDataCacheFile):
    """The files of one function; there is no index."""

    def save(self, key: Any, data: Any) -> None:
        """Write a compiled version: `key` is its signature, the machine and the function's own code."""
        content = self._dump(data)
        self._refuse_others()
        with self._open_for_write(self.path(key)) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def load(self, key: Any) -> Any:
        """A compiled version, None where none can be read; ValueError where it is damaged."""
        try:
            content = Path(self.path(key)).read_bytes()
        except OSError:
            return None
        self._refuse_others()
        size = hashlib.sha256().digest_size
        if hashlib.sha256(content[size:]).digest() != content[:size]:
            raise ValueError("it does not match its checksum")
        return pickle.loads(content[size:])

    def _refuse_others(self) -> None:
        """PermissionError where somebody else may write into the folder: what is loaded from there is run."""
        if not hasattr(os, "getuid"):  # Windows
            return
        folder = os.path.dirname(self._index_path)
        status = os.stat(folder)
        owners = {0, os.getuid(), os.stat(__file__).st_uid}  # who wrote this file may run code in any case
        # groups of one user have the user's number, and theirs is the right to write on many systems
        open_to = stat.S_IWOTH if status.st_gid in (0, status.st_uid) else stat.S_IWOTH | stat.S_IWGRP
        if status.st_uid not in owners or status.st_mode & open_to:
            raise PermissionError(
                f"{folder} must be a folder that only you, or root, may write to; its owner has the number {status.st_uid}, its"
                f" mode is {stat.S_IMODE(status.st_mode):o}. Use chmod go-w, or set CVRARRAY_CACHE_DIR to another folder"
            )

    def path(self, key: Any) -> str:
        """The file of a compiled version."""
        digest = hashlib.sha256(repr((key, self._source_stamp, self._version)).encode()).hexdigest()
        return f"{self._index_path.removesuffix('.nbi')}.{digest[:24]}.nbc"


class OwnFolder(UserProvidedCacheLocator):
    """``CVRARRAY_CACHE_DIR``, which need not be writable: what was compiled there before is used."""

    def __init__(self, function: Callable, source: str):
        super().__init__(function, source)
        self._cache_path = os.path.abspath(os.environ["CVRARRAY_CACHE_DIR"])

    @classmethod
    def from_function(cls, function: Callable, source: str) -> OwnFolder | None:
        """None where the variable is not set."""
        return cls(function, source) if os.environ.get("CVRARRAY_CACHE_DIR") else None


class _Implementation(CompileResultCacheImpl):
    _locator_classes = (OwnFolder, *CompileResultCacheImpl._locator_classes)


class Cache(FunctionCache):
    """The compiled versions of one function on the disk."""

    _impl_class = _Implementation

    def __init__(self, function: Callable):
        super().__init__(function)
        self._cache_file = CacheFiles(self.cache_path, self._impl.filename_base, _stamp_for(function))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The version for a signature, or None: it is then compiled, and saved in place of what could not be used."""
        found = None
        require_room(TO_LOAD)
        try:
            found = super().load_overload(sig, target_context)
        except MemoryError:
            raise
        except PermissionError as error:
            _warn(f"compiled code is neither loaded nor saved: {error}")
        except Exception as error:
            path = self._cache_file.path(self._index_key(sig, target_context.codegen()))
            _warn(f"{path} holds no usable code: {_described(error)}. It is compiled again, and the file replaced")
        if found is None:
            require_room(TO_COMPILE)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a version, if that is possible."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _warn(f"compiled code cannot be saved in {self.cache_path}: {_described(error)}. {_REMEDY}")


#: Bytes that must be free, where a process may have so many alone: LLVM, which finds no memory, ends the process.
TO_LOAD, TO_COMPILE = 16 << 20, 128 << 20


def require_room(n_bytes: int) -> None:
    """MemoryError where the process has a limit of memory (``ulimit -v``) that leaves less than so many bytes."""
    if resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, n_bytes).close()
    except OSError as error:
        raise MemoryError(
            f"a kernel needs {n_bytes >> 20} MiB to be compiled or loaded, which the limit of this process (ulimit -v) does not"
            " leave. Raise it, or free memory"
        ) from error


_REMEDY = (
    "Every process compiles again, which takes seconds to minutes: set CVRARRAY_CACHE_DIR to a folder that has room and can be "
    "written to"
)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}, {error}"


_warned = False


def _warn(message: str) -> None:
    """Warn once a process: there are many kernels, and one folder."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(message, RuntimeWarning, stacklevel=2)


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


def _stamp_for(function: Callable) -> str:
    """STAMP; for a kernel of another folder, the solvers', with its own file, which the kernels here do not depend on."""
    own = Path(function.__code__.co_filename)
    if not own.is_file() or own.is_relative_to(Path(__file__).parent.parent):
        return STAMP
    return STAMP + hashlib.sha256(own.read_bytes()).hexdigest()


if hasattr(os, "register_at_fork"):
    #: In the order in which a compilation takes them. LLVM's is also taken without the other, when compiled code is let
    #: go of.
    _COMPILER_LOCKS = (global_compiler_lock, getattr(ffi.lib, "_lock", contextlib.nullcontext()))

    def _before_fork() -> None:
        for lock in _COMPILER_LOCKS:
            lock.__enter__()

    def _after_fork() -> None:
        for lock in reversed(_COMPILER_LOCKS):
            lock.__exit__(None, None, None)

    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
