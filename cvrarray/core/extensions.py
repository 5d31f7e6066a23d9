"""Modules of upper layers that lower ones need, by name, so that no import points up.

The package's ``__init__`` declares how each is imported; a lower layer loads it when a call needs it. ``"formats"``
registers all formats; ``"construct"`` chooses one; ``"dask"`` handles Dask's arrays, ``"dask_tall"`` sweeps over their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

_loaders: dict[str, Callable[[], ModuleType]] = {}


def declare(name: str, loader: Callable[[], ModuleType]) -> None:
    """Declare how the extension `name` is imported; it is not imported now."""
    _loaders[name] = loader


@contextmanager
def optional(user: str, package: str, extra: str) -> Iterator[None]:
    """Around imports of a package that is not always installed: where it is missing, the error has the line that
    installs it.

    Examples
    --------
    >>> from cvrarray.core.extensions import optional
    >>> with optional("This", "Nothing", "dask"):
    ...     import nothing_at_all
    Traceback (most recent call last):
        ...
    ModuleNotFoundError: This needs Nothing, which is not installed: pip install 'cvrarray[dask]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "cvrarray" or "pip install" in str(error):
            raise
        line = f"{user} needs {package}, which is not installed: pip install 'cvrarray[{extra}]'"
        raise ModuleNotFoundError(line, name=error.name) from error


def load(name: str) -> ModuleType:
    """The module that was declared as `name`."""
    return _loaders[name]()
