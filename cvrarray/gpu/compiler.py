"""Kernels as loaded functions: source text from ``kernels/``, compiled by NVRTC one instantiation at a time.

CuPy compiles, loads and caches the result on disk. The cache's key is the text that CuPy is given, without included
files. So ``common.cuh`` is pasted in front of each kernel file, and every ``#include "x.cuh"`` is replaced by that
file.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

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


class Coded(NamedTuple):
    """A template argument: values of `dtype` as numbers of distinct ones, ``Few``, or all the same, ``One``."""

    kind: str
    dtype: str | np.dtype

    def __str__(self) -> str:
        return f"{self.kind}<{CTYPE[np.dtype(self.dtype)]}>"


#: How a matrix's values are stored, and the product's dtype: as PRODUCTS.
STORED: list[tuple[str | Coded, str]] = [
    *PRODUCTS,
    (Coded("Few", "float32"), "float32"),
    (Coded("Few", "float64"), "float64"),
    (Coded("Few", "complex128"), "complex128"),
    (Coded("One", "float32"), "float64"),
    (Coded("One", "complex64"), "complex64"),
    (Coded("One", "bool"), "int64"),
]

#: Bytes of a cache line, and of a sector of it, the least that is loaded.
LINE, SECTOR = 128, 32

#: The most lanes that share a row of a dense matrix. With more, each would have more sums than there are registers for.
MATRIX_LANES = 16

#: Blocks that a grid may have in its second dimension.
MOST_IN_Y = 65_535


def argument(number: np.generic) -> Any:
    """A number as an argument of launches, made once for all of them: CuPy would make it anew in each."""
    return cupy.cuda.function.CNumpyArray(np.asarray(number))


#: A null pointer as a kernel's argument.
NULL = argument(np.uint64(0))

#: Of the driver's modes of a capture, what prohibits least.
RELAXED = 2

PLAIN, SCALE, ACCUMULATE = (np.int32(form) for form in range(3))


@cache
def source(name: str) -> str:
    """The text of ``kernels/<name>.cu`` with ``common.cuh`` in front."""
    text = re.sub(r'#include "(.+)"\n', lambda include: _read(include[1]), _read(f"{name}.cu"))
    return _read("common.cuh") + "\n" + text


def _read(file: str) -> str:
    """In a wheel the kernels lie in this very package, in a checkout beside it.

    They are never looked for by name, as a module: that could find those of another installed checkout.
    """
    inside = files("cvrarray") / "kernels"
    folder = inside if inside.is_dir() else Path(__file__).parents[2] / "kernels"
    return (folder / file).read_text()


def constant(file: str, name: str) -> int:
    """What ``kernels/<file>`` calls `name`, a number that the host counts with too: it stands there alone."""
    (number,) = re.findall(rf"constexpr int [^;]*\b{name} = (\d+)", _read(file))
    return int(number)


class Kernel:
    """A kernel of ``kernels/<file>.cu``: a function template, and which of its instantiations CI compiles without a
    GPU.

    Calling it gives the loaded function for the current device, compiled on first use. It is called with the template's
    arguments, or with that from which ``arguments(...)`` makes them: dtypes, booleans and integers. There is no other
    way to a kernel, so that KERNELS lists all of them.

    Parameters
    ----------
    file, name
        Where the template stands, and what it is called there.
    cases
        What it may be called with: at least one case for each path through the kernel. Names stand for dtypes.
    arguments
        By default what the kernel is called with.
    registers
        Registers that a thread may have, where the compiler would take a few more; None: what it takes. It is called like
        `arguments`.
    """

    def __init__(
        self,
        file: str,
        name: str,
        cases: Iterable[tuple[object, ...]] = ((),),
        arguments: Callable[..., tuple[object, ...]] = lambda *arguments: arguments,
        registers: Callable[..., int | None] = lambda *arguments: None,
    ) -> None:
        self.file, self.name, self._cases, self._arguments, self._registers = file, name, list(cases), arguments, registers
        KERNELS.append(self)

    def __call__(self, *of: Any) -> cupy.cuda.Function:
        return load(cupy.cuda.runtime.getDevice(), self.file, self.name, *self._arguments(*of), registers=self._registers(*of))

    def instantiations(self) -> list[str]:
        """Those of the cases, as C++ spells them."""
        cases = ([np.dtype(part) if isinstance(part, str) else part for part in case] for case in self._cases)
        return list(dict.fromkeys(instantiation(self.name, *self._arguments(*case)) for case in cases))


#: Every kernel of the package.
KERNELS: list[Kernel] = []


def instantiation(function: str, *arguments: object) -> str:
    """``function<arguments>`` as C++ spells it; a function that is no template has none."""
    return f"{function}<{', '.join(_argument(a) for a in arguments)}>" if arguments else function


def _argument(argument: object) -> str:
    if isinstance(argument, Coded):
        return str(argument)
    if isinstance(argument, (bool, int)):
        return str(argument).lower()
    return CTYPE[np.dtype(argument)]


@cache
def load(_device: int, file: str, name: str, *arguments: object, registers: int | None = None) -> cupy.cuda.Function:
    """The function `name` of ``kernels/<file>.cu`` with these template arguments, of threads with at most so many registers."""
    expression, options = instantiation(name, *arguments), OPTIONS
    if registers is not None:
        options = *options, f"--maxrregcount={registers}"
    module = cupy.RawModule(code=source(file), options=options, name_expressions=(expression,))
    with relaxed():  # a product may be the first of its kind in a capture
        return module.get_function(expression).kernel


def allowed(found: cupy.cuda.Function, most: int) -> cupy.cuda.Function:
    """The kernel, allowed `most` bytes of shared memory. Arrays share it, so `most` is what any of them may ask for."""
    cupy.cuda.driver.funcSetAttribute(found.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most)
    return found


def blocks(n_threads: int, block: int) -> tuple[int]:
    """The least grid of at least `n_threads` threads, and of at least one block."""
    return (max(1, -(-n_threads // block)),)


def in_columns(n_blocks: int) -> tuple[int, int]:
    """A grid of at least `n_blocks` blocks, with a column for each multiprocessor: ``block_number`` of ``common.cuh``."""
    n_columns = max(1, min(n_blocks, processors()), -(-n_blocks // MOST_IN_Y))
    return n_columns, max(1, -(-n_blocks // n_columns))


class Struct(cupy.cuda.function.CPointer):  # type: ignore[misc]  # CuPy has no types
    """A structure that a kernel takes by value, as CuPy passes arguments on. It keeps alive the arrays that its pointers point
    to.
    """

    def __init__(self, words: ctypes.Array[ctypes.c_uint64], buffers: list[cupy.ndarray]) -> None:
        super().__init__(ctypes.addressof(words))
        self.words, self.buffers = words, buffers


def struct(*fields: cupy.ndarray | int | None) -> Struct:
    """A structure of pointers and 64-bit integers; None is a null pointer."""
    words, buffers = [], []
    for field in fields:
        if isinstance(field, int):
            words.append(field)
        elif field is None:
            words.append(0)
        else:
            words.append(field.data.ptr)
            buffers.append(field)
    return Struct(_words(len(words))(*words), buffers)


@cache
def _words(n: int) -> type[ctypes.Array[ctypes.c_uint64]]:
    return ctypes.c_uint64 * n


def scaling(alpha: np.generic, beta: np.generic) -> tuple[Any, Any, Any]:
    """The arguments `alpha`, `beta` and which form of ``y = alpha * A @ x + beta * y`` is asked for."""
    if alpha == 1 and beta == 0:  # what nearly every call passes
        return _plain(type(alpha))
    return alpha, beta, update(alpha, beta)


@cache
def _plain(number: type[np.generic]) -> tuple[Any, Any, Any]:
    return argument(number(1)), argument(number(0)), argument(PLAIN)  # type: ignore[call-arg]  # types of numbers alone


def update(alpha: np.generic, beta: np.generic) -> np.int32:
    """Which of the three forms of ``y = alpha * A @ x + beta * y`` is asked for: the enum of ``common.cuh``."""
    return ACCUMULATE if beta != 0 else SCALE if alpha != 1 else PLAIN


def vector_width(dtype: np.dtype) -> int:
    """Numbers of `dtype` in a vector load: 16 bytes, and no more than 4."""
    return min(4, 16 // np.dtype(dtype).itemsize)


class Tiles(NamedTuple):
    """How the columns of a product with a dense matrix are shared: the template parameters of ``kernels/matrix.cuh``."""

    lanes: int  # G: that share a row, a power of two
    width: int  # V: numbers in a vector load
    vectors: int  # W: that each lane holds
    tiles: int  # of lanes * width * vectors columns


def matrix_width(k: int, x: cupy.ndarray, y: cupy.ndarray) -> int:
    """Numbers in a vector load of rows of `k` numbers of X and Y, which must begin at multiples of its size."""
    size: int = x.itemsize
    width, ends = min(4, 16 // size), k * size | x.data.ptr | y.data.ptr
    while ends % (width * size):
        width //= 2
    return width


def matrix_tiles(k: int, width: int, most_vectors: int = 1) -> Tiles:
    """The layout for `k` columns. A lane holds several vectors where many lanes would share a row, but no more than
    asked for.

    So fewer lanes load the same value and column, and more of X is under way at a time.
    """
    in_a_row = max(1, -(-k // width))
    vectors = min(most_vectors, 4 if in_a_row >= MATRIX_LANES else 2 if in_a_row >= MATRIX_LANES // 2 else 1)
    lanes = min(MATRIX_LANES, 1 << (-(-in_a_row // vectors) - 1).bit_length())
    return Tiles(lanes, width, vectors, max(1, -(-k // (lanes * width * vectors))))


def matrix_grid(n_blocks: int, tiles: int) -> tuple[int, int, int]:
    """A grid of `n_blocks` blocks for each of at least so many tiles of columns: ``tile_of_block`` of ``matrix.cuh``."""
    in_y = max(1, min(tiles, MOST_IN_Y))
    return n_blocks, in_y, max(1, -(-tiles // in_y))


@cache
def _attributes(device: int) -> dict[str, int]:
    """CuPy asks the driver for all of them each time, which takes longer than a small solve."""
    found: dict[str, int] = cupy.cuda.Device(device).attributes
    return found


def attribute(name: str) -> int:
    """Of the current device: what CuPy's ``Device.attributes`` has under this name."""
    return _attributes(cupy.cuda.runtime.getDevice())[name]


def processors() -> int:
    """Multiprocessors of the current device."""
    return attribute("MultiProcessorCount")


def architecture() -> int:
    """Of the current device: 90 is sm_90."""
    return int(cupy.cuda.Device().compute_capability)


def has_asynchronous_copies() -> bool:
    """Can the current device copy to shared memory while it computes?"""
    return architecture() >= 80


def has_copy_engine() -> bool:
    """Can it copy whole tables there by one instruction, as ``kernels/copies.cuh`` does?"""
    return architecture() >= 90


def has_float_vectors() -> bool:
    """Can it add four floats in memory by one instruction?"""
    return architecture() >= 90


def synchronize() -> None:
    """Wait for the current stream: later products, on any stream, need what it prepares.

    Raises
    ------
    RuntimeError
        A graph is captured from it.
    """
    refuse_capture()
    cupy.cuda.get_current_stream().synchronize()


def refuse_capture() -> None:
    """RuntimeError while a graph is captured from the current stream."""
    if cupy.cuda.get_current_stream().is_capturing():
        raise RuntimeError(
            "A conversion waits for the device, so it cannot be captured in a CUDA graph. Make the array before the capture"
        )


@contextmanager
def relaxed() -> Iterator[None]:
    """Memory may be taken meanwhile, and streams waited for that are not captured.

    In CUDA's *global* mode, which PyTorch captures in, each of them is an error that also ends the capture, unless the thread
    says that it knows what it does.
    """
    mode, exchange = ctypes.c_int(RELAXED), _driver().cuThreadExchangeStreamCaptureMode
    exchange(ctypes.byref(mode))  # which is now the mode before
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@cache
def _driver() -> ctypes.CDLL:
    """CUDA's driver, for functions that CuPy does not have."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


@contextmanager
def keeping(kept: list[Any]) -> Iterator[None]:
    """For the time of a capture: memory that the captured stream's work is given is put in `kept`.

    A graph replays with the addresses that it was captured with, and the pool would have given them to others. So the list
    must live as long as the graph.
    """
    allocate = cupy.cuda.get_allocator()

    def allocate_and_keep(n_bytes: int) -> Any:
        memory = allocate(n_bytes)
        if cupy.cuda.get_current_stream().is_capturing():  # and not aside
            kept.append(memory)
        return memory

    with relaxed(), cupy.cuda.using_allocator(allocate_and_keep):
        yield


@contextmanager
def aside() -> Iterator[None]:
    """Where a product prepares what it must wait for: on the current stream, or on another one while that is captured."""
    if not cupy.cuda.get_current_stream().is_capturing():
        yield
        synchronize()
        return
    with relaxed(), _stream_aside(cupy.cuda.runtime.getDevice()) as stream:
        yield
        stream.synchronize()


@cache
def _stream_aside(_device: int) -> cupy.cuda.Stream:
    """One for all captures: what the pool gets back from it, it can use there again."""
    return cupy.cuda.Stream(non_blocking=True)


def _lane(stream: cupy.cuda.Stream) -> tuple[int, int]:
    """What tells streams that are captured apart: what is captured from one of them runs in turn, in every replay."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    get_info = _driver().cuStreamGetCaptureInfo_v2
    get_info(ctypes.c_void_p(stream.ptr), ctypes.byref(status), ctypes.byref(number), None, None, None)
    return stream.ptr, number.value


#: Held while a graph is captured that the user does not know of, and while the device is waited for: CUDA ends every capture
#: then, whichever thread's, and the wait is an error.
CAPTURES = threading.RLock()


class PerStream:
    """What `make()` gives, made once for each stream: memory that calls on one stream may share, as they run in turn.

    So may those that are captured from one stream. But each captured graph has memory of its own, as it may be replayed on any
    stream, and keeps it as long as this object: it replays with the addresses that it was captured with. It is made aside:
    what clears it is no part of the graph. The thread is part of a stream's key: the per-thread default streams of CUDA all
    have the same handle.

    A stream that is gone may have left work behind, while another one has its handle, and so its memory: products of both
    would count each other's sums, and wait for ever. So that one's first call waits for the device.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._made: dict[tuple[int, int], tuple[Any, Callable[[], Any]]] = {}  # and what is None once the stream is gone
        self._of_graphs: dict[Any, Any] = {}

    def get(self) -> Any:
        """That of the current stream."""
        stream = cupy.cuda.get_current_stream()
        if stream.is_capturing():
            return self._of_graph(stream)
        key = stream.ptr, threading.get_ident()
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(), _life(stream)
        elif found[1]() is None:
            with CAPTURES:
                cupy.cuda.runtime.deviceSynchronize()
            found = self._made[key] = found[0], _life(stream)
        return found[0]

    def _of_graph(self, stream: cupy.cuda.Stream, *of: Any) -> Any:
        key = _lane(stream), of
        if key not in self._of_graphs:
            with aside():
                self._of_graphs[key] = self._make(*of)
        return self._of_graphs[key]


class Scratch(PerStream):
    """Memory for the time of one call, from CuPy's pool; what captured graphs use is kept."""

    def __init__(self) -> None:
        super().__init__(cupy.empty)

    def empty(self, shape: Any, dtype: Any) -> cupy.ndarray:
        """As ``cupy.empty``."""
        stream = cupy.cuda.get_current_stream()
        return self._of_graph(stream, shape, dtype) if stream.is_capturing() else cupy.empty(shape, dtype)


class Meeting:
    """A structure of a kernel in which parts of rows meet, by counters and other memory that a stream's launches share, and by
    sums for the time of one launch.

    Parameters
    ----------
    make
        Gives the structure for a stream, with a null pointer for the sums.
    place
        Of the sums' pointer in it.
    n_bytes
        Of the sums.
    """

    def __init__(self, make: Callable[[], Struct], place: int, n_bytes: int) -> None:
        self._structs, self._place, self._n_bytes = PerStream(make), place, n_bytes
        self._of_graphs = PerStream(lambda: cupy.cuda.alloc(n_bytes))

    def take(self) -> tuple[Struct, Any]:
        """The structure for a launch on the current stream, and its sums: both must be held until then."""
        made = self._structs.get()  # this thread's: no other writes to it meanwhile
        is_capturing = cupy.cuda.get_current_stream().is_capturing()
        sums = self._of_graphs.get() if is_capturing else cupy.cuda.alloc(self._n_bytes)
        made.words[self._place] = sums.ptr
        return made, sums


class _Thread:
    """Something that lives as long as a thread."""


_of_thread = threading.local()


def _life(stream: cupy.cuda.Stream) -> Callable[[], Any]:
    """What gives None once a stream is gone, as far as is known: those of other libraries are taken to stay."""
    if stream.ptr == cupy.cuda.runtime.streamPerThread:
        return weakref.ref(_of_thread.__dict__.setdefault("life", _Thread()))
    if type(stream) is cupy.cuda.Stream and getattr(stream, "_foreign_stream_ref", None) is None:
        return weakref.ref(stream)
    return lambda: stream
