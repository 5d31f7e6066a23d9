"""What :mod:`.products`' figures come to: speed over the best peer by group of matrices; ``cpu.md``, ``cpu.json``.

A speed-up is the fastest peer's median time over ours, in the same matrix, dtype and number of threads; groups of
matrices are summed up by their geometric mean.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import cvrarray
from cvrarray.cli import bench
from cvrarray.cli.table import render, significant

from . import pages
from .pages import geometric_mean, has_few_values, markdown

#: How matrices are grouped, and by what.
GROUPS = {
    "power law": "row lengths whose standard deviation is above their mean, the longest over ten means",
    "blocks": "otherwise, dense blocks: at some block size from 2, at most a tenth more entries than nonzeros",
    "regular": "otherwise, row lengths whose standard deviation is at most half their mean",
    "other": "all the rest",
}

#: Whose speed is summed up: what ``asarray`` chose, either format, and the faster of the two.
CONTENDERS = ("asarray", "cvr", "bbcsr", "faster")

#: Peers in the order of the tables' columns.
PEERS = ("mkl", "scipy", "sparse")


def group(csr: Any) -> str:
    """The group of GROUPS that a SciPy or CuPy CSR belongs to."""
    indptr = csr.indptr if isinstance(csr.indptr, np.ndarray) else csr.indptr.get()
    lengths = np.diff(indptr)
    if not csr.nnz:
        return "regular"
    mean, spread = lengths.mean(), lengths.std()
    if spread > mean and lengths.max() > 10 * mean:
        return "power law"
    fill = cvrarray.statistics(csr, exact=False).block_fill
    if min((times for size, times in fill.items() if size > 1), default=math.inf) <= 1.1:
        return "blocks"
    return "regular" if spread <= mean / 2 else "other"


def summary(report: dict[str, Any]) -> list[dict[str, Any]]:
    """For every dtype, number of threads and contender: geometric means by group, and the worst matrix."""
    keys = dict.fromkeys((case["dtype"], case["threads"]) for case in report["results"])
    rows = []
    for dtype, threads in keys:
        cases = [case for case in report["results"] if (case["dtype"], case["threads"]) == (dtype, threads)]
        for contender in CONTENDERS:
            found = [(case, times) for case in cases if (times := speedup(case, contender)) is not None]
            if not found:
                continue
            groups = {"all": found}
            groups |= {name: [pair for pair in found if pair[0]["group"] == name] for name in GROUPS}
            groups["generated"] = [pair for pair in found if pair[0]["generated"]]
            groups["from files"] = [pair for pair in found if not pair[0]["generated"]]
            groups["plain values"] = [pair for pair in found if not has_few_values(pair[0])]
            groups["few values"] = [pair for pair in found if has_few_values(pair[0])]
            worst, least = min(found, key=lambda pair: pair[1])
            rows.append(
                {
                    "dtype": dtype,
                    "threads": threads,
                    "contender": contender,
                    "geometric_means": {
                        name: {"matrices": len(pairs), "speedup": geometric_mean([times for _, times in pairs])}
                        for name, pairs in groups.items()
                    },
                    "worst": {"matrix": worst["matrix"], "speedup": least},
                    "below_0.8": sum(times < 0.8 for _, times in found),
                }
            )
    return rows


def speedup(case: dict[str, Any], contender: str) -> float | None:
    """Speed of one of CONTENDERS over the best peer; None where it was not timed."""
    ours = [run for run in case["runs"] if run["name"] in ("cvr", "bbcsr") and run["correct"]]
    if contender == "asarray":
        ours = [run for run in ours if run["plan"] is not None]
    elif contender != "faster":
        ours = [run for run in ours if run["name"] == contender]
    return max((run["speedup"] for run in ours), default=None)


def summary_text(report: dict[str, Any]) -> str:
    """The summary, aligned by spaces."""
    header, rows = _summary_table(report)
    return "\n".join(["Speed over the best peer, geometric means", "", render(header, rows)])


def write(report: dict[str, Any], folder: Path) -> None:
    """Write ``cpu.md`` and ``cpu.json``."""
    pages.write_figures(report | {"results": [_rounded(case) for case in report["results"]]}, folder / "cpu.json")
    (folder / "cpu.md").write_text(page(report))


def page(report: dict[str, Any]) -> str:
    """The report as a page of Markdown."""
    keys = dict.fromkeys((case["dtype"], case["threads"]) for case in report["results"])
    parts = [
        "# Products on a CPU, beside MKL, SciPy and pydata/sparse",
        "Written by `make bench`; all figures are in `cpu.json` beside this page.",
        _machine(report),
        _method(report),
        "## Summary",
        "Speed over the best peer, geometric means; above 1 is faster. `asarray` is the format that "
        "`cvrarray.asarray` chose, `faster` the faster of the two.",
        markdown(*_summary_table(report)),
        "\n".join(f"* **{name}**: {what}" for name, what in GROUPS.items()),
    ]
    for dtype, threads in keys:
        cases = [case for case in report["results"] if (case["dtype"], case["threads"]) == (dtype, threads)]
        parts += [f"## {dtype}, {_threads(threads)}", _page_table(cases)]
    return "\n\n".join(parts) + "\n"


def _machine(report: dict[str, Any]) -> str:
    device, versions = report["device"], report["versions"]
    bits = f", vectors of {device['vector_bits']} bits" if device["vector_bits"] else ""
    others = report["cpus_busy_with_others"]
    load = "" if others is None else f" Other work kept {others:.1f} of the CPUs busy meanwhile."
    rates = ", ".join(
        f"{significant(rate['read'] / 1e9)} GB/s with {_threads(int(count))}"
        for count, rate in report["bytes_per_second_by_threads"].items()
    )
    return (
        f"**Machine.** {device['name']} ({device['microarchitecture']}), {device['cpus']} CPUs{bits}; reads {rates}. "
        f"{versions['system']}.{load} Measured on {report['date'][:10]}.\n\n**Versions.** {pages.libraries(report)}."
    )


def _method(report: dict[str, Any]) -> str:
    left_out = "".join(f" {name} is left out: {why}." for name, why in report["peers_left_out"].items())
    rounds = report["rounds"]
    anew = f"; all of it {rounds} times, and each figure is the median of its {rounds}" if rounds > 1 else ""
    return (
        f"**Method.** Medians of {report['repeats']} repeats, in each of which all contenders take turns, with one thread "
        f"and with all of them{anew}. A sample follows an untimed one of its kind. Ours and MKL (`sparse_dot_mkl`) have the "
        "threads that stand above a table, SciPy and pydata/sparse one in all of them. Every product of ours was checked "
        "against one in double precision, row by row, before it was timed. `converts in` is the time from SciPy's CSR, its "
        "check included, with as many threads, in products of the fastest peer. Matrices are generated at scale "
        f"`{report['scale']}`, or read from files that the project does not ship.{left_out}"
    )


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"


def _summary_table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = report["summary"]
    groups = list(rows[0]["geometric_means"]) if rows else []
    on_cpu = report["device"]["device"] == "cpu"
    lines = [
        [
            row["dtype"],
            *([str(row["threads"])] if on_cpu else []),
            row["contender"],
            *(_mean(row["geometric_means"][name]) for name in groups),
            f"{row['worst']['speedup']:.2f} {row['worst']['matrix']}",
            str(row["below_0.8"]),
        ]
        for row in rows
    ]
    return ["dtype", *(["threads"] if on_cpu else []), "by", *groups, "worst", "below 0.8"], lines


def _mean(found: dict[str, Any]) -> str:
    return "-" if found["speedup"] is None else f"{found['speedup']:.2f} ({found['matrices']})"


def _page_table(cases: list[dict[str, Any]]) -> str:
    peers = [peer for peer in PEERS if any(run["name"] == peer for run in cases[0]["runs"])]
    header = ["matrix", "group", "nonzeros", "asarray chose", "us", *(f"over {peer}" for peer in peers)]
    header += ["cvr over best", "bbcsr over best", "cvr converts in", "bbcsr converts in"]
    return markdown(header, [_page_row(case, peers) for case in cases])


def _page_row(case: dict[str, Any], peers: list[str]) -> list[str]:
    runs = {run["name"]: run for run in case["runs"] if run["correct"]}
    chosen = next((run for run in runs.values() if run.get("plan")), None)
    cells = [case["matrix"], case["group"], f"{case['nnz']:,}", "-" if chosen is None else bench.label(chosen).rstrip("*")]
    cells.append(significant(None if chosen is None else chosen["seconds"] * 1e6))
    cells += ["-" if chosen is None else f"{chosen['speedup_over'][peer]:.2f}" for peer in peers]
    cells += [f"{runs[name]['speedup']:.2f}" if name in runs else "-" for name in ("cvr", "bbcsr")]
    converts = [runs[name]["conversion_in_peer_products"] if name in runs else None for name in ("cvr", "bbcsr")]
    return [*cells, *(significant(products, 2) for products in converts)]


def _rounded(value: Any) -> Any:
    """`value` with its fractions at 4 significant digits, which is more than a clock is good for."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
