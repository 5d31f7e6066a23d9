"""What the recorded pages share: Markdown tables, geometric means, the raw figures beside a page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cvrarray.cli.table import render


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, all others to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])


def text(tables: dict[str, tuple[list[str], list[list[str]]]]) -> str:
    """Tables for a terminal, below their titles: header and rows by title."""
    return "\n\n".join(part for title, table in tables.items() for part in (title, render(*table)))


def geometric_mean(values: list[float]) -> float | None:
    """Of positive numbers; None where there is none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def write_figures(report: dict[str, Any], path: Path) -> None:
    """Write a report as JSON, a line for each of its results."""
    head = json.dumps({name: value for name, value in report.items() if name != "results"}, indent=1)
    cases = ",\n".join(f"  {json.dumps(case)}" for case in report["results"])
    path.write_text(f'{head[:-2]},\n "results": [\n{cases}\n ]\n}}\n')


def has_few_values(case: dict[str, Any]) -> bool:
    """Whether what asarray chose stores values in fewer bytes than they have."""
    return any(run.get("plan") and run.get("values", "plain") != "plain" for run in case["runs"])
