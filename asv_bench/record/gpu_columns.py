"""``A @ X`` on a GPU, by what asarray chooses and by every peer of :mod:`.gpu_peers`, for several numbers of columns.

    python -m asv_bench.record.gpu_columns [--only NAME,...] [--columns 1,4,16,64,256]

X is in C order. All are checked in the first and last column and then timed in turn. Peers in Fortran order have X
copied before.
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

import numpy as np

import cvrarray
from cvrarray.cli import bench
from cvrarray.cli.table import render, significant
from cvrarray.core import clocks, devices

from . import command, gpu, gpu_peers, machine
from .pages import geometric_mean, markdown, write_figures

#: Numbers of columns; 1 is a vector.
COLUMNS = "1,4,16,64,256"


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = gpu.parser()
    parser.description, parser.usage = __doc__, None
    parser.add_argument("--columns", default=COLUMNS, help="of X; default: %(default)s")
    parser.add_argument("--peers", help="these alone, separated by commas; default: all")
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
    results = []
    with device.use():
        for name, make in cases.items():
            csr = make()
            csr.sum_duplicates()
            for dtype in args.dtype.split(","):
                found = measure_case(csr.astype(dtype), device, columns, names, args.repeats, args.seed)
                results += [{"matrix": name, **case} for case in found]
                device.xp.get_default_memory_pool().free_all_blocks()
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.describe(device),
        "versions": machine.versions() | gpu_peers.versions(device.index),
        "repeats": args.repeats,
        "scale": args.scale,
        "results": results,
    }
    bench.publish(report, text, args.json)
    if args.report is not None:
        Path(args.report).mkdir(parents=True, exist_ok=True)
        write_figures(report, Path(args.report) / "gpu-columns.json")
        (Path(args.report) / "gpu-columns.md").write_text(page(report))
    return int(any(case["ours"]["error_over_bound"] > 1 for case in results))


def measure_case(
    csr: Any, device: devices.Device, columns: list[int], names: list[str] | None, repeats: int, seed: int
) -> list[dict[str, Any]]:
    """One matrix in one dtype: a case for each number of columns. Times are in seconds."""
    clock, cases = clocks.of(device), []
    for k in columns:
        array = cvrarray.asarray(csr)
        shape = csr.shape[1:] if k == 1 else (csr.shape[1], k)
        x = device.xp.asarray((np.random.default_rng(seed).random(shape) + 0.5).astype(csr.dtype))
        y = device.xp.zeros((*csr.shape[:1], *shape[1:]), csr.dtype)
        calls: dict[str, clocks.Call] = {"ours": partial(operator.matmul, array, x)}
        for _ in range(gpu.SETTLED if k == 1 else 1):
            product = calls["ours"]()
        error, left_out = worst(product, csr, x, device), {}
        registry = gpu_peers.PEERS if k == 1 else gpu_peers.MATRIX_PEERS
        for name in registry if names is None else [name for name in registry if name in names]:
            try:
                call = gpu_peers.prepare(name, csr, x, y, registry)
                wrong = worst(device.xp.asarray(call()), csr, x, device)
                if wrong > gpu_peers.ROOM:
                    left_out[name] = f"is wrong: {significant(wrong)} times the error that rounding may cause"
                else:
                    calls[name] = call
            except Exception as reason:  # some libraries refuse only when they are called
                left_out[name] = f"{type(reason).__name__}: {' '.join(str(reason).split())}"
        timed = {name: timing.median for name, timing in clock.times(calls, repeats).items()}
        ours = {"format": array.format, "error_over_bound": error, "seconds": timed.pop("ours")}
        about = {"shape": list(csr.shape), "nnz": int(csr.nnz), "dtype": csr.dtype.name, "columns": k}
        cases.append(about | {"ours": ours | bench.facts(array), "peers": timed, "left_out": left_out})
    return cases


def worst(product: Any, csr: Any, x: Any, device: devices.Device) -> float:
    """The largest error in the first and the last column over what rounding may cause; right up to 1."""
    if x.ndim == 1:
        return gpu.worst(product, *gpu.reference(csr, x, device), device.xp)
    xp = device.xp
    return max(
        gpu.worst(product[:, j], *gpu.reference(csr, xp.ascontiguousarray(x[:, j]), device), xp) for j in {0, x.shape[1] - 1}
    )


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
            rows.append([matrix, bench.label({"name": of_matrix[0]["ours"]["format"], **of_matrix[0]["ours"], "plan": ""})])
            for case in of_matrix:
                peer = min(case["peers"], key=case["peers"].__getitem__, default=None)
                theirs = "-" if peer is None else f"{significant(case['peers'][peer] * 1e6)} {peer}"
                rows[-1] += [theirs, significant(case["ours"]["seconds"] * 1e6), f"{speedup(case):.2f}x"]
        of_k = [[speedup(case) for (_, number), case in cases.items() if number == k and case["peers"]] for k in columns]
        summary = [["", "", f"{geometric_mean(s) or 0:.2f}x ({min(s, default=0):.2f})"] for s in of_k]
        rows.append(["geometric mean (least)", "", *[cell for cells in summary for cell in cells]])
        header = ["matrix", "ours", *[cell for k in columns for cell in (f"k = {k}: peer", "ours", "")]]
        found[dtype] = header, rows
    return found


def text(report: dict[str, Any]) -> str:
    """The report as text."""
    return "\n\n".join(part for dtype, table in tables(report).items() for part in (dtype, render(*table)))


def page(report: dict[str, Any]) -> str:
    """The report as a page of Markdown."""
    libraries = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if name != "system")
    parts = [
        "# Products with a matrix on a GPU, beside cuSPARSE, CuPy and PyTorch",
        f"Written by `python -m asv_bench.record.gpu_columns`; all figures are in `gpu-columns.json` beside this page. "
        f"{report['device']['name']}, CUDA {report['device']['cuda']}; {libraries}. Measured on {report['date'][:10]}, scale "
        f"`{report['scale']}`, medians of {report['repeats']}, in microseconds. X is in C order; an F says that a peer has X "
        "and Y in Fortran order, X copied before. Peers' tables, descriptors and workspaces are made before, and not timed.",
    ]
    for dtype, table in tables(report).items():
        parts += [f"## {dtype}", markdown(*table)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
