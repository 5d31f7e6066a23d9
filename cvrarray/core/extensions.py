"""What the upper layers offer to the lower ones, by name, so that no import points up.

The package's front declares how each is loaded; a lower layer asks for it when a call needs it. ``"formats"`` makes all formats
known, ``"dask"`` answers for Dask's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

_loaders: dict[str, Callable[[], ModuleType]] = {}


def declare(name: str, loader: Callable[[], ModuleType]) -> None:
    """Say how the extension `name` is imported; it is not imported now."""
    _loaders[name] = loader


def load(name: str) -> ModuleType:
    """The module that was declared as `name`."""
    return _loaders[name]()
