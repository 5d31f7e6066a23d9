"""What the recorded pages share: what was measured on and with, Markdown tables, means, the raw figures beside a page."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cvrarray.cli.table import render, significant

#: Of a picture in a file, which no page's colours reach: what ``currentColor`` is.
_STYLE = (
    "<style>svg.cvrarray{color:#1f2328;background:#fff}"
    "@media(prefers-color-scheme:dark){svg.cvrarray{color:#e6edf3;background:#14181e}}</style>"
)


class Drawing:
    """A picture as SVG. Notebooks show it; ``str()`` is its text, :meth:`save` writes it to a file.

    What is outside of coloured cells has the colour of the text around it, so that it is readable on dark pages too. In
    a file it follows the reader's setting (``prefers-color-scheme``).
    """

    def __init__(self, svg: str):
        head, end, rest = svg.partition(">")
        self._svg = f'{head} class="cvrarray"{end}{_STYLE}{rest}'

    def __str__(self) -> str:
        return self._svg

    def _repr_svg_(self) -> str:
        return self._svg

    def _repr_html_(self) -> str:
        """The SVG as a part of the page, in its colours; as wide as the column, within limits, and scrolled if wider."""
        width = float(self._svg.partition('width="')[2].partition('"')[0])
        limits = f"width:100%;min-width:{0.8 * width:g}px;max-width:{1.6 * width:g}px;height:auto"
        svg = self._svg.replace(_STYLE, "").replace("<svg ", f'<svg style="{limits}" ', 1)
        for pattern in ("pad", "hole"):  # a page may show several pictures
            own = f"{pattern}{zlib.crc32(svg.encode()):08x}"
            svg = svg.replace(f'id="{pattern}"', f'id="{own}"').replace(f"url(#{pattern})", f"url(#{own})")
        return f'<div tabindex="0" style="overflow-x:auto">{svg}</div>'

    def save(self, path: Path) -> None:
        """Write the SVG to a file."""
        path.write_text(self._svg)


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


def machine(report: dict[str, Any]) -> str:
    """A paragraph on the GPU, and a paragraph on the libraries: peers first."""
    device, versions = report["device"], report["versions"]
    busy = report.get("cpus_busy_with_others")
    load = "" if busy is None else f" Other work kept {busy:.1f} CPUs of the host busy meanwhile."
    seen = f"L2 of {significant(device['l2_bytes'] / 1e6)} MB, " if "l2_bytes" in device else ""
    scale = "" if report.get("families") else f", scale `{report['scale']}`"  # which is that of generated matrices
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in (*PEERS, "system", "sparse"))
    return (
        f"**Machine.** {device['name']}, {device['multiprocessors']} multiprocessors, {seen}CUDA {_cuda(device['cuda'])} "
        f"with a driver for {_cuda(device['driver'])}; {report['date'][:10]}{scale}."
        f"{load}{not_measured(report)}\n\n"
        f"**Versions.** Peers: {peers(report, *PEERS)}. Others: {others}."
    )


#: Libraries on a GPU whose products ours are compared with, as reports name them and as pages do.
PEERS = {"cusparse": "cuSPARSE", "cupy": "CuPy", "cusparse of cupy": "CuPy's cuSPARSE", "torch": "PyTorch"}


def peers(report: dict[str, Any], *names: str) -> str:
    """Those of PEERS that are named and that a report has, and their versions."""
    versions = {"cupy": report["device"].get("cupy"), **report["versions"]}
    return ", ".join(f"{PEERS[name]} {versions[name]}" for name in names if versions.get(name))


def libraries(report: dict[str, Any]) -> str:
    """The libraries of a report and their versions."""
    return ", ".join(f"{name} {version}" for name, version in report["versions"].items() if name != "system")


def _cuda(number: int) -> str:
    """13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def not_measured(report: dict[str, Any]) -> str:
    """A sentence on the matrices that no time was left for; empty where there are none."""
    return f" No time was left for {', '.join(report['not_measured'])}." if report.get("not_measured") else ""


#: Reasons why a contender was left out, and how all of their kind are told.
REASONS = {
    r"(LeftOut: )?\d+ x \d+ is no multiple of .*": "the block size does not divide the shape",
    r"(LeftOut: )?would store .*": "tables of more than 8 times the bytes of CSR",
    r"takes \d+ times what ours takes": "too slow",
    r"is wrong: .*; takes 0\..*": "further off than rounding may cause, but faster than ours",
    r"is wrong: .*": "further off than rounding may cause",
}


def left_out(cases: Sequence[dict[str, Any]]) -> list[str]:
    """A line for every contender that was left out: why, and in how many of the cases."""
    found: dict[str, dict[str, int]] = {}
    for case in cases:
        for name, reason in case["left_out"].items():
            kind = next((told for pattern, told in REASONS.items() if re.fullmatch(pattern, reason)), reason)
            of_name = found.setdefault(name, {})
            of_name[kind] = of_name.get(kind, 0) + 1
    counts = {name: ", ".join(f"{kind} ({count})" for kind, count in kinds.items()) for name, kinds in found.items()}
    return [f"{name}: {text}" for name, text in counts.items()]


def save(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib's: the same figures, the same file, and text as text."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "cvrarray", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
