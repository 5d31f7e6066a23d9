"""Panels of a store on their way to a GPU: read into pinned memory, and copied on a stream of their own.

A slot is a pinned buffer and a buffer on the device. On the device, the copy into a slot waits for the computing with
the slot's last panel, and the computing waits for the copy. On the host, reading waits only for the slot's last copy.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from . import memory


class Staging:
    """Room for `hold` panels of up to `n_bytes`, each in its slot; see :class:`cvrarray.cpu.staging.Staging`."""

    def __init__(self, n_bytes: int, hold: int):
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._pinned = [np.frombuffer(cupy.cuda.alloc_pinned_memory(n_bytes), np.uint8, n_bytes) for _ in range(hold)]
        self._buffers: list[Any] = [None] * hold  # made when first needed: panels to keep need none
        self._used: list[Any] = [None] * hold
        self._copied: list[Any] = [None] * hold

    def host(self, slot: int, n_bytes: int, keep: bool) -> np.ndarray:
        """Pinned memory to read `n_bytes` into. Waits until the slot's last copy is over."""
        if self._copied[slot] is not None:
            self._copied[slot].synchronize()
        return self._pinned[slot][:n_bytes]

    def to_device(self, slot: int, content: np.ndarray, keep: bool) -> Any:
        """`content` on the device, for the current stream."""
        if keep:  # of the copying stream's own memory: no other stream has used it
            with self._stream:
                buffer = cupy.empty(content.size, cupy.uint8)
        else:
            if self._buffers[slot] is None:  # it may be memory that the current stream has yet to finish with
                self._buffers[slot] = cupy.empty(self._pinned[slot].size, cupy.uint8)
                self._used[slot] = cupy.cuda.get_current_stream().record()
            buffer = self._buffers[slot][: content.size]
            self._stream.wait_event(self._used[slot])
        buffer.data.copy_from_host_async(content.ctypes.data, content.nbytes, self._stream)
        self._copied[slot] = self._stream.record()
        cupy.cuda.get_current_stream().wait_event(self._copied[slot])
        return buffer

    def done(self, slot: int) -> None:
        """All computing with the slot's panel has been asked for, on the current stream."""
        if self._buffers[slot] is not None:
            self._used[slot] = cupy.cuda.get_current_stream().record()

    def drain(self) -> None:
        """Wait until no slot is in use."""
        self._stream.synchronize()
        cupy.cuda.get_current_stream().synchronize()


def free_memory() -> int:
    """Bytes that may still be allocated on the current device."""
    return memory.free(cupy.cuda.runtime.getDevice())
