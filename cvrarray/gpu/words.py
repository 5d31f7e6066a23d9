"""Values as words of their size, for kernels that move them and do no arithmetic."""

from __future__ import annotations

import cupy
import numpy as np

#: What moves a value of so many bytes; no arithmetic is done with it.
WORDS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype(np.complex128)}


def as_words(values: cupy.ndarray) -> cupy.ndarray:
    """The values as words of their size, which serve all dtypes."""
    return values.view(WORDS[values.itemsize])
