"""How fast ``A @ X`` could be at most beside the peers of a recorded run, by what L2 and memory deliver.

    python -m asv_bench.record.columns_bound [docs/benchmarks/gpu-columns.json]

Of each case the longer of two times. Memory: tables, and the rows of X and Y that are needed, once. L2: what the L1 caches
ask of it, if each holds X for as many neighbouring rows of A as find room, evicts nothing too early, and X is cut into the
tiles that suit best. No product that takes rows of A in their order can be faster on average. It needs the run's matrices:
those that are not generated are files of the folder that CVRARRAY_MATRICES names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import columns_page, gpu, inputs, pages

#: Bytes a second of an H200's memory and of its L2, the most that was seen; bytes of X that an L1 cache holds, of both caches'
#: loads, and of what L2 holds of all.
MEMORY, L2, IN_L1, SECTOR, IN_L2 = 4.3e12, 7.4e12, 220e3, 32, 50e6
LAUNCH = 2e-6  # seconds that no product is below
TILES = (4, 8, 16, 32, 64, 128, 256)
GROUPS = 48  # of neighbouring rows, that are looked at


class Needed(NamedTuple):
    """Rows of X that neighbouring rows of A need."""

    rows: int  # of A
    of_group: float  # different ones, on average
    of_all: float  # the sum over all groups


def needed(csr: Any) -> list[Needed]:
    """By groups of 1, 2, 4 rows and so on; of some groups."""
    n_rows, found, rows = csr.shape[0], [], 1
    while rows <= 1 << 14:
        n_groups = -(-n_rows // rows)
        chosen = np.unique(np.linspace(0, n_groups - 1, min(GROUPS, n_groups)).astype(int))
        ends = np.minimum((chosen + 1) * rows, n_rows)
        counts = [
            np.unique(csr.indices[csr.indptr[first] : csr.indptr[end]]).size
            for first, end in zip(chosen * rows, ends, strict=True)
        ]
        found.append(Needed(rows, sum(counts) / len(counts), sum(counts) / (ends - chosen * rows).sum() * n_rows))
        rows *= 2
    return found


def seconds(csr: Any, groups: list[Needed], k: int, itemsize: int) -> float:
    """What ``A @ X`` takes at least."""
    tables, n_rows = csr.nnz * (itemsize + 2), csr.shape[0]
    total = tables + (np.unique(csr.indices).size + n_rows) * k * itemsize
    asked = []
    for tile in (tile for tile in TILES if tile <= k):
        row = max(SECTOR, tile * itemsize)
        of_all = min(group.of_all for group in groups if group.of_group * row <= IN_L1 or group.rows == 1)
        asked.append(k / tile * (tables + of_all * row) + n_rows * k * itemsize)
    return max(total / (MEMORY if total > IN_L2 else L2), min(asked, default=0) / L2, LAUNCH)


def bounds(report: dict[str, Any], build: Any) -> list[dict[str, Any]]:
    """Each case with several columns: its dtype, columns, and how many times the best peer's time ours and the bound are."""
    prepared = cache(lambda name: (csr := build(name), needed(csr)))
    found = []
    for case in report["results"]:
        now = columns_page.speedup(case)
        if case["columns"] == 1 or now is None:
            continue
        csr, groups = prepared(case["matrix"].partition(" (")[0])
        least = seconds(csr, groups, case["columns"], np.dtype(case["dtype"]).itemsize)
        most = now * case["ours"]["seconds"] / least
        found.append({name: case[name] for name in ("matrix", "dtype", "columns")} | {"now": now, "most": most})
    return found


def table(cases: list[dict[str, Any]]) -> str:
    """Geometric means, and how many times the bound ours takes."""
    rows = []
    for dtype in dict.fromkeys(case["dtype"] for case in cases):
        for columns, (low, high) in columns_page.RANGES.items():
            chosen = [case for case in cases if case["dtype"] == dtype and low <= case["columns"] <= high]
            if chosen:
                now, most = (statistics.geometric_mean(case[name] for case in chosen) for name in ("now", "most"))
                rows.append([dtype, columns, str(len(chosen)), f"{now:.2f}x", f"{most:.2f}x", f"{most / now:.2f}"])
    return pages.markdown(["dtype", "columns", "cases", "over the best peer", "at the bound", "times the bound"], rows)


def build(name: str, scale: str) -> Any:
    """A matrix of the recorded run, on the host."""
    if name in gpu.MATRICES:
        return gpu.MATRICES[name][scale](xp=np, seed=0).tocsr()
    stored = inputs.stored()
    if name not in stored:
        raise ValueError(f"{name} must be a file of the folder that CVRARRAY_MATRICES names, which has {len(stored)} others")
    return inputs.read_stored(stored[name])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", default="docs/benchmarks/gpu-columns.json")
    report = json.loads(Path(parser.parse_args(argv).report).read_text())
    print(table(bounds(report, lambda name: build(name, report["scale"]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
