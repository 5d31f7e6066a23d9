"""The GPU that the models of products were fitted on: an H200."""

from __future__ import annotations

#: Its multiprocessors, and the bytes of its L2. Constants were fitted to times of matrices that fit it half of which are cold.
PROCESSORS, L2_BYTES = 132, 60 << 20

#: Bytes of x that the L1 of a multiprocessor holds: it reads each of them from L2 once. What it then finds there costs a part
#: of what L2 would.
L1_BYTES, FOUND_IN_L1 = 200_000, 0.1
