"""Modules of upper layers that lower ones need, by name, so that no import points up.

The package's ``__init__`` declares how each is imported; a lower layer loads it when a call needs it. ``"formats"``
registers all formats; ``"construct"`` chooses one; ``"dask"`` handles Dask's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

_loaders: dict[str, Callable[[], ModuleType]] = {}


def declare(name: str, loader: Callable[[], ModuleType]) -> None:
    """Declare how the extension `name` is imported; it is not imported now."""
    _loaders[name] = loader


def load(name: str) -> ModuleType:
    """The module that was declared as `name`."""
    return _loaders[name]()
