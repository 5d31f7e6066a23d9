"""Tables and charts of the docs from what ``asv_bench.record`` recorded: ``docs/benchmarks/*.json``.

``PYTHONPATH=. python docs/recorded.py`` writes the charts that README shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from figures import OURS, SLOWER, THEIRS, Bar, bars

from asv_bench.record import gpu_page, products_page
from asv_bench.record.pages import markdown
from cvrarray.cli.table import significant
from cvrarray.drawing import Drawing

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
        device, versions = self.data["device"], self.data["versions"]
        libraries = ", ".join(f"{name} {versions[name]}" for name in ("cusparse", "torch") if name in versions)
        return f"{device['name']}, on {self.data['date'][:10]}; medians of {self.data['repeats']}. {libraries}."

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


def _chart(title: str, speedups: dict[str, float]) -> Drawing:
    rows = [Bar(name, times, f"{times:.2f}x", OURS if times >= 1 else SLOWER) for name, times in speedups.items()]
    return bars(title, rows, 1, "the line: as fast as the best peer")


def front() -> dict[str, Drawing]:
    """The charts of the front page and README, by their file names in ``docs/_static``."""
    gpu, cpu = RecordedGPU("benchmarks/gpu.json").beside_cupy(), Recorded("benchmarks/cpu.json").beside_scipy()
    return {"speed-gpu.svg": gpu, "speed-cpu.svg": cpu}


if __name__ == "__main__":
    for name, picture in front().items():
        picture.save(Path(__file__).parent / "_static" / name)
