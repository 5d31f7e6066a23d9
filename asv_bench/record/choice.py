"""What ``asarray`` chooses on a GPU beside every format that it could have chosen.

    python -m asv_bench.record.choice --json choice.json [--families 1,2] [--columns 1,4,16,64]
    python -m asv_bench.record.choice --score choice.json

On the matrices of :mod:`.families` that are drawn with some seeds. Each candidate is timed with
the tables in cache, as in a sequence of products, and with a vector also cold: after a buffer larger than L2. ``--score``
says how much slower than the fastest candidate the choice is, on any machine, by the model as it is then.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cvrarray import formats
from cvrarray.choice import model
from cvrarray.core import clocks, devices
from cvrarray.core.profile import FITTED, Profile
from cvrarray.input import coercion

from . import families, gpu, pages
from .clocks import ColdClock

#: Columns from which a CVR array makes itself the longer chunks that it would have with the hint.
LONGER = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--json", help="file to write, one line a matrix and dtype")
    what.add_argument("--score", help="file that was written: say how good the choice is")
    parser.add_argument("--only", help="names of matrices, separated by commas")
    parser.add_argument("--families", default="1,2", help="seeds with which families are drawn; default: %(default)s")
    parser.add_argument("--dtype", default="float32,float64")
    parser.add_argument("--columns", default="1", help="of X; 1 is a vector; default: %(default)s")
    parser.add_argument("--folder", type=Path, help="where matrices are kept from one run to the next")
    parser.add_argument(
        "--repeats", type=int, default=9, help="0: compile and keep matrices, without times; default: %(default)s"
    )
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds after which no other matrix is begun")
    args = parser.parse_args(argv)
    if args.score:
        print(score([json.loads(line) for line in Path(args.score).read_text().splitlines()]))
        return 0
    names = [name for seed in args.families.split(",") for name in families.drawn(int(seed))]
    if args.only:
        names = args.only.split(",")
    columns = [int(number) for number in args.columns.split(",")]
    device, end = devices.default(), time.monotonic() + args.within
    clock = clocks.of(device)
    with open(args.json, "w") as file, device.use():
        for name in names:
            if time.monotonic() > end:
                break
            csr = read(name, args.folder)
            for dtype in args.dtype.split(","):
                found = {"matrix": name, **measure(csr, np.dtype(dtype), device, clock, columns, args.repeats)}
                print(json.dumps(found), file=file, flush=True)
                device.xp.get_default_memory_pool().free_all_blocks()
    return 0


def read(name: str, folder: Path | None) -> Any:
    """The matrix, from `folder` if it lies there, as any other may; else it is written there."""
    from scipy import sparse

    path = None if folder is None else folder / f"{name}.npz"
    if path is None or not path.exists():
        matrix = families.build(name)
        if path is not None:
            path.parent.mkdir(exist_ok=True, parents=True)
            np.savez(path, indptr=matrix.indptr, indices=matrix.indices, shape=matrix.shape)
        return matrix
    with np.load(path) as arrays:
        indices, indptr, shape = arrays["indices"], arrays["indptr"], arrays["shape"].tolist()
    return sparse.csr_array((np.ones(indices.size, np.float32), indices, indptr), shape=shape)


def measure(
    matrix: Any, dtype: np.dtype, device: devices.Device, clock: Any, columns: list[int], repeats: int
) -> dict[str, Any]:
    """Microseconds of every candidate beside what the choice knows: of a vector warm and cold, of columns warm."""
    from cupyx.scipy.sparse import csr_matrix

    xp = device.xp
    values = (xp.random.default_rng(1).random(matrix.nnz) + 0.5).astype(dtype)
    parts = values, xp.asarray(matrix.indices), xp.asarray(matrix.indptr)
    csr = coercion.as_csr(csr_matrix(parts, shape=matrix.shape))
    stats = model.statistics(csr, exact=False)
    least = min(stats.table_bytes.values())
    names = [name for name, n_bytes in stats.table_bytes.items() if n_bytes <= model.HOPELESS * least or name == "cvr"]
    found: dict[str, Any] = {}
    arrays = {name: _made(csr, name, 1) for name in names}
    for k in columns:
        plan = model.choose(stats, device.kind, k)
        calls = _calls(csr, arrays, k, device)
        timed: dict[str, Any] = {"chosen": plan.format + str(plan.block_size or "")}
        if repeats:
            timed["warm"] = _microseconds(clocks.times(clock, calls, repeats))
        if repeats and k == 1:
            timed["cold"] = _microseconds(clocks.times(ColdClock(device), calls, repeats))
        found[str(k)] = timed
    return {
        "dtype": dtype.name,
        "columns": found,
        "bytes": {name: array.nbytes for name, array in arrays.items()},
        "narrow": {name: _narrow(array) for name, array in arrays.items()},
        "statistics": stats._asdict() | {"dtype": dtype.name},
    }


def _made(csr: Any, name: str, columns: int) -> Any:
    cls, keywords = formats.of_variant(name)
    return cls(csr, **keywords, **cls._for_columns(csr, columns))


def _calls(csr: Any, arrays: dict[str, Any], columns: int, device: devices.Device) -> dict[str, clocks.Call]:
    """A product of each array; with columns, CVR's in the chunks that the hint gives: "cvr+"."""
    rng, shape = device.xp.random.default_rng(2), csr.shape[1:] if columns == 1 else (csr.shape[1], columns)
    x = rng.random(shape, csr.data.dtype) + csr.data.dtype.type(0.5)
    calls: dict[str, clocks.Call] = {}
    reference = None
    if columns > 1:
        arrays = arrays | {"cvr+": _made(csr, "cvr", columns)}
    if columns >= LONGER:
        del arrays["cvr"]
    for name, array in arrays.items():
        calls[name] = call = partial(operator.matmul, array, x)
        first = call()
        reference = first if reference is None else reference
        error = float(abs(first - reference).max() / abs(reference).max())
        assert error < 1e3 * np.finfo(x.dtype).eps, (name, error)
        gpu.settled(call)
    return calls


def _microseconds(times: dict[str, clocks.Timing]) -> dict[str, float]:
    return {name: round(timing.median * 1e6, 3) for name, timing in times.items()}


def score(cases: list[dict[str, Any]]) -> str:
    """How many times the fastest candidate's time the chosen one takes: a table, a line for each number of columns."""
    found: dict[tuple[int, str], list[float]] = {}
    for case in cases:
        stats = known(case)
        for k in map(int, case["columns"]):
            hinted, own = times_of(case, k), times_of(case, k, has_hint=False)
            ways = {"": (1, own)} if k == 1 else {"columns=": (k, hinted), "no hint": (1, own)}
            fastest = min([*hinted.values(), *own.values()])
            for way, (hint, of) in ways.items():
                plan = model.choose(stats, "cuda", hint)
                chosen = plan.format + str(plan.block_size or "")
                if len(of) > 1 and chosen in of:
                    found.setdefault((k, way), []).append(of[chosen] / fastest)
    rows = []
    for (k, way), ratios in sorted(found.items()):
        above = [str(sum(ratio > limit for ratio in ratios)) for limit in (1.03, 1.1)]
        mean = f"{100 * (statistics.geometric_mean(ratios) - 1):.2f}%"
        rows.append([f"{k} {way}", str(len(ratios)), mean, *above, f"{max(ratios):.2f}x"])
    return pages.markdown(["columns", "cases", "slower, mean", "above 3%", "above 10%", "worst"], rows)


def known(case: dict[str, Any]) -> model.Statistics:
    """The statistics of a line that was written."""
    stats = case["statistics"]
    fill = {int(size): fill for size, fill in stats["block_fill"].items()}
    gpu = Profile(*stats["gpu"]) if "gpu" in stats else FITTED
    return model.Statistics(**stats | {"dtype": np.dtype(stats["dtype"]), "block_fill": fill, "gpu": gpu})


def times_of(case: dict[str, Any], columns: int, has_hint: bool = True) -> dict[str, float]:
    """Microseconds of each candidate with so many columns, none where that was not timed; CVR's in the chunks of the hint.

    What fits L2 may be there in a solver, or may not: the geometric mean of warm and cold. What does not is timed as in a loop:
    so the recorded runs do (:mod:`.gpu`), and after other work a single product takes longer than any of many.
    """
    timed = case["columns"].get(str(columns), {})
    warm = timed.get("warm", {})
    cold = timed.get("cold", warm) if known(case).fits_l2 else warm
    times = {name: math.sqrt(of_warm * cold[name]) for name, of_warm in warm.items()}
    longer = times.pop("cvr+", None)
    if longer is not None and (has_hint or "cvr" not in times):
        times["cvr"] = longer
    return times


def _narrow(array: Any) -> float:
    narrow, wide = array._tables.col_narrow.size, array._tables.col_wide.size
    return round(narrow / max(1, narrow + wide), 4)


if __name__ == "__main__":
    sys.exit(main())
