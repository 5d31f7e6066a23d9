"""Time products beside MKL, SciPy and pydata/sparse on a CPU, beside CuPy's CSR on a GPU.

Before anything is timed, the product is checked against one in double precision, row by row; a wrong one makes the
exit code 1. Times are medians over repeats in which all contenders take turns. On a GPU they are the device's own, by
CUDA events; the host's time a call stands beside them.

  floor         what a CSR product has to move, nnz (v + 4) + 4 (m + 1) + v (n + m) bytes for values of v bytes, at the
                rate at which this device was seen to read memory. Narrow columns and caches can take a format past it
  GB/s          those bytes over the time
  convert       time from CSR on the device, in products of the fastest peer
  break-even    products after which the conversion has paid for itself against that peer

With --threads 1,all, everything is timed with one thread and with all within one run; SciPy and pydata/sparse have one
thread, and stand beside ours with it. MKL takes part where sparse_dot_mkl is installed: pip install 'cvrarray[bench]'.
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from .. import generate
from ..core import devices
from . import gpu_bench, measure, sources
from . import report as reports
from .table import finite, render, significant, size

FORMATS = ("auto", "cvr", "bbcsr")

#: Peers that run on several threads.
THREADED = ("mkl",)

#: A format that would store this many times the bytes of CSR is not built: it could not win, and might not fit.
MOST_BYTES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray bench``."""
    parser.add_argument(
        "matrices",
        nargs="*",
        metavar="MATRIX",
        help=f"files (.mtx, .mtx.gz, .npz, .cvra) or generated: {', '.join(generate.MATRICES)}; default: all generated",
    )
    parser.add_argument("--scale", choices=generate.SCALES, default="full", help="size of the generated ones")
    parser.add_argument("--dtype", help="float32,float64 (default) or complex64,complex128")
    parser.add_argument("--formats", default=",".join(FORMATS), help="default: %(default)s")
    parser.add_argument("--threads", metavar="N,...", help="on the CPU: numbers of threads, such as 1,all; default: all")
    parser.add_argument(
        "--report",
        metavar="FOLDER",
        help="on the CPU: write cpu.md and cpu.json there, of the matrices named and of all .npz in the folder that the "
        "environment variable CVRARRAY_MATRICES names",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="on a GPU: ours beside cuSPARSE (nvmath-python), CuPy and PyTorch, on matrices of its own and those of "
        "CVRARRAY_MATRICES; --report writes gpu.md, gpu.json and plots",
    )
    parser.add_argument("--only", metavar="NAME,...", help="with --peers: these matrices; * and ? stand for any letters")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="go so often through all matrices, reading included, and take every figure's median; default: %(default)s",
    )
    add_shared_arguments(parser)


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench`` and ``demo``."""
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one")
    parser.add_argument("--repeats", type=int, default=21, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the generated matrices and of x; default: %(default)s")
    parser.add_argument("--json", metavar="OUT", help="write all that was measured to OUT ('-': to stdout)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if a product was wrong."""
    if args.peers:
        return gpu_bench.run(args, lambda csr, device: build(csr, list(FORMATS), device), facts)
    if args.only:
        raise ValueError("--only goes with --peers; without it, name the matrices themselves")
    formats = args.formats.split(",")
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"--formats must be among {', '.join(FORMATS)}; got {name!r}")
    device = devices.default() if args.device is None else devices.parse(args.device)
    sources.check_dtypes(args.dtype)
    sources.check_output(args.json)
    names = args.matrices or list(generate.MATRICES)
    matrices = [
        # the pages are for others: a file's name is enough, its folder is nobody's business
        (
            Path(name).stem if args.report is not None else name,
            lambda name=name: sources.load(name, scale=args.scale, seed=args.seed, device=device),
        )
        for name in names
    ]
    counts = sources.thread_counts(args.threads, device)
    if args.report is not None:
        if device.kind != "cpu":
            raise ValueError(f"--report is for the CPU; got --device {device}. Use --json OUT")
        Path(args.report).mkdir(parents=True, exist_ok=True)
        matrices += [(name, lambda path=path: sources.read_stored(path)) for name, path in sources.stored().items()]
    report = measure_all(
        matrices,
        device=device,
        dtypes=args.dtype,
        formats=formats,
        repeats=args.repeats,
        rounds=args.rounds,
        seed=args.seed,
        counts=counts,
    )
    report["scale"] = args.scale
    report["summary"] = reports.summary(report)
    publish(report, args.json)
    if args.json != "-":
        print(f"\n{reports.summary_text(report)}")
    if args.report is not None:
        reports.write(report, Path(args.report))
    return exit_code(report)


def publish(report: dict[str, Any], path: str | None) -> None:
    """Print the report as a table, and write it to `path` as JSON; ``"-"`` prints the JSON instead."""
    reports.publish(report, table, path)


def exit_code(report: dict[str, Any]) -> int:
    """0, or 1 after a line on stderr for every wrong product."""
    return reports.exit_code((case, run) for case in report["results"] for run in case["runs"] if not run["correct"])


def measure_all(
    matrices: list[tuple[str, Any]],
    *,
    device: devices.Device,
    dtypes: str | None,
    formats: list[str],
    repeats: int,
    seed: int,
    counts: list[int | None] | None = None,
    rounds: int = 1,
) -> dict[str, Any]:
    """Measure every (name, function that makes the CSR on the device) in every dtype: a report of plain JSON types.

    `counts` are the numbers of threads, ascending; default: all that the package uses. With several `rounds` all of it is
    done anew as often, and every figure is the median of its own: a minute that others disturb spoils one round.
    """
    for name, value in (("repeats", repeats), ("rounds", rounds)):
        if value < 1:
            raise ValueError(f"--{name} must be at least 1; got {value}")
    from tqdm import tqdm

    meter = measure.meter(device)
    others = measure.OtherLoad()
    rates = {}
    for count in sources.thread_counts(None, device) if counts is None else counts:
        with measure.using_threads(count):
            rates[count] = meter.rates()
    left_out = {}
    if device.kind == "cpu" and measure.mkl() is None:
        left_out["mkl"] = "sparse_dot_mkl is not installed, or finds no MKL: pip install 'cvrarray[bench]'"
    found: dict[Any, list[dict[str, Any]]] = {}
    # disable=None: no bar where stderr is no terminal
    with tqdm(list(enumerate(matrices)) * rounds, disable=None, leave=False, unit="matrix") as bar:
        for position, (name, make) in bar:
            bar.set_description(f"{name}: reading" if name not in generate.MATRICES else f"{name}: generating")
            csr = make()
            group = reports.group(csr)
            for dtype in sources.dtypes(dtypes, csr.dtype):
                bar.set_description(f"{name}, {dtype}")
                with np.errstate(over="ignore"):  # beyond float32's range values become inf, and that is what is measured
                    converted = csr.astype(dtype)
                for case in measure_case(name, converted, meter, device, formats, rates, repeats, seed):
                    case |= {"group": group, "generated": name in generate.MATRICES}
                    found.setdefault((position, dtype, case["threads"]), []).append(case)
    return {
        "schema": 2,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": meter.describe(),
        "versions": measure.versions(),
        "bytes_per_second": rates[max(rates, key=lambda count: count or 0)],
        "bytes_per_second_by_threads": {str(count): rate for count, rate in rates.items() if count is not None},
        "repeats": repeats,
        "rounds": rounds,
        "cpus_busy_with_others": finite(others.cpus()),
        "peers_left_out": left_out,
        "results": [together(cases) for cases in found.values()],
    }


def together(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """One case of several rounds' of it: medians, and the peer that they show to be the fastest."""
    case = medians(cases)
    seconds = {run["name"]: run["seconds"] for run in case["runs"] if "error_over_bound" not in run}
    return case | {"peer": min(seconds, key=seconds.__getitem__)}


def medians(found: list[Any]) -> Any:
    """One of several results of the same shape: of numbers their median, None being above all; false where one of them is."""
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


def measure_case(
    name: str,
    csr: Any,
    meter: Any,
    device: devices.Device,
    formats: list[str],
    rates: dict[int | None, dict[str, float]],
    repeats: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One matrix in one dtype: build, check, time; a case for each number of threads that `rates` has.

    Times are in seconds; None stands for never, or not measured.
    """
    host = csr if device.kind == "cpu" else csr.get()
    x_host = random_vector(host.shape[1], host.dtype, seed)
    with device.use():
        x = device.xp.asarray(x_host)
        ours, left_out = build(csr, formats, device)
        entries = []
        for label, array in ours.items():
            error = measure.worst_error(host, x_host, _to_host(array @ x))
            entries.append({"name": label, **facts(array), "error_over_bound": finite(error), "correct": error <= 1})
        right = {entry["name"]: ours[entry["name"]] for entry in entries if entry["correct"]}
        others = peers(csr, x, device)
        entries += [{"name": other, "format": other, "correct": True} for other in others]
        calls: dict[tuple[str, int | None], Any]
        calls = {(label, count): (lambda array=array: array @ x) for label, array in right.items() for count in rates}
        calls |= {(other, count): call for other, call in others.items() for count in rates if other in THREADED}
        calls |= {(other, None): call for other, call in others.items() if other not in THREADED}
        with warnings.catch_warnings():  # pydata/sparse says in every product that it loses some of them
            warnings.filterwarnings("ignore", "Nan will not be propagated", RuntimeWarning)
            times = meter.times(calls, repeats, setting=lambda key: measure.using_threads(key[1]))
        conversions = {}
        for count in rates:
            of_peers = [key for key in times if key[0] in others and key[1] in (count, None)]
            beside = min(of_peers, key=lambda key: times[key].median)
            for label, array in right.items():
                with measure.using_threads(count):
                    conversions[label, count] = meter.conversion(
                        lambda array=array: rebuild(csr, array), min(repeats, 5), calls[beside]
                    )
    csr_bytes = sum(part.nbytes for part in (csr.data, csr.indices, csr.indptr))
    n_bytes = measure.floor_bytes(host, host.dtype.itemsize)
    cases = []
    for count, rate in rates.items():
        timed = {entry["name"]: times.get((entry["name"], count), times.get((entry["name"], None))) for entry in entries}
        taken = {label: conversions[label, count] for label in right}
        peer, runs = derive(entries, timed, taken, others, n_bytes, rate["read"], csr_bytes)
        cases.append(
            {
                "matrix": name,
                "shape": list(host.shape),
                "nnz": int(host.nnz),
                "dtype": str(host.dtype),
                "threads": count,
                "floor_bytes": n_bytes,
                "floor_seconds": n_bytes / rate["read"],
                "peer": peer,
                "runs": runs,
                "left_out": left_out,
            }
        )
    return cases


def derive(
    entries: list[dict[str, Any]],
    timed: dict[str, measure.Timing],
    taken: dict[str, measure.Conversion],
    others: Iterable[str],
    n_bytes: int,
    rate: float,
    csr_bytes: int,
) -> tuple[str, list[dict[str, Any]]]:
    """The fastest of the peers `others`, and `entries` with what follows from timings and conversions, by name."""
    seconds = {other: timed[other].median for other in others}
    peer = min(seconds, key=seconds.__getitem__)
    runs = []
    for entry in entries:
        found = dict(entry)
        if entry["correct"]:
            found |= speed(timed[entry["name"]], seconds[peer], n_bytes, rate)
            found["speedup_over"] = {other: seconds[other] / found["seconds"] for other in seconds}
        if entry["name"] in taken:
            found |= conversion(taken[entry["name"]], found, seconds[peer], csr_bytes)
        runs.append(found)
    return peer, runs


def build(csr: Any, formats: list[str], device: devices.Device) -> tuple[dict[str, Any], dict[str, str]]:
    """Arrays by format, and why a format was left out. ``auto`` is the array of the format that it chose, once.

    BBCSR has the block size that the plan's model gives the fewest bytes.
    """
    import cvrarray

    built: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    if "auto" in formats:
        array = cvrarray.asarray(csr, device=str(device))
        built[array.format] = array
    missing = [name for name in formats if name != "auto" and name not in built]
    modelled = cvrarray.statistics(csr, exact=False).table_bytes if missing else {}
    for name in missing:
        best = min((key for key in modelled if key.startswith(name)), key=modelled.__getitem__)
        times = modelled[best] / max(1, csr.nnz * (csr.dtype.itemsize + 4))
        parameters = {"block_size": int(best.removeprefix("bbcsr"))} if name == "bbcsr" else {}
        if times > MOST_BYTES:
            left_out[name] = f"would store {significant(times)} times the bytes of CSR"
        else:
            built[name] = cvrarray.asarray(csr, format=name, device=str(device), **parameters)
    return built, left_out


def rebuild(csr: Any, array: Any) -> Any:
    """The conversion that made `array`, once more: format and parameters are known, so nothing is chosen."""
    parameters = {"block_size": array.block_size} if array.format == "bbcsr" else {}
    return type(array)(csr, device=array.device, **parameters)


def facts(array: Any) -> dict[str, Any]:
    """What an array of ours is."""
    about = {"format": array.format, "plan": array.plan, "nbytes": int(array.nbytes)}
    if array.format == "bbcsr":
        return about | {"block_size": array.block_size, "fill_ratio": finite(array.fill_ratio)}
    return about | {"n_lanes": array.n_lanes, "n_chunks": array.n_chunks}


def peers(csr: Any, x: Any, device: devices.Device) -> dict[str, measure.Call]:
    """The products that users have without us, by library."""
    if device.kind == "cuda":
        return {"cupyx": lambda: csr @ x}
    import sparse

    gcxs = sparse.GCXS.from_scipy_sparse(csr)
    found = {"scipy": lambda: csr @ x, "sparse": lambda: gcxs @ x}
    if (mkl := measure.mkl()) is not None:
        found["mkl"] = lambda: mkl.dot_product_mkl(csr, x)
    return found


def speed(timing: measure.Timing, peer_seconds: float, n_bytes: int, rate: float) -> dict[str, Any]:
    """What follows from a timing."""
    return {
        "seconds": timing.median,
        "quartiles": [timing.low, timing.high],
        "host_seconds": timing.host,
        "bytes_per_second": n_bytes / timing.median,
        "share_of_floor": n_bytes / rate / timing.median,
        "speedup": peer_seconds / timing.median,
    }


def conversion(taken: measure.Conversion, entry: dict[str, Any], peer_seconds: float, csr_bytes: int) -> dict[str, Any]:
    """What follows from a conversion. The peak counts the CSR, which lives meanwhile, over CSR and result."""
    gain = peer_seconds - entry["seconds"]
    peak = None if taken.peak_bytes is None else (csr_bytes + taken.peak_bytes) / (csr_bytes + entry["nbytes"])
    return {
        "conversion_seconds": taken.seconds,
        "conversion_in_peer_products": taken.seconds / peer_seconds if taken.products is None else taken.products,
        "break_even_products": math.ceil(taken.seconds / gain) if gain > 0 else None,
        "peak_memory_over_csr_and_result": peak,
    }


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    on_gpu = report["device"]["device"] != "cpu"
    by_threads = len(report["bytes_per_second_by_threads"]) > 1
    header = [
        "matrix",
        "dtype",
        *(["threads"] if by_threads else []),
        "nonzeros",
        "by",
        "us",
        "GB/s",
        "of floor",
        "speedup",
        "convert",
        "break-even",
        "stores",
    ]
    if on_gpu:
        header += ["host us", "peak"]
    rows = [_row(case, entry, on_gpu, by_threads) for case in report["results"] for entry in case["runs"]]
    rates = report["bytes_per_second"]
    title = (
        f"{report['device']['name']} ({report['device']['device']}): reads {significant(rates['read'] / 1e9)} GB/s, "
        f"copies {significant(rates['copy'] / 1e9)} GB/s; medians of {report['repeats']}"
    )
    notes = [
        f"{case['matrix']}, {case['dtype']}: {name} left out, it {why}"
        for case in report["results"]
        for name, why in case["left_out"].items()
    ]
    notes = [*dict.fromkeys(notes), *(f"{name} left out: {why}" for name, why in report["peers_left_out"].items())]
    return "\n".join([title, "", render(header, rows), *([""] if notes else []), *notes])


def _row(case: dict[str, Any], entry: dict[str, Any], on_gpu: bool, by_threads: bool) -> list[str]:
    threads = [str(case["threads"])] if by_threads else []
    cells = [case["matrix"], case["dtype"], *threads, f"{case['nnz']:,}", reports.label(entry)]
    if not entry["correct"]:
        return [*cells, "WRONG", *[""] * (6 + 2 * on_gpu)]
    convert = entry.get("conversion_in_peer_products")
    ours, products = convert is not None, entry.get("break_even_products")
    break_even = "-" if not ours else "never" if products is None else f"{products:,}"
    cells += [
        significant(entry["seconds"] * 1e6),
        significant(entry["bytes_per_second"] / 1e9),
        f"{entry['share_of_floor']:.0%}",
        f"{entry['speedup']:.2f}x",
        significant(convert, 2),
        break_even,
        size(entry["nbytes"]) if ours else "-",
    ]
    if on_gpu:
        peak = entry.get("peak_memory_over_csr_and_result")
        cells += [significant(entry["host_seconds"] * 1e6), "-" if peak is None else f"{peak:.2f}x"]
    return cells


def random_vector(size: int, dtype: np.dtype, seed: int) -> np.ndarray:
    """(size,) numbers in [0.5, 1.5), real and imaginary part alike."""
    rng = np.random.default_rng(seed)
    x = rng.random(size) + 0.5
    return (x + 1j * (rng.random(size) + 0.5) if dtype.kind == "c" else x).astype(dtype)


def _to_host(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()
