"""Both formats beside MKL, SciPy and pydata/sparse on a CPU, beside CuPy on a GPU; matrix by matrix, in every dtype.

    python -m asv_bench.record.products [MATRIX ...]

``make bench`` runs it with the options that docs/benchmarks/cpu.md was recorded with. It measures what ``cvrarray
bench`` measures, by the same functions: of many matrices, with several numbers of threads in one run, in rounds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from cvrarray import formats, generate
from cvrarray.array.format import FORMATS
from cvrarray.cli import bench, peers, sources
from cvrarray.cli.table import finite
from cvrarray.core import devices

from . import clocks, command, inputs, machine, products_page


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "matrices",
        nargs="*",
        metavar="MATRIX",
        help=f"files (.mtx, .mtx.gz, .npz, .cvra) or generated: {', '.join(generate.MATRICES)}; default: all generated",
    )
    parser.add_argument("--scale", choices=generate.SCALES, default="full", help="size of the generated ones")
    inputs.add_values(parser)
    parser.add_argument("--dtype", help="float32,float64 (default) or complex64,complex128")
    parser.add_argument("--formats", default=",".join(["auto", *FORMATS]), help="default: %(default)s")
    parser.add_argument("--threads", metavar="N,...", help="on the CPU: numbers of threads, such as 1,all; default: all")
    parser.add_argument(
        "--report",
        metavar="FOLDER",
        help="on the CPU: write cpu.md and cpu.json there, of the matrices named and of all .npz in the folder that the "
        "environment variable CVRARRAY_MATRICES names",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="go so often through all matrices, reading included, and take every figure's median; default: %(default)s",
    )
    bench.add_shared_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if a product was wrong, 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; 1 if a product was wrong."""
    device = bench.check(args)
    bench.check_positive("rounds", args.rounds)
    for name in args.formats.split(","):
        formats.check(name, auto=True)
    counts = inputs.thread_counts(args.threads, device)
    if args.report is not None and device.kind != "cpu":
        raise ValueError(f"--report is for the CPU; got --device {device}. Use --json OUT")
    report = measure_all(
        matrices(args, device),
        device=device,
        dtypes=args.dtype,
        names=args.formats.split(","),
        repeats=args.repeats,
        rounds=args.rounds,
        seed=args.seed,
        counts=counts,
    )
    report["scale"] = args.scale
    report["summary"] = products_page.summary(report)
    bench.publish(report, products_page.summary_text, args.json)
    if args.report is not None:
        Path(args.report).mkdir(parents=True, exist_ok=True)
        products_page.write(report, Path(args.report))
    return bench.exit_code(report["results"])


def matrices(args: argparse.Namespace, device: devices.Device) -> list[tuple[str, Callable[[], Any]]]:
    """What to measure: (name, function that makes the CSR on the device). A page has no folders' names in it."""

    def load(name: str) -> Any:
        csr = sources.load(name, scale=args.scale, seed=args.seed, device=device)
        return generate.of_values(csr, args.values, device.xp, args.seed)

    found: list[tuple[str, Callable[[], Any]]] = [
        (inputs.label(Path(name).stem if args.report is not None else name, args.values), partial(load, name))
        for name in args.matrices or generate.MATRICES
    ]
    if args.report is not None:
        found += [(name, partial(inputs.read_stored, path)) for name, path in inputs.stored().items()]
    return found


def measure_all(
    matrices: list[tuple[str, Callable[[], Any]]],
    *,
    device: devices.Device,
    dtypes: str | None,
    names: list[str],
    repeats: int,
    seed: int,
    counts: list[int | None],
    rounds: int = 1,
) -> dict[str, Any]:
    """Measure every matrix in every dtype: a report of plain JSON types.

    `counts` are the numbers of threads, ascending. With several `rounds` all of it is done anew as often, and every
    figure is the median of its own: a minute that others disturb spoils one round.
    """
    from tqdm import tqdm

    others = clocks.OtherLoad()
    rates = {}
    for count in counts:
        with machine.using_threads(count):
            rates[count] = machine.rates(device)
    found: dict[Any, list[dict[str, Any]]] = {}
    # disable=None: no bar where stderr is no terminal
    with tqdm(list(enumerate(matrices)) * rounds, disable=None, leave=False, unit="matrix") as bar:
        for position, (name, make) in bar:
            bar.set_description(name)
            csr = make()
            about = {"group": products_page.group(csr), "generated": name.partition(" (")[0] in generate.MATRICES}
            both = "complex64,complex128" if csr.dtype.kind == "c" else "float32,float64"
            for dtype in sources.dtypes(dtypes or both, csr.dtype):
                cast = bench.cast(csr, dtype)
                for count in counts:
                    with machine.using_threads(count):
                        case = bench.measure_case(name, cast, device, repeats, seed, names=names)
                    found.setdefault((position, dtype, case["threads"]), []).append(case | about)
    return {
        "schema": 2,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.describe(device),
        "versions": machine.versions(),
        "bytes_per_second": rates[counts[-1]],
        "bytes_per_second_by_threads": {str(count): rate for count, rate in rates.items() if count is not None},
        "repeats": repeats,
        "rounds": rounds,
        "cpus_busy_with_others": finite(others.cpus()),
        "peers_left_out": peers.left_out(device),
        "results": [together(cases) for cases in found.values()],
    }


def together(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """One case of several rounds' of it: medians, and the peer that they show to be the fastest."""
    case = medians(cases)
    seconds = {run["name"]: run["seconds"] for run in case["runs"] if "error_over_bound" not in run}
    return case | {"peer": min(seconds, key=seconds.__getitem__)}


def medians(found: list[Any]) -> Any:
    """One of several results of the same shape: of numbers the median, None above all; False where one of them is."""
    first = found[0]
    if all(value == first for value in found):
        return first
    if isinstance(first, dict):
        return {name: medians([value.get(name) for value in found]) for name in first}
    if isinstance(first, list):
        return [medians(list(values)) for values in zip(*found, strict=True)]
    if isinstance(first, (bool, str)):
        return min(found)
    return finite(statistics.median(math.inf if value is None else value for value in found))


if __name__ == "__main__":
    sys.exit(main())
