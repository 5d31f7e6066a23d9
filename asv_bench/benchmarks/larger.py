"""Beyond one array: what Dask costs a chunk, and how fast a matrix streams from the disk."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import cvrarray
from cvrarray import generate

from . import common


class DaskOverhead:
    """``A @ x`` over chunks with nothing to compute in them: what Dask adds to each."""

    params = (16, 128)
    param_names = ("chunks",)

    def setup(self, chunks: int) -> None:
        """One bin a chunk."""
        try:
            import dask
            import dask.array as da
        except ModuleNotFoundError as error:
            raise NotImplementedError(str(error)) from error
        n = 32 * chunks
        matrix = cvrarray.generate.uniform(n, 2)
        self.config = dask.config.set(scheduler="synchronous")
        self.A = cvrarray.to_dask(matrix, chunks=32, format="cvr", device="cpu")
        if self.A.numblocks[0] != chunks:
            raise RuntimeError(f"{chunks} chunks are asked for; there are {self.A.numblocks[0]}")
        self.x = da.ones(n, chunks=n)
        self.array, self.vector = cvrarray.CVRArray(matrix), np.ones(n)

    def teardown(self, chunks: int) -> None:
        """Dask's scheduler is what it was."""
        self.config.__exit__(None, None, None)

    def track_seconds_per_chunk(self, chunks: int) -> float:
        """Median of 5, less the product without Dask."""
        with_dask = np.median([_seconds(lambda: (self.A @ self.x).compute()) for _ in range(5)])
        alone = np.median([_seconds(lambda: self.array @ self.vector) for _ in range(5)])
        return float(with_dask - alone) / chunks

    track_seconds_per_chunk.unit = "seconds"  # type: ignore[attr-defined]


class Streaming:
    """``A @ x`` of a store on the disk, none of it kept: bytes of the store a second. The page cache helps."""

    params = (("stencil27", "rmat"), ("cpu", "cuda"))
    param_names = ("matrix", "device")
    timeout = 600

    def setup(self, matrix: str, device: str) -> None:
        """Write the store; the first product compiles."""
        where = common.device(device)
        self.folder = Path(tempfile.mkdtemp())
        with where.use():
            csr = generate.build(matrix, scale=common.SCALE, dtype="float32")
            cvrarray.to_store(csr, self.folder / "a.store", chunks="16 MiB", device=str(where))
            self.A = cvrarray.Stored(self.folder / "a.store", device=str(where), budget=0)
            self.x = where.xp.ones(csr.shape[1], where.xp.float32)
            self.where = where
            self.multiply()

    def teardown(self, matrix: str, device: str) -> None:
        """The store goes."""
        if hasattr(self, "A"):
            self.A.close()
            shutil.rmtree(self.folder)

    def multiply(self) -> None:
        """One product, until the device is done."""
        with self.where.use():
            self.A @ self.x
            if self.where.kind == "cuda":
                self.where.xp.cuda.get_current_stream().synchronize()

    def track_bytes_per_second(self, matrix: str, device: str) -> float:
        """Median of 5."""
        return float(self.A.nbytes / np.median([_seconds(self.multiply) for _ in range(5)]))

    track_bytes_per_second.unit = "bytes a second"  # type: ignore[attr-defined]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
