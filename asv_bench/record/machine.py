"""What is measured on: the device and its rates, the libraries, the number of threads, memory in use."""

from __future__ import annotations

import os
import platform
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import cvrarray
from cvrarray.cli import peers
from cvrarray.core import clocks, devices
from cvrarray.cpu.runtime import threads

ROOT = Path(__file__).resolve().parents[2]


def describe(device: devices.Device) -> dict[str, Any]:
    """What `device` is."""
    if device.kind == "cuda":
        runtime = device.xp.cuda.runtime
        properties = runtime.getDeviceProperties(device.index)
        return {
            "device": str(device),
            "name": properties["name"].decode(),
            "compute_capability": f"{properties['major']}.{properties['minor']}",
            "multiprocessors": properties["multiProcessorCount"],
            "memory_bytes": properties["totalGlobalMem"],
            "l2_bytes": properties["l2CacheSize"],
            "driver": runtime.driverGetVersion(),
            "cuda": runtime.runtimeGetVersion(),
            "cupy": device.xp.__version__,
        }
    from llvmlite import binding

    return {
        "device": "cpu",
        "name": processor(),
        "threads": threads.count(),
        "cpus": os.cpu_count(),
        "microarchitecture": binding.get_host_cpu_name(),
        "vector_bits": vector_bits(binding.get_host_cpu_features()),
    }


def rates(device: devices.Device) -> dict[str, float]:
    """Bytes a second that a large reduction reads, and a large copy moves (bytes read and written)."""
    clock = clocks.of(device)
    if device.kind == "cpu":
        return _host_rates(clock)
    with device.use():
        xp = device.xp
        source = xp.ones(min(1 << 28, xp.cuda.runtime.memGetInfo()[0] // 32))  # at most 2 GiB, twice
        target = xp.empty_like(source)
        times = clocks.times(clock, {"read": source.sum, "copy": lambda: xp.copyto(target, source)}, 15)
    return {"read": source.nbytes / times["read"].median, "copy": 2 * source.nbytes / times["copy"].median}


def _host_rates(clock: Any) -> dict[str, float]:
    """The same of all threads together."""
    n_threads = threads.count()
    source = np.ones(min(n_threads << 24, 1 << 27))  # 128 MiB a thread, at most 1 GiB: beyond every cache
    target = np.empty_like(source)
    cuts = np.linspace(0, source.size, 8 * n_threads + 1, dtype=int)  # of which every thread takes what it can

    def read(first: int, last: int) -> None:
        for k in range(first, last):
            source[cuts[k] : cuts[k + 1]].max()

    def copy(first: int, last: int) -> None:
        for k in range(first, last):
            np.copyto(target[cuts[k] : cuts[k + 1]], source[cuts[k] : cuts[k + 1]])

    times = clocks.times(clock, {"read": lambda: threads.run(read, cuts), "copy": lambda: threads.run(copy, cuts)}, 7)
    return {"read": source.nbytes / times["read"].low, "copy": 2 * source.nbytes / times["copy"].low}


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Ours and MKL run with `count` threads inside; None changes nothing. (SciPy and pydata/sparse have one.)"""
    if count is None:
        yield
        return
    before = os.environ.get("CVRARRAY_NUM_THREADS")
    _set_threads(str(count))
    try:
        yield
    finally:
        _set_threads(before)


def _set_threads(count: str | None) -> None:
    """Set ``CVRARRAY_NUM_THREADS``, which every product of ours reads, or unset it; MKL gets as many."""
    if count is None:
        os.environ.pop("CVRARRAY_NUM_THREADS", None)
    else:
        os.environ["CVRARRAY_NUM_THREADS"] = count
    if (library := peers.mkl()) is not None:
        library.mkl_set_num_threads(threads.count())


def vector_bits(features: dict[str, bool]) -> int | None:
    """Bits of the widest vector that LLVM's CPU `features` tell of; None where they tell of none."""
    widths = {"avx512f": 512, "avx2": 256, "avx": 256, "sse2": 128, "neon": 128}
    return max((width for name, width in widths.items() if features.get(name)), default=None)


def processor() -> str:
    """The CPU's name."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def version() -> str:
    """Of the package: its number, and the hash of its sources as the GPU test report has it."""
    hashed = runpy.run_path(str(ROOT / "tests" / "gpu_report.py"))["source_hash"]()
    return f"{cvrarray.__version__} of sources {hashed[:12]}"


def versions() -> dict[str, str]:
    """Of the libraries that results depend on."""
    import numba
    import scipy
    import sparse

    libraries = {"numpy": np, "scipy": scipy, "numba": numba, "sparse": sparse}
    if (library := peers.mkl()) is not None:
        libraries["sparse_dot_mkl"] = library
    found = {name: library.__version__ for name, library in libraries.items()}
    if library is not None:
        found["mkl"] = library.get_version_string().partition("Version ")[2].partition(" for ")[0]
    return {
        "cvrarray": version(),
        "python": platform.python_version(),
        **found,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }


def peak_bytes(call: clocks.Call, device: devices.Device) -> int | None:
    """The most bytes that CuPy's memory pool has handed out at once during `call`; None on a CPU, where nobody counts."""
    if device.kind == "cpu":
        return None
    with device.use(), _peak_hook(device.xp) as hook:
        call()
    return hook.peak


def _peak_hook(cupy: Any) -> Any:
    class PeakHook(cupy.cuda.MemoryHook):  # type: ignore[misc]  # CuPy has no types
        name = "cvrarray peak"

        def __init__(self) -> None:
            self.live = self.peak = 0
            self.sizes: dict[int, int] = {}

        def malloc_postprocess(self, **event: Any) -> None:
            self.sizes[event["mem_ptr"]] = event["size"]
            self.live += event["size"]
            self.peak = max(self.peak, self.live)

        def free_postprocess(self, **event: Any) -> None:
            self.live -= self.sizes.pop(event["mem_ptr"], 0)

    return PeakHook()
