"""``A @ X`` on a GPU by what asarray chooses and by every peer of :mod:`.gpu_peers`, by number of columns.

    python -m asv_bench.record.gpu_columns [--only NAME,...] [--columns 1,4,16,64,256] [--within SECONDS]

``make bench-columns`` runs it and writes docs/benchmarks/gpu-columns.*. By default it measures MATRICES, those of files
where CVRARRAY_MATRICES names a folder that has them; with ``--families``, what these seeds draw. X is in C order, and ours
is ``asarray(A, columns=k)``. All are checked in the first and last column and then timed in turn; a peer that takes HOPELESS
times what ours takes is not. Peers in Fortran order have X copied before; ours is timed with such an X too, and without the
hint ``columns=k``.
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
from cvrarray.cli import bench
from cvrarray.cli.table import finite
from cvrarray.core import clocks, devices

from . import columns_page, command, gpu, gpu_peers, machine, pages
from .clocks import OtherLoad, host_seconds, quickest
from .columns_page import HOPELESS

#: Numbers of columns; 1 is a vector.
COLUMNS = "1,4,16,64,256"

#: Error of a right product of a peer over what rounding may cause: libraries add in other orders than rows have.
ROOM = 2.0

#: What is measured by default, as far as it is there: generated matrices, real ones, few long rows, values that are few.
MATRICES = (
    *("stencil27", "poisson7", "elast3", "shell6", "rmat", "uniform_2M_16", "uniform_200k_150"),
    *("ba_kitti_H", "fem_hand_elast_r1", "git_networkit", "img_china_matting", "quantum_heis20"),
    *("rec_gowalla_itemitem", "shell_armadillo_r0", "slam_torus3D", "vol_mni_brain", "web_cnr2000"),
    *("lognormal_4k", "lognormal_4k_T", "stencil27 (few values)", "rmat (one value)"),
)


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = gpu.parser()
    parser.description, parser.usage = __doc__, None
    parser.set_defaults(scale="medium", repeats=7)
    parser.add_argument("--columns", default=COLUMNS, help="of X; default: %(default)s")
    parser.add_argument("--peers", help="these alone, separated by commas; default: all")
    parser.add_argument("--transposed", action="store_true", help="ours is A.T @ X in a loop, the peers' an explicit transpose")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if a product of ours was wrong, 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; 1 if a product of ours was wrong."""
    names = None if args.peers is None else args.peers.split(",")
    device = bench.check(args)
    known = {*gpu_peers.PEERS, *gpu_peers.MATRIX_PEERS}
    if unknown := set(names or ()) - known:
        raise ValueError(f"--peers must name some of {', '.join(sorted(known))}; got {', '.join(sorted(unknown))}")
    if device.kind != "cuda":
        raise ValueError(f"this run needs a GPU, with CuPy; got --device {device}")
    columns = [int(number) for number in args.columns.split(",")]
    if min(columns) < 1:
        raise ValueError(f"--columns must be positive; got {args.columns!r}")
    cases = gpu.cases_of(args, device)
    if args.only or args.families:
        cases = gpu.select(cases, args.only)
    else:
        cases = {name: cases[name] for name in MATRICES if name in cases}
    results, chosen, others = [], gpu.InTime(cases, args.within), OtherLoad()
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
        "cpus_busy_with_others": finite(others.cpus()),
        "scale": args.scale,
        "families": args.families,
        "transposed": args.transposed,
        "not_measured": chosen.rest,
        "results": results,
    }
    bench.publish(report, lambda report: pages.text(tables(report)), args.json)
    if args.report is not None:
        Path(args.report).mkdir(parents=True, exist_ok=True)
        columns_page.write(report, Path(args.report))
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
    clock, cases, matrix = clocks.of(device), [], csr.T.tocsr() if transposed else csr
    without_hint = cvrarray.asarray(matrix, device=str(device))
    for k in columns:
        array = cvrarray.asarray(matrix, columns=k, device=str(device))
        shape = csr.shape[1:] if k == 1 else (csr.shape[1], k)
        x = device.xp.random.default_rng(seed).random(shape, csr.dtype) + csr.dtype.type(0.5)
        y = device.xp.zeros((*csr.shape[:1], *shape[1:]), csr.dtype)
        ours, plain = (of.T if transposed else of for of in (array, without_hint))
        calls: dict[str, clocks.Call] = {"ours": partial(operator.matmul, ours, x)}
        product = gpu.settled(calls["ours"])
        answers = references(csr, x, device)
        error, seconds, left_out = worst(product, answers, device.xp), quickest(clock, calls["ours"]), {}
        registry = gpu_peers.PEERS if k == 1 else gpu_peers.MATRIX_PEERS
        for name in registry if names is None else [name for name in registry if name in names]:
            y.fill(0)  # whose product never comes is not to be right because of who came before
            make = partial(gpu_peers.prepare, name, csr, x, y, registry)
            found = gpu_peers.tried(make, partial(_error_of_peer, answers, device.xp), seconds, clock, HOPELESS)
            if found.why is None:
                calls[name] = found.call
            else:
                left_out[name] = found.why
        if k > 1:
            calls |= {
                "fortran": partial(operator.matmul, ours, device.xp.asfortranarray(x)),
                "no hint": partial(operator.matmul, plain, x),
            }
        timed = {name: timing.median for name, timing in clocks.times(clock, calls, repeats).items()}
        on_host = host_seconds(calls, device)
        same_bits = bool((calls["ours"]() == product).all())
        of_ours = {"format": array.format, "error_over_bound": error, "same_bits": same_bits, "seconds": timed.pop("ours")}
        others = {"fortran_seconds": timed.pop("fortran", None), "no_hint_seconds": timed.pop("no hint", None), "peers": timed}
        cases.append(
            {"shape": list(csr.shape), "nnz": int(csr.nnz), "dtype": csr.dtype.name, "columns": k}
            | {"ours": of_ours | bench.facts(array), **others}
            | {"host_seconds": on_host, "left_out": left_out}
        )
    return cases


def references(csr: Any, x: Any, device: devices.Device) -> dict[int, tuple[Any, Any]]:
    """By the first and the last column, what :func:`gpu.reference` says of it; a vector has the number -1."""
    if x.ndim == 1:
        return {-1: gpu.reference(csr, x, device)}
    return {j: gpu.reference(csr, device.xp.ascontiguousarray(x[:, j]), device) for j in {0, x.shape[1] - 1}}


def worst(product: Any, answers: dict[int, tuple[Any, Any]], xp: Any) -> float:
    """The largest error in the columns that `answers` has, over what rounding may cause; right up to 1."""
    return max(gpu.worst(product if j < 0 else product[:, j], *answer, xp) for j, answer in answers.items())


def _error_of_peer(answers: dict[int, tuple[Any, Any]], xp: Any, product: Any) -> float:
    return worst(xp.asarray(product), answers, xp) / ROOM


def tables(report: dict[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """What a terminal shows: times and speeds of each dtype, and what they come to."""
    found = {}
    for dtype in dict.fromkeys(case["dtype"] for case in report["results"]):
        found[f"{dtype}, microseconds"] = columns_page.times_table(report, dtype)
        found[f"{dtype}, speed over the best peer"] = columns_page.speed_table(report, dtype)
    return found | {"A call": columns_page.calls_table(report), "Summary": columns_page.summary_table(report)}


if __name__ == "__main__":
    sys.exit(main())
