"""Times of the gallery: calls in turn, on the machine that built the site."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def beside(repeats: int = 5, **calls: Callable[[], Any]) -> Any:
    """A table of the fastest of `repeats` times of each call, made in turn, and of the speed over the last of them."""
    from IPython.display import Markdown

    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()  # compiles
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    *_, last = best.values()
    rows = [f"| {name} | {seconds * 1e3:.3g} | {last / seconds:.2f}x |" for name, seconds in best.items()]
    return Markdown("\n".join(["| | ms | speed |", "| --- | ---: | ---: |", *rows]))
