"""The memory that arrays may take beside their tables: a limit for all arrays of a process, and what each of them holds."""

from __future__ import annotations

import os
import weakref
from typing import Any

from ..core import devices
from ..input import partition


class Budget:
    """Bytes of a device that may be kept for all living arrays together.

    Parameters
    ----------
    variable : str
        The environment variable that sets the limit: ``"8 GiB"``, or 0 for nothing.
    share : float
        The share of the device's memory that is the limit where the variable is not set.
    """

    def __init__(self, variable: str, share: float) -> None:
        self.variable, self.share = variable, share
        self._held: dict[int, tuple[devices.Device, int]] = {}  # by the owners' identity, while they live

    def limit(self, target: devices.Device = devices.CPU) -> int:
        """Bytes that may be held on a device.

        Raises
        ------
        ValueError
            The variable is set, and is no number of bytes.
        """
        wanted = os.environ.get(self.variable, "").strip()
        if wanted == "0":
            return 0
        if wanted:
            return partition.n_bytes(wanted, self.variable)
        return int(self.share * target.backend("runtime.memory" if target.kind == "cpu" else "memory").installed())

    def held(self, target: devices.Device = devices.CPU) -> int:
        """Bytes that are held on a device now."""
        return sum(size for device, size in list(self._held.values()) if device == target)

    def has_room(self, size: int, target: devices.Device = devices.CPU) -> bool:
        """Whether `size` more bytes may be held on a device."""
        return self.held(target) + size <= self.limit(target)

    def hold(self, owner: Any, size: int, target: devices.Device = devices.CPU) -> None:
        """Count `size` bytes, instead of what was counted before, for as long as `owner` lives."""
        if id(owner) not in self._held:
            weakref.finalize(owner, self._held.pop, id(owner), None).atexit = False
        self._held[id(owner)] = target, size
