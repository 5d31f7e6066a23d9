"""Progress of what takes longer than a second: a bar of tqdm on stderr that goes away, if that is a terminal.

``CVRARRAY_PROGRESS=0`` turns it off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY = 1.0  #: seconds after which a bar is shown

Update = Callable[..., None]


@contextmanager
def shown(what: str, total: float | None = None, unit: str = "") -> Iterator[Update]:
    """Show `what` while the context lasts; gives the function (done[, total]) that says how far it is.

    Parameters
    ----------
    what
        Such as ``"reading a.mtx"``.
    total, unit
        How much there is to do, in which unit (``"B"``: bytes, in kB and MB).

    Examples
    --------
    >>> from cvrarray.core import progress
    >>> with progress.shown("adding", total=3, unit="numbers") as update:
    ...     for k in range(3):
    ...         update(k + 1)
    """
    if not _wanted():
        yield lambda done, total=None: None
        return
    from tqdm import tqdm

    with tqdm(desc=what, total=total, unit=unit, unit_scale=unit == "B", leave=False, delay=DELAY) as bar:

        def update(done: float, total: float | None = None) -> None:
            bar.total = total or bar.total
            bar.update(done - bar.n)

        yield update


def _wanted() -> bool:
    """Whether anybody would see it, and wants to."""
    try:
        return sys.stderr.isatty() and os.environ.get("CVRARRAY_PROGRESS") != "0"
    except (AttributeError, ValueError):  # none, or closed
        return False
