"""Gram matrices and singular vectors of tall matrices, beside CuPy on a GPU, beside SciPy and scikit-learn on a CPU.

    python -m asv_bench.record.tall [--device cuda] [--rows 200000] [--only gram svds stream]

1. Gram matrices of random matrices, `--rows` / 4 x 5,000 at 5% and `--rows` x 2,000 at 8%: times, on a GPU memory, and the
   error over ``sum(|a_i| |a_j|)``, beside dense products, and on a CPU beside ``(S.T @ S).toarray()``.
2. 50 singular triplets of `--rows` x 2,000 documents and words of 120 topics, whose spectrum decays, and of a random matrix,
   whose does not: float32 to 1e-5 and float64 to 1e-10 of the largest singular value, beside ``svds`` with their CSR. A GPU's
   second line is CuPy's ``svds`` with our array. On a CPU scikit-learn's ``randomized_svd`` gets more iterations until its
   residual is as small, or 20.
3. Singular vectors from a store in host memory's cache, beside the rate at which ``Stored @ X`` streams it.

Times are medians, on a GPU of CUDA events. All ways to do the same are timed by turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import cvrarray
from cvrarray.core import devices

TRIPLETS, COLUMNS, DENSITY = 50, 2_000, 0.08
MOST_ITERATIONS = 20  #: of scikit-learn's


def topics(n_rows: int, n_cols: int, density: float, n_topics: int = 120) -> scipy.sparse.csr_array:
    """Counts of words in documents, ``log(1 + count)``: a document has one topic, and a topic its own popular words."""
    rng = np.random.default_rng(0)
    words = int(n_cols * density * 1.2)
    share = np.arange(1, n_topics + 1) ** -1.2
    topic = rng.choice(n_topics, n_rows, p=share / share.sum())
    column = np.empty((n_rows, words), np.int32)
    for t in range(n_topics):
        popular = rng.permutation(np.arange(1, n_cols + 1) ** -0.6)
        of = np.flatnonzero(topic == t)
        column[of] = rng.choice(n_cols, (of.size, words), p=popular / popular.sum())
    return _matrix(column, np.ones(column.size), n_cols, np.log1p)


def uniform(n_rows: int, n_cols: int, density: float) -> scipy.sparse.csr_array:
    """Columns and values at random."""
    rng = np.random.default_rng(0)
    column = rng.integers(0, n_cols, (n_rows, int(n_cols * density)), dtype=np.int32)
    return _matrix(column, rng.standard_normal(column.size), n_cols, lambda data: data)


def _matrix(column: np.ndarray, data: np.ndarray, n_cols: int, function: Callable[[Any], Any]) -> scipy.sparse.csr_array:
    n_rows, per_row = column.shape
    column.sort(axis=1)
    S = scipy.sparse.csr_array((data, column.ravel(), np.arange(n_rows + 1, dtype=np.int32) * per_row), shape=(n_rows, n_cols))
    S.sum_duplicates()
    S.data = function(S.data)
    return S


def medians(ways: dict[str, Callable[[], Any]], device: devices.Device, repeat: int) -> dict[str, tuple[float, Any]]:
    """Milliseconds of each way, timed by turns after a first call, and what it returned last; an error's text instead."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Any] = {}
    for turn in range(repeat + 1):
        for name, way in ways.items():
            if isinstance(found.get(name), Exception):
                continue
            try:
                elapsed, found[name] = _milliseconds(way, device)
            except Exception as error:  # a peer's: out of memory, or not converged
                found[name] = error
                continue
            if turn or repeat == 0:
                times[name].append(elapsed)
    return {name: (statistics.median(times[name]) if times[name] else float("nan"), found[name]) for name in ways}


def _milliseconds(way: Callable[[], Any], device: devices.Device) -> tuple[float, Any]:
    if device.kind == "cpu":
        start = time.perf_counter()
        found = way()
        return (time.perf_counter() - start) * 1e3, found
    from cupy import cuda

    start, end = cuda.Event(), cuda.Event()
    start.record()
    found = way()
    end.record()
    end.synchronize()
    return cuda.get_elapsed_time(start, end), found


def peak(way: Callable[[], Any]) -> float:
    """MB that CuPy's pool takes from the device for a call, the result among them."""
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    way()
    return float(pool.total_bytes() - before) / 1e6


def _half_dense(A: Any) -> Any:
    return A.T @ A.todense()


def _dense(A: Any) -> Any:
    D = A.todense()
    return D.T @ D


def _sparse(S: Any) -> Any:
    return (S.T @ S).toarray()


def grams(device: devices.Device, n_rows: int, repeat: int) -> None:
    """The first part."""
    for shape, density in (((n_rows // 4, COLUMNS * 5 // 2), 0.05), ((n_rows, COLUMNS), DENSITY)):
        given = uniform(*shape, density)
        for dtype in (np.float32, np.float64):
            S = given.astype(dtype)
            A = cvrarray.asarray(S, device=str(device))
            ways: dict[str, Callable[[], Any]] = {"gram": partial(cvrarray.linalg.gram, A)}
            if dtype == np.float32:
                ways["gram, dtype float64"] = partial(cvrarray.linalg.gram, A, dtype=np.float64)
            if device.kind == "cpu":
                ways["SciPy, S.T @ S"] = partial(_sparse, S)
            else:
                ways["A.T @ A.todense()"] = partial(_half_dense, A)
                ways["cuBLAS, D.T @ D with D dense"] = partial(_dense, A)
            print(f"Gram {shape[0]} x {shape[1]}, {S.nnz / np.prod(shape):.1%}, {np.dtype(dtype)}")
            few = S[:2000]
            exact, size = (few.T.astype(float) @ few).toarray(), (abs(few).T.astype(float) @ abs(few)).toarray()
            ours = devices.move(cvrarray.linalg.gram(A[:2000]), devices.CPU)
            error = np.max(abs(ours - exact) / np.maximum(size, 1e-300))
            for name, (ms, found) in medians(ways, device, repeat).items():
                memory = f", {peak(ways[name]):8.0f} MB with the result" if device.kind == "cuda" else ""
                failed = f"  {type(found).__name__}: {found}"[:90] if isinstance(found, Exception) else ""
                print(f"  {name:30s} {ms:9.1f} ms{memory if not failed else ''}{failed}")
            print(f"  error of gram, first 2000 rows: {error:.1e} of sum(|a_i| |a_j|)", flush=True)


def singular(device: devices.Device, n_rows: int, repeat: int) -> None:
    """The second part."""
    for kind in (topics, uniform):
        given = kind(n_rows, COLUMNS, DENSITY)
        for dtype, tol in ((np.float32, 1e-5), (np.float64, 1e-10)):
            S = given.astype(dtype)
            A = cvrarray.asarray(S, device=str(device))
            ways: dict[str, Callable[[], Any]] = {"svds": partial(cvrarray.linalg.svds, A, TRIPLETS, tol=tol)}
            if device.kind == "cpu":
                from scipy.sparse.linalg import svds

                ways["SciPy's svds"] = partial(svds, S, TRIPLETS, tol=tol)
                ways |= _randomized(S, tol)
                norms = _norms(S)
            else:
                from cupyx.scipy.sparse import csr_matrix
                from cupyx.scipy.sparse.linalg import svds

                C = csr_matrix(S)
                ways["CuPy's svds, its CSR"] = partial(svds, C, TRIPLETS, tol=tol)
                ways["CuPy's svds, our array"] = partial(svds, A.aslinearoperator(), TRIPLETS, tol=tol)
                norms = _norms(C)
            print(f"svds {n_rows} x {COLUMNS}, {kind.__name__}, {np.dtype(dtype)}, to {tol}")
            times = medians(ways, device, repeat)
            for name, (ms, found) in times.items():
                if isinstance(found, Exception):
                    print(f"  {name:34s} {type(found).__name__}: {found}"[:110])
                    continue
                print(
                    f"  {name:34s} {ms:9.1f} ms, {ms / times['svds'][0]:5.2f}x ours, residual {norms(*found):.1e}", flush=True
                )
            s = devices.move(times["svds"][1].s, devices.CPU)
            print("  spectrum: " + ", ".join(f"{s[k] / s[0]:.3f}" for k in (0, 1, 9, 24, 49) if k < len(s)), flush=True)


def _randomized(S: Any, tol: float) -> dict[str, Callable[[], Any]]:
    """scikit-learn's, with as few iterations as give the residual, at most MOST_ITERATIONS."""
    from sklearn.utils.extmath import randomized_svd

    norms, n = _norms(S), 2
    while n < MOST_ITERATIONS and norms(*randomized_svd(S, TRIPLETS, n_iter=n, random_state=0)) > tol:
        n = min(2 * n, MOST_ITERATIONS)
    return {f"scikit-learn's, {n} iterations": partial(randomized_svd, S, TRIPLETS, n_iter=n, random_state=0)}


def _norms(S: Any) -> Callable[..., float]:
    """A function of U, s and Vt: the largest residual over the largest singular value, in double precision."""
    S = S.astype(np.float64)

    def of(U: Any, s: Any, Vt: Any) -> float:
        U, s, V = U.astype(np.float64), s.astype(np.float64), Vt.astype(np.float64).T
        left, right = S @ V - U * s, S.T @ U - V * s
        return float(max((left**2).sum(axis=0).max(), (right**2).sum(axis=0).max()) ** 0.5 / s.max())

    return of


def streamed(device: devices.Device, gigabytes: float, folder: str | None) -> None:
    """The third part."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = str(Path(temporary) / "tall.store")
        n_rows = int(gigabytes * 1e9 / (COLUMNS * DENSITY * 6.4))
        part = topics(min(n_rows, 20_000), COLUMNS, DENSITY).astype(np.float32)
        S = scipy.sparse.vstack([part] * max(1, n_rows // part.shape[0]), format="csr")
        cvrarray.to_store(S, path, chunks="64 MiB", format="bbcsr", block_size=1, device=str(device))
        with cvrarray.Stored(path, device=str(device), budget=0) as A:
            X = device.xp.ones((COLUMNS, TRIPLETS + 10))
            ways = {
                "Stored @ X": lambda: A @ X,
                "gram": lambda: cvrarray.linalg.gram(A),
                "pca, no scores": lambda: cvrarray.linalg.pca(A, TRIPLETS, scores=False),
                "svds, no left vectors": lambda: cvrarray.linalg.svds(A, TRIPLETS, return_singular_vectors="vh"),
            }
            print(f"store of {A.nbytes / 1e9:.2f} GB in {A.n_panels} panels, none of which stays")
            for name, (ms, found) in medians(ways, device, 1).items():
                failed = f" {found}" if isinstance(found, Exception) else ""
                print(f"  {name:24s} {ms:9.1f} ms, {A.nbytes / ms / 1e6:6.2f} GB/s for each sweep there is{failed}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if devices.gpu_count() else "cpu")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=5, help="times that each way is timed, after a first call")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the store")
    parser.add_argument("--folder", help="where the store is written")
    parser.add_argument("--only", nargs="*", default=["gram", "svds", "stream"])
    args = parser.parse_args(arguments)
    device = devices.parse(args.device)
    with device.use():
        if "gram" in args.only:
            grams(device, args.rows, args.repeat)
        if "svds" in args.only:
            singular(device, args.rows, args.repeat)
        if "stream" in args.only:
            streamed(device, args.gigabytes, args.folder)


if __name__ == "__main__":
    main()
