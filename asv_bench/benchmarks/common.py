"""What all benchmarks share: parameters, matrices, operands, and the peers' ways to compute the same thing."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import cvrarray
from asv_bench.record import gpu_peers
from cvrarray import generate
from cvrarray.cli import peers
from cvrarray.core import devices

SCALE = os.environ.get("CVRARRAY_BENCH_SCALE", "medium")

MATRICES = tuple(generate.MATRICES)
DTYPES = ("float32", "float64")
FORMATS = ("cvr", "bbcsr")
CPU = (*FORMATS, "scipy", "mkl", "sparse")
CUSPARSE = {"cusparse csr": "csr alg1", "cusparse sell": "sell"}  #: as the benchmark beside peers calls them
GPU = (*FORMATS, "cupyx", *CUSPARSE)

#: BBCSR's block size where the matrix has one; 1 elsewhere.
BLOCK_SIZES = {"elast3": 3, "shell6": 6, "elasticity": 3}

#: Rows of random columns, a power law among them: BBCSR would store many times what CSR does.
NOT_FOR_BBCSR = ("rmat", "rmat_unshuffled")


def device(name: str) -> devices.Device:
    """The device; NotImplementedError, which asv takes for "not here", where there is none."""
    if name != "cpu" and not devices.gpu_count():
        raise NotImplementedError("no GPU")
    return devices.parse(name)


def matrix(name: str, dtype: str, where: devices.Device) -> Any:
    """The matrix called `name` as a SciPy or CuPy CSR."""
    try:
        with where.use():
            return generate.build(name, scale=SCALE, dtype=dtype, xp=where.xp)
    except ModuleNotFoundError as error:  # scikit-fem
        raise NotImplementedError(str(error)) from error


def parameters(name: str, by: str) -> dict[str, Any]:
    """Keywords of the format `by` for the matrix `name`; NotImplementedError where it is no use."""
    if by == "bbcsr" and name in NOT_FOR_BBCSR:
        raise NotImplementedError("would be many times larger than CSR")
    return {"block_size": BLOCK_SIZES.get(name, 1)} if by == "bbcsr" else {}


def operand(csr: Any, name: str, by: str, where: devices.Device) -> Any:
    """The matrix as `by` multiplies it; ``@`` and ``.T`` mean what they mean for arrays."""
    if by in FORMATS:
        return cvrarray.asarray(csr, format=by, device=str(where), **parameters(name, by))
    if by == "sparse":
        import sparse

        return sparse.GCXS.from_scipy_sparse(csr)
    if by == "mkl":
        return MKL(csr)
    if by in CUSPARSE:
        return CuSPARSE(csr, CUSPARSE[by])
    return csr


class MKL:
    """A SciPy CSR that MKL multiplies, on as many threads as ours."""

    def __init__(self, csr: Any):
        self.library = peers.mkl()
        if self.library is None:
            raise NotImplementedError("sparse_dot_mkl is not installed, or finds no MKL")
        self.csr, self.shape = csr, csr.shape

    @property
    def T(self) -> MKL:
        """MKL has no transposed view of a CSR: what it multiplies then is a CSC."""
        return MKL(self.csr.T)

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        return self.library.dot_product_mkl(self.csr, x)


class CuSPARSE:
    """A CuPy CSR that cuSPARSE multiplies in one of its formats; what it prepares for `x` is done in the first call."""

    def __init__(self, csr: Any, name: str):
        self.csr, self.name, self.shape = csr, name, csr.shape
        self.prepared: tuple[Any, gpu_peers.Run] | None = None

    @property
    def T(self) -> CuSPARSE:
        """Not for cuSPARSE here."""
        raise NotImplementedError("peers of cuSPARSE are prepared for A @ x alone")

    def __matmul__(self, x: Any) -> Any:
        if x.ndim != 1:
            raise NotImplementedError("peers of cuSPARSE are prepared for A @ x alone")
        if self.prepared is None or self.prepared[0] is not x:
            y = type(x)(self.shape[:1], x.dtype)
            try:
                self.prepared = x, gpu_peers.prepare(self.name, self.csr, x, y)
            except gpu_peers.LeftOut as error:
                raise NotImplementedError(str(error)) from error
        return self.prepared[1]()


def dense(shape: tuple[int, ...], dtype: str, where: devices.Device) -> Any:
    """Numbers in [0.5, 1.5) on the device."""
    with where.use():
        return where.xp.asarray((np.random.default_rng(0).random(shape) + 0.5).astype(dtype))
