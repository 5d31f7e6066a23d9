"""What a program does around ``A @ x``, beside SciPy on a CPU: one table of operations and matrices.

    python -m asv_bench.record.ops [MATRIX ...]

``make bench-ops`` runs it and writes docs/benchmarks/ops.md: the seven generated matrices of medium size, and all .npz
in the folder that the environment variable CVRARRAY_MATRICES names. A row below 1.0x is listed under the table.

All ways to do the same are timed by turns, and the least time of each counts: a machine that does other things makes
times longer, never shorter. With one thread it is CPU time, but for what waits for the disk. SciPy has one thread in
any case.
"""

from __future__ import annotations

import argparse
import io
import math
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.io
import scipy.sparse

import cvrarray
from cvrarray import generate
from cvrarray.cli import sources
from cvrarray.cli.table import render, significant
from cvrarray.core import atomic, devices
from cvrarray.cpu.runtime import threads

from . import command, inputs, machine, pages
from .clocks import OtherLoad

COLUMNS = 16  #: of X
MOST_PRODUCTS = 20_000_000  #: of numbers in ``A @ B``: rows of A are left out beyond
MOST_TEXT = 1_000_000  #: nonzeros of a Matrix Market file: rows are left out beyond
DISTURBED = 0.2  #: share of the CPUs that others kept busy, from which the page says so
SAMPLES = 3  #: of a way, at least, unless all of them take longer than so many seconds:
MOST_SECONDS = 5.0
SMALLEST = 0.95  #: what is asked of ``A @ B``

Call = Callable[[], Any]


class Case(NamedTuple):
    """A matrix, as SciPy's CSR and as ours, and what it is multiplied with."""

    S: Any
    A: Any
    x: np.ndarray  # (n_cols,)
    y: np.ndarray  # (n_rows,)
    X: np.ndarray  # (n_cols, COLUMNS)
    Y: np.ndarray  # (n_rows, COLUMNS)
    folder: Path


def _sum(axis: int, c: Case) -> tuple[Call, Call]:
    return lambda: c.A.sum(axis=axis), lambda: c.S.sum(axis=axis)


def _rows(c: Case) -> tuple[Call, Call]:
    first, last = c.S.shape[0] // 3 + 1, 2 * c.S.shape[0] // 3
    return lambda: c.A[first:last], lambda: c.S[first:last]


def _add_same(c: Case) -> tuple[Call, Call]:
    T, B = c.S * 2, c.A * 2
    return lambda: c.A + B, lambda: c.S + T


def _add_other(c: Case) -> tuple[Call, Call]:
    T = c.S[::-1]
    B = type(c.A)(T, device="cpu", **c.A._parameters())
    return lambda: c.A + B, lambda: c.S + T


def _multiply(c: Case) -> tuple[Call, Call]:
    """The first rows of A, or its transpose's where it is not square, times it."""
    S = c.S if c.S.shape[0] == c.S.shape[1] else c.S.T.tocsr()
    products = np.cumsum(np.diff(c.S.indptr)[S.indices], dtype=np.int64)
    last = max(1, int(np.searchsorted(products[S.indptr[1:] - 1], MOST_PRODUCTS)))
    S = S[:last]
    A = cvrarray.asarray(S, device="cpu")
    return lambda: A @ c.A, lambda: S @ c.S


def _save(c: Case) -> tuple[Call, Call]:
    ours, peer = c.folder / "ours.cvra", c.folder / "peer.npz"
    return lambda: cvrarray.save(ours, c.A), lambda: scipy.sparse.save_npz(peer, c.S, compressed=False)


def _save_flushed(c: Case) -> tuple[Call, Call]:
    """Beside a program that makes sure of what it saves, as ours does: a file appears whole, and lasts through a crash."""
    peer = c.folder / "flushed.npz"

    def save_npz() -> None:
        with atomic.replacing(str(peer)) as file:
            scipy.sparse.save_npz(file, c.S, compressed=False)

    return _save(c)[0], save_npz


def _load(c: Case) -> tuple[Call, Call]:
    ours, peer = c.folder / "ours.cvra", c.folder / "peer.npz"
    cvrarray.save(ours, c.A)
    scipy.sparse.save_npz(peer, c.S, compressed=False)
    return lambda: cvrarray.load(ours, device="cpu"), lambda: scipy.sparse.load_npz(peer)


def _read_npz(c: Case) -> tuple[Call, Call]:
    peer = c.folder / "peer.npz"
    scipy.sparse.save_npz(peer, c.S, compressed=False)
    return lambda: cvrarray.read(peer, device="cpu"), lambda: scipy.sparse.load_npz(peer)


def _read_mtx(c: Case) -> tuple[Call, Call]:
    path = c.folder / "matrix.mtx"
    last = int(np.searchsorted(c.S.indptr, MOST_TEXT, side="right")) - 1
    scipy.io.mmwrite(path, c.S[: max(last, 1)])
    return lambda: cvrarray.read(path, device="cpu"), lambda: scipy.io.mmread(path, spmatrix=False)


def _pickled(c: Case) -> tuple[Call, Call]:
    def there_and_back(array: Any) -> Any:
        file = io.BytesIO()
        pickle.dump(array, file, protocol=5)
        return pickle.loads(file.getbuffer())

    return partial(there_and_back, c.A), partial(there_and_back, c.S)


def _with_values(c: Case) -> tuple[Call, Call]:
    data = c.S.data[::-1].copy()
    return lambda: c.A.with_values(data), lambda: scipy.sparse.csr_array(
        (data, c.S.indices, c.S.indptr), shape=c.S.shape, copy=True
    )


#: What is timed: its name, and a function that gives our call and SciPy's.
OPERATIONS: dict[str, Callable[[Case], tuple[Call, Call]]] = {
    "A @ x": lambda c: (lambda: c.A @ c.x, lambda: c.S @ c.x),
    f"A @ X, {COLUMNS} columns": lambda c: (lambda: c.A @ c.X, lambda: c.S @ c.X),
    "A.T @ x": lambda c: (lambda: c.A.T @ c.y, lambda: c.S.T @ c.y),
    "x @ A": lambda c: (lambda: c.y @ c.A, lambda: c.y @ c.S),
    f"A.T @ X, {COLUMNS} columns": lambda c: (lambda: c.A.T @ c.Y, lambda: c.S.T @ c.Y),
    "A.sum(axis=0)": partial(_sum, 0),
    "A.sum(axis=1)": partial(_sum, 1),
    "A.diagonal()": lambda c: (c.A.diagonal, c.S.diagonal),
    "A[i:j], a third": _rows,
    "A * 2": lambda c: (lambda: c.A * 2, lambda: c.S * 2),
    "A + B, one structure": _add_same,
    "A + B, two structures": _add_other,
    "A @ B": _multiply,
    "vstack([A, A])": lambda c: (lambda: np.vstack([c.A, c.A]), lambda: scipy.sparse.vstack([c.S, c.S])),
    "with_values": _with_values,
    "save, beside save_npz": _save,
    "save, beside save_npz and a flush": _save_flushed,
    "load, beside load_npz": _load,
    "read of .npz": _read_npz,
    "read of .mtx, beside mmread": _read_mtx,
    "pickle": _pickled,
}


#: Operations that wait for the disk, of which CPU time tells nothing.
WAITING = frozenset({"save, beside save_npz", "save, beside save_npz and a flush"})

SMALL = "on small matrices the call itself counts: some 20 to 60 us of Python"
#: Why an operation is slower where it is; the page says it.
REASONS = {
    "A[i:j], a third": SMALL,
    "A @ x": SMALL,
    "A + B, one structure": f"a matrix with explicit zeros: SciPy leaves them out of a sum, and so do we; {SMALL}",
    "A + B, two structures": "SciPy's loop, whose result is checked; beyond the limit of what is kept "
    "(CVRARRAY_CSR_MEMORY) tables are read back to CSR first, where SciPy has it",
    "A @ B": "where rows have few terms it counts that their columns are put in order, which SciPy leaves out",
    "vstack([A, A])": SMALL,
    "save, beside save_npz": "the file and its folder are flushed to the disk before save returns, which save_npz does not do",
    "save, beside save_npz and a flush": "a file has a member for each table, three to five times as many as SciPy's",
    "load, beside load_npz": "on small matrices a header in JSON; CVR's invariants are checked too",
    "read of .npz": "load_npz ends with the arrays; here these are checked and converted too: half as long again",
    "read of .mtx, beside mmread": "mmread ends with coordinates; here these are sorted and converted too",
    "pickle": "tables are copied to cache lines when read; a pickle of nothing takes 100 us",
    "A.diagonal()": "CVR of very short rows: each has to be found in its chunk",
    "A.sum(axis=0)": "values are added where their columns say, as SciPy does it",
    "A.sum(axis=1)": "BBCSR: padding is added up too",
    "A * 2": SMALL,
    "with_values": SMALL,
}


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(generate.MATRICES)
    parser.add_argument("matrices", nargs="*", metavar="MATRIX", help=f"files, or generated: {known}; default: seven of these")
    parser.add_argument("--scale", choices=generate.SCALES, default="medium", help="size of the generated ones")
    parser.add_argument("--dtype", default="float64", help="of values; default: %(default)s")
    parser.add_argument("--format", default="auto", help="ours: auto (default), cvr or bbcsr")
    parser.add_argument("--only", metavar="TEXT", default="", help="operations whose name has one of these words, with commas")
    parser.add_argument("--seconds", type=float, default=0.6, help="of samples of each way, at least; default: %(default)s")
    parser.add_argument("--report", metavar="FOLDER", help="write ops.md and ops.json there")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if a row is below 1.0x, 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """The command: what is measured is written after each matrix, so that a run that is cut leaves what it has."""
    for report in reports(args):
        if args.report:
            Path(args.report).mkdir(parents=True, exist_ok=True)
            pages.write_figures(report, Path(args.report, "ops.json"))
            Path(args.report, "ops.md").write_text(page(report))
    print(text(report))
    return int(bool(slower(report)))


def reports(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every operation on the matrices so far, after each of them: a report of plain JSON types."""
    seven = ("stencil27", "poisson7", "elast3", "shell6", "rmat", "uniform_2M_16", "uniform_200k_150")
    made: list[tuple[str, Callable[[], Any]]] = [
        (Path(name).stem, partial(sources.load, name, scale=args.scale, seed=0, device=devices.CPU))
        for name in args.matrices or seven
    ]
    made += [(name, partial(inputs.read_stored, path)) for name, path in inputs.stored().items() if not args.matrices]
    results, others = [], OtherLoad()
    for name, make in made:
        S = make().astype(args.dtype)
        for result in measure(S, args.format, args.only.split(","), args.seconds):
            results.append({"matrix": name, "nnz": S.nnz} | result)
            print(line(results[-1]), file=sys.stderr, flush=True)
        yield {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": machine.describe(devices.CPU),
            "versions": machine.versions(),
            "threads": threads.count(),
            "dtype": args.dtype,
            "scale": args.scale,
            "cpus_busy_with_others": others.cpus(),
            "results": results,
        }


def measure(S: Any, format: str, words: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """The operations on one matrix whose names have one of `words`, each way for so many `seconds`."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return (rng.random(shape) + 0.5).astype(S.dtype)

    A = cvrarray.asarray(S, format=format, device="cpu")
    (m, n), k = S.shape, COLUMNS
    with tempfile.TemporaryDirectory() as folder:
        case = Case(S, A, numbers(n), numbers(m), numbers(n, k), numbers(m, k), Path(folder))
        for operation, prepare in OPERATIONS.items():
            if any(word in operation for word in words):
                found = timed(*prepare(case), seconds, waits=operation in WAITING)
                yield {"format": A.format, "operation": operation} | found
        if any(word in "asarray" for word in words):
            yield {"format": A.format, "operation": "asarray, in products"} | conversions(S, format)


def timed(ours: Call, peer: Call, seconds: float, waits: bool = False) -> dict[str, float]:
    """Seconds of SciPy, of ours with one thread and with all, each after two calls that compile and prepare.

    With one thread CPU time counts, unless a call `waits`.
    """
    ways = {"peer": (peer, "1"), "one": (ours, "1"), "all": (ours, None)}
    least = dict.fromkeys(ways, (math.inf, math.inf))
    spent, samples = dict.fromkeys(ways, 0.0), 0
    for call in (peer, ours, ours):
        call()
    while samples < SAMPLES or (min(spent.values()) < seconds and samples < 1000):
        if sum(spent.values()) > MOST_SECONDS:
            break
        for name, (call, count) in ways.items():
            with machine.using_threads(None if count is None else int(count)):
                wall, cpu = sample(call)
            spent[name] += wall
            least[name] = min(least[name][0], wall), min(least[name][1], cpu)
        samples += 1
    clock = 0 if waits else 1
    return {
        "peer_seconds": least["peer"][0],
        "one_seconds": least["one"][clock],
        "all_seconds": least["all"][0],
        "one_speedup": least["peer"][clock] / least["one"][clock],
        "all_speedup": least["peer"][0] / least["all"][0],
    }


def sample(call: Call) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a call, of several where it is short."""
    number, wall, cpu = 0, time.perf_counter(), time.process_time()
    while number < 1 or time.perf_counter() - wall < 1e-3:
        call()
        number += 1
    return (time.perf_counter() - wall) / number, (time.process_time() - cpu) / number


def conversions(S: Any, format: str) -> dict[str, float]:
    """``asarray`` of a CSR and of a COO, in SciPy's products with one thread."""
    x, coo = np.ones(S.shape[1], S.dtype), S.tocoo()
    ways: dict[str, Call] = {
        "product": lambda: S @ x,
        "csr": lambda: cvrarray.asarray(S, format=format, device="cpu"),
        "coo": lambda: cvrarray.asarray(coo, format=format, device="cpu"),
    }
    A = cvrarray.asarray(S, format=format, device="cpu")
    ways["ours"] = lambda: A @ x
    for call in ways.values():
        call()
    least = {name: min(sample(call)[0] for _ in range(5)) for name, call in ways.items()}
    return {f"{name}_seconds": seconds for name, seconds in least.items()}


def slower(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The results below what is asked for, with one thread or with all."""
    return [
        r
        for r in report["results"]
        if "one_speedup" in r and min(r["one_speedup"], r["all_speedup"]) < (SMALLEST if r["operation"] == "A @ B" else 1)
    ]


def line(result: dict[str, Any]) -> str:
    """A result as a line of text."""
    head = f"{result['matrix']:18s} {result['format']:6s} {result['operation']:30s}"
    if "one_speedup" in result:
        ms = [f"{result[name] * 1e3:9.3f}" for name in ("peer_seconds", "one_seconds", "all_seconds")]
        return f"{head} {' '.join(ms)} ms  {result['one_speedup']:6.2f}x {result['all_speedup']:6.2f}x"
    p = result["ours_seconds"]
    return f"{head} CSR {result['csr_seconds'] / p:.1f}, COO {result['coo_seconds'] / p:.1f} products of ours"


def table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: for every operation the least and the geometric mean over the matrices, with one thread and all."""
    header = ["operation", "one thread", "least", "all threads", "least", "least is"]
    rows = []
    for operation in dict.fromkeys(r["operation"] for r in results if "one_speedup" in r):
        found = [r for r in results if r["operation"] == operation]
        cells = [operation]
        for name in ("one_speedup", "all_speedup"):
            mean = pages.geometric_mean([r[name] for r in found])
            cells += [f"{mean:.2f}x", f"{min(r[name] for r in found):.2f}x"]
        rows.append([*cells, min(found, key=lambda r: r["one_speedup"])["matrix"]])
    return header, rows


def text(report: dict[str, Any]) -> str:
    """The report for a terminal."""
    lost = [line(r) for r in slower(report)]
    return "\n".join([render(*table(report["results"])), "", f"below 1.0x: {len(lost)}", *lost])


def _disturbed(report: dict[str, Any]) -> str:
    busy = report["cpus_busy_with_others"]
    if not busy or busy < DISTURBED * report["threads"]:
        return ""
    return (
        f" Other processes kept {busy:.1f} of the CPUs busy meanwhile: times with all threads are longer than on a machine of "
        "one's own, and say little."
    )


def _reasons(lost: list[dict[str, Any]]) -> list[str]:
    """A line for each operation: why it is slower, and on which matrices, with one thread and with all."""
    lines = []
    for operation in dict.fromkeys(r["operation"] for r in lost):
        found = [r for r in lost if r["operation"] == operation]
        where = ", ".join(f"{r['matrix']} {r['one_speedup']:.2f}x and {r['all_speedup']:.2f}x" for r in found)
        reason = REASONS.get(operation)
        lines.append(f"- **{operation}**{f': {reason}' if reason else ''}. With one thread and with all: {where}.")
    return lines


def page(report: dict[str, Any]) -> str:
    """The report as a page of the documentation."""
    each = [
        [
            *(r[name] for name in ("matrix", "format", "operation")),
            *(significant(r[f"{way}_seconds"] * 1e3) for way in ("peer", "one", "all")),
            *(f"{r[f'{way}_speedup']:.2f}x" for way in ("one", "all")),
        ]
        for r in report["results"]
        if "one_speedup" in r
    ]
    made = [
        [r["matrix"], r["format"], *(significant(r[f"{way}_seconds"] / r["ours_seconds"], 2) for way in ("csr", "coo"))]
        for r in report["results"]
        if "csr_seconds" in r
    ]
    lost = slower(report)
    return "\n".join(
        [
            "# Operations beside SciPy",
            "",
            f"`make bench-ops` wrote this page: {report['device']['name']}, {report['threads']} threads, {report['dtype']}, "
            f"{report['date'][:10]}. All ways are timed by turns; the least time of each counts, with one thread CPU time (of "
            "`save`, which waits for the disk, the wall clock's). "
            f"SciPy has one thread. Above 1 we are faster. Matrices have the scale `{report['scale']}`.{_disturbed(report)} "
            f"{pages.libraries(report)}.",
            "",
            pages.markdown(*table(report["results"])),
            "",
            f"## Below 1.0x: {len(lost)} of {len(each)}",
            "",
            *(_reasons(lost) or ["None."]),
            "",
            "## Conversions, in products of ours with all threads",
            "",
            pages.markdown(["matrix", "format", "from CSR", "from COO"], made),
            "",
            "## All, in milliseconds",
            "",
            pages.markdown(["matrix", "format", "operation", "SciPy", "one thread", "all", "one thread", "all"], each),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
