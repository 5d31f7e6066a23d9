"""``A @ x`` with values in few bytes beside the same table with plain values, and what looking for them costs.

    python -m asv_bench.record.few_values [MATRIX ...]

``make bench-few`` runs it and writes docs/benchmarks/few-cpu.* or few-gpu.*. Generated matrices have their values
replaced: by 1, and by 100 different ones. Files, and ``heisenberg``, have all 1 and then their own. Both arrays have
the format that asarray chooses for values in few bytes, and take turns. Their results must have the same bits.

  plain, few    us of a product; MB of the tables
  conversion    of random values, which stay plain: ``values="auto"`` over ``values="plain"``, the format named
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
from cvrarray import generate
from cvrarray.cli import bench, sources
from cvrarray.cli.table import significant
from cvrarray.core import clocks, devices, timing
from cvrarray.input import coercion

from . import command, gpu, machine, pages
from .clocks import OtherLoad

#: Sites of the lattice of ``heisenberg``, by scale.
LATTICES = {"full": (4, 6), "medium": (4, 5), "small": (3, 4)}
#: Left out unless named: one more power law, and a small one.
MATRICES = [*(name for name in generate.MATRICES if name not in ("rmat_unshuffled", "elasticity")), "heisenberg"]
#: Turns of both conversions.
CONVERSIONS = 5


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrices", nargs="*", metavar="MATRIX", help=f"files or generated; default: {', '.join(MATRICES)}")
    parser.add_argument("--scale", choices=generate.SCALES, help="of the generated ones; default: full, on a CPU medium")
    parser.add_argument("--dtype", default="float64,float32", help="default: %(default)s")
    parser.add_argument("--report", metavar="FOLDER", help="write few-cpu.* or few-gpu.* there")
    bench.add_shared_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if bits differed, 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; 1 if bits differed."""
    device = bench.check(args)
    sources.check_dtypes(args.dtype)
    scale = args.scale or ("medium" if device.kind == "cpu" else "full")
    others, results = OtherLoad(), []
    with device.use():
        for name in args.matrices or MATRICES:
            if name == "heisenberg":
                csr = heisenberg(*LATTICES[scale], device.xp)
            else:
                csr = sources.load(name, scale=scale, seed=args.seed, device=device)
            own = name not in generate.MATRICES
            for dtype in args.dtype.split(","):
                about = {"matrix": Path(name).stem, "own_values": own, "nnz": int(csr.nnz), "dtype": dtype}
                results.append(about | measure_case(csr.astype(dtype), own, device, args.repeats, args.seed))
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.describe(device),
        "versions": bench.versions() | {"cvrarray": machine.version()},
        "scale": scale,
        "repeats": args.repeats,
        "cpus_busy_with_others": others.cpus(),
        "results": results,
    }
    bench.publish(report, lambda report: pages.text(tables(report)), args.json)
    if args.report is not None:
        write(report, Path(args.report))
    return int(not all(case[kind]["same_bits"] for case in results for kind in ("one", "few")))


def heisenberg(width: int, height: int, xp: Any) -> Any:
    """Heisenberg's Hamiltonian of spins 1/2 on a torus, of states with as many spins up as down: few values of its own.

    The sum over bonds of S_i . S_j: a state's bits are its spins; antiparallel neighbours swap, with 1/2.
    """
    n_sites = width * height
    states = xp.arange(1 << n_sites, dtype=np.int32)
    up = sum((states >> site) & 1 for site in range(n_sites))
    states = states[up == n_sites // 2]
    number = xp.zeros(1 << n_sites, np.int32)
    number[states] = xp.arange(states.size, dtype=np.int32)
    diagonal = xp.zeros(states.size)
    rows, cols = [number[states]], [number[states]]
    for site in range(n_sites):
        x, y = site % width, site // width
        for other in ((x + 1) % width + y * width, x + (y + 1) % height * width):
            is_anti = ((states >> site) ^ (states >> other)) & 1 == 1
            diagonal += xp.where(is_anti, -0.25, 0.25)
            rows.append(number[states[is_anti]])
            cols.append(number[states[is_anti] ^ ((1 << site) | (1 << other))])
    row, col = xp.concatenate(rows), xp.concatenate(cols)
    data = xp.concatenate([diagonal, xp.full(row.size - states.size, 0.5)])
    return gpu.matrix(coercion.from_triplets(row, col, data, (states.size, states.size)), xp)


def measure_case(csr: Any, own: bool, device: devices.Device, repeats: int, seed: int) -> dict[str, Any]:
    """One matrix in one dtype, by kind of values: all 1, and few, which are its `own` or others. Times are in seconds."""
    clock = clocks.of(device)
    found: dict[str, Any] = {} if own else {"conversion": conversion(csr, clock, repeats)}
    x = devices.move(bench.random_vector(csr.shape[1], csr.dtype, seed), device)
    for kind in ("one", "few"):
        changed = csr if own and kind == "few" else generate.of_values(csr.copy(), kind, device.xp, seed)
        few = cvrarray.asarray(changed, device=str(device))
        plain = named(few, changed, "plain")
        same = bool((few @ x == plain @ x).all())
        calls: dict[Any, clocks.Call] = {
            name: partial(operator.matmul, array, x) for name, array in (("few", few), ("plain", plain))
        }
        times = clocks.times(clock, calls, repeats)
        found[kind] = {
            "array": bench.label({"name": few.format, **bench.facts(few), "plan": ""}),
            "stored_as": few._stored_as or "plain",
            "same_bits": same,
            "seconds": {name: timing.median for name, timing in times.items()},
            "bytes": {"few": int(few.nbytes), "plain": int(plain.nbytes)},
        }
    return found


def named(like: Any, csr: Any, values: str) -> Any:
    """`csr` in the format and block size of `like`, its values stored as `values` says."""
    if like.format == "cvr":
        return cvrarray.CVRArray(csr, values=values, device=like.device)
    return cvrarray.BBCSRArray(csr, values=values, block_size=like.block_size, device=like.device)


def conversion(csr: Any, clock: Any, repeats: int) -> float:
    """Seconds of looking for few values where there are none, over those of a conversion that does not look."""
    like = cvrarray.asarray(csr, device=str(devices.of(csr.data)), values="plain")
    calls = [partial(named, like, csr, values) for values in ("auto", "plain")]
    for call in calls:
        call()
    auto, plain = timing.by_turns([partial(clock.sample, call) for call in calls], max(CONVERSIONS, repeats))
    return auto / plain


def speedup(case: dict[str, Any], kind: str) -> float:
    """Plain values' time over that of values in few bytes."""
    seconds = case[kind]["seconds"]
    return float(seconds["plain"] / seconds["few"])


def tables(report: dict[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """For each dtype a table of matrices. Geometric means are over those that are stored in fewer bytes."""
    found = {}
    for dtype in dict.fromkeys(case["dtype"] for case in report["results"]):
        cases = [case for case in report["results"] if case["dtype"] == dtype]
        rows = []
        for case in cases:
            name, looked = case["matrix"] + "*" * case["own_values"], case.get("conversion")
            rows.append([name, *cells(case, "one"), *cells(case, "few"), "-" if looked is None else f"{looked:.3f}"])
        means = []
        for kind in ("one", "few"):
            times = [speedup(case, kind) for case in cases if case[kind]["stored_as"] != "plain"]
            means += ["", "", "", f"{pages.geometric_mean(times):.2f}x ({min(times):.2f})" if times else "-"]
        mean = pages.geometric_mean([case["conversion"] for case in cases if "conversion" in case])
        rows.append(["geometric mean (least)", *means, significant(mean)])
        header = ["MB, plain -> few", "us, plain -> few", "speed"]
        found[dtype] = (["matrix", *["one value", *header], *["few values", *header], "conversion"], rows)
    return found


def cells(case: dict[str, Any], kind: str) -> list[str]:
    """What the table says of one kind of values."""
    run = case[kind]
    if run["stored_as"] == "plain":
        return [f"{run['array']}: plain", "", "", ""]
    pairs = [(run["bytes"], 1e-6), (run["seconds"], 1e6)]
    both = [" -> ".join(significant(pair[name] * unit) for name in ("plain", "few")) for pair, unit in pairs]
    return [run["array"], *both, f"{speedup(case, kind):.2f}x"]


def write(report: dict[str, Any], folder: Path) -> None:
    """The page and its figures."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "few-cpu" if report["device"]["device"] == "cpu" else "few-gpu"
    pages.write_figures(report, folder / f"{stem}.json")
    device, busy = report["device"], report["cpus_busy_with_others"]
    threads = f", {device['threads']} threads" if stem == "few-cpu" else ""
    load = "" if busy is None else f" Other work kept {busy:.1f} CPUs busy meanwhile."
    parts = [
        f"# Values in few bytes on a {'CPU' if stem == 'few-cpu' else 'GPU'}, beside plain ones",
        f"Written by `make bench-few`; all figures are in `{stem}.json` beside this page. {device['name']}{threads}; "
        f"{pages.libraries(report)}. Measured on {report['date'][:10]}, scale `{report['scale']}`, medians of "
        f"{report['repeats']} in turns.{load}\n\n"
        f"Values are replaced: by 1, and by {generate.FEW} different ones; matrices with a * have their own "
        'instead. `conversion` is of random values, which stay plain: time with `values="auto"` over that with '
        '`values="plain"`. All results had the same bits. Means are over what is stored in fewer bytes.',
    ]
    for dtype, table in tables(report).items():
        parts += [f"## {dtype}", pages.markdown(*table)]
    (folder / f"{stem}.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    sys.exit(main())
