"""The page, the plots and the raw figures of a run of :mod:`.gpu`: ``gpu.md``, ``gpu.json``, ``gpu.*.svg``.

Of matrices that nothing was fitted to they are called ``gpu-unseen``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cvrarray.cli.bench import label
from cvrarray.cli.table import render, significant

from . import families, pages
from .pages import geometric_mean, has_few_values, markdown, write_figures

#: Plots by the end of their names.
PLOTS = ("floor", "speedup", "bound")

#: Colours of what may bound a product.
COLOURS = {"HBM": "tab:blue", "L2": "tab:orange", "launch": "silver"}


def chosen(case: dict[str, Any]) -> dict[str, Any] | None:
    """The run of the array that ``asarray`` chose; None where it was wrong."""
    return next((run for run in case["runs"] if run["ours"] and run["plan"] is not None and run["correct"]), None)


def best_peer(case: dict[str, Any]) -> dict[str, Any] | None:
    """The fastest right run that is not ours; None where there is none."""
    right = [run for run in case["runs"] if not run["ours"] and run["correct"]]
    return min(right, key=lambda run: run["seconds"], default=None)


def speedup(case: dict[str, Any]) -> float | None:
    """The best peer's time over that of what ``asarray`` chose."""
    ours, peer = chosen(case), best_peer(case)
    return None if ours is None or peer is None else peer["seconds"] / ours["seconds"]


def limit(case: dict[str, Any]) -> tuple[str, float]:
    """What bounds the product of what ``asarray`` chose, and the seconds that it takes at least."""
    known = {name: seconds for name, seconds in case["limits_seconds"].items() if seconds is not None}
    name = max(known, key=known.__getitem__)
    return name, known[name]


def summary(report: dict[str, Any]) -> list[dict[str, Any]]:
    """For every dtype, of matrices whose values are stored as they are and in fewer bytes apart: the geometric mean of
    the speed over the best peer, the worst matrix, how many lie below 1.
    """
    rows = []
    by_values = [
        (dtype, is_few, [case for case in cases if has_few_values(case) == is_few])
        for dtype, cases in _by_dtype(report).items()
        for is_few in (False, True)
    ]
    for dtype, is_few, cases in by_values:
        if is_few and not cases:
            continue
        compared = ((case["matrix"], speedup(case)) for case in cases)
        found = {name: times for name, times in compared if times is not None}
        worst = min(found, key=found.__getitem__, default=None)
        warm = [found[case["matrix"]] for case in cases if not case["cold"] and case["matrix"] in found]
        rows.append(
            {
                "dtype": dtype,
                "values": "few" if is_few else "plain",
                "matrices": len(found),
                "geometric_mean": geometric_mean(list(found.values())),
                "geometric_mean_beyond_l2": geometric_mean(warm),
                "worst": worst,
                "least": None if worst is None else found[worst],
                "below_1": sorted(name for name, times in found.items() if times < 1),
            }
        )
    return rows


def choices(report: dict[str, Any]) -> dict[str, float]:
    """By matrix and dtype where both formats were timed: time of the one that ``asarray`` chose, over the faster one's."""
    found = {}
    for case in report["results"]:
        ours, both = chosen(case), [run["seconds"] for run in case["runs"] if run["ours"] and run["correct"]]
        if ours is not None and len(both) > 1:
            found[f"{case['matrix']}, {case['dtype']}"] = ours["seconds"] / min(both)
    return found


def _choice(report: dict[str, Any]) -> list[str]:
    """A paragraph on :func:`choices`; nothing where there are none."""
    found = choices(report)
    if not found:
        return []
    worst = max(found, key=found.__getitem__)
    above = [sum(times > limit for times in found.values()) for limit in (1.03, 1.1)]
    return [
        f"Of {len(found)} cases in which both formats were timed, the one that `asarray` chose was more than 3% slower than "
        f"the other in {above[0]}, and more than 10% in {above[1]}; {found[worst]:.2f}x at worst ({worst})."
    ]


def text(report: dict[str, Any]) -> str:
    """The report as text, aligned by spaces."""
    parts = [f"{report['device']['name']}: {_rates(report)}; medians of {report['repeats']}"]
    for dtype, cases in _by_dtype(report).items():
        parts += [dtype, render(*_main_table(cases)), render(*_times_table(report, cases))]
    left_out = pages.left_out(report["results"])
    parts += [render(*_summary_table(report)), *(["Left out", *left_out] if left_out else [])]
    return "\n\n".join(parts)


def page(report: dict[str, Any], plots: list[str]) -> str:
    """The report as a page of Markdown that shows the image files `plots`."""
    title, command, about = "Products on a GPU, beside cuSPARSE, CuPy and PyTorch", "bench-gpu", ""
    if report.get("families"):
        title, command = "Products with matrices that nothing was fitted to", "bench-unseen"
        about = f" {families.about(report['families'])}"
    parts = [
        f"# {title}",
        f"Written by `make {command}`; all figures are in `{name(report)}.json` beside this page.{about}",
        pages.machine(report),
        f"**Method.** Medians of {report['repeats']} CUDA-event times, all contenders taking turns in one loop. A sample "
        "follows a product of its kind; on a matrix marked *cold*, whose CSR and vectors fit L2, it follows something larger "
        "than L2 instead. Peers' formats, descriptors, workspaces and preprocessing are made before, and not timed. Every "
        "product of ours was checked row by row against one in double precision before, every peer against ours; a wrong one "
        f"has no time. This GPU: {_rates(report)}. `floor` is what a CSR product has to move at the rate seen, with x read "
        "once.",
        "**What bounds.** The longest of three times, for the format that `asarray` chose: *HBM*, its tables, x and y at the "
        "rate seen; *L2*, the different 32-byte sectors of x in each group of 2048 rows (what an SM has under way), sampled, "
        "at the rate of random gathers seen; *launch*, an empty kernel. `of bound` is that time over "
        "ours: above 1 where columns packed in shared memory spare L2 their gathers.",
        "## Summary",
        "Speed of what `asarray` chose over the best peer of each matrix; above 1 is faster.",
        markdown(*_summary_table(report)),
        *_choice(report),
        *(f"![{name}]({name})" for name in plots),
    ]
    for dtype, cases in _by_dtype(report).items():
        parts += [
            f"## {dtype}",
            markdown(*_main_table(cases)),
            "All contenders, in microseconds; a star marks what `asarray` chose, a dash what was left out.",
            markdown(*_times_table(report, cases)),
        ]
    if left_out := pages.left_out(report["results"]):
        total = f"In so many of the {len(report['results'])} cases. Each is in `{name(report)}.json`."
        parts += ["## Left out", total, "\n".join(f"* {line}" for line in left_out)]
    return "\n\n".join(parts) + "\n"


def name(report: dict[str, Any]) -> str:
    """What the report's files are called."""
    return "gpu-unseen" if report.get("families") else "gpu"


def write(report: dict[str, Any], folder: Path) -> list[str]:
    """Write the figures, the page and the plots; lines that say what could not be written."""
    notes, plots, stem = [], [], name(report)
    write_figures(report, folder / f"{stem}.json")
    try:
        kinds = PLOTS if stem == "gpu" else ("speedup",)
        plots = [plot(report, kind, folder / f"{stem}.{kind}.svg") for kind in kinds]
    except ModuleNotFoundError as error:
        notes.append(str(error))
    (folder / f"{stem}.md").write_text(page(report, plots))
    return notes


def plot(report: dict[str, Any], kind: str, path: Path) -> str:
    """Draw one of PLOTS to an image file: every contender's time over the floor, our speed over the best peer, or what
    bounds our product and how near it comes.

    Raises
    ------
    ModuleNotFoundError
        matplotlib is not installed.
    """
    try:
        import matplotlib.figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "The plots are drawn with matplotlib, which is not installed: pip install 'cvrarray[plot]'", name="matplotlib"
        ) from error
    by_dtype = _by_dtype(report)
    n_lines = max(len(cases) for cases in by_dtype.values())
    # a Figure of its own: no pyplot, no window system
    figure = matplotlib.figure.Figure(figsize=(6 * len(by_dtype), 1.5 + 0.28 * n_lines), layout="constrained")
    for axes, (dtype, cases) in zip(figure.subplots(1, len(by_dtype), squeeze=False)[0], by_dtype.items(), strict=True):
        {"floor": _draw_floor, "speedup": _draw_speedup, "bound": _draw_bound}[kind](axes, cases)
        axes.set_yticks(range(len(cases)), [_name(case) for case in cases])
        axes.margins(y=0.01)
        axes.invert_yaxis()
        axes.set_title(dtype)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.grid(axis="x", alpha=0.3)
    pages.save(figure, path)
    return path.name


def _draw_floor(axes: Any, cases: list[dict[str, Any]]) -> None:
    for k, case in enumerate(cases):
        floor, ours, peer = case["floor_seconds"], chosen(case), best_peer(case)
        others = [run["seconds"] / floor for run in case["runs"] if run["correct"] and run not in (ours, peer)]
        first = {"label": None if k else "all others"}
        axes.scatter(others, [k] * len(others), s=10, color="silver", **first)
        for run, colour, marker, name in ((peer, "tab:orange", "s", "best peer"), (ours, "tab:blue", "o", "asarray")):
            if run is not None:
                axes.scatter([run["seconds"] / floor], [k], s=30, color=colour, marker=marker, label=None if k else name)
    axes.set_xscale("log")
    axes.set_xlabel("time over the floor of CSR")
    axes.legend()


def _draw_speedup(axes: Any, cases: list[dict[str, Any]]) -> None:
    times = [speedup(case) for case in cases]
    colours = ["tab:blue" if value is not None and value >= 1 else "tab:red" for value in times]
    axes.barh(range(len(cases)), [value or 0 for value in times], color=colours)
    for k, (case, value) in enumerate(zip(cases, times, strict=True)):
        peer = best_peer(case)
        if value is not None and peer is not None:
            axes.text(value, k, f" {value:.2f} over {peer['name']}", va="center", fontsize=7)
    axes.set_xlim(0, 1.35 * max([value for value in times if value is not None], default=1))
    axes.set_xlabel("speed of asarray over the best peer")


def _draw_bound(axes: Any, cases: list[dict[str, Any]]) -> None:
    labelled = set()
    for k, case in enumerate(cases):
        ours, (name, seconds) = chosen(case), limit(case)
        if ours is not None:
            label = None if name in labelled else name
            axes.barh(k, seconds / ours["seconds"], color=COLOURS[name], label=label)
            labelled.add(name)
    axes.set_xlabel("least time possible, over the time taken")
    if labelled:
        axes.legend(title="bound by")


def _by_dtype(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for case in report["results"]:
        found.setdefault(case["dtype"], []).append(case)
    return found


def _name(case: dict[str, Any]) -> str:
    return f"{case['matrix']} (cold)" if case["cold"] else case["matrix"]


def _rates(report: dict[str, Any]) -> str:
    return (
        f"reads {significant(report['bytes_per_second'] / 1e9)} GB/s, gathers "
        f"{significant(report['gathers_per_second'] / 1e9)} G/s, launches in {significant(report['launch_seconds'] * 1e6)} us"
    )


def _main_table(cases: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = ["matrix", "nonzeros", "floor us", "asarray chose", "us", "host us", "over floor", "best peer", "its us"]
    header += ["speedup", "bound", "bound us", "of bound"]
    return header, [_main_row(case) for case in cases]


def _main_row(case: dict[str, Any]) -> list[str]:
    ours, peer, times = chosen(case), best_peer(case), speedup(case)
    name, seconds = limit(case)
    cells = [_name(case), f"{case['nnz']:,}", significant(case["floor_seconds"] * 1e6)]
    if ours is None:
        cells += ["WRONG", "-", "-", "-"]
    else:
        cells += [label(ours).rstrip("*"), *(significant(ours[key] * 1e6) for key in ("seconds", "host_seconds"))]
        cells.append(f"{ours['seconds'] / case['floor_seconds']:.2f}")
    cells += ["-", "-"] if peer is None else [peer["name"], significant(peer["seconds"] * 1e6)]
    cells += ["-" if times is None else f"{times:.2f}", name, significant(seconds * 1e6)]
    return [*cells, "-" if ours is None else f"{seconds / ours['seconds']:.0%}"]


def _times_table(report: dict[str, Any], cases: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    names = ["cvr", "bbcsr", *report["peers"]]
    return ["matrix", *names], [[_name(case), *(_time(case, name) for name in names)] for case in cases]


def _time(case: dict[str, Any], name: str) -> str:
    run = next((run for run in case["runs"] if run["name"] == name), None)
    if run is None:
        return "-"
    if not run["correct"]:
        return "WRONG"
    return f"{significant(run['seconds'] * 1e6)}{'*' if run.get('plan') else ''}"


def _summary_table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    header = ["dtype", "values", "matrices", "geometric mean", "beyond L2", "worst", "below 1"]
    rows = []
    for row in summary(report):
        means = ["-" if row[key] is None else f"{row[key]:.2f}" for key in ("geometric_mean", "geometric_mean_beyond_l2")]
        worst = "-" if row["worst"] is None else f"{row['least']:.2f} {row['worst']}"
        rows.append([row["dtype"], row["values"], str(row["matrices"]), *means, worst, ", ".join(row["below_1"]) or "none"])
    return header, rows
