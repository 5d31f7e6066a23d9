"""Making arrays: conversion (time, peak memory), new values in an old structure, assembly, the import."""

from __future__ import annotations

import statistics

import numpy as np

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

        convert()
        self.seconds = statistics.median(clocks.until_done(convert, where) for _ in range(5))
        self.peak = machine.peak_bytes(convert, where)

    def track_seconds(self, matrix: str, dtype: str, by: str) -> float:
        """Until the GPU is done: median of 5."""
        return self.seconds

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
    device = "cpu"

    def setup(self, matrix: str, dtype: str, by: str) -> None:
        """Build; the first calls find out where values go."""
        self.where = common.device(self.device)
        with self.where.use():
            csr = common.matrix(matrix, dtype, self.where)
            self.array = common.operand(csr, matrix, by, self.where)
            self.values, self.csc = csr.data[::-1].copy(), csr.tocsc()
            self.made = self.array.with_values(self.values)
            self.array.with_values(self.csc, out=self.made)

    def time_with_values(self, matrix: str, dtype: str, by: str) -> None:
        """The second call and all after it: a new array."""
        self.array.with_values(self.values)

    def time_in_place(self, matrix: str, dtype: str, by: str) -> None:
        """Into an array that is there."""
        self.array.with_values(self.values, out=self.made)

    def time_csc_in_place(self, matrix: str, dtype: str, by: str) -> None:
        """From a CSC, whose structure is compared by its contents."""
        self.array.with_values(self.csc, out=self.made)


class WithValuesOnGPU(WithValues):
    """The same on the GPU, by its own time."""

    device = "cuda"
    time_with_values = time_csc_in_place = None  # type: ignore[assignment]

    def time_in_place(self, matrix: str, dtype: str, by: str) -> None:
        """Until the GPU is done."""
        self.array.with_values(self.values, out=self.made)
        self.where.xp.cuda.get_current_stream().synchronize()


class Assemble:
    """Contributions of brick elements, 8 nodes each with `size` unknowns: an array of them, in place."""

    params = (("cpu", "cuda"), (1, 3, 6), common.DTYPES)
    param_names = ("device", "size", "dtype")
    timeout = 600

    def setup(self, device: str, size: int, dtype: str) -> None:
        """Sort and merge; the first call makes the structure."""
        where = common.device(device)
        n = 48 if size == 1 else 20
        node = np.arange((n + 1) ** 3).reshape(n + 1, n + 1, n + 1)
        corners = [node[z : n + z, y : n + y, x : n + x] for z in (0, 1) for y in (0, 1) for x in (0, 1)]
        of_element = np.stack(corners, axis=-1).reshape(-1, 8)
        rows, cols = np.repeat(of_element, 8, axis=1).ravel(), np.tile(of_element, (1, 8)).ravel()
        self.coordinates, self.size, self.where = (rows, cols), size, where
        self.values = common.dense((rows.size, size, size) if size > 1 else (rows.size,), dtype, where)
        self.plan = self.make()
        self.array = self.plan(self.values)

    def make(self) -> cvrarray.Assembly:
        """The plan."""
        return cvrarray.Assembly(*self.coordinates, block_size=self.size, device=self.where)

    def time_plan(self, device: str, size: int, dtype: str) -> None:
        """Sorting and merging."""
        self.make()

    def time_in_place(self, device: str, size: int, dtype: str) -> None:
        """Summing values into an array that is there."""
        self.plan(self.values, out=self.array)
        if device != "cpu":
            self.where.xp.cuda.get_current_stream().synchronize()


class Import:
    """``import cvrarray`` in a new interpreter; and what a first product needs on top."""

    def timeraw_import(self) -> str:
        """NumPy, and little more."""
        return "import cvrarray"

    def timeraw_import_and_product(self) -> str:
        """With Numba and SciPy, from compiled kernels in the cache."""
        return "import cvrarray, numpy as np; cvrarray.CVRArray(np.eye(3), device='cpu') @ np.ones(3)"
