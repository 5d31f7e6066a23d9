"""Where the tests' CPU time goes: what Numba compiles, for which types and how long, and what each test takes.

``PYTHONPATH=tests python -m pytest -p compile_times --compile-times=FILE ...`` writes a line for each function compiled
and for each test, with CPU seconds, and ``python tests/compile_times.py FILE`` sums them up. Start with an empty
``CVRARRAY_CACHE_DIR``: what is cached is not compiled. Works under pytest-xdist; what child processes of a test take
counts to the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compile-times", type=Path, help="write what is compiled, and what each test takes, to this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--compile-times")
    if path is not None:
        config.pluginmanager.register(Recorder(path), "compile-times-recorder")


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Recorder:
    """Writes the lines. A function's time is its own: what it inlines or calls is compiled, and counted, before."""

    def __init__(self, path: Path) -> None:
        from numba.core import event

        self.path, self.test = path, "collection"
        self.open: list[list[float]] = []  # of each compilation that is going on: begin, and what inner ones took
        recorder = self

        class Listener(event.Listener):
            def on_start(self, event: Any) -> None:
                recorder.open.append([cpu_seconds(), 0.0])

            def on_end(self, event: Any) -> None:
                begin, inner = recorder.open.pop()
                took = cpu_seconds() - begin
                if recorder.open:
                    recorder.open[-1][1] += took
                function = event.data["dispatcher"].py_func
                name = f"{function.__module__}.{function.__name__}"
                recorder.write(compiled=name, types=str(event.data["args"]), seconds=took - inner, test=recorder.test)

        event.register("numba:compile", Listener())

    def write(self, **record: Any) -> None:
        with contextlib.suppress(OSError), self.path.open("a") as file:  # a test fills the disk
            file.write(json.dumps({"process": os.getpid(), **record}) + "\n")

    def pytest_collection_finish(self) -> None:
        self.write(ran="start and collection", seconds=cpu_seconds())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        begin = cpu_seconds()
        result = yield
        self.write(ran=item.nodeid, seconds=cpu_seconds() - begin)
        return result


def summary(lines: list[str], most: int = 40) -> str:
    """Tables: seconds and compilations by function and by file of tests, and the slowest tests."""
    records = [json.loads(line) for line in lines]
    total: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if "compiled" in record:
            total["functions compiled"][record["compiled"]].append(record["seconds"])
            total["compiled for tests of"][record["test"].partition("::")[0]].append(record["seconds"])
            total["compiled for"][record["test"].partition("[")[0]].append(record["seconds"])
        else:
            total["files of tests"][record["ran"].partition("::")[0]].append(record["seconds"])
            total["tests"][record["ran"].partition("[")[0]].append(record["seconds"])
    parts = []
    for title, rows in total.items():
        every = sum(sum(seconds) for seconds in rows.values())
        parts.append(f"{title}: {every:.1f} s, {sum(map(len, rows.values()))} in {len(rows)}")
        ordered = sorted(rows.items(), key=lambda row: -sum(row[1]))[:most]
        parts += [f"{sum(seconds):8.1f} s {len(seconds):6}  {name}" for name, seconds in ordered]
    return "\n".join(parts)


if __name__ == "__main__":
    print(summary(Path(sys.argv[1]).read_text().splitlines(), int(sys.argv[2]) if sys.argv[2:] else 40))
