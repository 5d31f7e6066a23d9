"""Real matrices in, products out, and who won.

Assembles a 3-D elasticity system with scikit-fem (3 x 3 blocks) and a Graph500 graph, reads the files named, converts
each to both formats, checks A @ x against double precision, and times it beside what you have without us: SciPy,
pydata/sparse and, where sparse_dot_mkl is installed, MKL on a CPU; CuPy on a GPU. 'cvrarray bench --help' explains the
columns.
"""

from __future__ import annotations

import argparse
from typing import Any

from .. import generate
from ..core import devices
from . import bench, sources

#: 4 million nonzeros each: beyond the caches of a laptop, and done in a minute on two cores.
ELASTICITY_REFINEMENTS = 4
RMAT_SCALE, RMAT_EDGE_FACTOR = 18, 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray demo``."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="more matrices: .mtx, .mtx.gz, .npz, .cvra")
    parser.add_argument("--dtype", default="float64", help="default: %(default)s")
    bench.add_shared_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge; 1 if a product was wrong."""
    device = devices.default() if args.device is None else devices.parse(args.device)
    sources.check_dtypes(args.dtype)
    sources.check_output(args.json)
    files = {path: sources.read(path) for path in args.files}  # first of all: a bad one shows at once
    report = bench.measure_all(
        [
            ("elasticity", lambda: sources.place(generate.elasticity(ELASTICITY_REFINEMENTS), device)),
            ("Graph500", lambda: _graph(device, args.seed)),
            *((path, lambda path=path: sources.place(files[path], device)) for path in files),
        ],
        device=device,
        dtypes=args.dtype,
        formats=["auto", "cvr", "bbcsr"],
        repeats=args.repeats,
        seed=args.seed,
    )
    bench.publish(report, args.json)
    if args.json != "-":
        print("\n* chosen by asarray\n")
        for case in report["results"]:
            print(verdict(case))
    return bench.exit_code(report)


def verdict(case: dict[str, Any]) -> str:
    """Who won, by how much, and from how many products on."""
    best = min((entry for entry in case["runs"] if entry["correct"]), key=lambda entry: entry["seconds"])
    chosen = next((entry for entry in case["runs"] if entry.get("plan") and entry["correct"]), None)
    peer = case["peer"]
    about = f"{case['matrix']}, {case['dtype']}:"
    if "plan" not in best:
        behind = "" if chosen is None else f"; ours, {chosen['name']}, runs at {chosen['speedup']:.2f}x its speed"
        return f"{about} {peer} wins{behind}"
    after = best["break_even_products"]
    text = f"{about} {best['name']} wins, {best['speedup']:.2f}x as fast as {peer}"
    if after is not None:
        text += f"; its conversion pays from product {after:,} on"
    if chosen is not None and chosen is not best:
        text += f" (asarray chose {chosen['name']}, {chosen['speedup']:.2f}x)"
    return text


def _graph(device: devices.Device, seed: int) -> Any:
    with device.use():
        return generate.rmat(RMAT_SCALE, RMAT_EDGE_FACTOR, xp=device.xp, seed=seed)
