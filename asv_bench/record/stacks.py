"""Stacks beside the block diagonal of the same arrays, and NVIDIA Warp's batched cg: products, conversions, solves.

    python -m asv_bench.record.stacks [--device cuda] [--json FILE]

A 7-point stencil with values of its own for each element. Contenders take turns in one run.

  product      us of ``S @ x``, x (batch, n), and of the block diagonal's ``D @ x``; bytes of S over those of D
  conversion   ms of ``A.stack(V)`` with its conversion, and of as many conversions
  cg           us of an iteration of all systems with Jacobi, from a longer and a shorter solve; and ms to 1e-8
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import cvrarray
from cvrarray import linalg
from cvrarray.cli import bench
from cvrarray.cli.table import in_a_line
from cvrarray.core import devices, timing

from . import command, machine
from .solve_peers import Warp

#: Elements and grids, by kind of device: of products and conversions, and of solves.
PRODUCTS = {"cuda": (64, (40, 40, 40)), "cpu": (16, (20, 20, 20))}
SOLVES = {"cuda": [(4096, (10, 10, 10)), (64, (50, 50, 40))], "cpu": [(256, (10, 10, 10)), (4, (50, 50, 40))]}
#: Iterations of the shorter and of the longer solve, products in a row, and turns.
FEWER, MORE, IN_A_ROW, TURNS = 10, 40, 10, 5
TOLERANCE = 1e-8


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one")
    parser.add_argument("--dtype", default="float64,float32", help="of products; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where bits of a product are not those of an array, 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    device = devices.default() if args.device is None else devices.parse(args.device)
    results: list[dict[str, Any]] = []
    with device.use():
        for dtype in args.dtype.split(","):
            results.append(product(device, dtype))
            print(json.dumps(results[-1]), flush=True)
        for batch, grid in SOLVES[device.kind]:
            results.append(solves(device, batch, grid))
            print(json.dumps(results[-1]), flush=True)
    if args.json is not None:
        about = {"device": machine.describe(device), "versions": bench.versions("warp-lang") | {"cvrarray": machine.version()}}
        args.json.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")
    return int(any(result.get("same_bits") is False for result in results))


def systems(batch: int, grid: tuple[int, int, int], dtype: str) -> tuple[Any, np.ndarray]:
    """A 7-point stencil on a grid, and values (batch, nnz) of definite matrices of its structure."""
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    lines = [sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)) for n in grid]
    eyes = [sp.eye_array(n) for n in grid]
    parts = [[lines[k] if k == axis else eyes[k] for k in range(3)] for axis in range(3)]
    csr = sp.csr_array(sum(sp.kron(sp.kron(a, b), c) for a, b, c in parts))
    csr.sort_indices()
    n = csr.shape[0]
    on_diagonal = csr.indices == np.repeat(np.arange(n), np.diff(csr.indptr))
    V = csr.data * rng.uniform(0.5, 2, (batch, 1))
    V[:, on_diagonal] += rng.uniform(0.01, 0.1, (batch, n))
    return csr.astype(dtype), V.astype(dtype)


def block_diagonal(csr: Any, V: np.ndarray) -> Any:
    """Of all elements, as a CSR."""
    import scipy.sparse as sp

    batch, n = len(V), csr.shape[0]
    indices = (csr.indices + np.arange(batch)[:, None] * n).ravel().astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(np.tile(np.diff(csr.indptr), batch))])
    return sp.csr_array((V.ravel(), indices, indptr), shape=(batch * n,) * 2)


def seconds(work: Callable[[], Any], device: devices.Device, calls: int = 1) -> float:
    """Of a call: on a GPU between two events."""
    if device.kind == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - start) / calls
    cuda = device.xp.cuda
    start, stop = cuda.Event(), cuda.Event()
    start.record()
    for _ in range(calls):
        work()
    stop.record()
    stop.synchronize()
    return float(cuda.get_elapsed_time(start, stop)) / calls / 1e3


def in_turns(works: Mapping[str, Callable[[], Any]], device: devices.Device, calls: int = 1) -> dict[str, float]:
    """Median seconds of each, once all have run."""
    for work in works.values():
        work(), work()
    samples = [partial(seconds, work, device, calls) for work in works.values()]
    return dict(zip(works, timing.by_turns(samples, TURNS), strict=True))


def product(device: devices.Device, dtype: str) -> dict[str, Any]:
    """Products and conversions, and whether the bits of an element are those of an array."""
    batch, grid = PRODUCTS[device.kind]
    csr, V = systems(batch, grid, dtype)
    there = devices.move(V, device)
    A = cvrarray.asarray(csr, device=str(device), values="plain")
    D = cvrarray.asarray(block_diagonal(csr, V), device=str(device), values="plain")
    S = A.stack(there)
    x = devices.move(np.random.default_rng(1).standard_normal((batch, csr.shape[0])).astype(dtype), device)
    flat, y, y_flat = x.reshape(-1), x.copy(), x.reshape(-1).copy()
    same = all(bool((S.multiply(x)[i] == A.with_values(there[i]) @ x[i]).all()) for i in (0, batch // 2, batch - 1))
    with device.comparing():
        D @ flat
    works = {"stack": lambda: S.multiply(x, out=y), "block diagonal": lambda: D.matvec(flat, out=y_flat)}
    took = in_turns(works, device, IN_A_ROW)

    place = csr if device.kind == "cpu" else cvrarray.asarray(csr, device=str(device)).tocsr()
    single = [type(place)((row, place.indices, place.indptr), shape=csr.shape) for row in there]
    keywords = {"device": str(device), "values": "plain"}
    conversions = {
        "stack": lambda: cvrarray.asarray(single[0], **keywords).stack(there),
        "one by one": lambda: [cvrarray.asarray(one, **keywords) for one in single],
    }
    converted = in_turns(conversions, device)
    return {
        "what": "product",
        "batch": batch,
        "rows": csr.shape[0],
        "dtype": dtype,
        "formats": [A.format, D.format],
        "same_bits": same,
        "microseconds": {by: round(t * 1e6, 2) for by, t in took.items()},
        "speedup": round(took["block diagonal"] / took["stack"], 3),
        "terabytes_a_second": round((S.nbytes + 2 * x.nbytes) / took["stack"] / 1e12, 3),
        "memory": round(S.nbytes / D.nbytes, 3),
        "conversion_ms": {by: round(t * 1e3, 3) for by, t in converted.items()},
        "conversion_speedup": round(converted["one by one"] / converted["stack"], 1),
    }


def solves(device: devices.Device, batch: int, grid: tuple[int, int, int]) -> dict[str, Any]:
    """An iteration of all systems, and solves to a tolerance."""
    csr, V = systems(batch, grid, "float64")
    n = csr.shape[0]
    A, diagonal = cvrarray.asarray(csr, device=str(device), values="plain"), block_diagonal(csr, V)
    S, D = A.stack(devices.move(V, device)), cvrarray.asarray(diagonal, device=str(device), values="plain")
    b = np.random.default_rng(1).standard_normal((batch, n))
    sides = {"stack": (S, devices.move(b, device)), "block diagonal": (D, devices.move(b.ravel(), device))}
    found: dict[str, Any] = {"what": "cg", "batch": batch, "rows": n, "formats": [A.format, D.format]}

    works: dict[str, Callable[[int], Any]] = {}
    for by, (matrix, right) in sides.items():
        own = {count: linalg.CG(matrix, M="jacobi", iterations=count) for count in (FEWER, MORE)}
        out = right.copy()
        works[by] = partial(counted, own, right, out)
    if device.kind == "cuda" and find_spec("warp") is not None:
        works |= warp_batched(diagonal, b, device)
    for by, work in list(works.items()):
        try:
            work(FEWER), work(MORE)
        except Exception as reason:  # a peer's library may refuse
            if by in sides:
                raise
            found["left_out"] = in_a_line(reason)
            del works[by]
    shorter, longer = ({by: partial(work, count) for by, work in works.items()} for count in (FEWER, MORE))
    took = {by: (t, u) for (by, t), u in zip(in_turns(longer, device).items(), in_turns(shorter, device).values(), strict=True)}
    iteration = {by: (t - u) / (MORE - FEWER) for by, (t, u) in took.items()}
    found["microseconds_an_iteration"] = {by: round(t * 1e6, 2) for by, t in iteration.items()}

    solvers = {by: (linalg.CG(matrix, M="jacobi", rtol=TOLERANCE), right) for by, (matrix, right) in sides.items()}
    ends = {by: solver.solve(right) for by, (solver, right) in solvers.items()}
    whole = in_turns({by: partial(solver.solve, right) for by, (solver, right) in solvers.items()}, device)
    found["milliseconds_to_1e-8"] = {by: round(t * 1e3, 3) for by, t in whole.items()}
    found["iterations"] = {by: [int(np.min(end.iterations)), int(np.max(end.iterations))] for by, end in ends.items()}
    found["converged"] = all(bool(np.all(end.converged)) for end in ends.values())
    stack = iteration["stack"]
    found["speedup"] = {by: round(t / stack, 2) for by, t in iteration.items() if by != "stack"}
    found["speedup_to_1e-8"] = round(whole["block diagonal"] / whole["stack"], 2)
    return found


def counted(own: dict[int, linalg.CG], right: Any, out: Any, count: int) -> Any:
    """So many iterations of a solve."""
    return own[count].solve(right, out=out)


def warp_batched(diagonal: Any, b: np.ndarray, device: devices.Device) -> dict[str, Callable[[int], Any]]:
    """Warp's cg of the block diagonal as a batch of systems, with the test on the device."""
    import warp
    import warp.optim.linear as of

    warp.config.quiet = True
    warp.init()
    offsets = warp.array(np.arange(len(b) + 1, dtype=np.int32) * b.shape[1], dtype=int, device=str(device))
    options = {"batch_offsets": offsets, "max_batch_length": b.shape[1]}
    known = inspect.signature(of.aslinearoperator).parameters
    if "batch_offsets" not in known:
        raise ValueError(f"warp {warp.__version__} has no batched cg")
    options = {name: option for name, option in options.items() if name in known}
    row = np.repeat(np.arange(diagonal.shape[0], dtype=np.int32), np.diff(diagonal.indptr))
    triplets = row, diagonal.indices, diagonal.data
    return {"warp": Warp(warp, triplets, b.ravel(), str(device), every=0, prepare=lambda A: of.aslinearoperator(A, **options))}


if __name__ == "__main__":
    sys.exit(main())
