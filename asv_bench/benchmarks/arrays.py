"""Making arrays: conversion (time, peak memory), new values in an old structure, the import."""

from __future__ import annotations

import cvrarray
from asv_bench.record import machine
from cvrarray.core import clocks

from . import common


class Conversion:
    """From a CSR on the CPU to a format; and back."""

    params = (common.MATRICES, common.DTYPES, common.FORMATS)
    param_names = ("matrix", "dtype", "by")
    timeout = 600

    def setup(self, matrix: str, dtype: str, by: str) -> None:
        """Build; the first conversion compiles."""
        self.parameters = common.parameters(matrix, by)
        self.csr = common.matrix(matrix, dtype, common.device("cpu"))
        self.array = self.convert(by)
        self.array.to_scipy()

    def convert(self, by: str) -> cvrarray.CVRArray | cvrarray.BBCSRArray:
        """The conversion."""
        return cvrarray.asarray(self.csr, format=by, device="cpu", **self.parameters)

    def time_to_format(self, matrix: str, dtype: str, by: str) -> None:
        """CSR to the format."""
        self.convert(by)

    def time_to_csr(self, matrix: str, dtype: str, by: str) -> None:
        """The format to CSR."""
        self.array.to_scipy()

    def peakmem_to_format(self, matrix: str, dtype: str, by: str) -> None:
        """The process's most memory, CSR and one finished array included."""
        self.convert(by)

    def track_bytes_over_csr(self, matrix: str, dtype: str, by: str) -> float:
        """Bytes of the tables over those of the CSR: the memory that a product reads."""
        return self.array.nbytes / (self.csr.data.nbytes + self.csr.indices.nbytes + self.csr.indptr.nbytes)


class ConversionOnGPU:
    """From a CuPy CSR to a format, on the device."""

    params = (common.MATRICES, common.DTYPES, common.FORMATS)
    param_names = ("matrix", "dtype", "by")
    timeout = 600

    def setup(self, matrix: str, dtype: str, by: str) -> None:
        """Build, and measure: time, then peak memory."""
        parameters, where = common.parameters(matrix, by), common.device("cuda")
        csr = common.matrix(matrix, dtype, where)

        def convert() -> object:
            return cvrarray.asarray(csr, format=by, device=str(where), **parameters)

        self.taken = clocks.of(where).conversion(convert, 5)
        self.peak = machine.peak_bytes(convert, where)

    def track_seconds(self, matrix: str, dtype: str, by: str) -> float:
        """Until the GPU is done: median of 5."""
        return self.taken.seconds

    def track_peak_bytes(self, matrix: str, dtype: str, by: str) -> int | None:
        """The most that CuPy's pool gave out at once, the result included and the CSR not."""
        return self.peak

    track_seconds.unit = "seconds"  # type: ignore[attr-defined]
    track_peak_bytes.unit = "bytes"  # type: ignore[attr-defined]


class WithValues:
    """New values in an old structure, as a time step or a Newton iteration needs."""

    params = (common.MATRICES, common.DTYPES, common.FORMATS)
    param_names = ("matrix", "dtype", "by")
    timeout = 600

    def setup(self, matrix: str, dtype: str, by: str) -> None:
        """Build; the first call finds out where values go."""
        csr = common.matrix(matrix, dtype, common.device("cpu"))
        self.array = common.operand(csr, matrix, by, common.device("cpu"))
        self.values = csr.data[::-1].copy()
        self.array.with_values(self.values)

    def time_with_values(self, matrix: str, dtype: str, by: str) -> None:
        """The second call and all after it."""
        self.array.with_values(self.values)


class Import:
    """``import cvrarray`` in a new interpreter; and what a first product needs on top."""

    def timeraw_import(self) -> str:
        """NumPy, and little more."""
        return "import cvrarray"

    def timeraw_import_and_product(self) -> str:
        """With Numba and SciPy, from compiled kernels in the cache."""
        return "import cvrarray, numpy as np; cvrarray.CVRArray(np.eye(3), device='cpu') @ np.ones(3)"
