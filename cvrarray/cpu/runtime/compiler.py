"""Decorators of kernels and of what they inline, and a kernel's version for arguments of given types."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import typeof, types
from numba.np import numpy_support

from . import helpers, pipeline
from .caching import njit

#: Options of a kernel: threads run it at the same time, it is cached on disk, and it uses arrays without making any.
#: ``_nrt=False``: otherwise Numba counts references to every array around every call, two atomic additions each, which
#: cost more than the products.
OPTIONS = {"nogil": True, "cache": True, "_nrt": False, "no_cfunc_wrapper": True, "pipeline_class": pipeline.Compiler}

#: Options of what kernels alone call: it is no function of its own in the end, so it has no cache and no wrappers.
HELPERS = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": helpers.Compiler}


def kernel(function: Callable) -> Callable:
    """Decorator of a kernel: ``njit`` with :data:`OPTIONS`."""
    return njit(**OPTIONS)(function)


def helper(function: Callable) -> Callable:
    """Decorator of a function that kernels alone call. It is compiled as a part of each: see :mod:`.helpers`."""
    return njit(**HELPERS)(function)


def inlined(function: Callable) -> Callable:
    """Decorator of a helper that LLVM inlines wherever a kernel calls it."""
    return njit(**HELPERS, forceinline=True)(function)


def compiled(function: Callable, *args: Any) -> Callable:
    """The version of a kernel for arguments of these types. A call of it saves Numba's choice of a version, 1 to 3 us.

    Arrays must be contiguous, aligned and in native byte order; one version serves writable and read-only ones. The
    version checks none of that: call it with arguments of these types only.
    """
    entry: Callable = version(function, *args).entry_point
    return entry


def version(function: Callable, *args: Any) -> Any:
    """Numba's ``CompileResult`` of that version."""
    key = function, *map(_key, args)
    found = _versions.get(key)
    if found is None:
        signature = tuple(_type(arg) for arg in args)
        function.compile(signature)
        found = _versions[key] = function.overloads[signature]
    return found


@cache
def compiled_by(*key: Any) -> Callable[..., Callable]:
    """``version(function, *args)``: :func:`compiled`, where `key` says all types. Looking at tables takes 10 us."""
    found: dict[Callable, Callable] = {}
    return lambda function, *args: found.get(function) or found.setdefault(function, compiled(function, *args))


#: What :func:`version` gave before: Numba's own look-up takes 20 to 40 us for a matrix's tables.
_versions: dict[Any, Any] = {}


def _key(arg: Any) -> Any:
    """What tells the types of arguments apart."""
    kind = type(arg)
    if kind is np.ndarray or isinstance(arg, np.ndarray):
        return arg.dtype, arg.ndim
    if kind is tuple:  # of integers
        return kind, len(arg)
    if isinstance(arg, tuple):  # of arrays, most of the time
        return kind, *[(of.dtype, of.ndim) if type(of) is np.ndarray else _key(of) for of in arg]
    return kind


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
