"""What would make ``A @ x`` faster on this machine: the product as asarray makes it, beside what can be switched on."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

import cvrarray

from ..core import clocks, devices, threads
from .table import render, significant

#: A variant is worth its switch from this many times the speed on.
WORTH = 1.05

#: How each variant is switched on, and at what price; "as it is" is what they are compared with.
HOW = {
    "as it is": "",
    "tuned": "cvrarray.tune(S) in place of asarray(S): measures once, for a second, and remembers",
    "values in single precision": "asarray(S.astype(...)), x as it is: sums in double precision, but values lose digits",
    "all in single precision": "asarray(S.astype(...)) and x too: values and sums lose digits",
    "one thread": "cvrarray.set_num_threads(1) or CVRARRAY_NUM_THREADS=1: for small matrices, or many processes side by side",
}


def measure(csr: Any, x: Any, device: devices.Device, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """Time the variants, in turn: their names, seconds, and speed over that of "as it is"."""
    single = {"d": np.dtype(np.float32), "D": np.dtype(np.complex64)}.get(csr.dtype.char)
    with device.use():
        array = cvrarray.asarray(csr, device=str(device))
        calls: dict[str, Callable[[], Any]] = {"as it is": partial(operator.matmul, array, x)}
        tuned: Any = cvrarray.tune(csr, device=str(device))
        if (tuned.format, tuned._parameters()) != (array.format, array._parameters()):
            calls["tuned"] = partial(operator.matmul, tuned, x)
        if single is not None:
            smaller = array.astype(single)
            calls["values in single precision"] = partial(operator.matmul, smaller, x)
            calls["all in single precision"] = partial(operator.matmul, smaller, x.astype(single))
        if device.kind == "cpu" and cvrarray.get_num_threads() > 1:
            calls["one thread"] = calls["as it is"]
        found = clocks.of(device).times(calls, repeats, setting=_threads, seconds=seconds)
    base = found["as it is"].median
    return [
        {"variant": name, "seconds": took.median, "spread": took.spread, "speedup": base / took.median if took.median else 1.0}
        for name, took in found.items()
    ]


def _threads(variant: str) -> AbstractContextManager[None]:
    return threads.limited(1) if variant == "one thread" else nullcontext()


def text(about: str, variants: list[dict[str, Any]]) -> str:
    """A table of the variants, and how to switch on those that pay."""
    rows = [[v["variant"], significant(v["seconds"] * 1e6), f"{v['spread']:.0%}", f"{v['speedup']:.2f}x"] for v in variants]
    gains = [f"  {v['variant']}, {v['speedup']:.2f}x: {HOW[v['variant']]}" for v in variants if v["speedup"] >= WORTH]
    advice = ["switch on:", *gains] if gains else ["nothing to switch on: the product as asarray makes it is the fastest"]
    return "\n".join(
        [f"{about}: what could be switched on", "", render(["variant", "us", "spread", "speed"], rows), "", *advice]
    )
