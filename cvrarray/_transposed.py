"""Where pickles of version 0.1.0 look for what is :mod:`cvrarray.array.transposed` now."""

from .array.transposed import TransposedArray as TransposedArray
