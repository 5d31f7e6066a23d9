"""What every test shares: the ``device`` parameter, what runs without a GPU, and the report of a GPU run."""

from __future__ import annotations

import gc
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy comes: its threads would spin beside the other workers

import gpu_report
import pytest

from cvrarray.core import devices

DEVICES = ("cpu", "cuda:0")
NO_GPU = "no GPU: CuPy is missing or finds no CUDA device"
LEFT_OUT = pytest.StashKey[int]()
GPU = pytest.StashKey[dict[str, object] | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cvrarray")
    group.addoption("--require-gpu", action="store_true", help="run what needs a GPU alone, and fail where there is none")
    group.addoption("--gpu-report", type=Path, metavar="PATH", help="write what ran, and on what, to PATH as JSON")
    group.addoption("--unpooled", action="store_true", help="without CuPy's memory pool: for compute-sanitizer")
    group.addoption("--slow", action="store_true", help="run also what takes minutes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): pytest-xdist's; known here so that it need not be installed")
    config.addinivalue_line("markers", "slow: runs under --slow only")
    config.addinivalue_line("markers", "small: small conversions, products and solves, for compute-sanitizer (50 times slower)")
    if config.getoption("--unpooled"):  # in the pool, an access beyond an array is still inside an allocation
        import cupy

        cupy.cuda.set_allocator(None)
    if config.getoption("--gpu-report") and not hasattr(config, "workerinput"):
        config.getoption("--gpu-report").unlink(missing_ok=True)  # a run that is killed leaves none


def has_gpu_cases(config: pytest.Config) -> bool:
    """Whether cases for a GPU are made: where there is one, and where their lack must show."""
    return bool(config.getoption("--require-gpu") or config.getoption("--gpu-report") or devices.gpu_count())


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", DEVICES if has_gpu_cases(metafunc.config) else DEVICES[:1], indirect=True)


def needs_gpu(item: pytest.Item) -> bool:
    """Whether a case runs on a GPU alone."""
    device = getattr(getattr(item, "callspec", None), "params", {}).get("device", "cpu")
    return "gpu" in getattr(item, "fixturenames", ()) or device != "cpu"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, what needs a GPU where there is none, and what needs none where one is required."""
    given, n_left_out = list(items), 0
    if not config.getoption("--slow"):
        items[:] = [item for item in items if item.get_closest_marker("slow") is None]
    if config.getoption("--require-gpu"):
        items[:] = [item for item in items if needs_gpu(item)]
    elif not has_gpu_cases(config):
        n_left_out = sum(not {"gpu", "device"}.isdisjoint(getattr(item, "fixturenames", ())) for item in items)
        items[:] = [item for item in items if not needs_gpu(item)]
    kept = set(items)
    config.hook.pytest_deselected(items=[item for item in given if item not in kept])
    config.stash[LEFT_OUT] = n_left_out
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = n_left_out


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives to the end: compiling makes so many objects that it runs all the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Who runs tests says on what: the process that starts pytest-xdist's workers must not use CUDA."""
    config = session.config
    if config.getoption("--gpu-report") and config.getoption("dist", "no") == "no":
        config.stash[GPU] = gpu_report.gpu()
        if hasattr(config, "workeroutput"):
            config.workeroutput["gpu"] = config.stash[GPU]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """pytest-xdist: every worker has collected the same."""
    said = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = said.get("left_out", 0)
    node.config.stash[GPU] = said.get("gpu")


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    if path := config.getoption("--gpu-report"):
        gpu_report.write(path, terminalreporter, config.stash.get(GPU, None), exitstatus in (0, 1))
    if n_left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.line(f"{n_left_out:,} cases left out: {NO_GPU} (make gpu-test runs them)")


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
