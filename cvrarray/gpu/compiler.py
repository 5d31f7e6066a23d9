"""Kernels as loaded functions: source text from ``kernels/``, one instantiation at a time, compiled by NVRTC once.

CuPy compiles, loads and keeps the result on disk. Its cache knows the text it is given and nothing of included files, so
``common.cuh`` is pasted in front of each kernel file, and every ``#include "x.cuh"`` is replaced by that file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import cupy
import numpy as np

OPTIONS = ("-std=c++17",)

#: NumPy dtype -> its name in ``common.cuh``.
CTYPE = {
    np.dtype(name): ctype
    for name, ctype in {
        "bool": "bool",
        "int8": "int8",
        "int16": "short",
        "int32": "int",
        "int64": "int64",
        "uint8": "uint8",
        "uint16": "uint16",
        "uint32": "uint32",
        "uint64": "uint64",
        "float16": "float16",
        "float32": "float",
        "float64": "double",
        "complex64": "complex64",
        "complex128": "complex128",
    }.items()
}

#: (stored dtype, product dtype) that stand for all pairs: each kind of arithmetic, and a widening one.
PRODUCTS = [
    ("float32", "float32"),
    ("float64", "float64"),
    ("float32", "float64"),
    ("float16", "float32"),
    ("complex64", "complex64"),
    ("complex128", "complex128"),
    ("float32", "complex64"),
    ("bool", "int64"),
    ("int8", "int8"),
    ("uint64", "uint64"),
]

#: The most lanes that share a row of a dense matrix: more would hold more sums each than there are registers for.
MATRIX_LANES = 16

#: A null pointer as a kernel's argument.
NULL = np.uint64(0)

PLAIN, SCALE, ACCUMULATE = (np.int32(form) for form in range(3))


@cache
def source(name: str) -> str:
    """The text of ``kernels/<name>.cu`` with ``common.cuh`` in front."""
    text = re.sub(r'#include "(.+)"\n', lambda include: _read(include[1]), _read(f"{name}.cu"))
    return _read("common.cuh") + "\n" + text


def _read(file: str) -> str:
    try:
        return files("cvrarray.kernels").joinpath(file).read_text()
    except ModuleNotFoundError:  # run from a checkout without being installed: the folder lies beside the package
        return (Path(__file__).parents[2] / "kernels" / file).read_text()


def kernel(file: str, function: str, *arguments: object) -> cupy.cuda.Function:
    """The function template `function` of ``kernels/<file>.cu`` with these template arguments, for the current device.

    Arguments are dtypes, booleans or integers. Compiled on first use.
    """
    return _kernel(cupy.cuda.runtime.getDevice(), file, function, *arguments)


def instantiation(function: str, *arguments: object) -> str:
    """``function<arguments>`` as C++ spells it; a function that is no template has none."""
    return f"{function}<{', '.join(_argument(a) for a in arguments)}>" if arguments else function


def _argument(argument: object) -> str:
    if isinstance(argument, (bool, int)):
        return str(argument).lower()
    return CTYPE[np.dtype(argument)]


@cache
def _kernel(_device: int, file: str, function: str, *arguments: object) -> cupy.cuda.Function:
    expression = instantiation(function, *arguments)
    module = cupy.RawModule(code=source(file), options=OPTIONS, name_expressions=(expression,))
    return module.get_function(expression).kernel


def blocks(n_threads: int, block: int) -> tuple[int]:
    """The grid that gives every thread a place."""
    return (max(1, -(-n_threads // block)),)


def struct(*fields: cupy.ndarray | int | None) -> np.ndarray:
    """Pointers and 64-bit integers as one struct that a kernel takes by value; None is a null pointer."""
    words = [0 if f is None else f if isinstance(f, int) else f.data.ptr for f in fields]
    return np.array(words, np.uint64).view(f"V{8 * len(words)}")


def update(alpha: np.generic, beta: np.generic) -> np.int32:
    """Which of the three forms of ``y = alpha * A @ x + beta * y`` is asked for: the enum of ``common.cuh``."""
    return ACCUMULATE if beta != 0 else SCALE if alpha != 1 else PLAIN


def vector_width(dtype: np.dtype) -> int:
    """Numbers of `dtype` in a vector load: 16 bytes, and no more than 4."""
    return min(4, 16 // np.dtype(dtype).itemsize)


def matrix_tiles(k: int, dtype: np.dtype, x: cupy.ndarray, y: cupy.ndarray) -> tuple[int, int, int]:
    """How a product with `k` columns is laid out: lanes that share a row (a power of two), numbers each holds, and tiles.

    Vector loads need rows that begin at a multiple of their size.
    """
    width = vector_width(dtype)
    size = width * dtype.itemsize
    if k % width or x.data.ptr % size or y.data.ptr % size:
        width = 1
    members = min(MATRIX_LANES, 1 << max(0, -(-k // width) - 1).bit_length())
    return members, width, max(1, -(-k // (members * width)))


@cache
def processors(device: int) -> int:
    """Multiprocessors of the device."""
    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


def settle() -> None:
    """Wait for what was prepared on the current stream: later products, on any stream, rely on it."""
    stream = cupy.cuda.get_current_stream()
    if not stream.is_capturing():
        stream.synchronize()


class Scratch:
    """Memory for the time of one call, from CuPy's pool; what a captured CUDA graph uses is kept as long as this object.

    A graph replays with the addresses it was captured with, long after the pool would have given them to somebody else.
    """

    def __init__(self) -> None:
        self._kept: list[cupy.ndarray] = []

    def empty(self, shape: Any, dtype: Any) -> cupy.ndarray:
        """As ``cupy.empty``."""
        array = cupy.empty(shape, dtype)
        if cupy.cuda.get_current_stream().is_capturing():
            self._kept.append(array)
        return array


class PerStream:
    """What `make()` gives, made once for each stream: memory that calls on one stream may share, as they run in turn.

    Every captured graph has its own, for it may be replayed on any stream. Streams are told apart by thread too: CUDA's
    per-thread default streams have one handle.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: dict[tuple[int, int], Any] = {}
        self._of_graphs: list[Any] = []

    def get(self) -> Any:
        """That of the current stream."""
        stream = cupy.cuda.get_current_stream()
        if stream.is_capturing():
            self._of_graphs.append(self._make())
            return self._of_graphs[-1]
        key = stream.ptr, threading.get_ident()
        if key not in self._made:
            self._made[key] = self._make()
        return self._made[key]
