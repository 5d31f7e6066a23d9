"""What each candidate of ``A @ x`` and ``A @ X`` on a GPU buys: time without it over time with it.

    python -m asv_bench.record.ablate [--families 1000] [--columns 1,4,16,64,256] [--dtype float32,float64] [--within SECONDS]

``make ablate`` runs it and writes docs/benchmarks/ablation.*. Matrices are those of :mod:`.families`, which nothing was
fitted to. Candidates are those of :mod:`cvrarray.gpu.plan`: ways of one product that give the same bits. Each is timed as the
package itself does when a product has been called often. Products with one candidate count in the means as 1.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cvrarray
from cvrarray.core import devices

from . import command, families, pages

#: By name: how a matrix is made an array.
FORMATS: dict[str, Callable[[Any], Any]] = {
    "CVR": lambda csr: cvrarray.CVRArray(csr, device="cuda", values="plain"),
    "BBCSR": lambda csr: cvrarray.BBCSRArray(csr, block_size=1, device="cuda", values="plain"),
}
#: Tables of more times the bytes of a CSR are left out: nobody would multiply by them.
MOST_PADDED = 3


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_drawn(parser, "ablation", columns="1,4,16,64,256")
    parser.add_argument("--dtype", default="float32,float64", help="default: %(default)s")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""
    dtypes, columns = args.dtype.split(","), [int(k) for k in args.columns.split(",")]
    return command.run_drawn(args, "ablation", lambda _, name, device: measured(name, dtypes, columns, device), page)


def measured(name: str, dtypes: Iterable[str], columns: Iterable[int], device: devices.Device) -> Iterator[dict[str, Any]]:
    """A case for each product by the matrix called `name`: milliseconds by candidate, the first choice first."""
    csr, xp = families.build(name), device.xp
    for format, make in FORMATS.items():
        for dtype in dtypes:
            values = csr.astype(dtype)
            array = make(values)
            if array.nbytes > MOST_PADDED * (values.data.nbytes + values.indices.nbytes):
                continue
            for k in columns:
                x = xp.random.default_rng(0).random(csr.shape[1:] if k == 1 else (csr.shape[1], k), dtype)
                with device.comparing() as found:
                    array @ x
                times = found[0].times if found else {}
                yield {"matrix": name, "format": format, "dtype": dtype, "columns": k, "milliseconds": times}


def page(report: dict[str, Any]) -> str:
    """The figures as a Markdown page."""
    cases = report["results"]
    lines = [
        "# What each way to multiply buys on a GPU",
        f"{report['device']['name']}; `make ablate`. " + families.about(report["families"]),
        "*mean*: geometric mean, over all products of the kind, of the time of the fastest other candidate over that of the "
        "fastest, where this one is the fastest; else 1. *most*: its largest value. *first*: products that begin with it.",
    ]
    for title, of in groups(cases).items():
        losses = [best(case, case["first"]) for case in of if case["milliseconds"]]
        lines += [f"## {title}", pages.markdown(*table(of)), f"{len(of)} products; {sum(bool(c['milliseconds']) for c in of)} "
                  f"have several candidates. There the first one takes {mean(losses):.3f} of the fastest one's time, and in "
                  f"{sum(loss > 1.1 for loss in losses)} more than 1.1."]  # fmt: skip
    return "\n\n".join(lines) + "\n"


def groups(cases: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Cases by kind of product, with the names of their first and of their fastest candidates."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        times = case["milliseconds"]
        named = case | {"first": next(iter(times), None), "fastest": min(times, key=times.get, default=None)}
        found.setdefault(f"A @ {'x' if case['columns'] == 1 else 'X'}, {case['format']}", []).append(named)
    return found


def table(cases: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line a candidate."""
    rows = []
    for name in dict.fromkeys(name for case in cases for name in case["milliseconds"]):
        gains = [without(case, name) for case in cases]
        most = max(range(len(cases)), key=gains.__getitem__)
        where = "{matrix}, {dtype}, {columns}".format(**cases[most]) if gains[most] > 1 else ""
        n_first, n_fastest = (sum(case[key] == name for case in cases) for key in ("first", "fastest"))
        n = sum(name in case["milliseconds"] for case in cases)
        rows.append([name, str(n), str(n_first), str(n_fastest), f"{mean(gains):.3f}", f"{gains[most]:.2f}", where])
    return ["candidate", "products", "first", "fastest", "mean", "most", "where"], rows


def without(case: dict[str, Any], name: str) -> float:
    """The time of the fastest other candidate over that of `name`, where that is the fastest."""
    others = [time for other, time in case["milliseconds"].items() if other != name]
    return min(others) / case["milliseconds"][name] if case["fastest"] == name and others else 1.0


def best(case: dict[str, Any], name: str) -> float:
    """The time of candidate `name` over that of the fastest."""
    return float(case["milliseconds"][name] / case["milliseconds"][case["fastest"]])


def mean(numbers: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, numbers)) / max(1, len(numbers)))


if __name__ == "__main__":
    sys.exit(main())
