"""Tables and charts of the docs from what ``asv_bench.record`` recorded: ``docs/benchmarks/*.json``.

``PYTHONPATH=. python docs/recorded.py`` writes the charts that README shows, and its figures.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from figures import OURS, SLOWER, THEIRS, Bar, bars

from asv_bench.record import columns_page, gpu_page, pages, products_page, solve
from asv_bench.record.pages import Drawing, has_few_values, markdown
from cvrarray.cli.table import significant

#: What the charts of the front page show of the generated matrices.
LABELS = {
    "stencil27": "27-point stencil",
    "poisson7": "7-point stencil",
    "elast3": "3 x 3 blocks",
    "shell6": "6 x 6 blocks",
    "rmat": "power-law graph",
    "uniform_2M_16": "random, 16 a row",
    "uniform_200k_150": "random, 150 a row",
}


#: What README's table has, and what they are.
SHOWN = {
    "stencil27": "27-point stencil",
    "poisson7": "7-point stencil",
    "elast3": "3 x 3 blocks",
    "shell6": "6 x 6 blocks",
    "fem1": "linear tetrahedra",
    "rmat": "power law, shuffled",
    "uniform_2M_16": "random",
    "uniform_200k_150": "random",
}

#: What `A @ X` with 64 columns of float32 should take at most, at scale "medium".
MICROSECONDS = {"shell6": 200, "elast3": 230, "stencil27": 330, "poisson7": 560, "rmat": 1200}

#: README between these lines is written by this file.
BEGIN, END = "<!-- recorded: written by docs/recorded.py -->\n", "<!-- end of what is recorded -->\n"


class Recorded:
    """A report of ``asv_bench.record.products``, ``cpu.json``; `path` is relative to this file."""

    def __init__(self, path: str | Path):
        self.data: dict[str, Any] = json.loads((Path(__file__).parent / path).read_text())
        self.threads = max(case["threads"] for case in self.data["results"])

    def machine(self) -> str:
        """What it was measured on, and with what."""
        device, versions = self.data["device"], self.data["versions"]
        libraries = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in ("system", "python"))
        return (
            f"{device['name']} ({device['microarchitecture']}), {device['cpus']} CPUs, on {self.data['date'][:10]}; medians of "
            f"{self.data['repeats']}. Python {versions['python']}, {libraries}."
        )

    def summary(self) -> str:
        """Geometric means of what asarray chose, by dtype, threads and group of matrices."""
        rows = [row for row in self.data["summary"] if row["contender"] == "asarray"]
        groups = [name for name, mean in rows[0]["geometric_means"].items() if mean["matrices"]]
        counts = rows[0]["geometric_means"]
        header = ["dtype", "threads", *(f"{name} ({counts[name]['matrices']})" for name in groups)]
        lines = [
            [row["dtype"], str(row["threads"]), *(significant(row["geometric_means"][name]["speedup"]) for name in groups)]
            for row in rows
        ]
        return markdown(header, lines)

    def speedups(self, dtype: str) -> dict[str, float]:
        """Speed of what asarray chose over the best peer, by matrix, with all threads; the largest first."""
        cases = [case for case in self.data["results"] if (case["dtype"], case["threads"]) == (dtype, self.threads)]
        found = {case["matrix"]: times for case in cases if (times := products_page.speedup(case, "asarray")) is not None}
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def losses(self, dtype: str, below: float = 1.0) -> str:
        """The matrices at which the best peer is faster, or at which our speed over its is below `below`; the worst
        last.
        """
        rows = []
        by_matrix = {case["matrix"]: case for case in self.data["results"] if case["dtype"] == dtype}
        for name, times in self.speedups(dtype).items():
            if times < below:
                case = by_matrix[name]
                rows.append([name, case["group"], f"{case['nnz']:,}", f"{case['nnz'] / case['shape'][0]:.1f}", f"{times:.2f}"])
        return markdown(["matrix", "group", "nonzeros", "a row", "speed over the best peer"], rows) if rows else "Nowhere."

    def chart(self, dtype: str) -> Drawing:
        """Bars of :meth:`speedups`."""
        return _chart(f"{dtype}, {self.threads} threads: speed over the best peer", self.speedups(dtype))

    def beside_scipy(self) -> Drawing:
        """Bars of how many times as fast as SciPy what asarray chose and MKL are, in double precision, with all
        threads.
        """
        rows: list[Bar | None] = []
        for case in self.data["results"]:
            if case["matrix"] in LABELS and (case["dtype"], case["threads"]) == ("float64", self.threads):
                over = {run["name"]: run["seconds"] for run in case["runs"]}
                ours = over["scipy"] / next(run["seconds"] for run in case["runs"] if run.get("plan"))
                mkl = over["scipy"] / over["mkl"]
                rows += [Bar(LABELS[case["matrix"]], ours, f"{ours:.1f}x"), Bar("MKL", mkl, f"{mkl:.1f}x", THEIRS), None]
        note = f"{self.threads} cores, float64; the line is SciPy, which uses one core"
        return bars("A @ x on a CPU, times as fast as SciPy", rows[:-1], 1, note)


class RecordedGPU:
    """A report of ``asv_bench.record.gpu``, ``gpu.json``; `path` is relative to this file."""

    def __init__(self, path: str | Path):
        self.data: dict[str, Any] = json.loads((Path(__file__).parent / path).read_text())

    def machine(self) -> str:
        """What it was measured on, and with what."""
        return _machine(self.data)

    def summary(self) -> str:
        """Speed of what asarray chose over the best peer, by dtype: geometric means and the worst matrix."""
        rows = [
            [
                row["dtype"] if row["values"] == "plain" else f"{row['dtype']}, few values",
                str(row["matrices"]),
                *("-" if row[mean] is None else f"{row[mean]:.2f}" for mean in ("geometric_mean", "geometric_mean_beyond_l2")),
                f"{row['least']:.2f} ({row['worst']})",
                str(len(row["below_1"])),
            ]
            for row in gpu_page.summary(self.data)
        ]
        return markdown(["dtype", "matrices", "geometric mean", "those beyond L2", "worst", "slower than the best peer"], rows)

    def beside(self, peer: str) -> str:
        """Microseconds of what asarray chose and of one peer, for the generated matrices."""
        by_matrix: dict[str, dict[str, Any]] = {}
        for case in self.data["results"]:
            if case["generated"]:
                by_matrix.setdefault(case["matrix"], {})[case["dtype"]] = case
        lines = []
        for name, cases in by_matrix.items():
            format_of, cells = "", []
            for case in cases.values():
                ours = gpu_page.chosen(case)
                theirs = next((run for run in case["runs"] if run["name"] == peer and run["correct"]), None)
                if ours is None or theirs is None:
                    cells += ["-"] * 3
                    continue
                format_of = "CVR" if ours["format"] == "cvr" else f"BBCSR {ours['block_size']}"
                times = [f"{run['seconds'] * 1e6:.0f}" for run in (ours, theirs)]
                cells += [*times, f"**{theirs['seconds'] / ours['seconds']:.2f}x**"]
            lines.append([name, format_of, *cells])
        header = [cell for dtype in next(iter(by_matrix.values())) for cell in (dtype, peer, "")]
        return markdown(["matrix", "format", *header], lines)

    def speedups(self, dtype: str) -> dict[str, float]:
        """Speed of what asarray chose over the best peer, by matrix; the largest first."""
        cases = [case for case in self.data["results"] if case["dtype"] == dtype]
        found = {case["matrix"]: times for case in cases if (times := gpu_page.speedup(case)) is not None}
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def of(self, dtype: str, few: bool = False) -> list[float]:
        """Speeds over the best peer of matrices whose values are stored as they are, or of those that are stored in few
        bytes.
        """
        cases = [case for case in self.data["results"] if case["dtype"] == dtype and has_few_values(case) == few]
        return [times for case in cases if (times := gpu_page.speedup(case)) is not None]

    def chart(self, dtype: str) -> Drawing:
        """Bars of :meth:`speedups`."""
        return _chart(f"{dtype}: speed over the best peer", self.speedups(dtype))

    def beside_cupy(self) -> Drawing:
        """Bars of how many times as fast as CuPy what asarray chose is, in single precision."""
        rows: list[Bar | None] = []
        for case in self.data["results"]:
            if case["matrix"] in LABELS and case["dtype"] == "float32":
                ours = gpu_page.chosen(case)
                theirs = next(run for run in case["runs"] if run["name"] == "cupyx")
                if ours is not None:
                    times = theirs["seconds"] / ours["seconds"]
                    rows += [Bar(LABELS[case["matrix"]], times, f"{times:.1f}x"), None]
        note = f"{self.data['device']['name']}, float32; the line is CuPy (cuSPARSE)"
        return bars("A @ x on a GPU, times as fast as CuPy", rows[:-1], 1, note)

    def losses(self, dtype: str) -> str:
        """The matrices at which a peer is faster, and which."""
        rows = []
        for case in self.data["results"]:
            times, peer = gpu_page.speedup(case), gpu_page.best_peer(case)
            if case["dtype"] == dtype and times is not None and times < 1:
                rows.append([case["matrix"], f"{case['nnz']:,}", f"{times:.2f}", peer["name"]])
        rows.sort(key=lambda row: float(row[2]))
        return markdown(["matrix", "nonzeros", "speed over the best peer", "which is"], rows) if rows else "Nowhere."


class RecordedColumns:
    """A report of ``asv_bench.record.gpu_columns``, ``gpu-columns*.json``; `path` is relative to this file."""

    def __init__(self, path: str | Path):
        self.data: dict[str, Any] = json.loads((Path(__file__).parent / path).read_text())
        self.plain = self.data | {"results": [case for case in self.data["results"] if columns_page.is_plain(case)]}

    def machine(self) -> str:
        """What it was measured on, and with what."""
        matrices = {case["matrix"] for case in self.plain["results"]}
        scale = "" if self.data.get("families") else f", scale {self.data['scale']}"
        return f"{_machine(self.data)} {len(matrices)} matrices with plain values{scale}."

    def summary(self) -> str:
        """Geometric means and the least speed over the best peer, by dtype and range of columns."""
        header, rows = columns_page.summary_table(self.plain)
        kept = [k for k, name in enumerate(header) if name != "values"]
        return markdown([header[k] for k in kept], [[row[k] for k in kept] for row in rows])

    def chart(self, dtype: str) -> Drawing:
        """Speed over the best peer by number of columns."""
        return columns_page.plot(self.data, dtype)

    def losses(self) -> str:
        """The cases in which a peer is faster, and which."""
        header, rows = columns_page.slower_table(self.plain)
        return markdown(header, rows) if rows else "Nowhere."

    def a_column(self) -> str:
        """A sentence on the time of a column, over that of a product with a vector: geometric means."""
        of_vector = {_of(case): case["ours"]["seconds"] for case in self.plain["results"] if case["columns"] == 1}
        shares = {
            k: _mean(case["ours"]["seconds"] / k / of_vector[_of(case)] for case in cases if _of(case) in of_vector)
            for k, cases in self._by_columns().items()
        }
        return (
            f"With {_listed(shares)} columns a column takes {_listed(shares.values())} of the time of a product with a vector."
        )

    def hint_and_order(self) -> str:
        """Sentences on arrays that were made without ``columns=k``, and on X in Fortran order."""
        without, in_order = (self._over_ours(key) for key in ("no_hint_seconds", "fortran_seconds"))
        return f"An array without the hint takes {without}. With X in Fortran order a product takes {in_order}."

    def _over_ours(self, key: str) -> str:
        found = [columns_page.over_ours(cases, key) for cases in self._by_columns().values()]
        means = [statistics.geometric_mean(times) for times in found]
        most = max(map(max, found))
        return f"{min(means):.2f} to {max(means):.2f} times as long in the mean, by number of columns, and {most:.1f} at worst"

    def _by_columns(self) -> dict[int, list[dict[str, Any]]]:
        """Cases with plain values by number of columns, but for vectors."""
        found: dict[int, list[dict[str, Any]]] = {}
        for case in sorted(self.plain["results"], key=lambda case: int(case["columns"])):
            if case["columns"] > 1:
                found.setdefault(case["columns"], []).append(case)
        return found

    def of(self, dtype: str, first: int, last: int) -> list[float]:
        """Speeds over the best peer with so many columns, of plain values."""
        at = (columns_page.speeds_at(self.data, dtype, k) for k in range(first, last + 1))
        return [times for speeds in at for times in speeds.values()]


def _machine(report: dict[str, Any]) -> str:
    """What a GPU's report was measured on, and with which peers."""
    libraries = pages.peers(report, "cusparse", "cupy", "torch")
    return f"{report['device']['name']}, on {report['date'][:10]}; medians of {report['repeats']}. {libraries}."


def _chart(title: str, speedups: dict[str, float]) -> Drawing:
    rows = [Bar(name, times, f"{times:.2f}x", OURS if times >= 1 else SLOWER) for name, times in speedups.items()]
    return bars(title, rows, 1, "the line: as fast as the best peer")


def goals() -> str:
    """What was aimed at on a GPU, and what the records have: two tables."""
    gpu, unseen = (RecordedGPU(f"benchmarks/{name}.json") for name in ("gpu", "gpu-unseen"))
    columns, transposed = (RecordedColumns(f"benchmarks/gpu-columns{end}.json") for end in ("", "-transposed"))
    speeds, microseconds = [], []

    def row(what: str, mean: float, least: float, times: list[float]) -> None:
        cells = [what]
        for goal, found in ((mean, statistics.geometric_mean(times)), (least, min(times))):
            digits = 2 if found >= goal or f"{found:.2f}" != f"{goal:.2f}" else 3
            cells += [f"{goal:g}x", f"{found:.{digits}f}x{'' if found >= goal else ' (missed)'}"]
        speeds.append(cells)

    for name, report, means in (("", gpu, (1.35, 1.3)), (", nothing fitted to them", unseen, (1.25, 1.25))):
        for dtype, mean in zip(("float32", "float64"), means, strict=True):
            row(f"`A @ x`, {dtype}{name}", mean, 0.97, report.of(dtype))
    for product, of, means in (("A @ X", columns, (3, 2)), ("A.T @ X", transposed, (1.5, 1.5))):
        for dtype in ("float32", "float64"):
            for (first, last), mean in zip(((2, 32), (64, 256)), means, strict=True):
                row(f"`{product}`, {dtype}, {first} to {last} columns", mean, 1, of.of(dtype, first, last))
    for case in columns.data["results"]:
        if case["matrix"] in MICROSECONDS and (case["columns"], case["dtype"]) == (64, "float32"):
            goal, found = MICROSECONDS[case["matrix"]], case["ours"]["seconds"] * 1e6
            microseconds.append([case["matrix"], f"{goal}", f"{found:.0f}{'' if found <= goal else ' (missed)'}"])
    choices = [times for report in (gpu, unseen) for times in gpu_page.choices(report.data).values()]
    wrong = [sum(times > limit for times in choices) for limit in (1.03, 1.1)]
    return (
        markdown(["over the best peer", "mean: goal", "recorded", "least: goal", "recorded"], speeds)
        + "\n\n"
        + markdown(["`A @ X`, float32, 64 columns: us", "goal, at most", "recorded"], microseconds)
        + f"\n\nThe format that `asarray` chose is more than 3% slower than our other one in {wrong[0]} of {len(choices)} "
        f"cases of both records of `A @ x` (goal: {len(choices) // 30}), and more than 10% in {wrong[1]} (goal: none)."
    )


def front() -> dict[str, Drawing]:
    """The charts of the front page and README, by their file names in ``docs/_static``."""
    gpu, cpu = RecordedGPU("benchmarks/gpu.json").beside_cupy(), Recorded("benchmarks/cpu.json").beside_scipy()
    return {"speed-gpu.svg": gpu, "speed-cpu.svg": cpu}


def readme() -> str:
    """The part of README that the records write: a table beside CuPy, and what all matrices come to."""
    gpu, unseen = RecordedGPU("benchmarks/gpu.json"), RecordedGPU("benchmarks/gpu-unseen.json")
    columns, of_unseen = (RecordedColumns(f"benchmarks/gpu-columns{end}.json") for end in ("", "-unseen"))
    of_dtype: dict[str, dict[str, Any]] = {}
    for case in gpu.data["results"]:
        of_dtype.setdefault(case["dtype"], {})[case["matrix"]] = case
    rows = []
    for name, about in SHOWN.items():
        cells = [f"{name}, {about}", ""]
        for cases in of_dtype.values():
            ours = gpu_page.chosen(cases[name])
            theirs = next(run for run in cases[name]["runs"] if run["name"] == "cupyx")
            if ours is None:
                raise ValueError(f"no product of ours was right for {name}")
            cells[1] = "CVR" if ours["format"] == "cvr" else f"BBCSR {ours['block_size']}"
            times = [f"{run['seconds'] * 1e6:.0f}" for run in (ours, theirs)]
            cells += [*times, f"**{theirs['seconds'] / ours['seconds']:.2f}x**"]
        rows.append(f"| {' | '.join(cells)} |")
    table = "\n".join(["| | format | float32 | CuPy | | float64 | CuPy | |", "|---|---|---|---|---|---|---|---|", *rows])

    generated = {case["matrix"].partition(" (")[0]: case["generated"] for case in gpu.data["results"]}
    real = sum(not own for own in generated.values())
    speeds = {
        "[`A @ x`](docs/benchmarks/gpu.md)": [gpu.of(dtype) for dtype in of_dtype],
        "`A @ x`, few different values, in fewer bytes": [gpu.of(dtype, few=True) for dtype in of_dtype],
        "[`A @ x`, unseen matrices](docs/benchmarks/gpu-unseen.md)": [unseen.of(dtype) for dtype in of_dtype],
        "[`A @ x`, warm](docs/benchmarks/gpu-columns.md)": [columns.of(dtype, 1, 1) for dtype in of_dtype],
        "`A @ X`, 2 to 32 columns": [columns.of(dtype, 2, 32) for dtype in of_dtype],
        "`A @ X`, 64 to 256 columns": [columns.of(dtype, 64, 256) for dtype in of_dtype],
        "[`A @ X`, unseen matrices](docs/benchmarks/gpu-columns-unseen.md), 4 and 16": [
            of_unseen.of(dtype, 2, 32) for dtype in of_dtype
        ],
        "`A @ X`, unseen matrices, 64 and 256": [of_unseen.of(dtype, 64, 256) for dtype in of_dtype],
    }
    lines = [[what, *(cell for times in of_what for cell in _told(times))] for what, of_what in speeds.items()]
    header = ["", *(cell for dtype in of_dtype for cell in (f"{dtype}: mean", "least", "slower"))]
    means = markdown(header, lines)
    runs = [run for case in gpu.data["results"] for run in case["runs"] if run["correct"]]
    host = statistics.median(run["host_seconds"] * 1e6 for run in runs if run["ours"] and run["plan"] is not None)
    host_cupy = statistics.median(run["host_seconds"] * 1e6 for run in runs if run["name"] == "cupyx")
    solved = json.loads((Path(__file__).parent / "benchmarks" / "solve-gpu.json").read_text())
    faster = [solve.speedup(case["microseconds"]) for case in solved["results"]]
    has_warp = any(by.startswith("warp") for case in solved["results"] for by in case["microseconds"])
    solvers = "the faster of CuPy's and NVIDIA Warp's" if has_warp else "CuPy's"
    peers = f"cuSPARSE {gpu.data['versions']['cusparse']} (CSR by all algorithms, SpMVOp, SELL, BSR, blocked ELLPACK)"
    about = _filled(
        f"**All matrices on the GPU.** For each matrix we compare with the fastest of {peers}, CuPy and PyTorch: the geometric "
        "mean of the speedups, the least of them, and how many are below 1. Rows 1 to 3: cold cache, where a matrix fits L2; "
        f"others: warm. Rows 1 and 2 have {len(generated)} matrices, {real} of them real; nothing was fitted to unseen ones."
    )
    more = _filled(
        f"A call takes {host:.0f} us of the host in the median, CuPy's {host_cupy:.0f}. An iteration of conjugate gradients is "
        f"{min(faster):.1f} to {max(faster):.1f}x as fast as {solvers} ([figures](docs/benchmarks/solve-gpu.md)). `make "
        "bench-gpu` and `make bench-columns` repeat the runs."
    )
    return "\n\n".join([table, about, means, more, _filled(_on_a_cpu())]) + "\n"


def _on_a_cpu() -> str:
    """What README says of the record of a CPU."""
    data = Recorded("benchmarks/cpu.json").data
    chosen = [row for row in data["summary"] if row["contender"] == "asarray"]
    threads = sorted({row["threads"] for row in chosen})

    def means(group: str) -> str:
        found: dict[str, set[str]] = {}
        for row in chosen:
            found.setdefault(row["dtype"], set()).add(f"{row['geometric_means'][group]['speedup']:.2f}")
        return " and ".join(f"{' to '.join(sorted(of))}x in {dtype}" for dtype, of in found.items())

    runs = [run for case in data["results"] for run in case["runs"] if run.get("plan")]
    speeds = [run["speedup"] for run in runs]
    converts = [run["conversion_in_peer_products"] for run in runs]
    return (
        f"**On {_listed(threads)} CPU cores ({data['device']['name']}, {data['device']['microarchitecture']}).** For each of "
        f"{chosen[0]['geometric_means']['all']['matrices']} matrices we compare with the fastest of MKL, SciPy and "
        f"pydata/sparse. The geometric mean of the speedups is {means('all')}; on power laws it is {means('power law')}. "
        f"{sum(speed < 1 for speed in speeds)} of {len(speeds)} cases are slower, the least is {min(speeds):.2f}x. "
        f"A conversion takes {statistics.median(converts):.0f} products of the fastest of them in the median, at most "
        f"{max(converts):.1f}. "
        "`make bench` writes [all figures](docs/benchmarks/cpu.md); `cvrarray bench file.mtx` measures your matrix."
    )


def _told(times: list[float]) -> list[str]:
    """The mean of speeds, the least, and how many are below 1."""
    return [f"{_mean(times)}x", f"{min(times):.2f}x", f"{sum(time < 1 for time in times)} of {len(times)}"]


def _filled(text: str) -> str:
    """Prose in lines of 120 characters; code stays on a line."""
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def _of(case: dict[str, Any]) -> tuple[str, str]:
    return case["matrix"], case["dtype"]


def _listed(parts: Iterable[Any]) -> str:
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}"


def _mean(times: Iterable[float]) -> str:
    return f"{statistics.geometric_mean(times):.2f}"


if __name__ == "__main__":
    here = Path(__file__).parent
    for name, picture in front().items():
        picture.save(here / "_static" / name)
    whole = (here.parent / "README.md").read_text()
    (here.parent / "README.md").write_text(re.sub(f"(?s){BEGIN}.*{END}", lambda _: f"{BEGIN}{readme()}{END}", whole))
