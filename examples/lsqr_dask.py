"""Least squares with Dask: LSQR on a tall matrix in panels of rows, which both ``A @ v`` and ``A.T @ u`` use.

python examples/lsqr_dask.py --rows 200000 --columns 2000
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np

import cvrarray


def lsqr(A: da.Array, b: da.Array, rtol: float = 1e-10, maxiter: int = 1000) -> tuple[da.Array, int]:
    """The x of least ``norm(A @ x - b)``, by Paige and Saunders' bidiagonalisation.

    Parameters
    ----------
    A : (n, m) dask array of our arrays
    b : (n,) dask array
    rtol : float
        ``norm(A.T @ r) / (norm(A) * norm(r))`` at which to stop.

    Returns
    -------
    (m,) dask array, int
        The solution and the iterations.
    """
    u = b.rechunk((A.chunks[0],))
    beta = _length(u)
    u = u / beta
    v = (A.T @ u).rechunk(-1)
    alpha = _length(v)
    v = v / alpha
    w, x = v, da.zeros_like(v)
    phi, rho, size = beta, alpha, 0.0
    for iteration in range(1, maxiter + 1):  # noqa: B007
        u = A @ v - alpha * u
        u, beta = dask.persist(u, da.sqrt((u * u).sum()))
        beta = float(beta.compute())
        u = u / beta
        v = (A.T @ u).rechunk(-1) - beta * v
        v, alpha_new = dask.persist(v, da.sqrt((v * v).sum()))
        size += alpha * alpha + beta * beta
        alpha = float(alpha_new.compute())
        v = v / alpha
        length = (rho * rho + beta * beta) ** 0.5
        c, s = rho / length, beta / length
        x, w = dask.persist(x + c * phi / length * w, v - s * alpha / length * w)
        rho, phi = -c * alpha, s * phi
        if alpha * abs(c) <= rtol * size**0.5:
            break
    return x, iteration


def _length(vector: da.Array) -> float:
    return float(da.sqrt((vector * vector).sum()).compute())


def main() -> None:
    """Fit a random sparse model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=1_000)
    parser.add_argument("--per-row", type=int, default=20)
    arguments = parser.parse_args()

    from scipy.sparse import csr_array

    rng = np.random.default_rng(0)
    shape = arguments.rows, arguments.columns
    indices = rng.integers(0, shape[1], arguments.rows * arguments.per_row)
    indptr = np.arange(shape[0] + 1) * arguments.per_row
    matrix = csr_array((rng.standard_normal(indices.size), indices, indptr), shape=shape)
    A = cvrarray.to_dask(matrix, chunks="4 MiB", device="cpu").persist()
    truth = rng.standard_normal(shape[1])
    b = da.from_array(matrix @ truth + 0.01 * rng.standard_normal(shape[0]), chunks=(A.chunks[0],))
    x, iterations = lsqr(A, b)
    print(f"{A}\n{iterations} iterations, farthest from the truth {float(abs(x.compute() - truth).max()):.1e}")


if __name__ == "__main__":
    main()
