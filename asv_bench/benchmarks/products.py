"""``A @ x``, ``A @ X`` and ``A.T @ x``; the host's share of a call is that of a tiny matrix."""

from __future__ import annotations

from typing import Any

from asv_bench.record.clocks import host_seconds
from cvrarray import generate
from cvrarray.core import clocks

from . import common


class _Operation:
    """``self.call()`` is the operation; subclasses say what it is, and on which device."""

    device = "cpu"
    params: tuple = (common.MATRICES, common.DTYPES, common.CPU)
    param_names = ("matrix", "dtype", "by")
    timeout = 600

    def setup(self, matrix: str, dtype: str, by: str, *rest: Any) -> None:
        """Build; the first call compiles."""
        where = common.device(self.device)
        csr = common.matrix(matrix, dtype, where)
        self.where = where
        self.call = self.prepare(common.operand(csr, matrix, by, where), dtype, *rest)
        self.call()

    def prepare(self, A: Any, dtype: str) -> Any:
        """The operation on `A` as a function without arguments."""
        raise NotImplementedError


class _OnCPU(_Operation):
    def time_call(self, *params: Any) -> None:
        """Wall-clock time."""
        self.call()


class _OnGPU(_Operation):
    device = "cuda"
    params = (common.MATRICES, common.DTYPES, common.GPU)

    def track_device_seconds(self, *params: Any) -> float:
        """The GPU's own time, by CUDA events: median of 21."""
        return clocks.times(clocks.of(self.where), {"call": self.call}, 21)["call"].median

    track_device_seconds.unit = "seconds"  # type: ignore[attr-defined]


class _Vector:
    def prepare(self, A: Any, dtype: str) -> Any:
        """``A @ x``."""
        x = common.dense(A.shape[1:], dtype, self.where)
        return lambda: A @ x


class _Columns:
    def prepare(self, A: Any, dtype: str, columns: int) -> Any:
        """``A @ X``."""
        x = common.dense((A.shape[1], columns), dtype, self.where)
        return lambda: A @ x


class _Transposed:
    def prepare(self, A: Any, dtype: str) -> Any:
        """``A.T @ x``: without a conversion, as a solver would ask for it."""
        x = common.dense(A.shape[:1], dtype, self.where)
        return lambda: A.T @ x


class Product(_Vector, _OnCPU):
    """``A @ x`` on the CPU."""


class ProductOnGPU(_Vector, _OnGPU):
    """``A @ x`` on the GPU."""


class ProductMatrix(_Columns, _OnCPU):
    """``A @ X`` on the CPU, X of 4 and of 32 columns."""

    params = (*_OnCPU.params, (4, 32))
    param_names = (*_OnCPU.param_names, "columns")


class ProductMatrixOnGPU(_Columns, _OnGPU):
    """``A @ X`` on the GPU."""

    params = (*_OnGPU.params, (4, 32))
    param_names = (*_OnGPU.param_names, "columns")


class ProductTransposed(_Transposed, _OnCPU):
    """``A.T @ x`` on the CPU."""


class ProductTransposedOnGPU(_Transposed, _OnGPU):
    """``A.T @ x`` on the GPU."""


class HostTime:
    """What one call of ``A @ x`` costs the host: a matrix of 64 rows, so that there is nothing to compute."""

    params = (("cpu", "cuda"), (*common.FORMATS, "scipy", "mkl", "sparse", "cupyx"))
    param_names = ("device", "by")

    def setup(self, device: str, by: str) -> None:
        """Build; the first call compiles."""
        if (by == "cupyx") != (device == "cuda") and by not in common.FORMATS:
            raise NotImplementedError("lives on the other device")
        where = common.device(device)
        with where.use():
            csr = generate.poisson7(4, xp=where.xp)
        A, x = common.operand(csr, "poisson7", by, where), common.dense((64,), "float64", where)
        self.call = lambda: A @ x
        self.call()
        self.where = where

    def track_host_seconds(self, device: str, by: str) -> float:
        """Until the call returns; the GPU may still be at work."""
        return host_seconds({"call": self.call}, self.where)["call"]

    track_host_seconds.unit = "seconds"  # type: ignore[attr-defined]
