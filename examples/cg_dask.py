"""Conjugate gradients with Dask on a finite element system: panels of rows stay where they are, only vectors move.

    python examples/cg_dask.py --refinements 3 --workers 2

Written with dask arrays, to be read and changed. ``cvrarray.dask.cg`` is the same method without a scheduler in
between, and many times as fast.

With several GPUs, start a ``dask_cuda.LocalCUDACluster`` in place of the ``LocalCluster``, and pass ``--device cuda``.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np

import cvrarray

FOUNDATION = 0.05  #: stiffness of the ground; without it the body is free, and the matrix singular


def cg(A: da.Array, b: da.Array, rtol: float = 1e-8, maxiter: int = 1000) -> tuple[da.Array, int, float]:
    """Solve ``A @ x = b``.

    Parameters
    ----------
    A : (n, n) dask array of our arrays, symmetric and positive definite
        Persist it first: each iteration uses all of it.
    b : (n,) dask array
    rtol : float
        The residual's length at the end, over that of `b`.

    Returns
    -------
    (n,) dask array, int, float
        The solution, the iterations, and the residual's length over that of `b`.
    """
    b = b.rechunk((A.chunks[0],)).persist()
    x, r = da.zeros_like(b), b
    p, rr = r, r @ r
    length = float(rr.compute()) ** 0.5
    for iteration in range(1, maxiter + 1):  # noqa: B007
        # one chunk of p for the panels of whole rows: else Dask would cut the matrix to fit the vector
        Ap = A @ p.rechunk(-1)
        alpha = rr / (p @ Ap)
        x, r = x + alpha * p, r - alpha * Ap
        rr_new = r @ r
        p = r + rr_new / rr * p
        x, r, p, rr = dask.persist(x, r, p, rr_new)  # computes this iteration, and lets go of the one before
        residual = float(rr.compute()) ** 0.5 / max(length, 1e-300)
        if residual <= rtol:
            break
    return x, iteration, residual


def main() -> None:
    """Assemble an elastic body on an elastic foundation, spread it over workers, solve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refinements", type=int, default=2, help="of the mesh; each has eight times the elements")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chunks", default="8 MiB", help="bytes of a panel")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    from distributed import Client, LocalCluster
    from scipy.sparse import eye_array

    stiffness = cvrarray.generate.elasticity(arguments.refinements)
    stiffness = (stiffness + FOUNDATION * eye_array(stiffness.shape[0])).tocsr()
    with LocalCluster(n_workers=arguments.workers, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        A = cvrarray.to_dask(stiffness, chunks=arguments.chunks, device=arguments.device).persist()
        load = np.cos(np.arange(A.shape[0]))
        if arguments.device != "cpu":
            import cupy

            load = cupy.asarray(load)
        b = da.from_array(load, chunks=(A.chunks[0],))
        x, iterations, residual = cg(A, b)
        print(
            f"{A}\n{iterations} iterations, residual {residual:.1e}, largest displacement {float(abs(x).max().compute()):.3e}"
        )
        host = x.compute()
        host = host.get() if hasattr(host, "get") else host
        print(f"checked on the host: {np.linalg.norm(stiffness @ host - np.cos(np.arange(host.size))):.1e}")


if __name__ == "__main__":
    main()
