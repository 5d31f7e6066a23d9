"""The products that users have without us: SciPy, pydata/sparse and MKL on a CPU, CuPy and PyTorch on a GPU."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from ..choice.model import statistics
from ..core import devices
from ..core.clocks import Call
from . import gpu_peers

#: Peers that run on several threads.
THREADED = ("mkl",)
#: Peers on a CPU, as ``--peers`` names them.
ON_CPU = ("scipy", "sparse", "scipy bsr", "mkl")
#: Entries of blocks over nonzeros up to which SciPy's BSR takes part.
MOST_FILL = 1.3


def check(names: Sequence[str], device: devices.Device) -> None:
    """Whether ``--peers`` names peers of this kind of device, one of which is there: to be asked before a matrix is read.

    Raises
    ------
    ValueError
        One of `names` is no peer's, or the libraries of none of them are installed.
    """
    known = ON_CPU if device.kind == "cpu" else ("all", *(gpu_peers.PEERS | gpu_peers.MATRIX_PEERS))
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--peers must name some of {', '.join(known)}; got {', '.join(unknown)}")
    missing = left_out(device)
    if all(name in missing for name in names):
        raise ValueError("; ".join(f"--peers {name}: {missing[name]}" for name in names))


def products(
    csr: Any, x: Any, device: devices.Device, names: Sequence[str] | None = None
) -> tuple[dict[str, Call], dict[str, str]]:
    """``csr @ x`` by every library that is installed, or by those of `names`, and why a named one is left out, by its name.

    x is a vector or a matrix. On a GPU the names are those of :mod:`.gpu_peers`, or ``all``.

    Raises
    ------
    ValueError
        None of `names` takes part.
    """
    if device.kind == "cuda":
        return _on_gpu(csr, x, device, names)
    found = _on_cpu(csr, x)
    return _some_of({name: call for name, call in found.items() if names is None or name in names}, names, found), {}


def _on_gpu(csr: Any, x: Any, device: devices.Device, names: Sequence[str] | None) -> tuple[dict[str, Call], dict[str, str]]:
    registry = gpu_peers.PEERS if x.ndim == 1 else gpu_peers.MATRIX_PEERS
    y = device.xp.zeros((csr.shape[0], *x.shape[1:]), x.dtype)
    wanted = gpu_peers.LIBRARIES if names is None else registry if "all" in names else names
    found: dict[str, Call] = {}
    left_out = {}
    for name in registry:
        if name in wanted:
            try:
                found[name] = gpu_peers.prepare(name, csr, x, y, registry)
            except gpu_peers.LeftOut as reason:
                left_out[name] = str(reason)
    return _some_of(found, names, ("all", *registry)), {} if names is None else left_out


def _some_of(found: dict[str, Call], names: Sequence[str] | None, known: Iterable[str]) -> dict[str, Call]:
    """`found`, unless it is empty."""
    if not found:
        raise ValueError(f"--peers must name some of {', '.join(known)}; got {', '.join(names or ())}")
    return found


def _on_cpu(csr: Any, x: Any) -> dict[str, Call]:
    import sparse

    gcxs = sparse.GCXS.from_scipy_sparse(csr)
    found = {"scipy": lambda: csr @ x, "sparse": lambda: gcxs @ x}
    if (size := block_size(csr)) > 1:
        bsr = csr.tobsr((size, size))
        found["scipy bsr"] = lambda: bsr @ x
    if (library := mkl()) is not None:
        library.mkl_set_num_threads(threads())
        found["mkl"] = lambda: library.dot_product_mkl(csr, x)
    return found


def block_size(csr: Any) -> int:
    """The largest blocks that hold the matrix with few zeros between, and tile it; 1: it has none."""
    fill = statistics(csr, exact=False).block_fill
    sizes = [size for size in fill if fill[size] <= MOST_FILL and not any(n % size for n in csr.shape)]
    return max(sizes, default=1)


def threads() -> int:
    """Threads of ours on a CPU: all, or ``CVRARRAY_NUM_THREADS``."""
    return int(devices.CPU.backend("runtime.threads").count())  # imported only now, as it loads Numba


def left_out(device: devices.Device) -> dict[str, str]:
    """Why a library takes no part on `device`, by its name."""
    if device.kind == "cuda" or mkl() is not None:
        return {}
    return {"mkl": "sparse_dot_mkl is not installed, or finds no MKL: pip install 'cvrarray[bench]'"}


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
