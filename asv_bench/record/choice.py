"""What ``asarray`` chooses on a GPU beside every format that it could have chosen, on the matrices of :mod:`.kinds`.

    python -m asv_bench.record.choice --json choice.json

Each candidate is timed with the tables in cache, as in a sequence of products, and cold: after a buffer larger than L2.
"""

from __future__ import annotations

import argparse
import json
import operator
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cvrarray import formats
from cvrarray.choice import model
from cvrarray.core import clocks, devices
from cvrarray.input import coercion

from . import kinds

#: Products after which an array does as it will from then on.
SETTLED = 20

#: Formats whose tables would be so many times as large as the smallest ones are left out.
HOPELESS = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="file to write, one line a matrix and dtype")
    parser.add_argument("--only", help="names of matrices, separated by commas")
    parser.add_argument("--dtype", default="float32,float64")
    parser.add_argument("--folder", type=Path, help="where matrices are kept from one run to the next")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args(argv)
    names = args.only.split(",") if args.only else list(kinds.KINDS)
    device = devices.default()
    clock = clocks.of(device)
    with open(args.json, "w") as file, device.use():
        for name in names:
            csr = read(name, args.folder)
            for dtype in args.dtype.split(","):
                found = {"matrix": name, **measure(csr, np.dtype(dtype), device, clock, args.repeats)}
                print(json.dumps(found), file=file, flush=True)
                device.xp.get_default_memory_pool().free_all_blocks()
    return 0


def read(name: str, folder: Path | None) -> Any:
    """The matrix, from `folder` if it lies there; else it is written there."""
    from scipy import sparse

    path = None if folder is None else folder / f"{name}.npz"
    if path is None or not path.exists():
        matrix = kinds.build(name)
        if path is not None:
            path.parent.mkdir(exist_ok=True, parents=True)
            np.savez(path, indptr=matrix.indptr, indices=matrix.indices, shape=matrix.shape)
        return matrix
    with np.load(path) as arrays:
        indices, indptr, shape = arrays["indices"], arrays["indptr"], arrays["shape"].tolist()
    return sparse.csr_array((np.ones(indices.size, np.float32), indices, indptr), shape=shape)


def measure(matrix: Any, dtype: np.dtype, device: devices.Device, clock: Any, repeats: int) -> dict[str, Any]:
    """Microseconds of every candidate, warm and cold, beside what the choice knows."""
    from cupyx.scipy.sparse import csr_matrix

    xp = device.xp
    rng = xp.random.default_rng(1)
    values = (rng.random(matrix.nnz) + 0.5).astype(dtype)
    parts = values, xp.asarray(matrix.indices), xp.asarray(matrix.indptr)
    x = (rng.random(matrix.shape[1]) + 0.5).astype(dtype)
    csr = coercion.as_csr(csr_matrix(parts, shape=matrix.shape))
    stats = model.statistics(csr, exact=False)
    chosen = model.choose(stats, device.kind)
    least = min(stats.table_bytes.values())
    names = [name for name, n_bytes in stats.table_bytes.items() if n_bytes <= HOPELESS * least or name == "cvr"]
    arrays, calls, reference = {}, {}, None
    for name in names:
        cls, keywords = formats.of_variant(name)
        array = cls(csr, **keywords)
        call = partial(operator.matmul, array, x)
        first = call()
        reference = first if reference is None else reference
        error = float(abs(first - reference).max() / abs(reference).max())
        assert error < 1e3 * np.finfo(dtype).eps, (name, error)
        if name == "cvr":
            for _ in range(SETTLED):
                call()
        arrays[name], calls[name] = array, call
    warm = clock.times(calls, repeats)
    cold = clock.times(calls, repeats, cold=True)
    return {
        "dtype": dtype.name,
        "shape": list(csr.shape),
        "nnz": csr.nnz,
        "chosen": chosen.format + str(chosen.block_size or ""),
        "warm": {name: round(timing.median * 1e6, 3) for name, timing in warm.items()},
        "cold": {name: round(timing.median * 1e6, 3) for name, timing in cold.items()},
        "bytes": {name: array.nbytes for name, array in arrays.items()},
        "narrow": {name: _narrow(array) for name, array in arrays.items()},
        "rows": [stats.row_min, stats.row_mean, stats.row_max, stats.empty_rows],
        "fill": stats.block_fill,
        "table_bytes": stats.table_bytes,
    }


def _narrow(array: Any) -> float:
    narrow, wide = array._tables.col_narrow.size, array._tables.col_wide.size
    return round(narrow / max(1, narrow + wide), 4)


if __name__ == "__main__":
    sys.exit(main())
