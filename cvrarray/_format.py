"""Where pickles of version 0.1.0 look for what is :mod:`cvrarray.array.format` now."""

from .array.format import _unpickled as _unpickled
