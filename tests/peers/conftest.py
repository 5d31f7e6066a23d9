"""Collects the suites of :mod:`suites` for every kind of array of ours, and counts what is out of scope, by reason."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import ours
import scope
import suites

COUNTS: dict[str, Counter[str]] = {}
LEFT_OUT: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", type=Path, metavar="PATH", help="write the counts to PATH as JSON")
    parser.addoption("--kinds", default=",".join(ours.KINDS), help="kinds of arrays, parted by commas")
    parser.addoption("--each-once", action="store_true", help="each case with one kind of array, the kinds in turn")
    parser.addoption("--suites", default="", help="run the suites alone whose names hold this")


@pytest.fixture
def num_parallel_threads() -> int:
    """What SciPy's tests ask for: on how many threads a test runs at once."""
    return 1


class PeerModule(pytest.Module):
    """A peer's test module, adapted to one kind of array."""

    def __init__(self, suite: str, kind: str, **keywords: Any) -> None:
        super().__init__(nodeid=f"{suite}[{kind}]", **keywords)
        self.suite, self.kind = suite, kind

    def _getobj(self) -> ModuleType:
        return suites.adapted(self.suite, ours.KINDS[self.kind])


class Suites(pytest.File):
    def collect(self) -> Any:
        for suite in (name for name in suites.SUITES if self.config.getoption("--suites") in name):
            if suites.path(suite) is None:
                LEFT_OUT[f"{suite}: not installed, or its wheel ships no tests"] += 1
                continue
            for kind in self.config.getoption("--kinds").split(","):
                yield PeerModule.from_parent(self, path=self.path, name=f"{suite}[{kind}]", suite=suite, kind=kind)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Any:
    return Suites.from_parent(parent, path=file_path) if file_path.name == "suites.py" else None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    return _Nothing.from_parent(parent, path=module_path)


class _Nothing(pytest.Module):
    """suites.py itself has no tests."""

    def collect(self) -> Any:
        return []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left_out = [], []
    if config.getoption("--each-once"):
        by_case: dict[str, list[pytest.Item]] = {}
        for item in items:
            by_case.setdefault(re.sub(r"\[\w+\]", "", item.nodeid, count=1), []).append(item)
        items[:] = [cases[k % len(cases)] for k, cases in enumerate(by_case.values())]
    for item in items:
        reason = next((reason for pattern, reason in scope.OUT_OF_SCOPE if re.search(pattern, item.nodeid)), None)
        (left_out if reason else kept).append(item)
        if reason:
            LEFT_OUT[reason] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A test that asks for what ours refuse by design, in the words of that refusal, is out of scope: skipped."""
    report = yield
    if report.failed and call.excinfo is not None:
        text = str(call.excinfo.value)
        reason = next((reason for pattern, reason in scope.REFUSALS if re.search(pattern, text, re.DOTALL)), None)
        if reason:
            report.outcome, report.longrepr = "skipped", (str(item.path), None, f"Skipped: {reason}")
    if report.when == "call" or report.skipped:
        report.user_properties.append(("suite", item.nodeid.partition("[")[0]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    suite = dict(report.user_properties).get("suite")
    if suite is None and report.failed:
        suite = report.nodeid.partition("[")[0]
    if suite is None:
        return
    counts = COUNTS.setdefault(suite, Counter())
    counts[report.outcome] += 1
    if report.skipped and isinstance(report.longrepr, tuple):
        LEFT_OUT[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    total = Counter[str]()
    for suite, counts in sorted(COUNTS.items()):
        total += counts
        terminalreporter.write_line(
            f"{suite:58} {counts['passed']:6} passed {counts['failed']:5} failed {counts['skipped']:6} skipped"
        )
    terminalreporter.write_line(f"{'in all':58} {total['passed']:6} passed {total['failed']:5} failed")
    for reason, count in LEFT_OUT.most_common():
        terminalreporter.write_line(f"{count:6} {reason}")
    if config.getoption("--report"):
        found = {"suites": {k: dict(v) for k, v in sorted(COUNTS.items())}, "out of scope": dict(LEFT_OUT.most_common())}
        config.getoption("--report").write_text(json.dumps(found, indent=1) + "\n")
