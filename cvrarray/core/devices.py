"""Devices: ``"cpu"`` and ``"cuda:N"``, the array module of each, and where an array lives."""

from __future__ import annotations

import importlib
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from . import candidates
from .profile import FITTED, Profile


class Device(NamedTuple):
    """A place for arrays: ``kind`` is ``"cpu"`` or ``"cuda"``, ``index`` the number of the GPU."""

    kind: str
    index: int = 0  # type: ignore[assignment]  # a tuple has a method of this name, which nobody calls

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def xp(self) -> ModuleType:
        """numpy or cupy."""
        return np if self.kind == "cpu" else _cuda_module()

    def backend(self, name: str) -> ModuleType:
        """The device's module for a format: ``cvrarray.cpu.<name>`` or ``cvrarray.gpu.<name>``."""
        return _backend("cpu" if self.kind == "cpu" else "gpu", name)

    def use(self) -> AbstractContextManager[Any]:
        """Context manager that makes this the current device; free if it is the current device already."""
        if self.kind == "cpu" or self.xp.cuda.runtime.getDevice() == self.index:
            return _STAY
        current: AbstractContextManager[Any] = self.xp.cuda.Device(self.index)
        return current

    def is_capturing(self) -> bool:
        """Whether the current stream of a GPU is being captured into a CUDA graph."""
        return self.kind == "cuda" and bool(self.xp.cuda.get_current_stream().is_capturing())

    def lane(self) -> tuple[int, ...]:
        """What tells calls apart that may run beside each other, and so have memory of their own: threads, on a GPU streams."""
        thread = threading.get_ident()
        return (thread,) if self.kind == "cpu" else (thread, self.xp.cuda.get_current_stream().ptr)

    def may_share_memory(self, a: Any, b: Any) -> bool:
        """Whether two arrays there may have bytes in common.

        CuPy's own function says no of any two that came by DLPack or from another library, as these know nothing of one
        another.
        """
        if self.kind == "cpu":
            return a is b or (not (a.base is None and b.base is None) and bool(np.may_share_memory(a, b)))
        if not (a.flags.c_contiguous and b.flags.c_contiguous):
            (a_low, a_high), (b_low, b_high) = self.xp.byte_bounds(a), self.xp.byte_bounds(b)
        else:
            a_low, b_low = a.data.ptr, b.data.ptr
            a_high, b_high = a_low + a.nbytes, b_low + b.nbytes
        return bool(a.size and b.size and a_low < b_high and b_low < a_high)

    def comparing(self) -> AbstractContextManager[Any]:
        """Where a product compares its kernels at its next call, if it ever does: others do after many calls."""
        return candidates.at_once()

    def profile(self) -> Profile:
        """What models of products on a GPU know of it: of the CPU, what the constants were fitted on."""
        if self.kind == "cpu":
            return FITTED
        with self.use():
            found: Profile = self.backend("properties").profile()
            return found

    def aside(self) -> AbstractContextManager[Any]:
        """Where what a product must wait for is prepared, also while a GPU's current stream is captured."""
        return _STAY if self.kind == "cpu" else self.backend("captures").aside()

    def keeping(self, kept: list[Any]) -> AbstractContextManager[Any]:
        """While a GPU's current stream is captured: `kept` gets the memory that work on it is given meanwhile."""
        return self.backend("captures").keeping(kept) if self.is_capturing() else _STAY

    def wait(self) -> None:
        """Wait for what the current stream of a GPU was asked to do, so that any other may use it."""
        if self.kind == "cuda":
            self.xp.cuda.get_current_stream().synchronize()


CPU = Device("cpu")
_STAY = nullcontext()


def parse(device: Any) -> Device:
    """``"cpu"``, ``"cuda"``, ``"cuda:1"``, a :class:`Device` or a ``cupy.cuda.Device`` as a :class:`Device`.

    Raises
    ------
    ValueError
        The name is none of these, or the machine has no such GPU.
    ModuleNotFoundError
        A GPU is asked for and CuPy is not installed.
    """
    if isinstance(device, Device):
        return device
    if device == "cpu":
        return CPU
    kind, colon, index = str(device).partition(":")
    if not isinstance(device, str) and type(device).__name__ == "Device" and hasattr(device, "id"):
        kind, colon, index = "cuda", ":", str(device.id)
    if kind != "cuda" or (colon and not index.isdecimal()):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N'; got {device!r}")
    n_gpus = gpu_count()
    if n_gpus == 0:
        _cuda_module()  # that CuPy is missing is the more useful error
    number = int(index) if index else (_cuda_module().cuda.runtime.getDevice() if n_gpus else 0)
    if number >= n_gpus:
        raise ValueError(f"device must name a GPU of this machine, which has {n_gpus}; got {device!r}. Use device='cpu'")
    return Device("cuda", number)


def default() -> Device:
    """The current GPU if there is one, else the CPU."""
    return parse("cuda") if gpu_count() else CPU


@cache
def gpu_count() -> int:
    """How many GPUs CuPy can use; 0 without CuPy, driver or card."""
    try:
        cupy = _cuda_module()
        return cupy.cuda.runtime.getDeviceCount() if cupy.cuda.is_available() else 0
    except Exception:  # no CuPy, or no driver: naming a GPU raises CuPy's own error
        return 0


def of(array: Any) -> Device:
    """Where a NumPy or CuPy array lives."""
    if type(array) is np.ndarray:  # the frequent case
        return CPU
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return _gpu(array.data.device_id)
    return CPU


@cache
def _gpu(number: int) -> Device:
    return Device("cuda", number)


def check_aligned(array: Any, name: str) -> None:
    """ValueError where the numbers of a CuPy array do not lie at multiples of their size. A GPU loads no others: a kernel that
    tries ends every later call of the process.
    """
    if of(array).kind == "cpu":
        return
    size, apart = array.itemsize, () if array.flags.c_contiguous else zip(array.strides, array.shape, strict=True)
    if array.data.ptr % size or any(n > 1 and stride % size for stride, n in apart):
        raise ValueError(
            f"{name} must lie at multiples of {size} bytes, the size of its numbers, as a GPU loads no others; got address "
            f"{array.data.ptr} and strides {array.strides}. Copy its bytes to an array of their own first"
        )


def move(array: Any, device: Device) -> Any:
    """A NumPy or CuPy array on `device`: itself if it is there already, else a copy."""
    here = of(array)
    if here == device:
        return array
    if device.kind == "cpu":
        return array.get()
    with device.use():
        return device.xp.asarray(array)


@cache  # a second import_module takes a microsecond or two
def _backend(folder: str, name: str) -> ModuleType:
    return importlib.import_module(f"cvrarray.{folder}.{name}")


@cache
def _cuda_module() -> ModuleType:
    try:
        return importlib.import_module("cupy")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "A GPU array needs CuPy, which is not installed: pip install 'cvrarray[cuda13]' (or [cuda12])",
            name="cupy",
        ) from error
