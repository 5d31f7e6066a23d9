"""CG on a persisted matrix over several GPUs, or CPU workers: time of an iteration, and bytes that move in it.

    python benchmarks/dask_gpus.py --gpus 4 --nonzeros 1e9
    python benchmarks/dask_gpus.py --workers 2 --nonzeros 2e6 --device cpu

A 7-point stencil made on the workers, panel by panel, in float64; one worker a GPU, each bound to its own. Plain
``distributed``: dask-cuda is used where it is installed and ``--dask-cuda`` asks for it (UCX with ``--protocol ucx``).
Compare 1, 2 and 4 GPUs; the line "bytes moved" is the sum over workers of what they sent, an iteration.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import cvrarray

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))


def stencil_rows(block, n: int, device: str, format: str) -> object:
    """Rows ``first .. last - 1`` of the 7-point Laplacian of an n x n x n grid, as an array on the worker's device."""
    first, last = (int(v) for v in block.ravel()[:2])
    target = cvrarray._device.parse(device)
    with target.use():
        xp = target.xp
        row = xp.arange(first, last)
        place = (row // (n * n), row // n % n, row % n)
        inside = [xp.ones(row.size, bool)]
        offset = [0]
        for axis, stride in enumerate((n * n, n, 1)):
            for step in (-1, 1):
                inside.append((place[axis] + step >= 0) & (place[axis] + step < n))
                offset.append(step * stride)
        order = np.argsort(offset)
        mask = xp.stack([inside[k] for k in order], axis=1)
        offsets = xp.asarray(np.asarray(offset)[order])
        values = xp.asarray(np.where(np.asarray(offset)[order] == 0, 6.1, -1.0))
        indptr = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(mask.sum(axis=1))])
        indices = (row[:, None] + offsets)[mask].astype(np.int32 if n**3 < 2**31 else np.int64)
        data = xp.broadcast_to(values, mask.shape)[mask]
        return cvrarray.asarray(
            cvrarray.CVRArray.from_csr(indptr, indices, data, (last - first, n**3)), format=format, device=device
        )


def stencil(n: int, n_panels: int, device: str, format: str) -> da.Array:
    """The matrix as a dask array in `n_panels` panels of rows."""
    rows = np.linspace(0, n**3 // 32, n_panels + 1).astype(np.int64) * 32
    rows[-1] = n**3
    ends = da.from_array(np.stack([rows[:-1], rows[1:]], axis=1), chunks=(1, 2))
    meta = cvrarray.asarray(np.zeros((0, 0)), format=format, device="cpu" if device == "cpu" else device)
    sizes = tuple(int(v) for v in np.diff(rows))
    return ends.map_blocks(
        stencil_rows, n=n, device=device, format=format, chunks=(sizes, (n**3,)), dtype=np.float64, meta=meta
    )


def start(arguments):
    """A cluster with one worker a GPU, or `workers` on the CPU."""
    from distributed import LocalCluster, Nanny, Scheduler, SpecCluster

    dask.config.set({"distributed.scheduler.work-stealing": False})  # panels stay where they are
    if arguments.device == "cpu":
        return LocalCluster(n_workers=arguments.workers, threads_per_worker=arguments.threads, dashboard_address=None)
    if arguments.dask_cuda:
        from dask_cuda import LocalCUDACluster

        return LocalCUDACluster(n_workers=arguments.gpus, protocol=arguments.protocol, dashboard_address=None)
    workers = {
        k: {
            "cls": Nanny,
            "options": {"nthreads": 1, "env": {"CUDA_VISIBLE_DEVICES": str(k)}, "dashboard_address": None, "memory_limit": 0},
        }
        for k in range(arguments.gpus)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard": False, "port": 0, "protocol": arguments.protocol}}
    return SpecCluster(scheduler=scheduler, workers=workers)


def sent(dask_worker) -> int:
    """Bytes that a worker has sent to others so far."""
    return dask_worker.transfer_outgoing_bytes_total


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="with --device cpu")
    parser.add_argument("--threads", type=int, default=1, help="of each CPU worker")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--nonzeros", type=float, default=1e8)
    parser.add_argument("--panels", type=int, help="default: one a worker")
    parser.add_argument("--format", default="cvr")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--dask-cuda", action="store_true")
    arguments = parser.parse_args()

    from cg_dask import cg
    from distributed import Client, wait

    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent))  # of workers that are started
    n = round((arguments.nonzeros / 7) ** (1 / 3))
    n_workers = arguments.workers if arguments.device == "cpu" else arguments.gpus
    millions = f"{7 * n**3 / 1e6:.0f} M nonzeros, {n**3 / 1e6:.1f} M rows"
    with start(arguments) as cluster, Client(cluster) as client:
        client.wait_for_workers(n_workers, timeout=120)
        begin = time.perf_counter()
        A = stencil(n, arguments.panels or n_workers, arguments.device, arguments.format).persist()
        wait(A)
        print(f"{A}\nmade in {time.perf_counter() - begin:.1f} s; panels on {client.who_has(client.futures_of(A)).values()}")
        ones = "numpy" if arguments.device == "cpu" else "cupy"
        b = da.ones(n**3, chunks=(A.chunks[0],)).to_backend(ones).persist()
        wait(b)
        cg(A, b, rtol=0, max_iterations=3)  # compiles
        moved, begin = sum(client.run(sent).values()), time.perf_counter()
        _, iterations, residual = cg(A, b, rtol=0, max_iterations=arguments.iterations)
        seconds = (time.perf_counter() - begin) / iterations
        moved = (sum(client.run(sent).values()) - moved) / iterations
        print(
            f"{n_workers} workers, {millions}: {seconds * 1e3:.1f} ms an iteration,"
            f" bytes moved {moved / 1e6:.1f} MB ({moved / (8 * n**3):.1f} vectors), residual {residual:.1e}"
        )


if __name__ == "__main__":
    main()
