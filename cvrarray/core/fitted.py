"""The GPU that the models of products were fitted on, an H200, and what they know of kernels."""

from __future__ import annotations

PROCESSORS, L2_BYTES = 132, 60 << 20

#: The part of L2 beyond which tables of BBCSR are large: a product leaves some of them there, for the next one.
LARGE = 0.9
