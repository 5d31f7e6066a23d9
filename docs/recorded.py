"""Tables and plots of the docs from what ``asv_bench.record`` recorded: ``docs/benchmarks/*.json``."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from asv_bench.record import gpu_page, products_page
from asv_bench.record.pages import markdown
from cvrarray.cli.table import significant


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
        """The matrices at which the best peer is faster, or at which our speed over its is below `below`; the worst last."""
        rows = []
        by_matrix = {case["matrix"]: case for case in self.data["results"] if case["dtype"] == dtype}
        for name, times in self.speedups(dtype).items():
            if times < below:
                case = by_matrix[name]
                rows.append([name, case["group"], f"{case['nnz']:,}", f"{case['nnz'] / case['shape'][0]:.1f}", f"{times:.2f}"])
        return markdown(["matrix", "group", "nonzeros", "a row", "speed over the best peer"], rows) if rows else "Nowhere."

    def picture(self, dtype: str) -> Any:
        """:meth:`plot` as something that a page shows."""
        from IPython.display import SVG

        with io.BytesIO() as file:
            self.plot(dtype).savefig(file, format="svg")
            return SVG(file.getvalue())

    def plot(self, dtype: str) -> Any:
        """Bars of :meth:`speedups`, as a matplotlib figure."""
        from matplotlib.figure import Figure

        found = self.speedups(dtype)
        figure = Figure(figsize=(8, 0.2 * len(found) + 1), layout="constrained")
        axis = figure.subplots()
        axis.barh(list(found), list(found.values()), color=["#3b528b" if times >= 1 else "#aaaaaa" for times in found.values()])
        axis.axvline(1, color="black", linewidth=1)
        axis.invert_yaxis()
        axis.margins(y=0.01)
        axis.set_xscale("log", base=2)
        ticks = [times for times in (0.25, 0.5, 1, 2, 4, 8) if min(found.values()) / 2 < times < max(found.values()) * 2]
        axis.set_xticks(ticks, [f"{times:g}x" for times in ticks])
        axis.set_xlabel(f"speed over the best peer, {dtype}, {self.threads} threads")
        axis.tick_params(labelsize=8)
        return figure


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
                row["dtype"],
                str(row["matrices"]),
                f"{row['geometric_mean']:.2f}",
                f"{row['geometric_mean_beyond_l2']:.2f}",
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

    def losses(self, dtype: str) -> str:
        """The matrices at which a peer is faster, and which."""
        rows = []
        for case in self.data["results"]:
            times, peer = gpu_page.speedup(case), gpu_page.best_peer(case)
            if case["dtype"] == dtype and times is not None and times < 1:
                rows.append([case["matrix"], f"{case['nnz']:,}", f"{times:.2f}", peer["name"]])
        rows.sort(key=lambda row: float(row[2]))
        return markdown(["matrix", "nonzeros", "speed over the best peer", "which is"], rows) if rows else "Nowhere."
