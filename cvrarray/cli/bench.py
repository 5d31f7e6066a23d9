"""Time A @ x, or A @ X, on your matrix, beside what you have without us, and say who wins.

Beside both formats run SciPy, pydata/sparse and MKL on a CPU, and SciPy's BSR where the matrix has blocks; on a GPU the
CSR of CuPy, and of PyTorch if that is installed, and with --peers all every product of cuSPARSE. MKL and cuSPARSE need
pip install 'cvrarray[bench]'. Every product of ours is checked first against one in double precision, row by row; a
wrong one is not timed, and makes the exit code 1. Then all take turns. While a spread is above 20%, they take more
turns, for up to --seconds, and the fastest samples of each count: other programs disturbed these least.

On a CPU times are wall-clock time: ours and MKL run on all threads (CVRARRAY_NUM_THREADS=1 gives both one), SciPy and
pydata/sparse on one. On a GPU they are the device's own, by CUDA events.

  by            a format (bbcsr 3 has blocks of 3 x 3) or a peer; * marks the format that asarray chose
  us            microseconds of a product: the median of the samples that count, --repeats of them
  spread        between the quartiles of these samples, over the median; where it is large, no figure can be trusted
  speedup       time of the fastest peer over the time of this one: above 1 is faster than everything you have;
                of a peer, 1 for the fastest and less for the others
  convert       time of the conversion from CSR, in products of the fastest peer
  break-even    products after which the conversion has paid for itself against that peer
  stores        bytes of the format's tables; the line below the winner's says what values are stored as, if not as they are
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import cvrarray

from .. import formats, generate
from ..array.format import FORMATS
from ..core import clocks, devices, progress
from . import gpu_peers, peers, profile, rounding, sources
from .table import finite, render, significant, size

#: A format that would store this many times the bytes of CSR is not built: it could not win, and might not fit.
MOST_BYTES = 8

#: A peer on a GPU is wrong that differs from ours by more than so many roundings of the largest sum.
ROOM = 1e4

#: Figures are not to be trusted with more CPUs busy with other processes.
OTHERS = 0.25


class Contest(NamedTuple):
    """What is multiplied, and by whom beside us."""

    columns: int = 1  # of X; 1 is a vector
    peers: Sequence[str] | None = None  # default: all that there are


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray bench``."""
    names = ", ".join(generate.MATRICES)
    parser.add_argument(
        "matrices", nargs="+", metavar="MATRIX", help=f"files (.mtx, .mtx.gz, .npz, .cvra), or generated: {names}"
    )
    parser.add_argument("--scale", choices=generate.SCALES, default="medium", help="of generated ones; default: %(default)s")
    add_values(parser)
    parser.add_argument("--dtype", help="float32,float64 or complex64,complex128, one or both; default: the matrix's own")
    parser.add_argument(
        "--profile", action="store_true", help="also time what could be switched on: tuning, precision, threads"
    )
    parser.add_argument(
        "--columns",
        default="1",
        metavar="K,...",
        help="of X: 1 is a vector x, 16 a matrix X of 16 columns, and asarray chooses for so many; default: %(default)s",
    )
    parser.add_argument(
        "--peers",
        metavar="NAME,...",
        help="these peers alone, as the column `by` names them; on a GPU also cuSPARSE's products, prepared: "
        f"{', '.join(name for name in (gpu_peers.PEERS | gpu_peers.MATRIX_PEERS) if name not in gpu_peers.LIBRARIES)}, or "
        "all; default: all on a CPU, cupyx and torch on a GPU",
    )
    add_shared_arguments(parser)


def add_values(parser: argparse.ArgumentParser) -> None:
    """The option ``--values``."""
    parser.add_argument(
        "--values",
        choices=generate.VALUES,
        default="random",
        help=f"of generated ones: all 1, or {generate.FEW} different ones; default: %(default)s",
    )


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench`` and ``demo``."""
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one")
    parser.add_argument("--repeats", type=int, default=21, metavar="N", help="samples that count; default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="of more turns while a spread is large; default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the generated matrices and of x; default: %(default)s")
    parser.add_argument("--json", metavar="OUT", help="write all that was measured to OUT ('-': to stdout)")


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge; 1 if a product was wrong."""
    device = check(args)
    load = partial(sources.load, scale=args.scale, seed=args.seed, device=device, values=args.values)
    return measure({sources.label(name, args.values): partial(load, name) for name in args.matrices}, device, args)


def check(args: argparse.Namespace) -> devices.Device:
    """The device, after all that could end badly was refused."""
    device = devices.default() if args.device is None else devices.parse(args.device)
    sources.check_dtypes(args.dtype)
    sources.check_output(args.json)
    if (names := _names(args)) is not None:
        peers.check(names, device)
    check_positive("repeats", args.repeats)
    if not getattr(args, "seconds", 0) >= 0:
        raise ValueError(f"--seconds must be a number from 0; got {args.seconds}")
    return device


def check_positive(name: str, value: int) -> None:
    """ValueError where an option that counts is below 1."""
    if value < 1:
        raise ValueError(f"--{name} must be at least 1; got {value}")


def measure(matrices: dict[str, Callable[[], Any]], device: devices.Device, args: argparse.Namespace) -> int:
    """Measure, print and judge matrices, given as functions that make the CSR on `device`; gives the exit code."""
    others, results, profiles = clocks.OtherLoad(), [], {}
    contests = [Contest(k, _names(args)) for k in _columns(args)]
    with progress.shown("measuring", len(matrices), "matrices") as update:
        for number, (name, make) in enumerate(matrices.items()):
            update(number)
            csr = make()
            for dtype in sources.dtypes(args.dtype, csr.dtype):
                case = cast(csr, dtype)
                for contest in contests:
                    turns = {"repeats": args.repeats, "seed": args.seed, "seconds": args.seconds}
                    results += measure_case(name, case, device, **turns, contest=contest)
                if getattr(args, "profile", False):
                    x = devices.move(random_vector(csr.shape[1], case.dtype, args.seed), device)
                    profiles[f"{name}, {dtype}"] = profile.measure(case, x, device, args.repeats, args.seconds)
    report = {
        "schema": 3,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": {"device": str(device), "name": device_name(device)},
        "versions": versions() | (gpu_peers.versions(device.index) if device.kind == "cuda" else {}),
        "repeats": args.repeats,
        "cpus_busy_with_others": finite(others.cpus()),
        "peers_left_out": peers.left_out(device),
        "results": results,
        "profiles": profiles,
    }
    report["warnings"] = doubts(report)
    publish(report, text, args.json)
    return exit_code((case, run) for case in results for run in case["runs"] if not run["correct"])


def _columns(args: argparse.Namespace) -> list[int]:
    """The numbers of ``--columns``."""
    text = getattr(args, "columns", "1")
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise ValueError(f"--columns must be numbers from 1, separated by commas; got {text!r}")
    return numbers


def _names(args: argparse.Namespace) -> list[str] | None:
    """The names of ``--peers``."""
    names = getattr(args, "peers", None)
    return None if names is None else names.split(",")


def publish(report: dict[str, Any], text: Callable[[dict[str, Any]], str], path: str | None) -> None:
    """Print the report as `text` has it, and write it to `path` as JSON; ``"-"`` prints the JSON instead."""
    raw = json.dumps(report, indent=1)
    if path == "-":
        print(raw)
        return
    print(text(report))
    if path is not None:
        from .. import files

        with files.replacing(path) as file:
            file.write(f"{raw}\n".encode())


def exit_code(wrong: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    """0, or 1 after a line on stderr for every wrong product, given as its case and its run."""
    code = 0
    for case, entry in wrong:
        columns = f" with {case['columns']} columns" if "columns" in case else ""
        print(
            f"cvrarray: error: {entry['name']} @ x is wrong for {case['matrix']} in {case['dtype']}{columns}: "
            f"{significant(entry['error_over_bound'], none='infinitely many')} times the error that rounding may cause",
            file=sys.stderr,
        )
        code = 1
    return code


# ---------------------------------------------------------------------------------------------------------- measuring


def measure_case(
    name: str,
    csr: Any,
    device: devices.Device,
    *,
    repeats: int,
    seed: int,
    seconds: float = 0.0,
    names: Sequence[str] | None = None,
    counts: Sequence[int | None] = (None,),
    using: Callable[[int | None], AbstractContextManager[Any]] = nullcontext,
    contest: Contest | None = None,
) -> list[dict[str, Any]]:
    """One matrix in one dtype: build, check, time; a case for each number of threads of `counts`, entered by `using`.

    `seconds` are for further turns while a spread is large. Times are in seconds; None stands for never, or not
    measured.
    """
    contest = contest or Contest()
    host = csr if device.kind == "cpu" else csr.get()
    x_host = operand(host.shape[1], contest.columns, host.dtype, seed)
    with device.use():
        x = device.xp.asarray(x_host)
        arrays, left_out = build(csr, names, device, contest.columns)
        entries = []
        for label, array in arrays.items():
            error = rounding.worst_error(host, x_host, devices.move(array @ x, devices.CPU))
            entries.append({"name": label, **facts(array), "error_over_bound": finite(error), "correct": error <= 1})
        right = {entry["name"]: arrays[entry["name"]] for entry in entries if entry["correct"]}
        others, dropped = peers.products(csr, x, device, contest.peers)
        if device.kind == "cuda" and right:
            others, useless = _useful(others, next(iter(right.values())), x, device)
            dropped |= useless
        entries += [{"name": other, "format": other, "correct": True} for other in others]
        times, taken = _time(csr, x, right, others, device, (repeats, seconds), counts, using)
    cases = []
    for count in counts:
        peer, runs = derive(
            entries,
            {key[0]: took for key, took in times.items() if key[1] in (count, None)},
            {label: taken[label, count] for label in right},
            others,
        )
        about = {"matrix": name, "shape": list(host.shape), "nnz": int(host.nnz), "dtype": str(host.dtype)}
        about |= {"columns": contest.columns} if contest.columns > 1 else {}
        n_threads = peers.threads() if count is None and device.kind == "cpu" else count
        cases.append(about | {"threads": n_threads, "peer": peer, "runs": runs, "left_out": left_out | dropped})
    return cases


def _useful(
    others: dict[str, clocks.Call], array: Any, x: Any, device: devices.Device
) -> tuple[dict[str, clocks.Call], dict[str, str]]:
    """Those of the peers on a GPU that agree with `array` and are not hopeless beside it, and why others are left out."""
    clock, left_out = clocks.of(device), {}
    product, ours = array @ x, clock.quickest(lambda: array @ x)
    is_finite = device.xp.isfinite(product)  # of a matrix with inf the other sums tell nothing

    def largest(values: Any) -> float:
        return float(abs(values[is_finite]).max()) if is_finite.any() else 0.0

    limits = np.finfo(product.dtype)
    room = max(ROOM * float(limits.eps) * largest(product), float(limits.tiny))

    def error_of(theirs: Any) -> float:
        return largest(device.xp.asarray(theirs) - product) / room

    for name in others:
        most = math.inf if name in gpu_peers.LIBRARIES else gpu_peers.HOPELESS
        found = gpu_peers.tried(partial(others.__getitem__, name), error_of, ours, clock, most)
        if found.why is not None:
            left_out[name] = found.why
    if left_out.keys() == others.keys():
        raise ValueError(f"no peer of --peers is left: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}")
    return {name: call for name, call in others.items() if name not in left_out}, left_out


def _time(
    csr: Any,
    x: Any,
    arrays: dict[str, Any],
    others: dict[str, clocks.Call],
    device: devices.Device,
    turns: tuple[int, float],
    counts: Sequence[int | None],
    using: Callable[[int | None], AbstractContextManager[Any]],
) -> tuple[dict[Any, clocks.Timing], dict[Any, clocks.Conversion]]:
    """Times of products, and of our conversions beside the fastest peer, by name and number of threads (None: any)."""
    clock = clocks.of(device)
    calls: dict[tuple[str, int | None], clocks.Call]
    calls = {(label, count): partial(operator.matmul, array, x) for label, array in arrays.items() for count in counts}
    calls |= {(other, count): call for other, call in others.items() for count in counts if other in peers.THREADED}
    calls |= {(other, None): call for other, call in others.items() if other not in peers.THREADED}
    with warnings.catch_warnings():  # pydata/sparse says in every product that it loses some of them
        warnings.filterwarnings("ignore", "Nan will not be propagated", RuntimeWarning)
        repeats, seconds = turns
        times = clock.times(calls, repeats, setting=lambda key: using(key[1]), seconds=seconds)
        taken = {}
        for count in counts:
            beside = [key for key in times if key[0] in others and key[1] in (count, None)]
            peer = calls[min(beside, key=lambda key: times[key].median)]
            for label, array in arrays.items():
                with using(count):
                    taken[label, count] = clock.conversion(partial(rebuild, csr, array), min(repeats, 5), peer)
    return times, taken


def derive(
    entries: list[dict[str, Any]],
    timed: dict[str, clocks.Timing],
    taken: dict[str, clocks.Conversion],
    others: Iterable[str],
) -> tuple[str, list[dict[str, Any]]]:
    """The fastest of the peers `others`, and `entries` with what follows from timings and conversions, by name."""
    seconds = {other: timed[other].median for other in others}
    peer = min(seconds, key=seconds.__getitem__)
    runs = []
    for entry in entries:
        found = dict(entry)
        if entry["correct"]:
            took = timed[entry["name"]]
            found |= {"seconds": took.median, "quartiles": [took.low, took.high], "host_seconds": took.host}
            found |= {"turns": took.turns} if took.turns else {}
            found["speedup"] = seconds[peer] / took.median
            found["speedup_over"] = {other: seconds[other] / took.median for other in seconds}
        if entry["name"] in taken:
            conversion, gain = taken[entry["name"]], seconds[peer] - found["seconds"]
            products = conversion.seconds / seconds[peer] if conversion.products is None else conversion.products
            found |= {"conversion_seconds": conversion.seconds, "conversion_in_peer_products": products}
            found["break_even_products"] = math.ceil(conversion.seconds / gain) if gain > 0 else None
        runs.append(found)
    return peer, runs


def build(
    csr: Any, names: Sequence[str] | None, device: devices.Device, columns: int = 1
) -> tuple[dict[str, Any], dict[str, str]]:
    """Arrays by format, and why a format was left out. ``auto`` is the array of the format that it chose, once, for so many
    columns.

    A format is built in the variant (BBCSR's block size) that by the plan's model takes the fewest bytes. `names` are
    the formats; default: ``auto`` and all that are known.
    """
    names = ["auto", *FORMATS] if names is None else names
    built: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    if "auto" in names:
        array = cvrarray.asarray(csr, device=str(device), columns=columns)
        built[array.format] = array
    missing = [name for name in names if name != "auto" and name not in built]
    modelled = cvrarray.statistics(csr, exact=False).table_bytes if missing else {}
    for name in missing:
        variants = {key: n_bytes for key, n_bytes in modelled.items() if formats.of_variant(key)[0].format == name}
        best = min(variants, key=variants.__getitem__, default=name)
        times = variants.get(best, 0) / max(1, csr.nnz * (csr.dtype.itemsize + 4))
        if times > MOST_BYTES:
            left_out[name] = f"would store {significant(times)} times the bytes of CSR"
        else:
            built[name] = cvrarray.asarray(csr, format=name, device=str(device), **formats.of_variant(best)[1])
    return built, left_out


def rebuild(csr: Any, array: Any) -> Any:
    """The conversion that made `array`, once more: format and parameters are known, so nothing is chosen."""
    return type(array)(csr, device=array.device, **array._parameters())


def facts(array: Any) -> dict[str, Any]:
    """What an array of ours is."""
    about = {"format": array.format, "plan": array.plan, "nbytes": int(array.nbytes), "values": array._stored_as or "plain"}
    for name in ("n_lanes", "n_chunks", "block_size"):
        if hasattr(array, name):
            about[name] = getattr(array, name)
    return about | ({"fill_ratio": finite(array.fill_ratio)} if hasattr(array, "fill_ratio") else {})


def cast(csr: Any, dtype: np.dtype) -> Any:
    """`csr` in another precision: values beyond its range become inf, and that is what is measured."""
    with np.errstate(over="ignore"):
        return csr.astype(dtype)


def random_vector(size: int, dtype: np.dtype, seed: int) -> np.ndarray:
    """(size,) numbers in [0.5, 1.5), real and imaginary part alike."""
    rng = np.random.default_rng(seed)
    x = rng.random(size) + 0.5
    return (x + 1j * (rng.random(size) + 0.5) if dtype.kind == "c" else x).astype(dtype)


def operand(size: int, columns: int, dtype: np.dtype, seed: int) -> np.ndarray:
    """A vector (size,), or a matrix (size, columns) of several, of such numbers."""
    numbers = random_vector(size * columns, dtype, seed)
    return numbers if columns == 1 else numbers.reshape(size, columns)


def device_name(device: devices.Device) -> str:
    """What the device's maker calls it; of a CPU, what LLVM calls its kind."""
    if device.kind == "cuda":
        return str(device.xp.cuda.runtime.getDeviceProperties(device.index)["name"].decode())
    from llvmlite import binding

    return str(binding.get_host_cpu_name())


def versions(*more: str) -> dict[str, str]:
    """Of the libraries that figures depend on, and of `more`, as far as they are installed."""
    import importlib.metadata
    import platform

    from .. import __version__

    found = {"cvrarray": __version__, "python": platform.python_version()}
    for name in ("numpy", "scipy", "numba", "sparse", "sparse_dot_mkl", "mkl", "cupy-cuda12x", "cupy-cuda13x", *more):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# ---------------------------------------------------------------------------------------------------------- judging


def text(report: dict[str, Any]) -> str:
    """The report for people: the table, what was left out, what cannot be trusted, and who wins."""
    header = ["matrix", "dtype", "nonzeros", "by", "us", "spread", "speedup", "convert", "break-even", "stores"]
    rows = [_row(case, entry) for case in report["results"] for entry in case["runs"]]
    if any("columns" in case for case in report["results"]):
        header.insert(2, "columns")
        columns = [str(case.get("columns", 1)) for case in report["results"] for _ in case["runs"]]
        rows = [[*row[:2], count, *row[2:]] for row, count in zip(rows, columns, strict=True)]
    device = report["device"]
    notes = [f"{name} left out: {why}" for name, why in report["peers_left_out"].items()]
    for case in report["results"]:
        notes += [f"{_about(case)}: {name} left out: {why}" for name, why in case["left_out"].items()]
    parts = [
        f"{device['name']} ({device['device']}); {_samples(report)}\n"
        f"{', '.join(f'{name} {version}' for name, version in report['versions'].items())}",
        render(header, rows),
        "\n".join(["* chosen by asarray; speedup: over the fastest peer (cvrarray bench --help explains all columns)", *notes]),
        "\n".join(f"WARNING: {doubt}" for doubt in report["warnings"]),
        "\n".join(verdict(case) for case in report["results"]),
        *(profile.text(about, variants) for about, variants in report.get("profiles", {}).items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _samples(report: dict[str, Any]) -> str:
    """How many samples the figures are medians of, and of how many."""
    taken = max((run.get("turns", 0) for case in report["results"] for run in case["runs"]), default=0)
    more = (
        f" the fastest {report['repeats']} of up to {taken} samples" if taken > report["repeats"] else f" {report['repeats']}"
    )
    return f"medians of{more}"


def _row(case: dict[str, Any], entry: dict[str, Any]) -> list[str]:
    cells = [case["matrix"], case["dtype"], f"{case['nnz']:,}", label(entry)]
    if not entry["correct"]:
        return [*cells, "WRONG", *[""] * 5]
    cells += [significant(entry["seconds"] * 1e6), f"{spread(entry):.0%}", f"{entry['speedup']:.2f}x"]
    if "conversion_in_peer_products" not in entry:
        return [*cells, "-", "-", "-"]
    products = entry["break_even_products"]
    converts = significant(entry["conversion_in_peer_products"], 2)
    return [*cells, converts, "never" if products is None else f"{products:,}", size(entry["nbytes"])]


def _about(case: dict[str, Any]) -> str:
    """The matrix, its dtype, and the columns of X."""
    return f"{case['matrix']}, {case['dtype']}" + (f", {case['columns']} columns" if "columns" in case else "")


def label(entry: dict[str, Any]) -> str:
    """How a run is called in a table: a star marks what asarray chose."""
    block = f" {entry['block_size']}" if "block_size" in entry else ""
    return f"{entry['name']}{block}{'*' if entry.get('plan') else ''}"


def spread(entry: dict[str, Any]) -> float:
    """Between the quartiles of a run's times, over their median."""
    low, high = entry["quartiles"]
    return float((high - low) / entry["seconds"]) if entry["seconds"] else 0.0


def doubts(report: dict[str, Any]) -> list[str]:
    """Why the figures cannot be trusted; nothing where they can."""
    found = []
    others = report["cpus_busy_with_others"]
    if report["device"]["device"] == "cpu" and others is not None and others > OTHERS:
        found.append(f"other processes kept {others:.1f} CPUs busy meanwhile; measure again when the machine is idle")
    for case in report["results"]:
        unsteady = {label(run): spread(run) for run in case["runs"] if run["correct"] and spread(run) > clocks.STEADY}
        if unsteady:
            worst = ", ".join(f"{name} {share:.0%}" for name, share in unsteady.items())
            found.append(f"{_about(case)}: a spread above {clocks.STEADY:.0%} ({worst}); try more --seconds")
    return found


def verdict(case: dict[str, Any]) -> str:
    """Who wins, by how much, from how many products on, and why asarray chose what it chose."""
    right = [entry for entry in case["runs"] if entry["correct"]]
    best = min(right, key=lambda entry: entry["seconds"])
    ours = [entry for entry in right if "plan" in entry]
    peer = next(entry for entry in right if entry["name"] == case["peer"])
    about = f"{_about(case)}:"
    if not ours:
        return f"{about} {peer['name']} wins: no product of ours was right"
    chosen = next((entry for entry in ours if entry["plan"]), None)
    fastest = min(ours, key=lambda entry: entry["seconds"])
    (_, early), (late, _) = sorted((fastest["quartiles"], peer["quartiles"]))
    if late <= early:
        text = f"{about} a draw between {label(fastest).rstrip('*')} and {peer['name']}: their quartiles overlap"
    elif best is peer:
        text = f"{about} {peer['name']} wins; {label(fastest).rstrip('*')} runs at {fastest['speedup']:.2f}x its speed"
    else:
        text = f"{about} {label(best).rstrip('*')} wins, {best['speedup']:.2f}x as fast as {peer['name']}"
        text += f"; its conversion pays from product {best['break_even_products']:,} on"
    if chosen is not None and chosen is not fastest:
        text += f" (asarray chose {chosen['name']}, {chosen['speedup']:.2f}x)"
    return text if chosen is None else f"{text}\n  {chosen['plan']}"
