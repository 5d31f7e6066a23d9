"""What the models of products know of a GPU, from what its driver says of it: the same in every run, so choices are too.

Constants of models were fitted on one GPU. Times of memory and of gathers are scaled by how much slower another one is.
"""

from __future__ import annotations

from typing import NamedTuple

#: What a multiprocessor finds in its L1 costs a part of what L2 would.
FOUND_IN_L1 = 0.1


class Profile(NamedTuple):
    """Rates and sizes of a GPU."""

    memory: float  #: bytes that its memory moves in a microsecond, at most
    gathers: float  #: reads of 32 bytes anywhere in L2 in a microsecond
    processors: int
    l2_bytes: int
    l1_bytes: int  #: of x that the L1 of a multiprocessor holds: it reads each of them from L2 once

    @classmethod
    def of(cls, attributes: dict[str, int]) -> Profile:
        """From CUDA's attributes of a device, as ``cupy.cuda.Device.attributes`` has them.

        Memory moves twice a clock. On an H200, large reads and copies reach 0.82 to 0.9 of that, and gathers were measured at
        131 a nanosecond: half a gather for each clock of a multiprocessor. Six sevenths of L1 are left for x.
        """
        processors = attributes["MultiProcessorCount"]
        return cls(
            memory=2 * attributes["MemoryClockRate"] * attributes["GlobalMemoryBusWidth"] / 8e3,
            gathers=processors * attributes["ClockRate"] / 2e3,
            processors=processors,
            l2_bytes=attributes["L2CacheSize"],
            l1_bytes=attributes["MaxSharedMemoryPerMultiprocessor"] * 6 // 7,
        )

    @property
    def slower_memory(self) -> float:
        """How much longer this GPU moves a byte than the one that constants were fitted on."""
        return FITTED.memory / self.memory if self.memory else 1.0  # a virtual GPU may not say

    @property
    def slower_gathers(self) -> float:
        """The same of a gather."""
        return FITTED.gathers / self.gathers if self.gathers else 1.0


#: The GPU that constants were fitted on, an H200; they serve where there is no GPU to ask.
FITTED = Profile.of(
    {
        "MemoryClockRate": 3_201_000,
        "GlobalMemoryBusWidth": 6_016,
        "ClockRate": 1_980_000,
        "MultiProcessorCount": 132,
        "L2CacheSize": 60 << 20,
        "MaxSharedMemoryPerMultiprocessor": 228 << 10,
    }
)
