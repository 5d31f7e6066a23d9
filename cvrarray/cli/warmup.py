"""Compile ahead what first calls would compile, into the cache on disk: a step of a container's build.

Small matrices of several kinds are converted to every format, and multiplied, in every dtype. What is in the cache
already is loaded, not compiled. A GPU's kernels also depend on how large a matrix is: those for the sizes tried are
compiled.

The cache belongs to this environment and this version of cvrarray, Numba or CuPy, to this processor and this kind of
GPU: run it where, and as whom, the program will run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from .. import files, formats, linalg
from ..choice import construct, model
from ..core import devices
from ..core.tables import NARROW
from ..input import coercion
from .table import render

#: Products that may be compiled ahead. Dense matrices take a kernel for each number of columns that is summed at once.
PRODUCTS = ("vector", "transposed", "matrix")
COLUMNS = (1, 2, 3, 4, 8, 16, 32, 64)

#: Kinds of values that kernels are compiled for. From so many bytes on, few values are stored as such on every device.
VALUES = ("plain", "one", "few")
LARGE = 1 << 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray warmup``."""
    known = list(formats.FORMATS)
    parser.add_argument("--formats", nargs="+", default=known, choices=known, help=f"default: {' '.join(known)}")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"], help="default: float32 float64")
    parser.add_argument(
        "--products", nargs="+", default=["vector"], choices=PRODUCTS, help="A @ x, A.T @ x, A @ X; default: vector"
    )
    parser.add_argument(
        "--values", nargs="+", default=["plain"], choices=VALUES, help="as they are, all equal, at most 256; default: plain"
    )
    parser.add_argument(
        "--multigrid", action="store_true", help="its setup and cycle in float32 and float64 too, for nodes of one unknown"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one")


def run(args: argparse.Namespace) -> int:
    """Compile, and say what took how long."""
    device = devices.default() if args.device is None else devices.parse(args.device)
    dtypes = [_dtype(name) for name in args.dtypes]
    begin = time.perf_counter()
    rows: list[list[Any]] = [["the choice of a format", "", _seconds(lambda: choose(device))], ["files", "", _seconds(read)]]
    for format in args.formats:
        for dtype in dtypes:
            for values in args.values:
                about = str(dtype) if values == "plain" else f"{dtype}, {values}"
                convert, *products = warm(format, dtype, args.products, device, values)
                rows.append([format, f"{about}, conversion", convert])
                rows += [["", f"{about}, {name}", took] for name, took in zip(args.products, products, strict=True)]
    for dtype in [dtype for dtype in dtypes if args.multigrid and dtype in (np.float32, np.float64)]:
        rows.append(["multigrid", str(dtype), _seconds(partial(cycle, dtype, device))])
    print(render(["compiled on " + str(device), "", "s"], [[format, what, f"{took:.1f}"] for format, what, took in rows]))
    print(f"\n{time.perf_counter() - begin:.1f} s in all. {kept(device)}")
    return 0


def matrices(device: devices.Device) -> Iterator[scipy.sparse.csr_array]:
    """Small matrices that between them take every path: near and far columns, blocks with and without holes, rows in
    threes, a row that chunks cut, offsets of 32 and 64 bits; on a GPU also one of many rows, and one whose tables L2 does not
    keep.
    """
    yield _diagonals(300, 3)
    yield _with_offsets(scipy.sparse.csr_array(scipy.sparse.kron(_diagonals(100, 3), np.ones((3, 3)))), np.int64)
    row = np.concatenate([np.repeat(np.arange(300), 6), np.zeros(5000, int)])
    col = np.arange(row.size) * 7919 % (4 * NARROW)
    yield scipy.sparse.csr_array((np.ones(row.size), (row, col)), shape=(300, 4 * NARROW))
    if device.kind == "cuda":
        yield _diagonals(1 << 18, 7)
        yield _diagonals(1 << 20, 7)


def _diagonals(n_rows: int, count: int) -> scipy.sparse.csr_array:
    matrix = scipy.sparse.diags_array([1.0] * count, offsets=list(range(count)), shape=(n_rows, n_rows))
    return _with_offsets(scipy.sparse.csr_array(matrix), np.int32)


def _with_offsets(csr: scipy.sparse.csr_array, dtype: Any) -> scipy.sparse.csr_array:
    csr.indptr = csr.indptr.astype(dtype)
    return csr


def choose(device: devices.Device) -> None:
    """Let ``asarray`` choose for each matrix, without converting it."""
    for csr in matrices(device):
        model.choose(model.statistics(construct.placed(csr, device), exact=False), device.kind)


def read() -> None:
    """Read a Matrix Market file, and the arrays of an archive, which are looked at on the CPU in any case."""
    matrix = next(matrices(devices.CPU))
    with tempfile.TemporaryDirectory() as folder:
        scipy.io.mmwrite(f"{folder}/m.mtx", matrix)
        scipy.sparse.save_npz(f"{folder}/m.npz", matrix, compressed=False)
        for name in ("m.mtx", "m.npz"):
            files.read_csr(f"{folder}/{name}")


def valued(csr: scipy.sparse.csr_array, values: str, dtype: np.dtype) -> scipy.sparse.csr_array:
    """A matrix of such values; for few ones repeated along the diagonal until they are stored as such."""
    if values != "plain":
        copies = -(-LARGE // (csr.nnz * dtype.itemsize))
        offsets = csr.indptr.dtype  # SciPy joins no arrays whose two kinds of indices differ
        same = _with_offsets(csr.copy(), csr.indices.dtype)
        csr = _with_offsets(scipy.sparse.block_diag([same] * copies, format="csr"), offsets)
    if values == "few":
        csr.data = np.arange(csr.nnz) % 100 + 1
    return csr.astype(dtype)


def warm(format: str, dtype: np.dtype, products: list[str], device: devices.Device, values: str = "plain") -> list[float]:
    """Seconds that conversions took, then each kind of product."""
    seconds = [0.0] * (1 + len(products))
    for small in matrices(device):
        names = [name for name in model.statistics(small).table_bytes if formats.of_variant(name)[0].format == format]
        csr = valued(small, values, dtype)
        for name in names:
            cls, keywords = formats.of_variant(name)
            start = time.perf_counter()
            array = cls(csr, device=device, **keywords)
            seconds[0] += time.perf_counter() - start
            for k, product in enumerate(products, 1):
                seconds[k] += _seconds(partial(multiply, array, product, device))
    return seconds


def multiply(array: Any, product: str, device: devices.Device) -> None:
    """Every form of a product of an array, as ``A @ x`` and as ``y = alpha * A @ x + beta * y``."""
    with device.use():
        if product == "matrix":
            for count in COLUMNS:
                array @ device.xp.ones((array.shape[1], count), array.dtype)
            return
        array = array if product == "vector" else array.T
        x = device.xp.ones(array.shape[1], array.dtype)
        y = array @ x
        if device.kind == "cuda":  # on a CPU there is one kernel for all of these
            for alpha, beta in ((2, 0), (1, 1)):
                array.matvec(x, out=y, alpha=alpha, beta=beta)


def cycle(dtype: np.dtype, device: devices.Device) -> None:
    """Set up multigrid with several levels and weak connections, renew its values, and solve with it."""
    second = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64))
    csr = scipy.sparse.kronsum(second, second / 100, format="csr").astype(dtype)
    with device.use():
        A = construct.asarray(csr, device=str(device))
        M = linalg.multigrid(A)
        M.update(A)
        linalg.cg(A, device.xp.ones(A.shape[0], dtype), M=M)


def kept(device: devices.Device) -> str:
    """A sentence on where compiled code is kept."""
    if device.kind == "cuda":
        folder = os.environ.get("CUPY_CACHE_DIR", os.path.expanduser("~/.cupy/kernel_cache"))
    else:
        folder = device.backend("runtime.caching").folder()
    if folder is None:
        return "No folder can be written to, so nothing is kept: set CVRARRAY_CACHE_DIR to one"
    return f"Other processes load it from {folder}"


def _dtype(name: str) -> np.dtype:
    try:
        return coercion.check_dtype(np.dtype(name))
    except TypeError as error:
        raise ValueError(f"--dtypes: {error}") from error


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
