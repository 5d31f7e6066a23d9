"""How the commands of recorded runs end, and what those on drawn matrices on a GPU do."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cvrarray.cli import INPUT_ERRORS
from cvrarray.core import devices

from . import families, machine


def end_of(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """What ``run(args)`` returns; 2 for bad usage, which is printed."""
    try:
        return run(args)
    except INPUT_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def add_drawn(parser: argparse.ArgumentParser, title: str, columns: str) -> None:
    """The options of :func:`run_drawn`, and ``--columns``, which are `columns` by default."""
    parser.add_argument("--families", default="1000", metavar="SEEDS", help="default: %(default)s")
    parser.add_argument("--columns", default=columns, help="of X; 1 is a vector; default: %(default)s")
    parser.add_argument("--within", type=float, default=math.inf, metavar="SECONDS", help="begin no matrix later")
    parser.add_argument("--report", metavar="FOLDER", help=f"write {title}.json and {title}.md there")


def run_drawn(
    args: argparse.Namespace,
    title: str,
    measured: Callable[[int, str, devices.Device], Iterable[dict[str, Any]]],
    page: Callable[[dict[str, Any]], str],
) -> int:
    """Measure the matrices that ``--families`` draws, on a GPU; print the page, and write it and the report.

    ``measured(number, name, device)`` are the cases of a matrix.
    """
    device = devices.default()
    if device.kind != "cuda":
        raise ValueError("this run needs a GPU, with CuPy; found none")
    end, left = time.monotonic() + args.within, []
    cases: list[dict[str, Any]] = []
    for number, name in enumerate(name for seed in args.families.split(",") for name in families.drawn(int(seed))):
        if time.monotonic() < end:
            cases += measured(number, name, device)
            device.xp.get_default_memory_pool().free_all_blocks()
        else:
            left.append(name)
    report = {
        "device": machine.describe(device),
        "versions": machine.versions(),
        "families": args.families,
        "not_measured": left,
        "results": cases,
    }
    print(page(report))
    if args.report is not None:
        folder = Path(args.report)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{title}.json").write_text(json.dumps(report, indent=1) + "\n")
        (folder / f"{title}.md").write_text(page(report))
    return 0
