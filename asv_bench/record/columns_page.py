"""The page, the plots and the raw figures of a run of :mod:`.gpu_columns`: ``gpu-columns*.md``, ``.json``, ``.*.svg``."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from cvrarray.cli import bench
from cvrarray.cli.table import significant

from . import families, pages
from .pages import Drawing, geometric_mean, markdown

#: Numbers of columns whose speed is summed up, by what tables call them.
RANGES = {"1": (1, 1), "2 to 32": (2, 32), "64 to 256": (64, 256)}

#: A peer that takes so many times what ours takes is left out.
HOPELESS = 5

#: Colours of a plot: a matrix, one that is slower than the best peer, and the mean.
FASTER, SLOWER, MEAN = "#7fa8d9", "#c9853d", "#2f6fbd"

#: Units of a plot: its width, where its axis begins, its height between the first line and the last, letters.
WIDTH, LEFT, HEIGHT, FONT = 420, 44, 240, 13

#: Speeds at which a plot may have a line.
LINES = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def best_peer(case: dict[str, Any]) -> str | None:
    """The name of the fastest peer; None where there is none."""
    return min(case["peers"], key=case["peers"].__getitem__, default=None)


def speedup(case: dict[str, Any]) -> float | None:
    """The fastest peer's time over ours; None where there is no peer."""
    return min(case["peers"].values()) / case["ours"]["seconds"] if case["peers"] else None


def over_ours(cases: Iterable[dict[str, Any]], key: str) -> list[float]:
    """Times under `key` over ours, of the cases that have them: "fortran_seconds" or "no_hint_seconds"."""
    return [case[key] / case["ours"]["seconds"] for case in cases if case.get(key)]


def is_plain(case: dict[str, Any]) -> bool:
    """Whether ours stores values as they are."""
    return bool(case["ours"]["values"] == "plain")


def name(report: dict[str, Any]) -> str:
    """What the report's files are called."""
    ends = ("-unseen" if report.get("families") else "", "-transposed" if report.get("transposed") else "")
    return "gpu-columns" + "".join(ends)


def summary(report: dict[str, Any]) -> list[dict[str, Any]]:
    """For each dtype, kind of values and range of columns: mean and least speed over the best peer, and what is below 1."""
    rows = []
    for dtype in _each(report["results"], "dtype"):
        for values in ("plain", "few"):
            for columns, (first, last) in RANGES.items():
                found = {
                    f"{case['matrix']}, k = {case['columns']}": times
                    for case in report["results"]
                    if case["dtype"] == dtype and is_plain(case) == (values == "plain") and first <= case["columns"] <= last
                    if (times := speedup(case)) is not None
                }
                if found:
                    worst = min(found, key=found.__getitem__)
                    rows.append(
                        {
                            "dtype": dtype,
                            "values": values,
                            "columns": columns,
                            "cases": len(found),
                            "geometric_mean": geometric_mean(list(found.values())),
                            "least": found[worst],
                            "worst": worst,
                            "below_1": sorted(case for case, times in found.items() if times < 1),
                        }
                    )
    return rows


def summary_table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """:func:`summary` as header and rows."""
    header = ["dtype", "values", "columns", "cases", "geometric mean", "least", "below 1"]
    rows = []
    for row in summary(report):
        worst = f"{row['least']:.2f}x ({row['worst']})"
        cells = [row["dtype"], row["values"], row["columns"], str(row["cases"]), f"{row['geometric_mean']:.2f}x", worst]
        rows.append([*cells, str(len(row["below_1"]))])
    return header, rows


def slower_table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The cases in which a peer is faster, the worst first."""
    found = [case for case in report["results"] if (speedup(case) or 1) < 1]
    rows = [
        [case["matrix"], case["dtype"], str(case["columns"]), _ours(case), _theirs(case), f"{speedup(case):.2f}x"]
        for case in sorted(found, key=lambda case: speedup(case) or 1)
    ]
    return ["matrix", "dtype", "columns", "ours", "best peer", ""], rows


def speed_table(report: dict[str, Any], dtype: str) -> tuple[list[str], list[list[str]]]:
    """Speed over the best peer: matrices by numbers of columns, and the geometric mean and the least of plain values."""
    columns, by_matrix = _by_matrix(report, dtype)
    rows = []
    for matrix, cases in by_matrix.items():
        times = [speedup(cases[k]) if k in cases else None for k in columns]
        nnz = next(iter(cases.values()))["nnz"]
        rows.append([matrix, f"{nnz:,}", *("-" if value is None else f"{value:.2f}x" for value in times)])
    plain = [speeds_at(report, dtype, k) for k in columns]
    for label, of in (("geometric mean, plain values", geometric_mean), ("least", lambda found: min(found, default=None))):
        summed = [of(list(found.values())) for found in plain]
        rows.append([label, "", *("-" if value is None else f"{value:.2f}x" for value in summed)])
    return ["matrix", "nonzeros", *(f"k = {k}" for k in columns)], rows


def times_table(report: dict[str, Any], dtype: str) -> tuple[list[str], list[list[str]]]:
    """Microseconds, matrices by numbers of columns: ours and its format, the best peer's and its name."""
    columns, by_matrix = _by_matrix(report, dtype)
    header = ["matrix", *(cell for k in columns for cell in (f"k = {k}: ours", "best peer"))]
    rows = []
    for matrix, cases in by_matrix.items():
        pairs = [(_ours(cases[k]), _theirs(cases[k])) if k in cases else ("-", "-") for k in columns]
        rows.append([matrix, *(cell for pair in pairs for cell in pair)])
    return header, rows


def calls_table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """By number of columns, of all cases: host time of a call, and the time where X is in Fortran order."""
    contenders = ["ours", "csr alg3", "cupyx", "torch"]
    rows = []
    for k in sorted(_each(report["results"], "columns")):
        cases = [case for case in report["results"] if case["columns"] == k and "host_seconds" in case]
        if not cases:
            continue
        cells = [str(k)]
        for by in contenders:
            found = [case["host_seconds"][by] * 1e6 for case in cases if by in case["host_seconds"]]
            cells.append(f"{significant(statistics.median(found))} ({significant(max(found))})" if found else "-")
        copied = [case for case in cases if case.get("fortran_seconds")]
        ratios = over_ours(cases, "fortran_seconds")
        speeds = [min(case["peers"].values()) / case["fortran_seconds"] for case in copied if case["peers"]]
        cells.append(f"{geometric_mean(ratios):.2f} ({max(ratios):.2f})" if ratios else "-")
        cells.append(f"{geometric_mean(speeds):.2f}x ({min(speeds):.2f})" if speeds else "-")
        unhinted = over_ours(cases, "no_hint_seconds")
        cells.append(f"{geometric_mean(unhinted):.2f} ({max(unhinted):.2f})" if unhinted else "-")
        rows.append(cells)
    header = ["columns", *(f"host us, {by}" for by in contenders), "X in Fortran order: time over C order"]
    return [*header, "speed over the best peer", "without `columns=k`: time over that with it"], rows


def page(report: dict[str, Any]) -> str:
    """The report as a page of Markdown that shows the plots beside it."""
    of, how, options, about = "Products with a matrix", "Ours is `asarray(A, columns=k) @ X`.", [], ""
    if report.get("families"):
        of, about = f"{of} that nothing was fitted to", f" {families.about(report['families'])}"
        options.append(f"--families {report['families']}")
    if report.get("transposed"):
        of = f"Transposed {of[0].lower()}{of[1:]}"
        options.append("--transposed")
        how = (
            "Ours is `A.T @ X` as it is in a loop, by tables of the transpose that `A` keeps; `A` is `asarray(S, columns=k)`. "
            "Peers multiply by an explicit `S.T`."
        )
    dtypes, option = _each(report["results"], "dtype"), f" BENCH_ARGS={shlex.quote(' '.join(options))}" if options else ""
    parts = [
        f"# {of} on a GPU, beside cuSPARSE, CuPy and PyTorch",
        f"Written by `make bench-columns{option}`; all figures are in `{name(report)}.json` beside this page.{about}",
        pages.machine(report),
        f"**Method.** {how} X has k columns, in C order; with k = 1 it is a vector. Medians of {report['repeats']} CUDA-event "
        "times, all contenders taking turns in one loop. Peers' tables, descriptors and workspaces are made before, and not "
        "timed. Every product was checked before, in the first and the last column, against one in double precision and the "
        f"error that rounding may cause. {_same_bits(report)}Who takes {HOPELESS} times as long as ours has no time.",
        "**Peers.** cuSPARSE's SpMM: `csr alg1` to `alg3`, with an F where X and Y are in Fortran order (X copied before), "
        "`bsr 2` to `6`, and blocked ELLPACK, `ell 2` to `16`. With a vector its SpMV on CSR, `sell` and BSR, and SpMVOp, "
        "`op alg1` and `alg2`. CuPy's `csr @ X`, `cupyx`, and PyTorch's, `torch`.",
        "## Speed over the best peer",
        "Above 1 is faster. Matrices whose values are few, which ours stores in fewer bytes, are apart.",
        markdown(*summary_table(report)),
        " ".join(f"![{dtype}: speed over the best peer by columns]({name(report)}.{dtype}.svg)" for dtype in dtypes),
        "A dot is a matrix with plain values; the line is their geometric mean.",
    ]
    if (slower := slower_table(report))[1]:
        parts += ["### Slower than the best peer", "Microseconds.", markdown(*slower)]
    for dtype in dtypes:
        parts += [f"### {dtype}", markdown(*speed_table(report, dtype))]
    parts += ["## Microseconds", "With the format that `asarray` chose, and the name of the fastest peer."]
    for dtype in dtypes:
        parts += [f"### {dtype}, microseconds", markdown(*times_table(report, dtype))]
    if (calls := calls_table(report))[1]:
        parts += [
            "## A call",
            "The host's time until a call returns, the median (the most) of all cases. And ours where X is in Fortran order, "
            "which it copies in each call or reads as it is: its time over that in C order, geometric mean (most), and its "
            "speed over the best peer, whose X is in the order that it wants, geometric mean (least). And the time of an array "
            "that was made without `columns=k`, over that of one with it, geometric mean (most).",
            markdown(*calls),
        ]
    if left_out := pages.left_out(report["results"]):
        total = f"In so many of the {len(report['results'])} cases. Each is in `{name(report)}.json`."
        parts += ["## Left out", total, "\n".join(f"* {line}" for line in left_out)]
    return "\n\n".join(parts) + "\n"


def _same_bits(report: dict[str, Any]) -> str:
    """A sentence on the bits of ours before and after it was timed."""
    found = [case["ours"]["same_bits"] for case in report["results"] if "same_bits" in case["ours"]]
    if not found:
        return ""
    return f"After it was timed, our product had the bits of the first one in {sum(found)} of {len(found)} cases. "


def write(report: dict[str, Any], folder: Path) -> None:
    """Write the page, the figures and the plots."""
    pages.write_figures(report, folder / f"{name(report)}.json")
    for dtype in _each(report["results"], "dtype"):
        plot(report, dtype).save(folder / f"{name(report)}.{dtype}.svg")
    (folder / f"{name(report)}.md").write_text(page(report))


def speeds_at(report: dict[str, Any], dtype: str, k: int) -> dict[str, float]:
    """Speeds over the best peer with k columns, by matrix with plain values."""
    cases = (case for case in report["results"] if (case["dtype"], case["columns"]) == (dtype, k) and is_plain(case))
    return {case["matrix"]: times for case in cases if (times := speedup(case)) is not None}


def plot(report: dict[str, Any], dtype: str) -> Drawing:
    """Speed over the best peer by number of columns: a dot a matrix with plain values, and a line through the means."""
    found = {k: speeds for k in sorted(_each(report["results"], "columns")) if (speeds := speeds_at(report, dtype, k))}
    title = f"{dtype}: speed over the best peer, by columns of X"
    parts = [f"<title>{escape(title)}</title>", _text(0, FONT + 1, title, weight=600)]
    everything = [times for speeds in found.values() for times in speeds.values()]
    low, high = math.log(min([*everything, 0.9]) * 0.95), math.log(max([*everything, 2]) * 1.05)
    top, step = 36, (WIDTH - LEFT - 24) / max(1, len(found))

    def height(times: float) -> float:
        return top + HEIGHT * (high - math.log(times)) / (high - low)

    for times in LINES:
        if low <= math.log(times) <= high:
            y, strength = height(times), 1 if times == 1 else 0.2
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 16}" stroke="currentColor" stroke-opacity="{strength}"/>')
            parts.append(_text(LEFT - 6, y + 4, f"{times:g}x", "end"))
    middle = {k: LEFT + step * (number + 0.5) for number, k in enumerate(found)}
    for k, speeds in found.items():
        for number, (matrix, times) in enumerate(sorted(speeds.items(), key=lambda pair: pair[1])):
            x = middle[k] + (number % 3 - 1) * 5  # neighbours beside one another
            colour = FASTER if times >= 1 else SLOWER
            about = escape(f"{matrix}, {k} columns: {times:.2f}x")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{height(times):.1f}" r="3.5" fill="{colour}"><title>{about}</title></circle>'
            )
    means = {k: geometric_mean(list(speeds.values())) or 1.0 for k, speeds in found.items()}
    line = "L".join(f"{middle[k]:.1f} {height(mean):.1f}" for k, mean in means.items())
    parts.append(f'<path d="M{line}" fill="none" stroke="{MEAN}" stroke-width="2.5"/>' if line else "")
    bottom = top + HEIGHT
    for row, label in enumerate(("k", "mean", "least")):
        parts.append(_text(-8, bottom + 20 + 17 * row, label))
        for k, speeds in found.items():
            value = str(k) if row == 0 else f"{means[k] if row == 1 else min(speeds.values()):.2f}"
            parts.append(_text(middle[k], bottom + 20 + 17 * row, value, "middle", 600 if row == 0 else 400))
    end = bottom + 64
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{end}" viewBox="-8 0 {WIDTH} {end}" role="img" '
        f'font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{FONT}" font-weight="{weight}" '
        f'fill="currentColor">{escape(text)}</text>'
    )


def _each(cases: Iterable[dict[str, Any]], key: str) -> list[Any]:
    """The values that cases have, each once, in order."""
    return list(dict.fromkeys(case[key] for case in cases))


def _by_matrix(report: dict[str, Any], dtype: str) -> tuple[list[int], dict[str, dict[int, dict[str, Any]]]]:
    """Numbers of columns, and the cases of a dtype by matrix and number of columns."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for case in report["results"]:
        if case["dtype"] == dtype:
            found.setdefault(case["matrix"], {})[case["columns"]] = case
    return sorted(_each(report["results"], "columns")), found


def _ours(case: dict[str, Any]) -> str:
    label = bench.label({"name": case["ours"]["format"], **case["ours"], "plan": ""})
    return f"{significant(case['ours']['seconds'] * 1e6)} {label}"


def _theirs(case: dict[str, Any]) -> str:
    peer = best_peer(case)
    return "-" if peer is None else f"{significant(case['peers'][peer] * 1e6)} {peer}"
