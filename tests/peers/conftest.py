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
LEFT_OUT: dict[str, Counter[str]] = {}  # suite -> reason -> tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--report", type=Path, metavar="PATH", help="write the counts to PATH as JSON; suites that did not run stay"
    )
    parser.addoption("--kinds", default=",".join(ours.KINDS), help="kinds of arrays, parted by commas")
    parser.addoption("--each-once", action="store_true", help="each case with one kind of array, the kinds in turn")
    parser.addoption("--most", type=int, help="at most so many cases of a suite, evenly spaced")
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
                _left_out(suite, "not installed, or its wheel ships no tests")
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
    if most := config.getoption("--most"):
        items[:] = [item for suite in _by_suite(items).values() for item in suite[:: -(-len(suite) // most)]]
    for item in items:
        reason = next((reason for pattern, reason in scope.OUT_OF_SCOPE if re.search(pattern, item.nodeid)), None)
        (left_out if reason else kept).append(item)
        if reason:
            _left_out(_suite(item.nodeid), reason)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def _suite(nodeid: str) -> str:
    return nodeid.partition("[")[0].removeprefix("tests/peers/")


def _left_out(suite: str, reason: str) -> None:
    LEFT_OUT.setdefault(suite, Counter())[reason] += 1


def _by_suite(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The tests in their order, under the names of their suites."""
    suites: dict[str, list[pytest.Item]] = {}
    for item in items:
        suites.setdefault(_suite(item.nodeid), []).append(item)
    return suites


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
        report.user_properties.append(("suite", _suite(item.nodeid)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    suite = dict(report.user_properties).get("suite")
    if suite is None and report.failed:
        suite = _suite(report.nodeid)
    if suite is None:
        return
    counts = COUNTS.setdefault(suite, Counter())
    counts[report.outcome] += 1
    if report.skipped and isinstance(report.longrepr, tuple):
        _left_out(suite, report.longrepr[2].removeprefix("Skipped: "))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    total = Counter[str]()
    for suite, counts in sorted(COUNTS.items()):
        total += counts
        terminalreporter.write_line(
            f"{suite:58} {counts['passed']:6} passed {counts['failed']:5} failed {counts['skipped']:6} skipped"
        )
    terminalreporter.write_line(f"{'in all':58} {total['passed']:6} passed {total['failed']:5} failed")
    for reason, count in sum(LEFT_OUT.values(), Counter[str]()).most_common():
        terminalreporter.write_line(f"{count:6} {reason}")
    if path := config.getoption("--report"):
        found = json.loads(path.read_text()) if path.exists() else {}
        for suite in sorted({*COUNTS, *LEFT_OUT}):
            counts = COUNTS.get(suite, Counter())
            reasons = dict(LEFT_OUT.get(suite, Counter()).most_common())
            found[suite] = {"passed": counts["passed"], "failed": counts["failed"], "out of scope": reasons}
            if config.getoption("--each-once"):
                found[suite]["each once"] = True
        path.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
