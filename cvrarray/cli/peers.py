"""The products that users have without us: SciPy, pydata/sparse and MKL on a CPU, CuPy and PyTorch on a GPU."""

from __future__ import annotations

import importlib.metadata
import operator
import os
import warnings
from functools import cache
from typing import Any

from ..choice.model import statistics
from ..core import devices
from ..core.clocks import Call

#: Entries of blocks over nonzeros up to which SciPy's BSR takes part.
MOST_FILL = 1.3


def products(csr: Any, x: Any, device: devices.Device) -> dict[str, Call]:
    """``csr @ x`` by every library that is installed; x is a vector or a matrix."""
    return _on_cpu(csr, x) if device.kind == "cpu" else _on_gpu(csr, x)


def _on_gpu(csr: Any, x: Any) -> dict[str, Call]:
    found: dict[str, Call] = {"cupyx": lambda: csr @ x}
    if (torch := cuda_torch()) is not None:

        @cache  # made in the first call, in which a refusal shows
        def operands() -> tuple[Any, Any]:
            parts = [torch.from_dlpack(part) for part in (csr.indptr, csr.indices, csr.data)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that sparse CSR tensors are in beta state
                return torch.sparse_csr_tensor(*parts, size=csr.shape), torch.from_dlpack(x)

        found["torch"] = lambda: operator.matmul(*operands())
    return found


def cuda_torch() -> Any | None:
    """PyTorch; None where it is not installed or has no CUDA."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


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
    if device.kind == "cuda":
        return {} if cuda_torch() is not None else {"torch": "PyTorch is not installed, or has no CUDA"}
    if mkl() is not None:
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
