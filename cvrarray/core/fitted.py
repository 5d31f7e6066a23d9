"""The GPU that the models of products were fitted on: an H200."""

from __future__ import annotations

#: Its multiprocessors, and the bytes of its L2. Constants were fitted to times of matrices that fit it half of which are cold.
PROCESSORS, L2_BYTES = 132, 60 << 20
