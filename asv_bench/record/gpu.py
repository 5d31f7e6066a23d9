"""What asarray chooses on a GPU beside every peer of :mod:`.gpu_peers`, matrix by matrix.

    python -m asv_bench.record.gpu [--only NAME,...] [--within SECONDS] [--families SEEDS]

``make bench-gpu`` runs it with what docs/benchmarks/gpu.md was recorded with, ``make bench-unseen`` on the matrices of
:mod:`.families` that are drawn with a seed to which nothing was fitted: docs/benchmarks/gpu-unseen.md. All are checked
first and then timed in turn. Some generated matrices come with values that are few, too: these are a group of their
own.

Ours is checked row by row against a product in double precision and the error that rounding may cause; a peer against
ours, within twice that. Who is wrong is not timed. Where matrix and vectors would fit the L2 cache, a sample follows
something larger than it instead of a product: ``cold``.

What bounds a product, of the format that ``asarray`` chose, is the longest of three times:

HBM      the bytes of its tables, x and y, at the rate at which this GPU was seen to read
L2       the sectors of x that the SMs must fetch at least: the different 32-byte sectors of x in each group of 2048 rows
         (what one SM has under way), from evenly spaced groups, at the rate at which random gathers were seen
launch   an empty kernel
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import operator
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from cvrarray import generate
from cvrarray.choice import model
from cvrarray.cli import bench, sources
from cvrarray.cli.table import finite
from cvrarray.core import clocks, devices
from cvrarray.input import coercion

from . import command, families, gpu_page, gpu_peers, inputs, machine
from .clocks import ColdClock, OtherLoad, host_seconds, quickest

#: Below so many nonzeros a file of CVRARRAY_MATRICES is not measured.
FEWEST_NONZEROS = 500_000

#: Rows that an SM works on at a time: 64 warps. Bytes of a sector, the unit of a read from L2.
ROWS_AT_A_TIME, SECTOR = 2048, 32

#: Groups of rows that are looked at.
GROUPS = 16

Make = Callable[..., Any]  # (xp, seed) -> CSR


def with_dense_row(n: int, xp: ModuleType, seed: int) -> Any:
    """A 7-point stencil on n^3 nodes whose middle row is full."""
    return _with_line(n, 0, xp, seed)


def with_dense_column(n: int, xp: ModuleType, seed: int) -> Any:
    """A 7-point stencil on n^3 nodes whose middle column is full."""
    return _with_line(n, 1, xp, seed)


def _with_line(n: int, axis: int, xp: ModuleType, seed: int) -> Any:
    base = coercion.as_csr(generate.poisson7(n, xp=xp, seed=seed))
    size = base.shape[0]
    along = xp.arange(size, dtype=np.int32)
    across = xp.full(size, size // 2, np.int32)
    row, col = (across, along) if axis == 0 else (along, across)
    line = xp.random.default_rng(seed + 1).random(size) + 0.5
    pairs = (coercion.rows(base), row), (base.indices, col), (base.data, line)
    row, col, val = (xp.concatenate(pair) for pair in pairs)
    return matrix(coercion.from_triplets(row, col, val, base.shape), xp)


def transposed(
    n_rows: int, n_cols: int, mean: int, longest: int = 20, spread: float = 1.0, *, xp: ModuleType, seed: int
) -> Any:
    """Rows of log-normal lengths, as columns; the longest is so many times the mean."""
    found = generate.lognormal(n_rows, n_cols, mean, longest * mean, spread, xp=xp, seed=seed).T.tocsr()
    found.sort_indices()
    return found


def with_empty_rows(n: int, per_row: int, xp: ModuleType, seed: int) -> Any:
    """(10 n, n): ten times the rows of a uniformly random matrix, nine of ten of them empty, at random."""
    base = coercion.as_csr(generate.uniform(n, per_row, xp=xp, seed=seed))
    filled = xp.sort(xp.argsort(xp.random.default_rng(seed + 1).random(10 * n))[:n])
    lengths = xp.zeros(10 * n, np.int64)
    lengths[filled] = base.indptr[1:] - base.indptr[:-1]
    indptr = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(lengths)])
    return matrix(base._replace(indptr=indptr, shape=(10 * n, n)), xp)


def matrix(csr: Any, xp: ModuleType) -> Any:
    """A canonical CSR as SciPy's or CuPy's matrix."""
    if xp is np:
        from scipy.sparse import csr_array as make
    else:
        from cupyx.scipy.sparse import csr_matrix as make
    return make((csr.data, csr.indices.astype(np.int32), csr.indptr.astype(np.int32)), shape=csr.shape)


def _named(name: str, scale: str, xp: ModuleType, seed: int) -> Any:
    return generate.build(name, scale=scale, xp=xp, seed=seed)


def _at_scales(make: Make, *sizes: tuple[float, ...]) -> dict[str, Make]:
    return {scale: partial(make, *given) for scale, given in zip(generate.SCALES, sizes, strict=True)}


#: Matrices by name: at scale "full" 20 to 67 million nonzeros, at "medium" 10 to 20, at "small" thousands, for a try on
#: any GPU.
MATRICES: dict[str, dict[str, Make]] = {
    **{
        name: {scale: partial(_named, name, scale) for scale in generate.SCALES}
        for name in ("stencil27", "poisson7", "elast3", "shell6", "rmat", "uniform_2M_16", "uniform_200k_150")
    },
    "rmat_22": _at_scales(generate.rmat, (22, 16), (20, 16), (12, 16)),
    "uniform_200k_300": _at_scales(generate.uniform, (200_000, 300), (66_000, 300), (500, 300)),
    "fem1": _at_scales(generate.tetrahedra, (130, 1), (100, 1), (14, 1)),
    "fem3": _at_scales(generate.tetrahedra, (62, 3), (50, 3), (8, 3)),
    "fem6": _at_scales(generate.tetrahedra, (39, 6), (32, 6), (5, 6)),
    "dense_row": _at_scales(with_dense_row, (140,), (110,), (12,)),
    "dense_column": _at_scales(with_dense_column, (140,), (110,), (12,)),
    "lognormal_4k": _at_scales(
        generate.lognormal, (4_284, 1_100_000, 2_640, 56_000), (4_284, 1_100_000, 2_640, 56_000), (100, 20_000, 300, 3_000)
    ),
    "lognormal_4k_T": _at_scales(transposed, (4_284, 1_100_000, 2_640), (4_284, 1_100_000, 2_640), (100, 20_000, 300)),
    "rows_500": _at_scales(
        generate.lognormal,
        (500, 1_000_000, 100_000, 100_000, 0.0),
        (500, 400_000, 40_000, 40_000, 0.0),
        (30, 20_000, 500, 500, 0.0),
    ),
    "rows_500_T": _at_scales(
        transposed, (500, 1_000_000, 100_000, 1, 0.0), (500, 400_000, 40_000, 1, 0.0), (30, 20_000, 500, 1, 0.0)
    ),
    "empty_rows": _at_scales(with_empty_rows, (1_000_000, 20), (500_000, 20), (500, 20)),
}


#: Of these, with values that are few, where the others have random ones: what values are, by the matrix's name.
FEW_VALUED = {"stencil27": "few", "poisson7": "few", "fem3": "few", "rmat": "one", "uniform_2M_16": "one"}


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,...", help="these matrices; * and ? stand for any letters")
    parser.add_argument("--scale", choices=generate.SCALES, default="full", help="size of the generated ones")
    parser.add_argument("--families", metavar="SEEDS", help="matrices that are drawn with these seeds instead")
    inputs.add_values(parser)
    parser.add_argument("--dtype", default="float32,float64", help="default: %(default)s")
    parser.add_argument("--report", metavar="FOLDER", help="write the page, its figures and plots there")
    parser.add_argument(
        "--within", type=float, default=math.inf, metavar="SECONDS", help="begin no matrix after these; the page names the rest"
    )
    bench.add_shared_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if a product of ours was wrong, 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; 1 if a product of ours was wrong."""
    device = bench.check(args)
    if device.kind != "cuda":
        raise ValueError(f"this run needs a GPU, with CuPy; got --device {device}. For a CPU: asv_bench.record.products")
    dtypes = args.dtype.split(",")
    if not set(dtypes) <= {"float32", "float64"}:
        raise ValueError(f"--dtype must be among float32, float64; got {args.dtype!r}")
    chosen = InTime(select(cases_of(args, device), args.only), args.within)
    report = measure_all(chosen, device, [np.dtype(name) for name in dtypes], repeats=args.repeats, seed=args.seed)
    report |= {"scale": args.scale, "families": args.families, "not_measured": chosen.rest}
    bench.publish(report, gpu_page.text, args.json)
    if args.report is not None:
        Path(args.report).mkdir(parents=True, exist_ok=True)
        for line in gpu_page.write(report, Path(args.report)):
            print(line, file=sys.stderr)
    return exit_code(report)


def cases_of(args: argparse.Namespace, device: devices.Device) -> dict[str, Callable[[], Any]]:
    """Functions that make a CSR on the device, by name: what ``--families`` draws, or :func:`all_cases`."""
    if args.families is None:
        return all_cases(args.scale, args.seed, device, args.values)
    seeds = [int(seed) for seed in args.families.split(",")]
    return {name: partial(_drawn, name, args.seed, device) for seed in seeds for name in families.drawn(seed)}


def all_cases(scale: str, seed: int, device: devices.Device, values: str = "random") -> dict[str, Callable[[], Any]]:
    """Functions that make a CSR on the device, by name: MATRICES, and the large ones of CVRARRAY_MATRICES."""
    cases: dict[str, Callable[[], Any]] = {
        inputs.label(name, values): partial(_made, make[scale], values, device.xp, seed) for name, make in MATRICES.items()
    }
    if values == "random":
        for name, few in FEW_VALUED.items():
            cases[inputs.label(name, few)] = partial(_made, MATRICES[name][scale], few, device.xp, seed)
    for name, path in inputs.stored().items():
        with np.load(path) as arrays:
            large = "indices" in arrays and arrays["indices"].size > FEWEST_NONZEROS
        if large:
            cases[name] = partial(_stored, path, device)
    return cases


def _made(make: Make, values: str, xp: ModuleType, seed: int) -> Any:
    return generate.of_values(make(xp=xp, seed=seed), values, xp, seed)


def _stored(path: Path, device: devices.Device) -> Any:
    return sources.place(inputs.read_stored(path), device)


def _drawn(name: str, seed: int, device: devices.Device) -> Any:
    """A matrix of :mod:`.families`, whose structure is drawn with the seed in its name, with random values."""
    csr = families.build(name)
    csr.data = np.random.default_rng(seed).random(csr.nnz) + 0.5
    return sources.place(csr, device)


def select(cases: dict[str, Any], only: str | None) -> dict[str, Any]:
    """Those of `cases` that a pattern of ``--only`` names.

    Raises
    ------
    ValueError
        A pattern names none.
    """
    if only is None:
        return cases
    chosen = set()
    for pattern in only.split(","):
        found = fnmatch.filter(cases, pattern)
        if not found:
            raise ValueError(f"--only must name matrices among {', '.join(cases)}; got {pattern!r}")
        chosen.update(found)
    return {name: make for name, make in cases.items() if name in chosen}


def settled(call: clocks.Call) -> Any:
    """What a product gives once its kernels have been compared, and it goes the way that it will go from then on."""
    with devices.default().comparing():
        call()
    return call()


class InTime:
    """Cases by name, one after the other, until time is up; `rest` are the names of those that had none left."""

    def __init__(self, cases: dict[str, Callable[[], Any]], seconds: float):
        self.cases, self.seconds = cases, seconds
        self.rest: list[str] = []

    def __iter__(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        end = time.perf_counter() + self.seconds
        for name, make in self.cases.items():
            if time.perf_counter() < end:
                yield name, make
            else:
                self.rest.append(name)

    def __len__(self) -> int:
        return len(self.cases)


def exit_code(report: dict[str, Any]) -> int:
    """0, or 1 after a line on stderr for every wrong product of ours."""
    return bench.exit_code(case | {"runs": [run for run in case["runs"] if run["ours"]]} for case in report["results"])


def measure_all(
    cases: Iterable[tuple[str, Callable[[], Any]]],
    device: devices.Device,
    dtypes: list[np.dtype],
    *,
    repeats: int,
    seed: int,
    registry: dict[str, gpu_peers.Prepare] | None = None,
) -> dict[str, Any]:
    """Measure every case in every dtype: a report of plain JSON types. Times are in seconds, None is infinity."""
    from tqdm import tqdm

    registry = gpu_peers.PEERS if registry is None else registry
    clock, others = clocks.of(device), OtherLoad()
    rates = machine.rates(device)
    with device.use():
        limits = {
            "bytes_per_second": rates["read"],
            "gathers_per_second": gather_rate(clock, device.xp),
            "launch_seconds": launch_seconds(clock, device.xp),
        }
    results = []
    # disable=None: no bar where stderr is no terminal
    with tqdm(cases, disable=None, leave=False, unit="matrix") as bar:
        for name, make in bar:
            bar.set_description(name)
            with device.use():
                csr = make()
                csr.sum_duplicates()
                for dtype in dtypes:
                    case = measure_case(csr.astype(dtype), device, clock, limits, registry, repeats, seed)
                    results.append({"matrix": name, "generated": name.partition(" (")[0] in MATRICES, **case})
                    if device.kind == "cuda":
                        device.xp.get_default_memory_pool().free_all_blocks()
    return {
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.describe(device),
        "versions": machine.versions() | (gpu_peers.versions(device.index) if device.kind == "cuda" else {}),
        **limits,
        "bytes_copied_per_second": rates["copy"],
        "repeats": repeats,
        "cpus_busy_with_others": finite(others.cpus()),
        "peers": list(registry),
        "results": results,
    }


def measure_case(
    csr: Any,
    device: devices.Device,
    clock: Any,
    limits: dict[str, float],
    registry: dict[str, gpu_peers.Prepare],
    repeats: int,
    seed: int,
) -> dict[str, Any]:
    """One matrix in one dtype: build all, check all, time all that are right."""
    xp, dtype = device.xp, csr.dtype
    x = xp.asarray((np.random.default_rng(seed).random(csr.shape[1]) + 0.5).astype(dtype))
    y = xp.zeros(csr.shape[0], dtype)
    contest = _Contest(csr, x, device, clock)
    ours, left_out = bench.build(csr, None, device)
    contest.left_out |= left_out
    for name in sorted(ours, key=lambda name: ours[name].plan is None):  # our choice first
        contest.add_ours(name, ours[name])
    for name in registry:
        contest.add_peer(name, y, registry)
    floor_bytes = model.floor_bytes(csr.shape, csr.nnz, dtype.itemsize)
    cold = device.kind == "cuda" and floor_bytes < machine.describe(device)["l2_bytes"]
    on_host = host_seconds(contest.calls, device)
    for name, timed in clocks.times(ColdClock(device) if cold else clock, contest.calls, repeats).items():
        contest.entries[name] |= {
            "seconds": timed.median,
            "quartiles": [timed.low, timed.high],
            "host_seconds": on_host[name],
        }
    chosen = next((array for array in ours.values() if array.plan is not None), None)
    return {
        "shape": list(csr.shape),
        "nnz": int(csr.nnz),
        "dtype": str(dtype),
        "cold": cold,
        "floor_seconds": floor_bytes / limits["bytes_per_second"],
        "limits_seconds": {
            "HBM": None if chosen is None else (chosen.nbytes + x.nbytes + y.nbytes) / limits["bytes_per_second"],
            "L2": gathers(csr, xp) / limits["gathers_per_second"],
            "launch": limits["launch_seconds"],
        },
        "runs": list(contest.entries.values()),
        "left_out": contest.left_out,
    }


class _Contest:
    """Who takes part in one matrix's run: checked, one after the other; who is right is in `calls`."""

    def __init__(self, csr: Any, x: Any, device: devices.Device, clock: Any):
        self.csr, self.x, self.xp, self.clock = csr, x, device.xp, clock
        self.expected, self.bound = reference(csr, x, device)
        self.answer, self.ours = self.expected, math.inf  # what peers are compared with, and its seconds
        self.entries: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, clocks.Call] = {}
        self.left_out: dict[str, str] = {}

    def add_ours(self, name: str, array: Any) -> None:
        """An array of ours, checked in its first product and when it has settled. The first right one is what others are
        compared with: a dense row can make a format take seconds.
        """
        call: clocks.Call = partial(operator.matmul, array, self.x)
        error = worst(call(), self.expected, self.bound, self.xp)
        once = quickest(self.clock, call)
        if error <= 1 and once > gpu_peers.HOPELESS * self.ours:
            self.left_out[name] = gpu_peers.slower(once / self.ours)
            return
        product = settled(call)
        error = max(error, worst(product, self.expected, self.bound, self.xp))
        self._enter(name, call, error, {"ours": True, **bench.facts(array)})
        if error <= 1 and self.answer is self.expected:
            self.answer, self.ours = product, once

    def add_peer(self, name: str, y: Any, registry: dict[str, gpu_peers.Prepare]) -> None:
        """A peer, which may write to `y`; left out with its library's words where that refuses."""
        y.fill(0)  # whose product never comes is not to be right because of who came before
        found = gpu_peers.tried(
            lambda: gpu_peers.prepare(name, self.csr, self.x, y, registry),
            lambda product: worst(self.xp.asarray(product), self.answer, 2 * self.bound, self.xp),
            self.ours,
            self.clock,
        )
        if found.why is None or found.error > 1:
            self._enter(name, found.call, found.error, {"ours": False})
        else:
            self.left_out[name] = found.why

    def _enter(self, name: str, call: Any, error: float, about: dict[str, Any]) -> None:
        self.entries[name] = {"name": name, **about, "error_over_bound": finite(error), "correct": error <= 1}
        if error <= 1:
            self.calls[name] = call


def reference(csr: Any, x: Any, device: devices.Device) -> tuple[Any, Any]:
    """``csr @ x`` in double precision, and the error that rounding may cause in `csr`'s precision, (n_rows,) each.

    The bound is the one of :func:`cvrarray.cli.bench.worst_error`.
    """
    xp = device.xp
    if device.kind == "cpu":
        wide = csr.astype(np.float64)
        total, size = wide @ x.astype(np.float64), abs(wide) @ abs(x).astype(np.float64)
    else:
        total, size = xp.empty(csr.shape[0]), xp.empty(csr.shape[0])
        value = {"f": "float", "d": "double"}[csr.dtype.char]
        kernel = xp.RawKernel(ROW_SUMS, "row_sums", (f"-DVALUE={value}",))
        grid = (-(-csr.shape[0] * 32 // 256),)
        kernel(grid, (256,), (csr.indptr, csr.indices, csr.data, x, np.int32(csr.shape[0]), total, size))
    entries = xp.maximum(csr.indptr[1:] - csr.indptr[:-1], 1)
    return total, bench.ALLOWED * entries * np.finfo(csr.dtype).eps * size


#: A warp takes a row, in double precision, with the sum of the sizes of what it adds; no row or lane shares anything.
ROW_SUMS = """
extern "C" __global__ void row_sums(const int* indptr, const int* indices, const VALUE* data, const VALUE* x, int n_rows,
                                    double* total, double* size) {
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long row = thread / 32;
  const int lane = thread % 32;
  if (row >= n_rows) return;
  double sum = 0, sum_of_sizes = 0;
  for (long long k = indptr[row] + lane; k < indptr[row + 1]; k += 32) {
    const double term = (double)data[k] * (double)x[indices[k]];
    sum += term;
    sum_of_sizes += fabs(term);
  }
  for (int step = 16; step; step /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, step);
    sum_of_sizes += __shfl_xor_sync(0xffffffff, sum_of_sizes, step);
  }
  if (lane == 0) {
    total[row] = sum;
    size[row] = sum_of_sizes;
  }
}
"""


def worst(product: Any, expected: Any, bound: Any, xp: ModuleType) -> float:
    """The largest error of a row over what is allowed there: right up to 1; nan is infinity, as is a wrong shape."""
    if product.shape != expected.shape:
        return float("inf")
    error = abs(product.astype(np.float64) - expected)
    ratio = xp.where(error == 0, 0.0, error / xp.maximum(bound, np.finfo(np.float64).tiny))
    ratio = xp.where(xp.isnan(ratio), np.inf, ratio)
    return float(ratio.max()) if ratio.size else 0.0


def gathers(csr: Any, xp: ModuleType) -> float:
    """Sectors of x that all SMs together must fetch at least: see the module's page. Scaled up from GROUPS groups."""
    n_rows = csr.shape[0]
    first = np.unique(np.linspace(0, max(n_rows - ROWS_AT_A_TIME, 0), GROUPS).astype(np.int64))
    last = np.minimum(first + ROWS_AT_A_TIME, n_rows)
    bounds = csr.indptr[xp.asarray(np.stack([first, last]))]
    bounds = (bounds if xp is np else bounds.get()).T.tolist()
    found = [
        int(xp.unique(csr.indices[start:end].astype(np.int64) * csr.dtype.itemsize // SECTOR).size) for start, end in bounds
    ]
    looked_at = sum(end - start for start, end in bounds)
    return csr.nnz * sum(found) / looked_at if looked_at else float(csr.nnz)


def gather_rate(clock: Any, xp: ModuleType) -> float:
    """Reads a second of random elements of an array that fits L2 and no L1."""
    count, size = (1 << 26, 1 << 21) if xp is not np else (1 << 18, 1 << 12)
    table = xp.ones(size, np.float32)
    place = xp.random.default_rng(0).integers(0, size, count, dtype=np.int32)
    if xp is np:
        return count / clocks.times(clock, {"gather": lambda: table[place]}, 5)["gather"].median
    gather = xp.ElementwiseKernel("raw float32 table, int32 place", "float32 found", "found = table[place]", "cvrarray_gather")
    found = xp.empty(count, np.float32)
    return count / clocks.times(clock, {"gather": lambda: gather(table, place, found)}, 15)["gather"].median


def launch_seconds(clock: Any, xp: ModuleType) -> float:
    """Time of a kernel that does next to nothing; CuPy would fill with 0 without one."""
    one = xp.zeros(1)
    return clocks.times(clock, {"launch": lambda: one.fill(1)}, 15)["launch"].median


if __name__ == "__main__":
    sys.exit(main())
