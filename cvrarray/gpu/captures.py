"""Captures of CUDA graphs: what none of them may hold, what is done beside one, and memory that a graph keeps."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy

#: Of the driver's modes of a capture, what prohibits least.
RELAXED = 2


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
    mode, exchange = ctypes.c_int(RELAXED), driver().cuThreadExchangeStreamCaptureMode
    exchange(ctypes.byref(mode))  # which is now the mode before
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@cache
def driver() -> ctypes.CDLL:
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


#: Held while a graph is captured that the user does not know of, and while the device is waited for: CUDA ends every capture
#: then, whichever thread's, and the wait is an error.
CAPTURES = threading.RLock()
