"""``A @ X`` on a GPU, by what asarray chooses and by every peer of :mod:`.gpu_peers`, for several numbers of columns.

    python -m asv_bench.record.gpu_columns [--only NAME,...] [--columns 1,4,16,64,256] [--within SECONDS]

X is in C order, and ours is ``asarray(A, columns=k)``. All are checked in the first and last column and then timed in
turn; a peer that takes HOPELESS times what ours takes is not. Peers in Fortran order have X copied before.
"""

from __future__ import annotations

import argparse
import operator
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import cvrarray
from cvrarray.array.transposed import pays_after
from cvrarray.cli import bench
from cvrarray.cli.table import significant
from cvrarray.core import clocks, devices

from . import command, gpu, gpu_page, gpu_peers, machine, pages
from .pages import geometric_mean, markdown, write_figures

#: Numbers of columns; 1 is a vector.
COLUMNS = "1,4,16,64,256"

#: A peer that takes so many times what ours takes is left out.
HOPELESS = 5


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = gpu.parser()
    parser.description, parser.usage = __doc__, None
    parser.add_argument("--columns", default=COLUMNS, help="of X; default: %(default)s")
    parser.add_argument("--peers", help="these alone, separated by commas; default: all")
    parser.add_argument("--transposed", action="store_true", help="ours is A.T @ X in a loop, the peers' an explicit transpose")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if a product of ours was wrong, 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; 1 if a product of ours was wrong."""
    device = bench.check(args)
    if device.kind != "cuda":
        raise ValueError(f"this run needs a GPU, with CuPy; got --device {device}")
    columns = [int(number) for number in args.columns.split(",")]
    if min(columns) < 1:
        raise ValueError(f"--columns must be positive; got {args.columns!r}")
    cases = gpu.select(gpu.all_cases(args.scale, args.seed, device), args.only)
    names = None if args.peers is None else args.peers.split(",")
    results, chosen = [], gpu.InTime(cases, args.within)
    with device.use():
        for name, make in chosen:
            csr = make()
            csr.sum_duplicates()
            for dtype in args.dtype.split(","):
                found = measure_case(csr.astype(dtype), device, columns, names, args.repeats, args.seed, args.transposed)
                results += [{"matrix": name, **case} for case in found]
                device.xp.get_default_memory_pool().free_all_blocks()
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.describe(device),
        "versions": machine.versions() | gpu_peers.versions(device.index),
        "repeats": args.repeats,
        "scale": args.scale,
        "transposed": args.transposed,
        "not_measured": chosen.rest,
        "results": results,
    }
    bench.publish(report, lambda report: pages.text(tables(report)), args.json)
    if args.report is not None:
        Path(args.report).mkdir(parents=True, exist_ok=True)
        name = "gpu-columns-transposed" if args.transposed else "gpu-columns"
        write_figures(report, Path(args.report) / f"{name}.json")
        (Path(args.report) / f"{name}.md").write_text(page(report))
    return int(any(case["ours"]["error_over_bound"] > 1 for case in results))


def measure_case(
    csr: Any,
    device: devices.Device,
    columns: list[int],
    names: list[str] | None,
    repeats: int,
    seed: int,
    transposed: bool = False,
) -> list[dict[str, Any]]:
    """One matrix in one dtype: a case for each number of columns. Times are in seconds.

    `transposed`: ours is the transposed product of an array of ``csr.T``, as it is in a loop: by tables that are kept.
    """
    clock, cases = clocks.of(device), []
    for k in columns:
        array = cvrarray.asarray(csr.T.tocsr() if transposed else csr, columns=k)
        shape = csr.shape[1:] if k == 1 else (csr.shape[1], k)
        x = device.xp.random.default_rng(seed).random(shape, csr.dtype) + csr.dtype.type(0.5)
        y = device.xp.zeros((*csr.shape[:1], *shape[1:]), csr.dtype)
        calls: dict[str, clocks.Call] = {"ours": partial(operator.matmul, array.T if transposed else array, x)}
        for _ in range(settled(array, transposed) if k == 1 else 1):
            product = calls["ours"]()
        answers = references(csr, x, device)
        error, limit, left_out = worst(product, answers, device.xp), HOPELESS * clock.sample(calls["ours"]), {}
        del product
        registry = gpu_peers.PEERS if k == 1 else gpu_peers.MATRIX_PEERS
        for name in registry if names is None else [name for name in registry if name in names]:
            try:
                y.fill(0)  # whose product never comes is not to be right because of who came before
                call = gpu_peers.prepare(name, csr, x, y, registry)
                wrong, once = worst(device.xp.asarray(call()), answers, device.xp), clock.sample(call)
                if wrong > gpu_peers.ROOM:
                    left_out[name] = f"is wrong: {significant(wrong)} times the error that rounding may cause"
                elif once > limit:
                    left_out[name] = f"takes {once / limit * HOPELESS:.0f} times what ours takes"
                else:
                    calls[name] = call
            except Exception as reason:  # some libraries refuse only when they are called
                left_out[name] = command.in_a_line(reason)
        timed = {name: timing.median for name, timing in clock.times(calls, repeats).items()}
        ours = {"format": array.format, "error_over_bound": error, "seconds": timed.pop("ours")}
        about = {"shape": list(csr.shape), "nnz": int(csr.nnz), "dtype": csr.dtype.name, "columns": k}
        cases.append(about | {"ours": ours | bench.facts(array), "peers": timed, "left_out": left_out})
    return cases


def settled(array: Any, transposed: bool) -> int:
    """Products with a vector after which an array, or its transpose, does as it will from then on."""
    return max(gpu.SETTLED, 1 + (pays_after(array) if transposed else 0))


def references(csr: Any, x: Any, device: devices.Device) -> dict[int, tuple[Any, Any]]:
    """By the first and the last column, what :func:`gpu.reference` says of it; a vector has the number -1."""
    if x.ndim == 1:
        return {-1: gpu.reference(csr, x, device)}
    return {j: gpu.reference(csr, device.xp.ascontiguousarray(x[:, j]), device) for j in {0, x.shape[1] - 1}}


def worst(product: Any, answers: dict[int, tuple[Any, Any]], xp: Any) -> float:
    """The largest error in the columns that `answers` has, over what rounding may cause; right up to 1."""
    return max(gpu.worst(product if j < 0 else product[:, j], *answer, xp) for j, answer in answers.items())


def speedup(case: dict[str, Any]) -> float:
    """The fastest peer's time over ours."""
    return float(min(case["peers"].values(), default=float("nan")) / case["ours"]["seconds"])


def tables(report: dict[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """For each dtype a table of matrices by numbers of columns: the fastest peer's microseconds and name, and ours."""
    found = {}
    columns = list(dict.fromkeys(case["columns"] for case in report["results"]))
    for dtype in dict.fromkeys(case["dtype"] for case in report["results"]):
        cases = {(case["matrix"], case["columns"]): case for case in report["results"] if case["dtype"] == dtype}
        rows = []
        for matrix in dict.fromkeys(name for name, _ in cases):
            of_matrix = [cases[matrix, k] for k in columns]
            rows.append([matrix])
            for case in of_matrix:
                peer = min(case["peers"], key=case["peers"].__getitem__, default=None)
                theirs = "-" if peer is None else f"{significant(case['peers'][peer] * 1e6)} {peer}"
                label = bench.label({"name": case["ours"]["format"], **case["ours"], "plan": ""})
                rows[-1] += [
                    theirs,
                    f"{significant(case['ours']['seconds'] * 1e6)} {label}",
                    "-" if peer is None else f"{speedup(case):.2f}x",
                ]
        for kind, is_few in (("plain", False), ("few", True)):
            of_kind = [case for case in cases.values() if (case["ours"]["values"] != "plain") == is_few and case["peers"]]
            if of_kind:
                of_k = [[speedup(case) for case in of_kind if case["columns"] == k] for k in columns]
                summary = [["", "", f"{geometric_mean(s) or 0:.2f}x ({min(s, default=0):.2f})"] for s in of_k]
                rows.append([f"geometric mean (least), {kind} values", *[cell for cells in summary for cell in cells]])
        header = ["matrix", *[cell for k in columns for cell in (f"k = {k}: peer", "ours", "")]]
        found[dtype] = header, rows
    return found


def page(report: dict[str, Any]) -> str:
    """The report as a page of Markdown."""
    libraries = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if name != "system")
    what, how, name = "Products with a matrix", "Ours is `asarray(A, columns=k)`.", "gpu-columns"
    if report.get("transposed"):
        what, name = "Transposed products with a matrix", "gpu-columns-transposed"
        how = (
            "Ours is `A.T @ X` as it is in a loop, by tables of the transpose that A keeps; A is `asarray(S, columns=k)`. "
            "Peers multiply by an explicit `S.T`."
        )
    parts = [
        f"# {what} on a GPU, beside cuSPARSE, CuPy and PyTorch",
        f"Written by `make bench-columns`; all figures are in `{name}.json` beside this page. "
        f"{report['device']['name']}, CUDA {report['device']['cuda']}; {libraries}. Measured on {report['date'][:10]}, scale "
        f"`{report['scale']}`, medians of {report['repeats']}, in microseconds. X is in C order; an F says that a peer has X "
        "and Y in Fortran order, X copied before. Peers' tables, descriptors and workspaces are made before, and not timed. "
        f"{how} A peer that takes {HOPELESS} times as long is left out."
        f"{gpu_page.not_measured(report)}",
    ]
    for dtype, table in tables(report).items():
        parts += [f"## {dtype}", markdown(*table)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
