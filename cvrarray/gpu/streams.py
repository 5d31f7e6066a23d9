"""Memory that each stream, and each captured graph, has for itself."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

import cupy

from .captures import CAPTURES, aside, driver
from .launches import Struct


def _lane(stream: cupy.cuda.Stream) -> tuple[int, int]:
    """What tells streams that are captured apart: what is captured from one of them runs in turn, in every replay."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    get_info = driver().cuStreamGetCaptureInfo_v2
    get_info(ctypes.c_void_p(stream.ptr), ctypes.byref(status), ctypes.byref(number), None, None, None)
    return stream.ptr, number.value


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
        """As ``np.empty``, which makes an array of vectors one of their numbers."""
        if dtype.subdtype is not None:
            dtype, more = dtype.subdtype
            shape = (*shape, *more) if isinstance(shape, tuple) else (shape, *more)
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
