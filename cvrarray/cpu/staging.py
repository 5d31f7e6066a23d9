"""Panels of a store on their way to the CPU: they are read to where they are used."""

from __future__ import annotations

import os

import numpy as np

from .runtime import memory


class Staging:
    """Room for `hold` panels of up to `n_bytes`, each in its slot."""

    def __init__(self, n_bytes: int, hold: int):
        self._buffers = [memory.empty(n_bytes, np.uint8) for _ in range(hold)]

    def host(self, slot: int, n_bytes: int, keep: bool) -> np.ndarray:
        """Host memory to read `n_bytes` into; a panel to `keep` gets its own. Waits for the slot's last copy."""
        return memory.empty(n_bytes, np.uint8) if keep else self._buffers[slot][:n_bytes]

    def to_device(self, slot: int, content: np.ndarray, keep: bool) -> np.ndarray:
        """`content` where it can be computed with."""
        return content

    def done(self, slot: int) -> None:
        """All computing with the slot's panel has been asked for."""

    def drain(self) -> None:
        """Wait until no slot is in use."""


def free_memory() -> int:
    """Bytes that may still be asked for without pushing anything out."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on this system
        return 1 << 30
