"""Time A @ x, or A @ X, on your matrix, beside what you have without us, and say who wins.

Beside both formats run SciPy, pydata/sparse and MKL on a CPU, and SciPy's BSR where the matrix has blocks; on a GPU the
CSR of CuPy, and of PyTorch if that is installed. MKL needs pip install 'cvrarray[bench]'. Every product of ours is
checked first against one in double precision, row by row; a wrong one is not timed, and makes the exit code 1. Then all
take turns.

On a CPU times are wall-clock time: ours and MKL run on all threads (CVRARRAY_NUM_THREADS=1 gives both one), SciPy and
pydata/sparse on one. On a GPU they are the device's own, by CUDA events.

  by            a format (bbcsr 3 has blocks of 3 x 3) or a peer; * marks the format that asarray chose
  us            microseconds of a product: the median of --repeats samples
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
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

import cvrarray

from .. import formats, generate
from ..array.format import FORMATS
from ..core import clocks, devices, progress
from . import peers, sources
from .table import finite, in_a_line, render, significant, size

#: A format that would store this many times the bytes of CSR is not built: it could not win, and might not fit.
MOST_BYTES = 8

#: Rounding errors allowed a row, in units of n * eps * sum |a_ij x_j| over its n nonzeros: 2 n + 13 unit roundoffs
#: cover any order of the sum, complex products, and what the double precision reference itself rounds.
ALLOWED = 8

#: Conversions that are timed.
CONVERSIONS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray bench``."""
    names = ", ".join(generate.MATRICES)
    parser.add_argument(
        "matrices", nargs="+", metavar="MATRIX", help=f"files (.mtx, .mtx.gz, .npz, .cvra), or generated: {names}"
    )
    parser.add_argument("--scale", choices=generate.SCALES, default="medium", help="of generated ones; default: %(default)s")
    parser.add_argument("--dtype", help="float32,float64 or complex64,complex128, one or both; default: the matrix's own")
    parser.add_argument(
        "--columns",
        default="1",
        metavar="K,...",
        help="of X: 1 is a vector x, 16 a matrix X of 16 columns, and asarray chooses for so many; default: %(default)s",
    )
    add_shared_arguments(parser)


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that the recorded runs of ``asv_bench`` have too."""
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one")
    parser.add_argument("--repeats", type=int, default=21, metavar="N", help="samples of each; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the generated matrices and of x; default: %(default)s")
    parser.add_argument("--json", metavar="OUT", help="write all that was measured to OUT ('-': to stdout)")


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge; 1 if a product was wrong."""
    device = check(args)
    load = partial(sources.load, scale=args.scale, seed=args.seed, device=device)
    ready = {name: load(name) for name in args.matrices if name not in generate.MATRICES}  # a bad file shows at once
    return measure(
        {name: partial(ready.get, name) if name in ready else partial(load, name) for name in args.matrices}, device, args
    )


def check(args: argparse.Namespace) -> devices.Device:
    """The device, after all that could end badly was refused."""
    device = devices.default() if args.device is None else devices.parse(args.device)
    sources.check_dtypes(args.dtype)
    sources.check_output(args.json)
    check_positive("repeats", args.repeats)
    _columns(args)
    return device


def check_positive(name: str, value: int) -> None:
    """ValueError where an option that counts is below 1."""
    if value < 1:
        raise ValueError(f"--{name} must be at least 1; got {value}")


def measure(matrices: dict[str, Callable[[], Any]], device: devices.Device, args: argparse.Namespace) -> int:
    """Measure, print and judge matrices, given as functions that make the CSR on `device`; gives the exit code."""
    results = []
    with progress.shown("measuring", len(matrices), "matrices") as update:
        for number, (name, make) in enumerate(matrices.items()):
            update(number)
            csr = make()
            for dtype in sources.dtypes(args.dtype, csr.dtype):
                case = cast(csr, dtype)
                for columns in _columns(args):
                    results.append(measure_case(name, case, device, args.repeats, args.seed, columns))
    report = {
        "schema": 4,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": {"device": str(device), "name": device_name(device)},
        "versions": versions("torch"),
        "repeats": args.repeats,
        "peers_left_out": peers.left_out(device),
        "results": results,
    }
    publish(report, text, args.json)
    return exit_code(results)


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


def exit_code(cases: Iterable[dict[str, Any]]) -> int:
    """0, or 1 after a line on stderr for every wrong product."""
    code = 0
    for case, entry in ((each, run) for each in cases for run in each["runs"] if not run["correct"]):
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
    repeats: int,
    seed: int,
    columns: int = 1,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """One matrix in one dtype: build the formats `names`, check, time beside the peers, and judge.

    Times are in seconds; None stands for never.
    """
    host = csr if device.kind == "cpu" else csr.get()
    x_host = operand(host.shape[1], columns, host.dtype, seed)
    # pydata/sparse says in every product that it loses some of them
    with device.use(), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        x = device.xp.asarray(x_host)
        arrays, left_out = build(csr, names, device, columns)
        with device.comparing():
            for array in arrays.values():
                array @ x  # whose kernels are compared first, as in a sequence of products
        entries = []
        for label, array in arrays.items():
            error = worst_error(host, x_host, devices.move(array @ x, devices.CPU))
            entries.append({"name": label, **facts(array), "error_over_bound": finite(error), "correct": error <= 1})
        others = _that_run(peers.products(csr, x, device), left_out)
        right = {entry["name"]: arrays[entry["name"]] for entry in entries if entry["correct"]}
        entries += [{"name": other, "format": other, "correct": True} for other in others]
        calls = {label: partial(operator.matmul, array, x) for label, array in right.items()} | others
        timed = clocks.times(clocks.of(device), calls, repeats)
        peer = min(others, key=lambda other: timed[other].median)
        for entry in entries:
            if entry["correct"]:
                entry |= _speeds(timed, entry["name"], others, peer)
            if entry["name"] in right:
                entry |= _conversion(partial(rebuild, csr, right[entry["name"]]), device, entry, timed[peer].median)
    about = {"matrix": name, "shape": list(host.shape), "nnz": int(host.nnz), "dtype": str(host.dtype)}
    about |= {"columns": columns} if columns > 1 else {}
    threads = peers.threads() if device.kind == "cpu" else None
    return about | {"threads": threads, "peer": peer, "runs": entries, "left_out": left_out}


def worst_error(csr: Any, x: np.ndarray, y: np.ndarray) -> float:
    """The largest error of a row of ``y = csr @ x``, over what rounding may cause there: right up to 1, else up to inf.

    Rows that inf or nan reaches, or whose sum may overflow, are not compared.
    """
    wide = csr.astype(np.result_type(y.dtype, np.float64))
    with np.errstate(all="ignore"):
        expected, sums = wide @ x.astype(wide.dtype), abs(wide) @ abs(x).astype(np.float64)
        n = np.maximum(np.diff(csr.indptr), 1).reshape(-1, *[1] * (y.ndim - 1))
        ratio = abs(y - expected) / (ALLOWED * n * np.finfo(y.dtype).eps * sums)
        ratio = np.where(y == expected, 0.0, np.nan_to_num(ratio, nan=np.inf, posinf=np.inf))
        return float(np.where(sums <= np.finfo(y.dtype).max, ratio, 0.0).max(initial=0.0))


def _that_run(calls: dict[str, clocks.Call], left_out: dict[str, str]) -> dict[str, clocks.Call]:
    """Those of the peers whose first call ends well; why others' do not is added to `left_out`."""
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = call
        except Exception as error:  # whatever a library raises for a matrix that it does not take
            left_out[name] = in_a_line(error)
    if not found:
        raise ValueError(f"no peer is left: {'; '.join(f'{name}: {left_out[name]}' for name in calls)}")
    return found


def _speeds(timed: dict[str, clocks.Timing], name: str, others: Iterable[str], peer: str) -> dict[str, Any]:
    """What a run's times come to beside those of the peers."""
    took = timed[name]
    return {
        "seconds": took.median,
        "quartiles": [took.low, took.high],
        "speedup": timed[peer].median / took.median,
        "speedup_over": {other: timed[other].median / took.median for other in others},
    }


def _conversion(convert: clocks.Call, device: devices.Device, entry: dict[str, Any], peer_seconds: float) -> dict[str, Any]:
    """What the conversion takes, and when it has paid."""
    seconds = statistics.median(clocks.until_done(convert, device) for _ in range(CONVERSIONS))
    gain = peer_seconds - entry["seconds"]
    return {
        "conversion_seconds": seconds,
        "conversion_in_peer_products": seconds / peer_seconds,
        "break_even_products": math.ceil(seconds / gain) if gain > 0 else None,
    }


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
        f"{device['name']} ({device['device']}); medians of {report['repeats']}\n"
        f"{', '.join(f'{name} {version}' for name, version in report['versions'].items())}",
        render(header, rows),
        "\n".join(["* chosen by asarray; speedup: over the fastest peer (cvrarray bench --help explains all columns)", *notes]),
        "\n".join(verdict(case) for case in report["results"]),
    ]
    return "\n\n".join(part for part in parts if part)


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
