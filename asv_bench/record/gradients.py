"""Products at stored places and solves with gradients, beside PyTorch's and what users write by hand.

    python -m asv_bench.record.gradients

``make bench-gradients`` runs it and writes docs/benchmarks/gradients-cpu.md or gradients-gpu.md. Two tables, on the GPU if
there is one:

  sddmm      ms of ``cvrarray.torch.sddmm(A, X, Y, False)`` and of ``torch.sparse.sampled_addmm`` with ``beta=0``, of K columns
  solve      ms of a solve of a 7-point Laplacian with uneven weights to 1e-10 by cg with Jacobi, and of it with the
             gradients with respect to the right-hand side and all values; on a GPU also the memory that each pass took. The
             peers are ``torch.autograd.Function`` by hand, with the gradient at the stored places, around SciPy's cg on a CPU;
             on a GPU around CuPy's, and around a loop of PyTorch's with its CSR
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cvrarray
from cvrarray import generate
from cvrarray.cli import bench
from cvrarray.core import clocks, devices

from . import command, machine, pages
from .clocks import OtherLoad

RTOL = 1e-10
#: Of the generated matrices: by the kind of device.
SCALE = {"cpu": "small", "cuda": "medium"}
MATRICES = ("rmat", "uniform_200k_150", "elast3", "shell6", "poisson7")
SIDE = {"cpu": 40, "cuda": 100}  # of the cube of unknowns: 64,000, and a million


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrices", default=",".join(MATRICES), help="of sddmm, generated ones; default: %(default)s")
    parser.add_argument("--scale", choices=generate.SCALES, help="of these; default: medium, on a CPU small")
    parser.add_argument("--columns", default="64,8,256", metavar="K", help="default: %(default)s")
    parser.add_argument("--dtype", default="float32,float64", help="of sddmm; default: %(default)s")
    parser.add_argument("--side", type=int, help="of the cube of unknowns; default: 100, on a CPU 40")
    parser.add_argument("--only", choices=("sddmm", "solve"))
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one")
    parser.add_argument("--repeats", type=int, default=11, metavar="N", help="samples of each; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the matrices; default: %(default)s")
    parser.add_argument("--report", metavar="FOLDER", help="write gradients-cpu.md or gradients-gpu.md there")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""
    device = devices.default() if args.device is None else devices.parse(args.device)
    bench.check_positive("repeats", args.repeats)
    warnings.filterwarnings("ignore", message="Sparse")  # CSR tensors of PyTorch's are in beta state
    others, lines = OtherLoad(), list[str]()

    def tell(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    with device.use():
        if args.only != "solve":
            tell(f"{'sddmm, ms':16} {'':10} {'k':>4} {'nnz':>11} {'ours':>9} {'PyTorch':>9} {'times':>6}")
            for name in args.matrices.split(","):
                csr = generate.build(name, scale=args.scale or SCALE[device.kind], xp=device.xp, seed=args.seed)
                for dtype in args.dtype.split(","):
                    for k in map(int, args.columns.split(",")):
                        times = sddmm(csr.astype(dtype), k, device, args.repeats)
                        ours, theirs = (1e3 * times[who].median for who in ("ours", "torch"))
                        about = f"{name:16} {dtype:10} {k:4} {csr.nnz:11,}"
                        tell(f"{about} {ours:9.3f} {theirs:9.3f} {theirs / ours:6.2f}")
            tell("")
        if args.only != "sddmm":
            for line in solves(laplacian(args.side or SIDE[device.kind], args.seed), device, min(args.repeats, 5)):
                tell(line)
    if args.report is not None:
        kind = "CPU" if device.kind == "cpu" else "GPU"
        versions = pages.libraries({"versions": bench.versions("torch") | {"cvrarray": machine.version()}})
        name, today = machine.describe(device)["name"], datetime.now(UTC)
        about = f"Written by `make bench-gradients` on {today:%Y-%m-%d}. {name}; {versions}."
        load = "" if others.cpus() is None else f" Other work kept {others.cpus():.1f} CPUs busy meanwhile."
        parts = (f"# Gradients on a {kind}, beside PyTorch", about + load, "```text", *lines, "```")
        folder = Path(args.report)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"gradients-{kind.lower()}.md").write_text("\n\n".join(parts[:2]) + "\n\n" + "\n".join(parts[2:]) + "\n")
    return 0


def sddmm(csr: Any, k: int, device: devices.Device, repeats: int) -> dict[Any, clocks.Timing]:
    """Both products at the places of a CSR, checked against each other."""
    import torch

    from cvrarray import torch as ours

    A = cvrarray.asarray(csr, device=str(device))
    generator = torch.Generator(str(device)).manual_seed(0)
    X, Y = (torch.randn(n, k, dtype=getattr(torch, csr.dtype.name), device=str(device), generator=generator) for n in csr.shape)
    parts = [torch.as_tensor(part, device=str(device)) for part in (csr.indptr, csr.indices, csr.data)]
    S = torch.sparse_csr_tensor(*parts, size=csr.shape)
    calls: dict[Any, clocks.Call] = {
        "ours": lambda: ours.sddmm(A, X, Y, False),
        "torch": lambda: torch.sparse.sampled_addmm(S, X, Y.mT, beta=0),
    }
    found, expected = calls["ours"](), calls["torch"]().values()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    return clocks.times(clocks.of(device), calls, repeats)


def laplacian(side: int, seed: int = 0) -> Any:
    """Of a cube of unknowns with uneven weights, 0 beyond it."""
    import scipy.sparse

    n = side**3
    cell = np.arange(n).reshape(side, side, side)
    pairs = [(cell.take(range(side - 1), axis).ravel(), cell.take(range(1, side), axis).ravel()) for axis in range(3)]
    row, col = (np.concatenate([pair[end] for pair in pairs]) for end in (0, 1))
    weight = np.exp(np.random.default_rng(seed).standard_normal(row.size))
    half = scipy.sparse.coo_array((weight, (row, col)), shape=(n, n))
    both = scipy.sparse.csr_array(half + half.T)
    edge = np.pad(np.zeros((side - 2,) * 3), 1, constant_values=1.0).ravel()
    return scipy.sparse.csr_array(scipy.sparse.diags_array(np.asarray(both.sum(axis=1)) + edge) - both)


def solves(csr: Any, device: devices.Device, repeats: int) -> Iterator[str]:
    """A solve, and one with gradients, by us and by hand: lines of a table."""
    import torch

    from cvrarray import torch as ours

    A = cvrarray.asarray(csr, device=str(device))
    row, col = (torch.as_tensor(index.astype(np.int64), device=str(device)) for index in csr.tocoo().coords)
    values = torch.tensor(csr.data, device=str(device), requires_grad=True)
    b = torch.tensor(np.random.default_rng(0).standard_normal(len(csr.indptr) - 1), device=str(device), requires_grad=True)

    def by_hand(prepared: Callable[[Any], Callable[[Any], Any]]) -> Any:
        class Solve(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, b: Any, values: Any) -> Any:
                ctx.solve = prepared(values.detach())
                x = ctx.solve(b.detach())
                ctx.save_for_backward(x)
                return x

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                (x,) = ctx.saved_tensors
                to_b = ctx.solve(gradient)
                return to_b, -to_b[row] * x[col]

        return Solve.apply

    contenders: dict[str, Callable[[Any, Any], Any]] = {"ours": lambda b, v: ours.solve(A, b, v, M="jacobi", rtol=RTOL)}
    contenders |= {name: by_hand(prepared) for name, prepared in peers(csr, device).items()}

    def forward_pass(kept: dict[str, Any], solve: Callable[[Any, Any], Any]) -> None:
        kept["x"] = solve(b, values)

    def backward_pass(kept: dict[str, Any]) -> None:
        kept["gradients"] = torch.autograd.grad(kept["x"].sum(), (b, values))

    results: dict[str, tuple[Any, ...]] = {}
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in contenders}
    for turn in range(repeats + 1):
        for name, solve in contenders.items():
            kept: dict[str, Any] = {}
            forward = clocks.until_done(partial(forward_pass, kept, solve), device)
            both = forward + clocks.until_done(partial(backward_pass, kept), device)
            if turn:
                times[name][0].append(forward)
                times[name][1].append(both)
            results[name] = (kept["x"].detach(), *kept["gradients"])
    yield f"solve of {len(csr.indptr) - 1:,} unknowns to {RTOL}, ms {'':10} {'solve':>9} {'with gradients':>15} {'times':>6}"
    of_ours = statistics.median(times["ours"][1])
    for name, seconds in times.items():
        off = max(float((p - q).norm() / q.norm()) for p, q in zip(results["ours"], results[name], strict=True))
        ms = [1e3 * statistics.median(of) for of in seconds]
        yield f"{name:46} {ms[0]:9.1f} {ms[1]:15.1f} {1e-3 * ms[1] / of_ours:6.2f}   off by {off:.1e}"
    if device.kind == "cuda":
        yield "memory of ours, vectors of b's size: " + memory(lambda: contenders["ours"](b, values), b, values, device)


def peers(csr: Any, device: devices.Device) -> dict[str, Callable[[Any], Callable[[Any], Any]]]:
    """Name -> what prepares a solve for values: cg with Jacobi as a knowing user would write it."""
    import torch

    linalg = importlib.import_module("scipy.sparse.linalg" if device.kind == "cpu" else "cupyx.scipy.sparse.linalg")

    def of_scipy(values: Any) -> Callable[[Any], Any]:
        if device.kind == "cpu":
            return around(type(csr)((values.numpy(), csr.indices, csr.indptr), shape=csr.shape), torch.from_numpy, np.asarray)
        parts = (device.xp.asarray(part) for part in (values, csr.indices, csr.indptr))
        matrix = importlib.import_module("cupyx.scipy.sparse").csr_matrix(tuple(parts), shape=csr.shape)
        return around(matrix, torch.from_dlpack, device.xp.asarray)

    def around(matrix: Any, tensor: Any, array: Any) -> Callable[[Any], Any]:
        inverse = 1 / matrix.diagonal()
        M = linalg.LinearOperator(matrix.shape, matvec=lambda r: inverse * r, dtype=matrix.dtype)

        def solve(b: Any) -> Any:
            b = array(b)
            x, info = linalg.cg(matrix, b, rtol=RTOL, M=M)
            assert info == 0
            return tensor(x)

        return solve

    def of_torch(values: Any) -> Callable[[Any], Any]:
        parts = (torch.as_tensor(part, device=str(device)) for part in (csr.indptr, csr.indices))
        matrix = torch.sparse_csr_tensor(*parts, values, size=csr.shape)
        inverse = 1 / torch.as_tensor(values)[torch.as_tensor(np.flatnonzero(is_diagonal(csr)), device=str(device))]
        return lambda b: loop(matrix, inverse, b)

    name = f"{'SciPy' if device.kind == 'cpu' else 'CuPy'}'s cg by hand"
    return {name: of_scipy, "a loop of PyTorch's": of_torch}


def is_diagonal(csr: Any) -> np.ndarray:
    """Which entries are on the diagonal."""
    row, col = csr.tocoo().coords
    found: np.ndarray = row == col
    return found


def loop(matrix: Any, inverse: Any, b: Any) -> Any:
    """Conjugate gradients with Jacobi, written with tensors."""
    x, r = b * 0, b.clone()
    z = inverse * r
    p, weighted = z.clone(), r @ z
    enough = RTOL * float(b.norm())
    for _ in range(10 * len(b)):
        q = matrix @ p
        alpha = weighted / (p @ q)
        x += alpha * p
        r -= alpha * q
        if float(r.norm()) <= enough:
            break
        z = inverse * r
        before, weighted = weighted, r @ z
        p = z + (weighted / before) * p
    return x


def memory(solve: Callable[[], Any], b: Any, values: Any, device: devices.Device) -> str:
    """What each pass took at most beyond what was there before the first, of PyTorch's pool and CuPy's together."""
    import torch

    pool = device.xp.get_default_memory_pool()

    def taken(call: Callable[[], Any]) -> tuple[Any, float]:
        pool.free_all_blocks()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = pool.total_bytes()
        found = call()
        torch.cuda.synchronize()
        return found, (torch.cuda.max_memory_allocated() + pool.total_bytes() - before) / b.nbytes

    start = torch.cuda.memory_allocated() / b.nbytes
    x, forward = taken(solve)
    _, backward = taken(lambda: torch.autograd.grad(x.sum(), (b, values)))
    of_values = f"of which {values.numel() / b.numel():.1f} are the gradient of the values"
    return f"{math.ceil(forward - start)} forward, {math.ceil(backward - start)} backward, {of_values}"


if __name__ == "__main__":
    sys.exit(main())
