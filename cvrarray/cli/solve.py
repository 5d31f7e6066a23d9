"""Solve A @ x = b with your matrix, beside what you have without us, and say who wins.

The same method runs with the same preconditioner by us and by SciPy, on a GPU by CuPy, from x = 0 to the same
tolerance. Without --rhs, b is A times ones. Every x is judged by its true residual. Others are given up after 10 s, or
three times what ours took, whichever is longer. Exit code 1: ours does not meet the tolerance.

  by            who solves; ours with the format that asarray chose
  ends          why it ended; info N is SciPy's number: 0 is success, but lsmr's istop succeeds with 0, 1, 2, 4 and 5
  iterations    of gmres: SciPy and CuPy do not tell, so theirs is left out
  ms            of a solve, its arguments' checks included: the fastest of the repeats, made in turns
  us/iteration  the same over the iterations
  residual      |b - A x| over |b|, in double precision; of lsmr the smaller of |b - A x| over |b| + |A| |x|, which
                ends the solve of a system that has a solution, and of |A^H (b - A x)| over |A| |b - A x|
  speedup       time of the fastest peer that met the tolerance over the time of this one
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..core import devices
from . import info, sources
from .table import finite, render, significant

METHODS = ("auto", "cg", "minres", "bicgstab", "gmres", "lsmr")
PRECONDITIONERS = ("none", "jacobi", "block-jacobi", "chebyshev", "multigrid")
#: Seconds between two moves of the progress bar.
MOVE_EVERY = 0.2
#: Points of a plot's curve at most: each costs a product.
POINTS = 400
#: Seconds after which another library's solve is given up, and how many times as long as ours it may take in any case.
PATIENCE, TIMES_OURS = 10.0, 3


class GivenUp(Exception):
    """Raised by a callback, to leave a solve that takes too long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray solve``."""
    parser.add_argument("file", metavar="FILE", help=".mtx, .mtx.gz, .npz or .cvra, or the name of a generated matrix")
    parser.add_argument("--rhs", metavar="FILE", help="b: a matrix file of one column, or .npy; default: A times ones")
    parser.add_argument("--method", choices=METHODS, default="auto", help="default: by the symmetry of the matrix")
    parser.add_argument("--precond", choices=PRECONDITIONERS, default="jacobi", help="default: %(default)s")
    parser.add_argument("--block-size", type=int, metavar="N", help="of block-jacobi; default: that of the format, else 3")
    parser.add_argument("--rtol", type=float, default=1e-8, help="default: %(default)s")
    parser.add_argument("--maxiter", type=int, metavar="N", help="default: 10 times the rows, 10,000 at most")
    parser.add_argument(
        "--precision", choices=("double", "mixed"), default="double", help="of cg; mixed matters on a GPU; default: %(default)s"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--out", metavar="FILE", help="write x to FILE, .npy")
    parser.add_argument("--plot", metavar="OUT", help="draw residuals over iterations and over time: .png, .svg, ...")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Read, solve, print, draw; 1 where ours does not meet the tolerance."""
    device = devices.default() if args.device is None else devices.parse(args.device)
    if args.plot is not None:
        info.check_plot(args.plot)
    sources.check_output(args.out)
    for name, value in (("repeats", args.repeats), ("maxiter", 1 if args.maxiter is None else args.maxiter)):
        if value < 1:
            raise ValueError(f"--{name} must be at least 1; got {value}")
    if args.precision == "mixed" and args.method not in ("auto", "cg"):
        raise ValueError(f"--precision mixed is for --method cg; got {args.method}")
    csr = sources.load(args.file, scale="small", seed=0, device=devices.CPU)
    problem = Problem(csr, args, device)
    with by_options(problem):
        contenders = problem.contenders()
        found = measure(problem, contenders, args.repeats)
    report = {"file": args.file, **problem.facts(), "results": found}
    print(json.dumps(report, indent=1) if args.json else text(report))
    if args.out is not None:
        np.save(args.out, problem.x)
    if args.plot is not None:
        curves = {name: problem.curve(solve) for name, solve in contenders.items()}
        plot(curves, args.file, args.plot, "residual" if problem.method == "lsmr" else "|b - A x| / |b|")
    if found[0]["converged"]:
        return 0
    print(f"cvrarray: error: {verdict(found, math.nan)} {remedy(problem)}", file=sys.stderr)
    return 1


def remedy(problem: Problem) -> str:
    """What else the command has for the same system."""
    if problem.method == "lsmr":
        return "Try a larger --maxiter or --rtol"
    others = " or ".join(name for name in ("gmres", "lsmr") if name != problem.method)
    return f"Try another --precond, such as none, another --method, such as {others}, or a larger --maxiter or --rtol"


@contextmanager
def by_options(problem: Problem) -> Iterator[None]:
    """A ValueError of whoever solves, with a remedy of the command's in place of a function's, which names arguments."""
    try:
        yield
    except ValueError as error:
        what = str(error).partition(". ")[0].rstrip(".")
        how = "" if problem.method == "lsmr" else f" with --precond {problem.args.precond}"
        raise ValueError(f"--method {problem.method}{how}: {what}. {remedy(problem)}") from error


class Problem:
    """A system, and who solves it."""

    def __init__(self, csr: Any, args: argparse.Namespace, device: devices.Device) -> None:
        from .. import asarray

        self.args, self.device = args, device
        if csr.dtype.kind not in "fc":
            csr = csr.astype(np.float64)
        self.csr = csr
        self.method = chosen(csr) if args.method == "auto" else args.method
        if self.method != "lsmr" and csr.shape[0] != csr.shape[1]:
            raise ValueError(f"--method {self.method} needs a square matrix; {args.file} has shape {csr.shape}. Use lsmr")
        self.b = right_side(args.rhs, csr)
        self.limit = args.maxiter or min(10 * max(1, *csr.shape), 10_000)
        self.A = asarray(csr, device=str(device))
        self.b_there = devices.move(self.b, device)
        self.x: Any = None
        self.steps = 0
        self.patience = math.inf

    def facts(self) -> dict[str, Any]:
        """What is solved, and how."""
        return {
            "shape": list(self.csr.shape),
            "nnz": int(self.csr.nnz),
            "dtype": str(self.csr.dtype),
            "device": str(self.device),
            "method": self.method,
            "preconditioner": "none" if self.method == "lsmr" else self.args.precond,
            "rtol": self.args.rtol,
        }

    def contenders(self) -> dict[str, Callable[[Any], tuple[Any, Any]]]:
        """Name -> function of a callback that solves: x, and why it ended in words or SciPy's number."""
        from .. import linalg

        own, peer = self.preconditioner(), "scipy" if self.device.kind == "cpu" else "cupy"
        library = importlib.import_module("scipy.sparse.linalg" if peer == "scipy" else "cupyx.scipy.sparse.linalg")
        theirs = sources.place(self.csr, self.device)
        own_name = f"cvrarray {self.A.format}"
        if self.method == "cg":
            precision = "mixed" if self.args.precision == "mixed" else None
            solver = linalg.CG(self.A, M=own, rtol=self.args.rtol, maxiter=self.limit, precision=precision)

            def solve(callback: Any) -> tuple[Any, Any]:
                found = solver._solve(self.b_there, None, None, callback)
                self.steps = int(found.iterations)
                return found.x, found.reason

            found: dict[str, Callable[[Any], tuple[Any, Any]]] = {own_name: solve}
        else:
            found = {own_name: self._named(self._call(getattr(linalg, self.method), self.A, own))}
        if hasattr(library, self.method):
            operator = None
            if own is not None:
                operator = library.LinearOperator(self.csr.shape, matvec=own.matvec, dtype=self.csr.dtype)
            found[peer] = self._call(getattr(library, self.method), theirs, operator)
            if self.method != "lsmr":
                found[f"{peer}, our array"] = self._call(getattr(library, self.method), self.A, operator)
        return found

    def _call(self, function: Callable[..., Any], A: Any, M: Any) -> Callable[[Any], tuple[Any, Any]]:
        is_cupy = function.__module__.startswith("cupyx")
        keywords: dict[str, Any] = {"maxiter": self.limit}
        if self.method == "lsmr":
            keywords |= {"atol": self.args.rtol, "btol": self.args.rtol}
        else:
            keywords |= {"tol" if is_cupy and self.method == "minres" else "rtol": self.args.rtol, "M": M}

        def solve(callback: Any) -> tuple[Any, Any]:
            own = dict(keywords)
            if callback is not None and self.method != "lsmr":
                own["callback"] = callback
                if self.method == "gmres":
                    own["callback_type"] = "x"
            with np.errstate(all="ignore"):  # of SciPy's divisions; the end says what came of them
                found = function(A, self.b_there, **own)
            self.steps = int(found[2]) if self.method == "lsmr" else 0
            return found[0], found[1]

        return solve

    def _named(self, solve: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], tuple[Any, Any]]:
        """`solve` with our end in words instead of SciPy's number; lsmr's `istop` stays."""
        if self.method == "lsmr":
            return solve
        from ..linalg.solution import INFO

        words = {number: reason for reason, number in INFO.items() if number is not None}
        unit = "cycle" if self.method == "gmres" else "iteration"

        def named(callback: Any) -> tuple[Any, Any]:
            x, info = solve(callback)
            return x, words[info] if info in words else f"stopped at {unit} {info}"

        return named

    def preconditioner(self) -> Any:
        """Ours, or None."""
        from .. import linalg

        name = self.args.precond
        if name == "none" or self.method == "lsmr":
            return None
        if name == "jacobi":
            return linalg.jacobi(self.A)
        if name == "block-jacobi":
            size = self.args.block_size or getattr(self.A, "block_size", 1)
            return linalg.block_jacobi(self.A, size if size > 1 else 3)
        if name == "chebyshev":
            return linalg.chebyshev(self.A)
        return linalg.multigrid(self.A)

    def residual(self, x: Any) -> float:
        """How far x is from the solution, as the table has it."""
        x = devices.move(x, devices.CPU)
        left = self.b - self.csr @ x
        size, length = np.linalg.norm(left), np.linalg.norm(self.b)
        if self.method != "lsmr":
            return float(size / length) if length > 0 else float(size)
        norm = np.linalg.norm(self.csr.data)
        ends = ((np.linalg.norm(self.csr.conj().T @ left), size * norm), (size, length + norm * np.linalg.norm(x)))
        return min(float(part / whole) if whole > 0 else 0.0 for part, whole in ends)

    def is_solved(self, residual: float) -> bool:
        """Whether the tolerance is met, up to the rounding of this judgement; lsmr ends by an estimate of |A|."""
        return bool(residual <= (2 if self.method == "lsmr" else 1.01) * self.args.rtol)

    def curve(self, solve: Callable[[Any], tuple[Any, Any]]) -> list[tuple[int, float, float]]:
        """(iteration, seconds, residual) along a solve; the clock stands still while residuals are computed."""
        points: list[tuple[int, float, float]] = [(0, 0.0, 1.0)]
        state = {"lost": 0.0, "step": 0, "every": 1}
        start = time.perf_counter()

        def look(x: Any) -> None:
            now = time.perf_counter()
            state["step"] += 1
            if state["step"] % state["every"] == 0:
                points.append((int(state["step"]), now - start - state["lost"], self.residual(x)))
                if len(points) > POINTS:
                    del points[1::2]
                    state["every"] *= 2
            state["lost"] += time.perf_counter() - now
            if now - start - state["lost"] > self.patience:
                raise GivenUp

        try:
            x, _ = solve(look)
        except GivenUp:
            return points
        points.append((int(state["step"] or self.steps), time.perf_counter() - start - state["lost"], self.residual(x)))
        return points


def chosen(csr: Any) -> str:
    """The method for a matrix: lsmr for a rectangle, gmres without symmetry, else cg if the diagonal is positive, or
    minres.
    """
    if csr.shape[0] != csr.shape[1]:
        return "lsmr"
    difference = abs(csr - csr.conj().T)
    if difference.nnz and difference.max() > 1e-10 * abs(csr).max():
        return "gmres"
    return "cg" if (csr.diagonal().real > 0).all() else "minres"


def right_side(path: str | None, csr: Any) -> Any:
    """b: A times ones, or what a file holds."""
    if path is None:
        return csr @ np.ones(csr.shape[1], csr.dtype)
    b = np.load(path) if path.endswith(".npy") else sources.read(path).toarray()
    if b.size != csr.shape[0]:
        raise ValueError(f"{path} must hold {csr.shape[0]} numbers, one for each row of the matrix; got shape {b.shape}")
    return np.ascontiguousarray(b.reshape(-1), np.result_type(b.dtype, csr.dtype))


def measure(problem: Problem, contenders: dict[str, Callable[[Any], Any]], repeats: int) -> list[dict[str, Any]]:
    """A solve with a progress bar, which prepares everything, and then `repeats` timed ones of each in turns."""
    steps: dict[str, int | None] = {}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    ends: dict[str, tuple[Any, Any]] = {}
    for name, solve in contenders.items():
        start = time.perf_counter()
        with progress(problem, name) as (callback, count):
            try:
                solve(callback)
            except GivenUp as left:
                ends[name] = left.args[0], "given up"
                seconds[name].append(time.perf_counter() - start)
            steps[name] = (count() or problem.steps) if problem.method != "gmres" else None
        if name.startswith("cvrarray"):  # the first
            problem.patience = max(PATIENCE, TIMES_OURS * (time.perf_counter() - start))
    timed = {name: solve for name, solve in contenders.items() if name not in ends}
    for _ in range(repeats):
        for name, solve in timed.items():
            problem.device.use()
            _synchronize(problem.device)
            start = time.perf_counter()
            ends[name] = solve(None)
            _synchronize(problem.device)
            seconds[name].append(time.perf_counter() - start)
            if name.startswith("cvrarray") and problem.steps:
                steps[name] = problem.steps
    problem.x = devices.move(ends[next(iter(contenders))][0], devices.CPU)
    results = []
    for name in contenders:
        x, end = ends[name]
        residual = problem.residual(x)
        results.append(
            {
                "by": name,
                "ends": str(end),
                "iterations": steps[name],
                "seconds": min(seconds[name]),
                "residual": finite(residual),
                "converged": problem.is_solved(residual),
            }
        )
    return results


def _synchronize(device: devices.Device) -> None:
    if device.kind == "cuda":
        device.xp.cuda.Device(device.index).synchronize()


@contextmanager
def progress(problem: Problem, name: str) -> Iterator[tuple[Callable[[Any], None], Callable[[], int]]]:
    """A bar on a terminal, of decades of the residual; gives the callback that moves it, and the count of its calls.

    The callback raises :class:`GivenUp` with x where the solve takes too long.
    """
    from tqdm import tqdm

    start = time.perf_counter()
    state = {"steps": 0, "next": start + MOVE_EVERY}
    total = max(1.0, -math.log10(problem.args.rtol)) if problem.args.rtol > 0 else 16.0
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
    # disable=None: no bar where stderr is no terminal
    with tqdm(desc=name, total=total, disable=None, leave=False, delay=0.5, bar_format=form) as bar:

        def move(x: Any) -> None:
            state["steps"] += 1
            if not bar.disable and time.perf_counter() > state["next"]:
                done = -math.log10(min(1.0, max(problem.residual(x), 1e-17)))
                bar.update(min(done, total) - bar.n)
                state["next"] = time.perf_counter() + MOVE_EVERY
            if time.perf_counter() - start > problem.patience:
                raise GivenUp(x)

        yield move, lambda: int(state["steps"])


def text(report: dict[str, Any]) -> str:
    """The table for people."""
    results = report["results"]
    rivals = [found["seconds"] for found in results[1:] if found["converged"]]
    best = min(rivals, default=math.nan)
    rows = [
        [
            found["by"],
            found["ends"] if not found["ends"].lstrip("-").isdigit() else f"info {found['ends']}",
            "-" if not found["iterations"] else f"{found['iterations']:,}",
            significant(found["seconds"] * 1e3),
            significant(found["seconds"] * 1e6 / found["iterations"]) if found["iterations"] else "-",
            "-" if found["residual"] is None else f"{found['residual']:.1e}",
            significant(best / found["seconds"]) if found["converged"] else "not solved",
        ]
        for found in results
    ]
    n_rows, n_cols = report["shape"]
    head = (
        f"{report['file']}: {n_rows:,} x {n_cols:,}, {report['nnz']:,} nonzeros, {report['dtype']}, on {report['device']}\n"
        f"{report['method']}, preconditioner {report['preconditioner']}, rtol {report['rtol']:g}\n\n"
    )
    table = render(["by", "ends", "iterations", "ms", "us/iteration", "residual", "speedup"], rows)
    return f"{head}{table}\n\ncvrarray solve --help explains all columns\n\n{verdict(results, best)}"


def verdict(results: list[dict[str, Any]], best: float) -> str:
    """Who wins, in a sentence."""
    own = results[0]
    if not own["converged"]:
        end = own["ends"].replace("M ", "the preconditioner is ", own["ends"].startswith("M "))
        return f"{own['by']} did not meet the tolerance: {end}."
    if len(results) == 1:
        return f"{own['by']} met the tolerance; no other library here has this method."
    if math.isnan(best):
        return f"{own['by']} met the tolerance; nobody else did."
    ratio = best / own["seconds"]
    return (
        f"{own['by']} is {ratio:.2f} times as fast as the fastest other."
        if ratio >= 1
        else (f"{own['by']} is slower than the fastest other: {ratio:.2f} times as fast.")
    )


def plot(curves: dict[str, list[tuple[int, float, float]]], title: str, path: str, what: str) -> None:
    """Residuals, which are `what`, over iterations and over time, to an image file."""
    from pathlib import Path

    from matplotlib.figure import Figure  # a Figure of its own: no pyplot, no window system

    from .. import files

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(Path(title).name)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for name, points in curves.items():
        steps, seconds, residuals = (np.array(values) for values in zip(*points, strict=True))
        by_step.semilogy(steps, residuals, label=name)
        by_time.semilogy(1e3 * seconds, residuals, label=name)
    by_step.set(xlabel="iteration", ylabel=what)
    by_time.set(xlabel="ms")
    by_step.legend()
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
    with files.replacing(path) as file:
        figure.savefig(file, dpi=150, format=Path(path).suffix.removeprefix(".").lower())
