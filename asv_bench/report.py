"""Tables and plots from the results that asv has recorded, for the docs and for release notes.

    python asv_bench/report.py .asv/results docs/benchmarks/asv.md [--plot docs/benchmarks/asv.svg]

Of every machine's folder the newest result is taken. A benchmark becomes a table: who computes (``by``) is a column,
every combination of the other parameters a row; what was skipped or failed is a dash. The plot has speed over the best
peer, which is what the tables are read for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

#: Who is ours, in the parameter ``by``; all others are peers.
OURS = ("cvr", "bbcsr")


class Benchmark(NamedTuple):
    """One benchmark's recorded results."""

    name: str  # module, class and method, parted by dots
    unit: str  # "seconds", "bytes", ... or "" where nobody recorded it
    params: dict[str, list[str]]  # name -> values, in asv's order
    results: dict[tuple[str, ...], float]  # one value of every parameter -> result, of those that have one


def newest(folder: Path) -> dict[str, Path]:
    """The newest result file of every machine under asv's results folder, by the machine's name."""
    found: dict[str, tuple[int, Path]] = {}
    for path in sorted(folder.glob("*/*.json")):
        if path.name != "machine.json":
            date = json.loads(path.read_text())["date"]
            found[path.parent.name] = max(found.get(path.parent.name, (0, path)), (date, path))
    return {machine: path for machine, (_, path) in found.items()}


def read(path: Path) -> list[Benchmark]:
    """The benchmarks of a result file, in asv's format 2, which lists results by parameter, the last one fastest."""
    text = json.loads(path.read_text())
    if text.get("version") != 2:
        raise ValueError(f"{path}: must be of version 2 of asv's results; got {text.get('version')!r}. Update this script")
    described = path.parent.parent / "benchmarks.json"
    known = json.loads(described.read_text()) if described.is_file() else {}
    columns = text["result_columns"]
    found = []
    for name, row in text["results"].items():
        entry = dict(zip(columns, row, strict=False))
        values = [[value.strip("'") for value in axis] for axis in entry.get("params") or []]
        about = known.get(name, {})
        names = about.get("param_names") or [f"param{k + 1}" for k in range(len(values))]
        results = dict(zip(itertools.product(*values), entry["result"] or [], strict=False))
        kept = {key: value for key, value in results.items() if value is not None and not math.isnan(value)}
        if kept:
            found.append(Benchmark(name, about.get("unit", ""), dict(zip(names, values, strict=False)), kept))
    return found


def table(benchmark: Benchmark) -> str:
    """Markdown: a row for every combination of the parameters but ``by``, a column for each of ``by``."""
    names = list(benchmark.params)
    by = names.index("by") if "by" in names else None
    columns = benchmark.params["by"] if by is not None else [benchmark.unit or "result"]
    rest = [name for name in names if name != "by"]
    header = [*rest, *columns] if rest else columns
    rows = []
    for place in itertools.product(*(benchmark.params[name] for name in rest)):
        keys = [place] if by is None else [(*place[:by], column, *place[by:]) for column in columns]
        cells = [quantity(benchmark.results.get(k), benchmark.unit) for k in keys]
        if any(cell != "-" for cell in cells):
            rows.append([*place, *cells])
    rule = ["---"] * len(rest) + ["---:"] * len(columns)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])


def quantity(value: float | None, unit: str) -> str:
    """A result in the unit that suits it, with three digits; a dash for none."""
    if value is None:
        return "-"
    steps = {"seconds": [(1, "s"), (1e-3, "ms"), (1e-6, "us")], "bytes": [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]}.get(unit)
    if steps is None:
        return f"{value:.3g}"
    size, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{_digits(value / size)} {name}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def speedups(benchmark: Benchmark) -> dict[tuple[str, ...], float]:
    """Speed of the faster of ours over the best peer, by the other parameters; only where both were measured."""
    names = list(benchmark.params)
    if "by" not in names:
        return {}
    by = names.index("by")
    best: dict[tuple[str, ...], dict[bool, float]] = {}
    for key, value in benchmark.results.items():
        sides = best.setdefault(key[:by] + key[by + 1 :], {})
        ours = key[by] in OURS
        sides[ours] = min(value, sides.get(ours, math.inf))
    return {place: sides[False] / sides[True] for place, sides in best.items() if len(sides) == 2}


def page(results: dict[str, Path]) -> str:
    """The newest results of all machines as Markdown."""
    parts = ["# Recorded by asv", "Written by `asv_bench/report.py`. A dash: skipped there, or not measured."]
    for machine, path in results.items():
        facts = json.loads(path.read_text())
        about = facts.get("params", {})
        known = ", ".join(f"{name} {about[name]}" for name in ("cpu", "num_cpu", "ram", "os") if about.get(name))
        parts += [f"## {machine}", f"Commit {facts['commit_hash'][:8]}. {known}".strip()]
        for benchmark in read(path):
            unit = f" ({benchmark.unit})" if benchmark.unit else ""
            parts += [f"### {benchmark.name}{unit}", table(benchmark)]
            if factors := speedups(benchmark):
                mean = math.exp(sum(map(math.log, factors.values())) / len(factors))
                parts.append(f"The faster of ours over the best peer: {mean:.2f} in the geometric mean of {len(factors)}.")
    return "\n\n".join(parts) + "\n"


def plot(results: dict[str, Path], out: Path) -> None:
    """Bars of speed over the best peer: a panel for each machine and benchmark that has peers."""
    from matplotlib.figure import Figure

    panels = [
        (machine, benchmark.name, factors)
        for machine, path in results.items()
        for benchmark in read(path)
        if (factors := speedups(benchmark))
    ]
    if not panels:
        raise ValueError("there is no result with both an array of ours and a peer in it: nothing to draw")
    figure = Figure(figsize=(8, sum(0.8 + 0.22 * len(factors) for _, _, factors in panels)), layout="constrained")
    heights = [0.8 + 0.22 * len(factors) for _, _, factors in panels]
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (machine, name, factors) in zip(axes, panels, strict=True):
        names = [", ".join(place) for place in factors]
        axis.barh(names, list(factors.values()), color=["#3b528b" if f >= 1 else "#bbbbbb" for f in factors.values()])
        axis.axvline(1, color="black", linewidth=1)
        axis.invert_yaxis()
        axis.set_title(f"{machine}: {name}, speed over the best peer", fontsize=9)
        axis.tick_params(labelsize=7)
    figure.savefig(out)


def main(argv: list[str] | None = None) -> int:
    """Write the page, and the plot where one is asked for; 2 where there is nothing to write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="asv's results folder")
    parser.add_argument("out", type=Path, help="the page of Markdown")
    parser.add_argument("--plot", type=Path, help="a picture: .svg, .png, ...")
    args = parser.parse_args(argv)
    results = newest(args.results)
    if not results:
        print(f"{args.results} holds no results of asv: run make bench-asv first", file=sys.stderr)
        return 2
    args.out.write_text(page(results))
    if args.plot is not None:
        plot(results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
