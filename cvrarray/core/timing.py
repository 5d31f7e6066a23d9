"""Which of several ways to do the same is faster: timed by turns, or as they are used."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence


def by_turns(
    samples: Sequence[Callable[[], float]], most: int, fewest: int | None = None, seconds: float = math.inf
) -> list[float]:
    """The median of what each of `samples` measures, which are called in turn: a noisy moment affects all of them.

    Each is called `most` times; fewer times, though at least `fewest`, once all of it has taken `seconds`.

    Examples
    --------
    >>> from cvrarray.core.timing import by_turns
    >>> by_turns([lambda: 2.0, lambda: 1.0], 3)
    [2.0, 1.0]
    """
    times: list[list[float]] = [[] for _ in samples]
    end = time.perf_counter() + seconds
    for k in range(most):
        if k >= (most if fewest is None else fewest) and time.perf_counter() > end:
            break
        for sample, found in zip(samples, times, strict=True):
            found.append(sample())
    return [statistics.median(found) for found in times]


class Faster:
    """Which of two ways to make a call is faster, when what a call takes depends on the moment.

    A caller asks :meth:`choose` for the way of its next call, and tells :meth:`record` what it took. The way that is
    not chosen is tried again at some calls. The time of a way is the median of its last calls, so that a few slow
    ones, as at the beginning of each burst of calls, do not change the choice.

    Parameters
    ----------
    recent : (int, int)
        Calls that count, of either way.
    early : tuple of int
        Numbers of calls at which the slower way is tried: the very first calls may not be like later ones.
    every
        After so many calls it is tried again.

    Examples
    --------
    >>> from cvrarray.core.timing import Faster
    >>> faster = Faster((1, 1))
    >>> for seconds in (5.0, 1.0, 1.0):
    ...     way = faster.choose()
    ...     faster.record(way, seconds)
    >>> faster.choose()
    1
    """

    def __init__(self, recent: tuple[int, int], early: tuple[int, ...] = (16, 32, 64), every: int = 128) -> None:
        self.recent = recent
        self.early = early
        self.every = every
        self.calls = 0
        self.times: list[tuple[float, ...]] = [(), ()]  # replaced as a whole, as callers may be on several threads

    def choose(self) -> int:
        """The way of the next call, 0 or 1."""
        self.calls += 1
        way = int(self._typical(1) < self._typical(0))
        if self.calls in self.early or self.calls % self.every == 0:
            way = 1 - way
            self.times[way] = ()
        return way

    def record(self, way: int, seconds: float) -> None:
        """A call took `seconds` that way."""
        self.times[way] = (*self.times[way], seconds)[-self.recent[way] :]

    def _typical(self, way: int) -> float:
        """The median of a way's last calls. Those not made yet count as 0 seconds, so that most of them get made."""
        times, n = self.times[way], self.recent[way]
        return sorted(times + (0.0,) * (n - len(times)))[n // 2]
