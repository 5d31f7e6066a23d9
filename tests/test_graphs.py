"""Products in CUDA graphs: captured once, replayed with what then lies in the same arrays."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import assert_same_bits

from cvrarray import BBCSRArray, CVRArray

BUILDS = {
    "cvr": lambda csr, device: CVRArray(csr, device=device),
    "cvr with cut rows": lambda csr, device: CVRArray(csr, n_chunks=50, split="nnz", device=device),
    "bbcsr": lambda csr, device: BBCSRArray(csr, block_size=3, device=device),
    "bbcsr of single columns": lambda csr, device: BBCSRArray(csr, block_size=1, device=device),
}
PRODUCTS = {
    "A @ x": ((), lambda A, x, out: A.matvec(x, out=out)),
    "A @ X": ((5,), lambda A, x, out: A.matmat(x, out=out)),
    "A.T @ x": ((), lambda A, x, out: A.T.matvec(x, out=out)),
    "A.T @ X": ((5,), lambda A, x, out: A.T.matmat(x, out=out)),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_replay(build, product, dtype, gpu):
    import cupy

    csr = zoo.floats("power_law", dtype)
    A = BUILDS[build](csr, gpu)
    columns, multiply = PRODUCTS[product]
    n_out, n_in = csr.shape if "T" not in product else csr.shape[::-1]
    first, second = (zoo.float_vector(n_in * (columns or (1,))[0], dtype, seed).reshape(n_in, *columns) for seed in (5, 6))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, out = cupy.asarray(first), cupy.empty((n_out, *columns), dtype)
        multiply(A, x, out)  # what is compiled and prepared once is not part of the graph
        stream.begin_capture()
        multiply(A, x, out)
        graph = stream.end_capture()
        others = [cupy.full(1 << k, np.nan) for k in range(4, 20)]  # take what the pool thinks is free
        for values in (first, second, first):
            x.set(values)
            out.fill(np.nan)
            graph.launch()
            replayed = out.get()
            assert_same_bits(replayed, multiply(A, x, cupy.empty_like(out)).get())
        assert not np.isnan(replayed).any()
    assert all(bool(cupy.isnan(other).all()) for other in others)
