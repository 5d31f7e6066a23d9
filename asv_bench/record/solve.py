"""An iteration of conjugate gradients by us and by every peer, and whole solves: matrix by matrix, in both precisions.

    python -m asv_bench.record.solve [MATRIX ...]

``make bench-solve`` runs it and writes docs/benchmarks/solve-cpu.* or solve-gpu.*. Generated matrices are made positive
definite: the sum of each and its transpose is a graph, whose Laplacian is shifted by a thousandth of its diagonal.
Files are taken as they are. The preconditioner is the diagonal. On a CPU matrices within its caches and beyond them are
measured, which takes five minutes; on a GPU the systems that solvers are made for, in two minutes.

  us            of an iteration: a solve of more iterations less one of fewer, over the difference; medians of turns. On
                a GPU 300 and 100. Fewer where a solve converges soon: what is left of a residual long after that are
                denormal numbers, and peers end where it is 0
  product       us of ``A @ x`` alone, of ours
  16 columns    us of an iteration for 16 right-hand sides together
  peers         SciPy's cg with its CSR, and with our array; on a GPU CuPy's, and NVIDIA Warp's where it can be imported
  to 1e-10      on a GPU: ms of a whole solve in double precision, and in mixed precision
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import cvrarray
from cvrarray import generate, linalg
from cvrarray.cli import INPUT_ERRORS, bench, sources
from cvrarray.cli.table import in_a_line, render, significant
from cvrarray.core import devices, timing

from . import machine, pages
from .clocks import OtherLoad
from .solve_peers import Solve, Warp, gpu_peers, scipy_peers

#: Iterations of the shorter solve, and how many more the longer one has, at least and at most, on a device of that kind;
#: and the seconds that these should take.
ITERATIONS = {"cpu": (3, 5, 300), "cuda": (100, 200, 200)}
SECONDS = 0.03
FEWEST = 3  #: turns
LARGE = 1 << 22  #: nonzeros: on a CPU one right-hand side and iterations alone are measured beyond them
SCALE = {"cpu": "small,medium", "cuda": "medium"}
BEYOND = 1.5  #: times the iterations to TOLERANCE are iterated at most
OURS = ("ours", "ours, block-Jacobi", "ours, 16 columns")
COLUMNS = 16
#: Seconds before a sample on a CPU: threads of BLAS that another contender called wait in a loop for some 25 ms.
REST = 0.04
TOLERANCE, MOST = 1e-10, 5000  #: of a whole solve, and its iterations at most


def pose_graph(rings: int, per_ring: int, seed: int = 0) -> Any:
    """The matrix of poses with 6 unknowns on a torus, each coupled to the next one and to its neighbour on the next ring."""
    import scipy.sparse

    pose = np.arange(rings * per_ring)
    ring, place = np.divmod(pose, per_ring)
    others = np.concatenate([ring * per_ring + (place + 1) % per_ring, (ring + 1) % rings * per_ring + place])
    edges = scipy.sparse.coo_array((np.ones(others.size), (np.tile(pose, 2), others)), shape=(pose.size, pose.size))
    blocks = scipy.sparse.csr_array(edges + edges.T + scipy.sparse.eye_array(pose.size))
    values = np.random.default_rng(seed).random((blocks.nnz, 6, 6)) + 0.5
    return scipy.sparse.csr_array(scipy.sparse.bsr_array((values, blocks.indices, blocks.indptr)))


#: What solvers are made for, in the sizes that docs/measurements/solvers.md has: 0.8, 0.8, 6 and 7 million nonzeros.
SYSTEMS: dict[str, Callable[[], Any]] = {
    "pose_graph": lambda: pose_graph(50, 100),
    "shell": lambda: generate.shell6(10),
    "elasticity3": lambda: generate.tetrahedra(36, 3),
    "stencil7": lambda: generate.poisson7(100),
}
#: By default on a CPU: square ones, and not the same power law twice.
MATRICES = [name for name in generate.MATRICES if name not in ("rmat_unshuffled", "elasticity", "lognormal_4k")]
DEFAULT = {"cpu": MATRICES, "cuda": list(SYSTEMS)}


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrices", nargs="*", metavar="MATRIX", help=f"files, generated ones, or {', '.join(SYSTEMS)}")
    parser.add_argument("--scale", help="of the generated ones; default: small,medium on a CPU, medium on a GPU")
    parser.add_argument("--dtype", default="float64,float32", help="default: %(default)s")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one")
    parser.add_argument("--turns", type=int, default=7, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=12, metavar="S", help="of all turns of a matrix and dtype; default: %(default)s"
    )
    parser.add_argument("--report", metavar="FOLDER", help="write solve-cpu.* or solve-gpu.* there")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 2 for bad usage."""
    args = parser().parse_args(argv)
    try:
        report = measure(args)
    except INPUT_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(report))
    if args.report is not None:
        write(report, Path(args.report))
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """A report of plain JSON types."""
    device = devices.default() if args.device is None else devices.parse(args.device)
    bench.check_positive("turns", args.turns)
    sources.check_dtypes(args.dtype)
    scales = (args.scale or SCALE[device.kind]).split(",")
    for scale in scales:
        if scale not in generate.SCALES:
            raise ValueError(f"scale must be of {', '.join(generate.SCALES)}; got {scale!r}")
    names = args.matrices or DEFAULT[device.kind]
    cases = [(name, scale) for scale in scales for name in names if name in generate.MATRICES]
    cases += [(name, scales[0]) for name in names if name not in generate.MATRICES]
    others = OtherLoad()
    results: list[dict[str, Any]] = []
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.describe(device),
        "versions": bench.versions("warp-lang") | {"cvrarray": machine.version()},
        "scale": ",".join(scales),
        "turns": args.turns,
        "results": results,
    }
    for name, scale in cases:
        csr = SYSTEMS[name]() if name in SYSTEMS else sources.load(name, scale=scale, seed=0, device=devices.CPU)
        matrix = csr if name not in generate.MATRICES and name not in SYSTEMS else definite(csr)
        reach = iterations_of(matrix, device)
        for dtype in args.dtype.split(","):
            limits = args.turns, args.seconds, reach
            results.append(measure_case(Path(name).stem, matrix.astype(dtype), device, limits))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
            report["cpus_busy_with_others"] = others.cpus()
            if args.report is not None:  # a run that is cut off leaves what it has
                write_page(report, Path(args.report))
    return report


def definite(csr: Any) -> Any:
    """The Laplacian of the graph of a matrix and its transpose, shifted by a thousandth of its diagonal."""
    import scipy.sparse

    both = scipy.sparse.csr_array(abs(csr) + abs(csr).T)
    both.setdiag(0)
    both = -both
    both.setdiag(-1.001 * np.asarray(both.sum(axis=1)).ravel() + 1e-3)
    found = scipy.sparse.csr_array(both)
    found.sort_indices()
    return found


def iterations_of(csr: Any, device: devices.Device) -> tuple[int, int]:
    """Iterations of the shorter solve, and of the longer one at most: 0 where it may have as many as others have."""
    fewer, least, most = ITERATIONS[device.kind]
    if is_brief(csr, device):
        return fewer, fewer + most
    with device.use():
        b = devices.move(right_side(csr, np.float64), device)
        A = cvrarray.asarray(csr.astype(np.float64), device=str(device))
        found = linalg.CG(A, M="jacobi", rtol=TOLERANCE, maxiter=fewer + most).solve(b)
    longest = fewer + most
    if found.converged:
        longest = min(longest, max(least + 1, int(BEYOND * found.iterations)))
    return min(fewer, max(1, longest // 3)), longest


def is_brief(csr: Any, device: devices.Device) -> bool:
    """Whether only one right-hand side and few iterations are measured."""
    return device.kind == "cpu" and csr.nnz > LARGE


def right_side(csr: Any, dtype: Any) -> np.ndarray:
    """A vector b of random numbers."""
    return np.random.default_rng(0).standard_normal(csr.shape[0]).astype(dtype)


def measure_case(name: str, csr: Any, device: devices.Device, limits: tuple[int, float, tuple[int, int]]) -> dict[str, Any]:
    """Microseconds of an iteration by each contender, in turns: the most of them, seconds for all of them, iterations of
    the shorter solve and of the longer one at most.
    """
    turns, (fewer, longest) = limits[:2], limits[2]
    A = cvrarray.asarray(csr, device=str(device))
    b = devices.move(right_side(csr, csr.dtype), device)
    size, brief = getattr(A, "block_size", 1), is_brief(csr, device)
    with device.use():
        peers = scipy_peers(csr, A, b) if device.kind == "cpu" else gpu_peers(csr, b, size, device)
        contenders = ours(A, b, brief) | peers
        product = b.copy()
        contenders["product"] = lambda count: [A.matvec(b, out=product) for _ in range(count)]
        more = longer(contenders["ours"], fewer, longest, device)
        left_out = {}
        for by, solve in list(contenders.items()):
            try:
                solve(fewer), solve(fewer), solve(more)  # compile, prepare
            except Exception as reason:  # a peer's library may refuse the matrix or the device; ours must not
                if by not in peers:
                    raise
                left_out[by] = in_a_line(reason)
                del contenders[by]
        samples = [lambda s=solve: _between(s, fewer, more, device) for solve in contenders.values()]
        times = dict(zip(contenders, timing.by_turns(samples, turns[0], FEWEST, turns[1]), strict=True))
    return {
        "matrix": name,
        "rows": csr.shape[0],
        "nnz": int(csr.nnz),
        "dtype": str(csr.dtype),
        "format": A.format,
        "microseconds": {by: round(took / (more - fewer) * 1e6, 2) for by, took in times.items()},
        "iterations": [fewer, more],
        "left_out": left_out,
        "remarks": {by: solve.remark for by, solve in contenders.items() if isinstance(solve, Warp) and solve.remark},
        "to_1e-10": whole_solves(A, b, device, turns)
        if csr.dtype == np.float64 and not brief and device.kind == "cuda"
        else {},
    }


def longer(solve: Solve, fewer: int, longest: int, device: devices.Device) -> int:
    """Iterations of the longer solve: enough more than `fewer` to be measured, `longest` at most."""
    least = min(ITERATIONS[device.kind][1], longest - fewer)
    solve(fewer), solve(fewer)
    typical = (seconds(solve, fewer + least, device) - seconds(solve, fewer, device)) / least
    return min(longest, fewer + max(least, int(SECONDS / max(typical, 1e-9))))


def whole_solves(A: Any, b: Any, device: devices.Device, turns: tuple[int, float]) -> dict[str, Any]:
    """Milliseconds and iterations to the tolerance, by precision; in the end the true residual is below it."""
    found: dict[str, Any] = {}
    samples: list[Callable[[], float]] = []
    with device.use():
        for name, precision in (("float64", None), ("mixed", "mixed")):
            solver = linalg.CG(A, M="jacobi", rtol=TOLERANCE, maxiter=MOST, precision=precision)
            answer = solver.solve(b)
            found[name] = {"iterations": answer.iterations, "reason": answer.reason}
            samples.append(_timed(solver, b, device))
        for name, took in zip(found, timing.by_turns(samples, turns[0], FEWEST, turns[1]), strict=True):
            found[name]["milliseconds"] = round(took * 1e3, 3)
    return found


def _timed(solver: Any, b: Any, device: devices.Device) -> Callable[[], float]:
    return lambda: seconds(lambda _: solver.solve(b), 0, device)


def seconds(solve: Solve, count: int, device: devices.Device) -> float:
    """Of a solve of `count` iterations; on a GPU until the device is done."""
    synchronize = device.xp.cuda.Device(device.index).synchronize if device.kind == "cuda" else (lambda: None)
    synchronize()
    start = time.perf_counter()
    solve(count)
    synchronize()
    return time.perf_counter() - start


def _between(solve: Solve, fewer: int, more: int, device: devices.Device) -> float:
    """Seconds of the iterations that a longer solve has beyond a shorter one."""
    if device.kind == "cpu":
        time.sleep(REST)
    return seconds(solve, more, device) - seconds(solve, fewer, device)


def ours(A: Any, b: Any, is_brief: bool = False) -> dict[str, Solve]:
    """Our solvers, one for each number of iterations; brief: for one right-hand side alone."""
    found: dict[str, Solve] = {"ours": _counted(A, linalg.jacobi(A), b)}
    size = getattr(A, "block_size", 1)
    if size > 1:
        found["ours, block-Jacobi"] = _counted(A, linalg.block_jacobi(A, size), b)
    if not is_brief:
        found["ours, 16 columns"] = _counted(A, linalg.jacobi(A), b[:, None].repeat(COLUMNS, axis=1))
    return found


def _counted(A: Any, M: Any, b: Any) -> Solve:
    solvers: dict[int, Any] = {}
    out = b.copy()

    def solve(count: int) -> Any:
        if count not in solvers:
            solvers[count] = linalg.CG(A, M=M, iterations=count)
        return solvers[count].solve(b, out=out)

    return solve


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    names = _names(report)
    iterations = render(["matrix", "dtype", "rows", "nonzeros", "format", *names, "over best peer"], _rows(report, names))
    whole = _whole_rows(report)
    return f"{iterations}\n{render(WHOLE, whole)}" if whole else iterations


#: Columns of the table of whole solves.
WHOLE = ["matrix", "rows", "iterations, float64", "mixed", "ms, float64", "mixed", "faster"]


def _whole_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for case in report["results"]:
        if case["to_1e-10"]:
            double, mixed = case["to_1e-10"]["float64"], case["to_1e-10"]["mixed"]
            ends = [found["reason"] for found in (double, mixed)]
            cells = [f"{found['iterations']:,}" for found in (double, mixed)]
            times = [significant(found["milliseconds"]) for found in (double, mixed)]
            faster = f"{double['milliseconds'] / mixed['milliseconds']:.2f}" if {*ends} == {"converged"} else ", ".join(ends)
            rows.append([case["matrix"], f"{case['rows']:,}", *cells, *times, faster])
    return rows


def _rows(report: dict[str, Any], names: list[str]) -> list[list[str]]:
    rows = []
    for case in report["results"]:
        times = case["microseconds"]
        cells = [significant(times.get(by)) for by in names]
        head = [case["matrix"], case["dtype"], f"{case['rows']:,}", f"{case['nnz']:,}", case["format"]]
        rows.append([*head, *cells, f"{speedup(times):.2f}"])
    return rows


#: Columns of the table of ratios.
RATIOS = ["matrix", "dtype", "rows", "iteration over product", "block-Jacobi over Jacobi", "16 columns over one"]


def _ratio_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for case in report["results"]:
        times = case["microseconds"]
        one, blocks, columns = (times.get(by, math.nan) for by in OURS)
        ratios = one / times["product"], blocks / one, columns / one
        cells = ["-" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios]
        rows.append([case["matrix"], case["dtype"], f"{case['rows']:,}", *cells])
    return rows


def _noted(report: dict[str, Any], what: str) -> list[str]:
    """Lines that say what is noted of contenders, and nothing where that is nothing."""
    lines = [
        f"* {by}, {case['matrix']} in {case['dtype']}: {reason}"
        for case in report["results"]
        for by, reason in case[what].items()
    ]
    return [f"\n## {what.replace('_', ' ').capitalize()}\n", *lines, ""] if lines else []


def speedup(times: dict[str, float], peers: Sequence[str] | None = None) -> float:
    """The fastest peer's time over ours; nan without peers, and where a difference of two times came out as 0 or less."""
    rivals = [us for by, us in times.items() if by not in (*OURS, "product") and (peers is None or by in peers)]
    return min(rivals) / times["ours"] if rivals and min(*rivals, times["ours"]) > 0 else math.nan


def write(report: dict[str, Any], folder: Path) -> None:
    """The page, the figures and the plot."""
    write_page(report, folder)
    plot(report, _names(report), folder / f"solve-{_kind(report)}.svg")


def _kind(report: dict[str, Any]) -> str:
    return "cpu" if report["device"]["device"] == "cpu" else "gpu"


def _names(report: dict[str, Any]) -> list[str]:
    """Contenders of any matrix."""
    return list(dict.fromkeys(by for case in report["results"] for by in case["microseconds"]))


def write_page(report: dict[str, Any], folder: Path) -> None:
    """The page and the figures."""
    kind, names = _kind(report), _names(report)
    folder.mkdir(parents=True, exist_ok=True)
    rows = _rows(report, names)
    peers = [by for by in names if by not in (*OURS, "product")]
    means = []
    for by in peers:
        found = [speedup(case["microseconds"], [by]) for case in report["results"]]
        mean = pages.geometric_mean([ratio for ratio in found if ratio > 0])
        means.append(f"{by}: {'-' if mean is None else format(mean, '.2f')}")
    busy = report["cpus_busy_with_others"]
    generated = any(case["matrix"] in generate.MATRICES for case in report["results"])
    of = "matrices made positive definite" + (f", of scale `{report['scale']}` where generated by name" if generated else "")
    whole = _whole_rows(report)
    text = (
        f"# Iterations of conjugate gradients on a {kind.upper()}\n\n"
        f"{report['device']['name']}, {report['date'][:10]}; {of}. "
        "Microseconds of an iteration with a diagonal preconditioner, medians of turns in one run. `make bench-solve` writes "
        f"this page. {'' if busy is None else f'CPUs busy with other processes meanwhile: {busy:.2f}. '}"
        f"{pages.libraries(report)}.\n\n"
        f"Geometric means of the peers' times over ours: {'; '.join(means)}.\n\n"
        + pages.markdown(["matrix", "dtype", "rows", "nonzeros", "format", *names, "over best peer"], rows)
        + f"\n\n![times of an iteration](solve-{kind}.svg)\n\n"
        "## Ratios\n\n"
        + pages.markdown(RATIOS, _ratio_rows(report))
        + (f"\n\n## To 1e-10, in double and in mixed precision\n\n{pages.markdown(WHOLE, whole)}" if whole else "")
        + "\n"
        + "\n".join(_noted(report, "remarks") + _noted(report, "left_out"))
    )
    (folder / f"solve-{kind}.md").write_text(text)
    pages.write_figures(report, folder / f"solve-{kind}.json")


def plot(report: dict[str, Any], names: list[str], path: Path) -> None:
    """Bars of all times, on a logarithmic scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots()
    cases = report["results"]
    width = 0.8 / max(1, len(names))
    for k, by in enumerate(names):
        at = np.arange(len(cases)) + (k - (len(names) - 1) / 2) * width
        axes.bar(at, [case["microseconds"].get(by, np.nan) for case in cases], width, label=by)
    axes.set_xticks(range(len(cases)), [f"{case['matrix']}\n{case['rows']:,}\n{case['dtype']}" for case in cases], fontsize=7)
    axes.set(yscale="log", ylabel="us an iteration")
    axes.legend(ncols=3, fontsize=8)
    axes.grid(alpha=0.3, axis="y")
    pages.save(figure, path)


if __name__ == "__main__":
    sys.exit(main())
