"""Which cases of a parametrised test run: by default those that its marker asks for, with ``--rest`` all the others.

With ``@pytest.mark.each_value`` it takes as few cases as hold each value of each parameter; with ``each_value(3)`` each
value is in at least three of them, each time with other values beside it, where there are so many. With
``@pytest.mark.each_pair`` each pair of values of two parameters occurs. ``extended`` cases run under ``--rest`` only.

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

#: Builds that dtypes are tried with first, in turn: a format each, and what it is compiled for by default.
HOMES = (("cvr", "cvr-n_lanes=32-n_chunks=7-split=rows"), ("bbcsr", "bbcsr-block_size=6"))
STRENGTHS = {"each_value": 1, "each_pair": 2}
MARKERS = (
    "each_value(times=1): by default as few cases run as hold each value of each parameter so often; all run all",
    "each_pair: the same for each pair of values of two parameters",
    "extended: runs under --rest only",
    "small: small conversions, products and solves, for compute-sanitizer (50 times slower)",
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


def chosen(items: list[pytest.Item]) -> set[pytest.Item]:
    """The items that run by default: of each test on each device what its marker asks for, all where it has none."""
    usual = [item for item in items if item.get_closest_marker("extended") is None]
    return {item for _, cases in groupby(usual, _function) for item in _of_a_test(list(cases))}


def _function(item: pytest.Item) -> tuple[pytest.Item | None, str]:
    return item.parent, getattr(item, "originalname", item.name)


def _of_a_test(items: list[pytest.Item]) -> list[pytest.Item]:
    for name, strength in STRENGTHS.items():
        for mark in items[0].iter_markers(name):
            by_device = groupby(sorted(items, key=_device), _device)
            return [item for _, cases in by_device for item in _covering(list(cases), strength, *mark.args)]
    return items


def _covering(items: list[pytest.Item], strength: int, times: int = 1) -> list[pytest.Item]:
    found: list[pytest.Item] = []
    for _ in range(times):
        numbers = covering([_values(item) for item in items], strength, [_at_home(item) for item in items])
        found += [items[number] for number in numbers]
        items = [item for number, item in enumerate(items) if number not in set(numbers)]
    return found


def _at_home(item: pytest.Item) -> bool:
    """Whether a case's dtype is with its home: tests that choose alike share compiled code."""
    params = _params(item)
    if "build" not in params or not isinstance(params.get("dtype"), str | type):
        return True
    return str(params["build"]) in HOMES[np.dtype(params["dtype"]).num % len(HOMES)]


def _values(item: pytest.Item) -> tuple[tuple[int, ...], ...]:
    """Which value each parameter has, by identity, as values need not be hashable."""
    params = {name: value for name, value in _params(item).items() if name != "device"}
    names_together = [argument_names(mark) for mark in item.iter_markers("parametrize")]
    together = [tuple(id(params.pop(name)) for name in names if name in params) for names in names_together]
    return (*together, *((id(value),) for _, value in sorted(params.items(), key=lambda pair: pair[0])))


def argument_names(mark: pytest.Mark) -> list[str]:
    """The arguments that one ``parametrize`` gives."""
    names = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def needs_gpu(item: pytest.Item) -> bool:
    """Whether a case runs on a GPU alone."""
    return "gpu" in getattr(item, "fixturenames", ()) or _device(item) not in ("", "cpu")


def _device(item: pytest.Item) -> str:
    return _params(item).get("device", "")


def _params(item: pytest.Item) -> dict:
    return getattr(getattr(item, "callspec", None), "params", {})
