"""The test reports from a GPU machine: what ran, on what, over which sources; and whether they still fit them.

CI has no GPU, so runs of ``pytest --gpu-report PATH`` on a machine with one are kept in the repository: of the test suite,
and of small tests under each of compute-sanitizer's tools, with the tool's log beside the report.
``python tests/gpu_report.py --check [PATH]`` warns loudly when a report is missing, older than the sources, of a run that
was interrupted, or lists failures; and when the tool's log has errors. It never fails: whoever changes a kernel may have no
GPU at hand.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import platform
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "gpu-report"
DEFAULT_PATH = FOLDER / "tests.json"
SANITIZERS = ("memcheck", "racecheck")
SOURCES = (("cvrarray", "*.py"), ("kernels", "*.cu"), ("kernels", "*.cuh"))
PACKAGES = ("numpy", "scipy", "numba", "cupy", "sparse")
CUPY_WHEELS = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


def source_hash(root: Path = ROOT) -> str:
    """SHA-256 over path and text of every source file, the same in every checkout (line ends do not count)."""
    digest = hashlib.sha256()
    paths = [path for folder, pattern in SOURCES for path in (root / folder).rglob(pattern)]
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()


def write(path: Path, run: Any, gpu: dict[str, object] | None, ended: bool) -> None:
    """What pytest's terminal reporter has seen of a run, the hash of the sources, and what it ran with, as JSON."""
    option = run.config.option
    parts = [f"({part})" for part in (option.keyword, option.markexpr) if part]
    counts = {name: len(run.stats.get(name, ())) for name in ("passed", "failed", "error", "skipped", "xfailed")}
    skips = (f"{r.nodeid.partition('[')[0]}: {r.longrepr[2].removeprefix('Skipped: ')}" for r in run.stats.get("skipped", ()))
    report = {
        "source_hash": source_hash(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in PACKAGES},
        "gpu": gpu,
        "selection": " and ".join(parts) or "all",
        "whole": ended and not run._session.shouldfail,
        "counts": counts,
        "failures": [report.nodeid for outcome in ("failed", "error") for report in run.stats.get(outcome, ())],
        "skips": dict(Counter(skips)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")


def problems(path: Path = DEFAULT_PATH, root: Path = ROOT) -> list[str]:
    """Why the report at `path` does not vouch for the sources under `root`; empty when it does."""
    if not path.is_file():
        return [f"there is no report at {path}"]
    try:
        report = json.loads(path.read_text())
        counts, gpu, recorded = report["counts"], report["gpu"], report["source_hash"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        return [f"{path} is no report: {error!r}"]
    found = []
    if recorded != source_hash(root):
        found.append(f"the sources have changed since the report of {report.get('date')}")
    if failures := report.get("failures"):
        found.append(f"the reported run had {len(failures)} failures: {', '.join(failures[:5])}")
    if not report.get("whole"):
        found.append("the reported run did not come to its end")
    elif gpu is None:  # known at the end
        found.append("the reported run had no GPU")
    if not counts.get("passed"):
        found.append("the reported run passed no test")
    return found


def problems_of_tool(tool: str, folder: Path = FOLDER, root: Path = ROOT) -> list[str]:
    """Why the run under one of compute-sanitizer's tools does not vouch for the sources; empty when it does."""
    log = folder / f"{tool}.log"
    summaries = re.findall(r"SUMMARY: (\d+) ", log.read_text()) if log.is_file() else []  # one of each process
    found = problems(folder / f"{tool}.json", root)
    if not summaries:
        found.append(f"{log} does not say how many errors there were")
    elif n_errors := sum(map(int, summaries)):
        found.append(f"{log} has {n_errors} errors")
    return [f"{tool}: {problem}" for problem in found]


def warning(found: list[str]) -> str:
    """`found` problems in a box that nobody overlooks in a log."""
    lines = [
        "WARNING: the GPU code of these sources is not covered by GPU test reports.",
        *(f"  - {problem}" for problem in found),
        "Remedy: on a machine with a GPU run `make gpu-test` and `make gpu-sanitize`, then commit the reports they write.",
    ]
    rule = "!" * 100
    return "\n".join([rule, *(f"!! {line}" for line in lines), rule])


def gpu() -> dict[str, object] | None:
    """What this process runs on, None without a GPU. A process that starts pytest-xdist's workers must not ask."""
    from cvrarray.core import devices

    if not devices.gpu_count():
        return None
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(0)
    return {
        "name": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "memory_bytes": int(properties["totalGlobalMem"]),
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
    }


def _version(name: str) -> str | None:
    for distribution in CUPY_WHEELS if name == "cupy" else (name,):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", nargs="?", type=Path, metavar="PATH", help="of one report alone")
    path = parser.parse_args(arguments).check
    found = problems(path or DEFAULT_PATH)
    if path is None:
        found += [problem for tool in SANITIZERS for problem in problems_of_tool(tool)]
    print(warning(found) if found else f"{path or FOLDER} covers these sources.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
