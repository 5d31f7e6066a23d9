"""What every test shares: the ``device`` parameter, markers, which cases run, and the report of a GPU run."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy comes: its threads would spin beside the other workers

import cases
import gpu_report
import pytest

from cvrarray.core import devices

DEVICES = ("cpu", "cuda:0")
NO_GPU = "no GPU: CuPy is missing or finds no CUDA device"
LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cvrarray")
    group.addoption("--require-gpu", action="store_true", help="run what needs a GPU alone, and fail where there is none")
    group.addoption("--gpu-report", type=Path, metavar="PATH", help="write what ran, and on what, to PATH as JSON")
    group.addoption("--unpooled", action="store_true", help="without CuPy's memory pool: for compute-sanitizer")
    group.addoption("--rest", action="store_true", help="run the cases alone that repeat a path under other parameters")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): pytest-xdist's; known here so that it need not be installed")
    for marker in cases.MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("--unpooled"):  # in the pool, an access beyond an array is still inside an allocation
        import cupy

        cupy.cuda.set_allocator(None)
    path = config.getoption("--gpu-report")
    if path is not None and not hasattr(config, "workerinput"):
        parts = [part for part in (config.option.keyword, config.option.markexpr) if part]
        parts += ["--rest"] * config.option.rest
        config.pluginmanager.register(GPUReport(path, " and ".join(f"({part})" for part in parts) or "all"), "gpu-report")


def has_gpu_cases(config: pytest.Config) -> bool:
    """Whether cases for a GPU are made: where there is one, and where their lack must show."""
    return bool(config.getoption("--require-gpu") or config.getoption("--gpu-report") or devices.gpu_count())


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = {name for mark in metafunc.definition.iter_markers("parametrize") for name in cases.argument_names(mark)}
    if "device" in metafunc.fixturenames and "device" not in given:
        metafunc.parametrize("device", DEVICES if has_gpu_cases(metafunc.config) else DEVICES[:1], indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the cases, and count those left out for each reason."""
    given, chosen = list(items), cases.chosen(items)
    items[:] = [item for item in items if (item in chosen) != config.getoption("--rest")]
    counts = {"cases": len(given) - len(items), "gpu": 0}
    if config.getoption("--require-gpu"):
        items[:] = [item for item in items if cases.needs_gpu(item)]
    elif not has_gpu_cases(config):
        counts["gpu"] = sum(not {"gpu", "device"}.isdisjoint(getattr(item, "fixturenames", ())) for item in items)
        items[:] = [item for item in items if not cases.needs_gpu(item)]
    kept = set(items)
    config.hook.pytest_deselected(items=[item for item in given if item not in kept])
    config.stash[LEFT_OUT] = counts
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = counts


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives to the end: compiling makes so many objects that it runs all the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist says what its tests ran on."""
    if hasattr(session.config, "workeroutput") and session.config.getoption("--gpu-report"):
        session.config.workeroutput["gpu"] = gpu_report.gpu()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """pytest-xdist: every worker has collected the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    left_out = config.stash.get(LEFT_OUT, {})
    if left_out.get("gpu"):
        terminalreporter.line(f"{left_out['gpu']:,} cases left out: {NO_GPU} (make gpu-test runs them)")
    if left_out.get("cases"):
        remedy = "make test" if config.getoption("--rest") else "make test-rest"
        terminalreporter.line(f"{left_out['cases']:,} cases left out ({remedy} runs them)")


def need_gpu(config: pytest.Config) -> None:
    """Skip the running test where there is no GPU; fail it under ``--require-gpu``."""
    if devices.gpu_count():
        return
    (pytest.fail if config.getoption("--require-gpu") else pytest.skip)(NO_GPU)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """``"cpu"``, then ``"cuda:0"``."""
    if request.param != "cpu":
        need_gpu(request.config)
    return request.param


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> str:
    """``"cuda:0"``, for what only a GPU, or only a pair of devices, can show."""
    need_gpu(request.config)
    return "cuda:0"


class GPUReport:
    """Counts the outcomes of a run (of all workers under pytest-xdist) and writes them at its end.

    `selection` says which tests ran: "all", or what ``-k`` and ``-m`` were given. The report is written from the start
    on, now and then, and says that the run is not whole until it is: a run that is killed leaves it so.
    """

    EVERY = 20.0  # seconds

    def __init__(self, path: Path, selection: str) -> None:
        self.path = path
        self.selection = selection
        self.started = time.time()
        self.counts: Counter[str] = Counter(passed=0, failed=0, skipped=0, xfailed=0)
        self.failures: list[str] = []
        self.skips: Counter[str] = Counter()
        self.run: set[str] = set()
        self.gpu: dict[str, object] | None = None
        self.written = 0.0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session
        self.write()
        self.written = 0.0  # after the first test it is known how many there are

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.run.add(nodeid)
        if time.monotonic() > self.written + self.EVERY:
            self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.counts["failed"] += 1
            self.failures.append(report.nodeid)
        elif hasattr(report, "wasxfail"):
            self.counts["xfailed"] += report.skipped
        elif report.skipped:
            self._skip(report)
        elif report.when == "call":
            self.counts["passed"] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.counts["failed"] += 1
            self.failures.append(report.nodeid)
        elif report.skipped:
            self._skip(report)

    def _skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self.counts["skipped"] += 1
        self.skips[f"{report.nodeid.partition('[')[0]}: {reason.removeprefix('Skipped: ')}"] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.gpu = getattr(node, "workeroutput", {}).get("gpu") or self.gpu

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # Workers have said theirs. Who starts them must not use CUDA: under compute-sanitizer they would not come up.
        if session.config.getoption("dist", "no") == "no":
            self.gpu = gpu_report.gpu()
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        self.write(whole=ended and len(self.run) == session.testscollected > 0)

    def write(self, whole: bool = False) -> None:
        self.written = time.monotonic()
        gpu_report.write(
            self.path,
            {
                "gpu": self.gpu,
                "selection": self.selection,
                "whole": whole,
                "collected": self.session.testscollected,
                "run": len(self.run),
                "counts": dict(self.counts),
                "failures": self.failures,
                "skips": dict(self.skips),
                "duration_s": round(time.time() - self.started, 1),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
