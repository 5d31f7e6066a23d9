"""Which cases of a parametrised test run: ``--cases quick``, ``covering`` (the default), ``gpu``, ``all`` or ``rest``.

A test with ``@pytest.mark.each_value`` runs, by default, only as many of its cases as it takes for each value of each
parameter to occur; with ``each_value(3)`` each value is in at least three of them, each time with other values beside
it, where there are so many. With ``@pytest.mark.each_pair`` each pair of values of two parameters occurs. ``extended``
cases run only under ``all``. ``rest`` runs what ``covering`` leaves out. ``quick`` runs at most two cases of a test,
and none that is ``slow``. ``gpu`` runs of the cases that need a GPU what ``covering`` does, and the ``extended`` ones
that these marks choose too; of the others what ``quick`` runs, but for ``pages``. ``tests/mutants.py`` shows that
``covering`` finds the same faults as ``all``.

Arguments that one ``parametrize`` gives together are one parameter. The device is none: what runs on one runs on the
other.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Hashable, Sequence
from itertools import combinations, groupby

import numpy as np
import pytest

CHOICES = ("quick", "covering", "gpu", "all", "rest")
QUICK = 2  # cases of a test under --cases quick
#: Builds that dtypes are tried with first, in turn: a format each, and what it is compiled for by default.
HOMES = (("cvr", "cvr-n_lanes=32-n_chunks=7-split=rows"), ("bbcsr", "bbcsr-block_size=6"))
STRENGTHS = {"each_value": 1, "each_pair": 2}
MARKERS = (
    "each_value(times=1): by default as few cases run as hold each value of each parameter so often; all run all",
    "each_pair: the same for each pair of values of two parameters",
    "extended: runs under --cases all or rest only",
    "slow: takes seconds even where everything is compiled; --cases quick leaves it out",
    "pages: reads pages and sources alone; --cases gpu leaves it out, whose report is on what runs",
)


def covering(cases: Sequence[tuple[Hashable, ...]], strength: int, first: Sequence[bool] | None = None) -> list[int]:
    """Numbers of cases that hold each combination of `strength` values which occurs in `cases`, most useful first.

    Greedy, and the same in every run. Of equally useful cases those that are True in `first` are chosen; then a
    checksum decides, as the order of a product would favour first values.
    """
    first = first or [True] * len(cases)
    combined = [
        {(places, tuple(case[k] for k in places)) for places in combinations(range(len(case)), min(strength, len(case)))}
        for case in cases
    ]
    left = set().union(*combined)
    queue = [
        (-len(combined[number]), not preferred, zlib.crc32(str(number).encode()), number)
        for number, preferred in enumerate(first)
    ]
    heapq.heapify(queue)
    chosen = []
    while left:
        gain, *ranks, number = heapq.heappop(queue)
        found = -len(combined[number] & left)  # what a case adds never grows, so the head's, if still true, is the best
        if found != gain:
            heapq.heappush(queue, (found, *ranks, number))
            continue
        chosen.append(number)
        left -= combined[number]
    return chosen


def select(items: list[pytest.Item], choice: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items that `choice` runs and those that it leaves out, both in their order."""
    if choice == "all":
        return items, []
    rule = {"quick": _quick, "gpu": _on_a_gpu}.get(choice, _by_default)
    chosen = {item for _, cases in groupby(items, _function) for item in rule(list(cases))}
    if choice == "rest":
        chosen = set(items) - chosen
    return [item for item in items if item in chosen], [item for item in items if item not in chosen]


def _function(item: pytest.Item) -> tuple[pytest.Item | None, str]:
    return item.parent, getattr(item, "originalname", item.name)


def _quick(items: list[pytest.Item]) -> list[pytest.Item]:
    return _covering([item for item in items if not _is(item, "slow") and not _is(item, "extended")], 1)[:QUICK]


def _by_default(items: list[pytest.Item]) -> list[pytest.Item]:
    return _marked([item for item in items if not _is(item, "extended")])


def _on_a_gpu(items: list[pytest.Item]) -> list[pytest.Item]:
    on_host = _quick([item for item in items if not _is(item, "pages")])
    return on_host + _marked([item for item in items if _needs_gpu(item)])


def _marked(items: list[pytest.Item]) -> list[pytest.Item]:
    """What the marks of a test choose, the same cases on each device; all where it has none."""
    marks = [(strength, mark) for name, strength in STRENGTHS.items() for item in items[:1] for mark in item.iter_markers(name)]
    if not marks:
        return items
    strength, mark = marks[0]
    by_device = groupby(sorted(items, key=_device), _device)
    return [item for _, cases in by_device for item in _covering(list(cases), strength, *mark.args)]


def _is(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None


def _covering(items: list[pytest.Item], strength: int, times: int = 1) -> list[pytest.Item]:
    chosen = []
    for _ in range(times):
        found = covering([_values(item) for item in items], strength, [_at_home(item) for item in items])
        chosen += [items[number] for number in found]
        items = [item for number, item in enumerate(items) if number not in set(found)]
    return chosen


def _at_home(item: pytest.Item) -> bool:
    """Whether a case's dtype is with its home: tests that choose alike share compiled code."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    if "build" not in params or not isinstance(params.get("dtype"), str | type):
        return True
    return str(params["build"]) in HOMES[np.dtype(params["dtype"]).num % len(HOMES)]


def _values(item: pytest.Item) -> tuple[tuple[int, ...], ...]:
    """Which value each parameter has, by identity, as values need not be hashable."""
    params = dict(getattr(getattr(item, "callspec", None), "params", {}))
    params.pop("device", None)
    names_together = [argument_names(mark) for mark in item.iter_markers("parametrize")]
    together = [tuple(id(params.pop(name)) for name in names if name in params) for names in names_together]
    return (*together, *((id(value),) for _, value in sorted(params.items(), key=lambda pair: pair[0])))


def argument_names(mark: pytest.Mark) -> list[str]:
    """The arguments that one ``parametrize`` gives."""
    names = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _needs_gpu(item: pytest.Item) -> bool:
    return "gpu" in getattr(item, "fixturenames", ()) or _device(item) not in ("", "cpu")


def _device(item: pytest.Item) -> str:
    return getattr(getattr(item, "callspec", None), "params", {}).get("device", "")
