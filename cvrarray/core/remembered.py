"""What is found out about an object, for as long as that lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any


class Remembered:
    """Results by an object, of any kind that can be referred to weakly, and a key. Objects are told apart by identity.

    Examples
    --------
    >>> from cvrarray.core.remembered import Remembered
    >>> sums, table = Remembered(), np.arange(4)
    >>> sums.of(table, "sum", lambda: int(table.sum())), sums.of(table, "sum", lambda: 0)
    (6, 6)
    """

    def __init__(self) -> None:
        self._found: dict[int, dict[Hashable, Any]] = {}

    def of(self, one: Any, key: Hashable, find: Callable[[], Any]) -> Any:
        """What ``find()`` gave for this object and key the first time."""
        known = self._found.get(id(one))
        if known is None:
            known = self._found[id(one)] = {}
            weakref.finalize(one, self._found.pop, id(one), None).atexit = False
        if key not in known:
            known[key] = find()
        return known[key]

    def known(self, one: Any, key: Hashable, otherwise: Any) -> Any:
        """The same where it was found before, and `otherwise` elsewhere."""
        return self._found.get(id(one), {}).get(key, otherwise)
