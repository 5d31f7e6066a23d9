"""The operations around products: one of each, on a matrix of every format, beside SciPy's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import cvrarray
from asv_bench.record import ops
from cvrarray.core import devices

from . import common


class Operation:
    """What ``make bench-ops`` compares."""

    params = (("elast3", "rmat"), tuple(ops.OPERATIONS), ("ours", "scipy"))
    param_names = ("matrix", "operation", "by")
    timeout = 600

    def setup(self, matrix: str, operation: str, by: str) -> None:
        """Build; the first two calls compile and prepare."""
        csr = common.matrix(matrix, "float64", devices.CPU)
        (m, n), k = csr.shape, ops.COLUMNS
        self.folder = tempfile.TemporaryDirectory()
        vectors = [np.ones(shape) for shape in ((n,), (m,), (n, k), (m, k))]
        case = ops.Case(csr, cvrarray.asarray(csr, device="cpu"), *vectors, Path(self.folder.name))
        ours, peer = ops.OPERATIONS[operation](case)
        self.call = ours if by == "ours" else peer
        self.call()
        self.call()

    def teardown(self, matrix: str, operation: str, by: str) -> None:
        """Remove the files."""
        self.folder.cleanup()

    def time_call(self, matrix: str, operation: str, by: str) -> None:
        """Wall-clock time."""
        self.call()
