"""What ``bench`` and ``demo`` measure with: clocks and streaming rates of a device, and the answer's check.

A meter is a device's clock: :class:`HostMeter` or :class:`GPUMeter`, with the same methods. Everything that is compared
is called in turn within one run, repeat by repeat, so that a noisy moment hits all alike; medians are reported.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from ..core import devices
from ..cpu.runtime import threads

Call = Callable[[], Any]

#: What a call's samples are taken in, by the call's name.
Setting = Callable[[Any], AbstractContextManager]

#: Seconds of a sample on the host: short calls are repeated until they fill it. Longer than MKL's threads keep spinning
#: for more work after a product, which is set to 1 ms: an untimed sample before each timed one outlasts them.
SAMPLE_SECONDS = 2e-3
CONVERSION_SECONDS = 0.05  # that conversions are repeated for, at least: five of 0.1 ms would be over in one interruption

#: Rounding errors allowed a row, in units of n * eps * sum |a_ij x_j| over its n nonzeros: 2 n + 13 unit roundoffs
#: cover any order of the sum, complex products, and what the double precision reference itself rounds.
ALLOWED = 8


class Timing(NamedTuple):
    """Seconds a call: of the device, over all repeats; and of the host, until the call has returned."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    host: float


class Conversion(NamedTuple):
    """What a conversion took: seconds until it was done (median), and the most bytes it held beyond its input."""

    seconds: float
    peak_bytes: int | None  # its result included; None where nobody counts
    products: float | None = None  # as long as so many products take that were timed in turn with it


def worst_error(csr: Any, x: np.ndarray, y: np.ndarray) -> float:
    """The largest error of a row of ``y = csr @ x``, over what rounding may cause there: right up to 1, else up to inf.

    A row that inf or nan reaches must have what the double precision reference has there, inf of its sign or nan (of
    complex numbers something that is not finite: which, depends on how one writes their product). A row of numbers so
    large that their sum may overflow is not compared.

    Parameters
    ----------
    csr : (n_rows, n_cols) scipy CSR
    x : (n_cols,)
    y : (n_rows,) in the dtype that was computed in
    """
    wide = np.complex128 if y.dtype.kind == "c" else np.float64
    matrix = csr.astype(wide)
    per_row = np.diff(csr.indptr)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = matrix @ x.astype(wide)
        size = abs(matrix) @ np.abs(x).astype(np.float64)
        error = np.abs(y - expected)
        bound = ALLOWED * np.maximum(per_row, 1) * np.finfo(y.dtype).eps * size
        ratio = np.divide(error, bound, out=np.where(error == 0, 0.0, np.inf), where=bound > 0)
        ratio = np.nan_to_num(ratio, nan=np.inf, posinf=np.inf)
    if not (size <= np.finfo(y.dtype).max).all():
        special = ~(np.isfinite(csr.data) & np.isfinite(x)[csr.indices])
        reached = np.bincount(np.repeat(np.arange(y.size), per_row)[special], minlength=y.size) > 0
        same = ~np.isfinite(y) if y.dtype.kind == "c" else (y == expected) | (np.isnan(y) & np.isnan(expected))
        ratio = np.where(reached, np.where(same, 0.0, np.inf), np.where(size <= np.finfo(y.dtype).max, ratio, 0.0))
    return float(ratio.max(initial=0.0))


def floor_bytes(csr: Any, itemsize: int) -> int:
    """Bytes that a CSR product of values of `itemsize` has to move when it reads `x` once, with 32-bit indices."""
    n_rows, n_cols = csr.shape
    return csr.nnz * (itemsize + 4) + 4 * (n_rows + 1) + itemsize * (n_rows + n_cols)


def meter(device: devices.Device) -> HostMeter | GPUMeter:
    """The clock of `device`."""
    return HostMeter() if device.kind == "cpu" else GPUMeter(device)


class HostMeter:
    """Wall-clock time, on all threads that the package uses."""

    def describe(self) -> dict[str, Any]:
        """What is measured on."""
        from llvmlite import binding

        return {
            "device": "cpu",
            "name": processor(),
            "threads": threads.count(),
            "cpus": os.cpu_count(),
            "microarchitecture": binding.get_host_cpu_name(),
            "vector_bits": vector_bits(binding.get_host_cpu_features()),
        }

    def rates(self) -> dict[str, float]:
        """Bytes a second that all threads together read, and copy (bytes read and written)."""
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

        times = self.times({"read": lambda: threads.run(read, cuts), "copy": lambda: threads.run(copy, cuts)}, 7)
        return {"read": source.nbytes / times["read"].low, "copy": 2 * source.nbytes / times["copy"].low}

    def times(self, calls: dict[Any, Call], repeats: int, setting: Setting = lambda name: nullcontext()) -> dict[Any, Timing]:
        """Time each of `calls`, in turn, `repeats` times, within its ``setting(name)``.

        A sample follows an untimed one of the same kind: caches are as in a sequence of products, and the threads of
        the call before have gone to sleep.
        """
        number = {}
        for name, call in calls.items():
            with setting(name):
                number[name] = self._calls_a_sample(call)
        samples: dict[Any, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                with setting(name):
                    samples[name].append(self._sample(call, number[name]))
        return {name: _timing(values, host=statistics.median(values)) for name, values in samples.items()}

    def once(self, call: Call) -> float:
        """Seconds of one call."""
        return _seconds(call)

    def conversion(self, convert: Call, repeats: int, product: Call) -> Conversion:
        """Time `convert` that often, and for CONVERSION_SECONDS, after one run that compiles, in turn with `product`."""
        convert()
        number = self._calls_a_sample(product)
        samples, products = [], []
        for _ in range(repeats):
            turn: list[float] = []
            end = time.perf_counter() + CONVERSION_SECONDS / repeats
            while not turn or time.perf_counter() < end:
                turn.append(_seconds(convert))
            samples += turn
            products.append(statistics.median(turn) / self._sample(product, number))
        return Conversion(statistics.median(samples), None, statistics.median(products))

    @staticmethod
    def _calls_a_sample(call: Call) -> int:
        """How many calls fill SAMPLE_SECONDS; after one that compiles."""
        call()
        return max(1, int(SAMPLE_SECONDS / max(_seconds(call), 1e-7)))

    @staticmethod
    def _sample(call: Call, number: int) -> float:
        """Seconds of a call: the mean of `number` of them, after as many."""
        for _ in range(number):
            call()
        start = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - start) / number


class GPUMeter:
    """CUDA events around a call, on the current stream, while the host is far ahead of the GPU.

    The GPU is given something to write before every sample, for longer than the host takes to queue the sample: so
    neither allocation nor launch shows in the device's time, of ours or of a peer's. What the host takes is measured
    apart. The call that is timed follows another of its kind, so the L2 cache is as in a sequence of products; a cold
    one follows what was written before it, which is larger than that cache.
    """

    def __init__(self, device: devices.Device):
        self.device = device
        self.cupy = device.xp

    def describe(self) -> dict[str, Any]:
        """What is measured on."""
        runtime = self.cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.device.index)
        return {
            "device": str(self.device),
            "name": properties["name"].decode(),
            "compute_capability": f"{properties['major']}.{properties['minor']}",
            "multiprocessors": properties["multiProcessorCount"],
            "memory_bytes": properties["totalGlobalMem"],
            "l2_bytes": properties["l2CacheSize"],
            "driver": runtime.driverGetVersion(),
            "cuda": runtime.runtimeGetVersion(),
            "cupy": self.cupy.__version__,
        }

    def rates(self) -> dict[str, float]:
        """Bytes a second that a large reduction reads, and a large copy moves (bytes read and written)."""
        with self.device.use():
            count = min(1 << 28, self.cupy.cuda.runtime.memGetInfo()[0] // 32)  # at most 2 GiB, twice
            source = self.cupy.ones(count)
            target = self.cupy.empty_like(source)
            calls = {"read": source.sum, "copy": lambda: self.cupy.copyto(target, source)}
            times = self.times(calls, 15)
        return {"read": source.nbytes / times["read"].median, "copy": 2 * source.nbytes / times["copy"].median}

    def times(
        self,
        calls: dict[Any, Call],
        repeats: int,
        setting: Setting = lambda name: nullcontext(),
        cold: bool = False,
    ) -> dict[Any, Timing]:
        """Time each of `calls`, in turn, `repeats` times, within its ``setting(name)``."""
        with self.device.use():
            for call in calls.values():
                call()
            host = {name: statistics.median(self._host(call) for _ in range(7)) for name, call in calls.items()}
            n_fills = 1 + int(4 * max(host.values()) / self._fill_seconds)
            samples: dict[Any, list[float]] = {name: [] for name in calls}
            for _ in range(repeats):
                for name, call in calls.items():
                    with setting(name):
                        for _ in range(n_fills):
                            self._ballast.fill(0)
                        if not cold:
                            call()
                        samples[name].append(self._events(call))
            return {name: _timing(values, host[name]) for name, values in samples.items()}

    def once(self, call: Call) -> float:
        """The device's seconds of one call."""
        with self.device.use():
            return self._events(call)

    def conversion(self, convert: Call, repeats: int, product: Call | None = None) -> Conversion:
        """Time `convert` until the GPU is done, after one run that compiles; count what CuPy's pool hands out.

        No `product` is timed beside it: a GPU's speed does not change with what others do.
        """
        with self.device.use():
            convert()
            seconds = statistics.median(self._finished(convert) for _ in range(repeats))
            with _peak_hook(self.cupy) as hook:
                convert()
            return Conversion(seconds, hook.peak)

    @cached_property
    def _ballast(self) -> Any:
        """Something to write that takes the GPU a while, larger than its L2 cache."""
        return self.cupy.empty(1 << 28, self.cupy.uint8)

    @cached_property
    def _fill_seconds(self) -> float:
        self._ballast.fill(0)
        return statistics.median(self._events(lambda: self._ballast.fill(0)) for _ in range(5))

    def _events(self, call: Call) -> float:
        start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return self.cupy.cuda.get_elapsed_time(start, stop) * 1e-3

    def _finished(self, call: Call) -> float:
        self.cupy.cuda.get_current_stream().synchronize()
        start = time.perf_counter()
        call()
        self.cupy.cuda.get_current_stream().synchronize()
        return time.perf_counter() - start

    def _host(self, call: Call, number: int = 10) -> float:
        """Seconds until `call` returns, the GPU's queue being empty at first and never full."""
        self.cupy.cuda.get_current_stream().synchronize()
        start = time.perf_counter()
        for _ in range(number):
            call()
        seconds = (time.perf_counter() - start) / number
        self.cupy.cuda.get_current_stream().synchronize()
        return seconds


class OtherLoad:
    """How many CPUs other processes have kept busy since this object was made."""

    def __init__(self) -> None:
        self.start = self._clocks()

    def cpus(self) -> float | None:
        """CPUs, on average; None where the system does not tell."""
        now = self._clocks()
        if self.start is None or now is None:
            return None
        busy, own, wall = (late - early for late, early in zip(now, self.start, strict=True))
        return max(0.0, busy - own) / wall

    @staticmethod
    def _clocks() -> tuple[float, float, float] | None:
        """Seconds: of all CPUs at work, for this process, and on the wall."""
        try:
            with open("/proc/stat") as file:
                user, nice, system, _, _, *rest = map(int, file.readline().split()[1:9])  # left out: idle, waiting
        except OSError:
            return None
        return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK"), time.process_time(), time.monotonic()


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
    if (library := mkl()) is not None:
        library.mkl_set_num_threads(threads.count())


@cache
def mkl() -> Any | None:
    """The module ``sparse_dot_mkl``, with MKL loaded; None where one of them is missing.

    MKL's wheel lies where the loader does not look, so its place is told. Its OpenMP threads spin for 200 ms after a
    product, on the cores that the next contender is timed on: 1 ms is enough to keep them awake within a sample.
    """
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    try:
        files = importlib.metadata.files("mkl") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name.startswith(("libmkl_rt", "mkl_rt")):
            os.environ.setdefault("MKL_RT", str(file.locate()))
    try:
        import sparse_dot_mkl
    except ImportError:
        return None
    return sparse_dot_mkl


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


def versions() -> dict[str, str]:
    """Of the libraries that results depend on."""
    import numba
    import scipy
    import sparse

    from .. import __version__

    libraries = {"numpy": np, "scipy": scipy, "numba": numba, "sparse": sparse}
    if (library := mkl()) is not None:
        libraries["sparse_dot_mkl"] = library
    found = {name: library.__version__ for name, library in libraries.items()}
    if library is not None:
        found["mkl"] = library.get_version_string().partition("Version ")[2].partition(" for ")[0]
    return {
        "cvrarray": __version__,
        "python": platform.python_version(),
        **found,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _timing(samples: list[float], host: float) -> Timing:
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
    return Timing(median, low, high, host)


def _peak_hook(cupy: Any) -> Any:
    """A hook that counts the bytes which CuPy's memory pool has handed out since, and the most there were at once."""

    class PeakHook(cupy.cuda.MemoryHook):
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
