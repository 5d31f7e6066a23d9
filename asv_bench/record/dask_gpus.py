"""CG on a persisted matrix over several GPUs, or CPU workers: time of an iteration, and bytes that move in it.

    python -m asv_bench.record.dask_gpus --workers 1,2,4 --nonzeros 1e9 --json gpus.json
    python -m asv_bench.record.dask_gpus --workers 1,2 --nonzeros 2e6 --device cpu

A 7-point stencil in float64, made on the workers, panel by panel, and solved by ``cvrarray.dask.cg``; the same panels
whatever the number of workers, which hold neighbouring ones. One worker a GPU, each bound to its own, in a cluster of
its own for each number. An iteration's time is the median that the solver measures, which leaves out placing and
compiling. What comes out is checked: the residual is computed again from the stencil's definition, with NumPy, and the
solutions of different numbers of workers are compared. ``--plain`` adds examples/cg_dask.py, CG written with dask
arrays. ``--lose`` also kills a worker in the middle of a solve, and stops one: the error must name it in time.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import cvrarray

ROOT = Path(__file__).parents[2]
DIAGONAL = 6.1  # 6 and a little: definite, with a condition number of about 120
ALLOWANCE = 15  # seconds beyond the timeout within which the error of a lost worker must come
# as asarray would choose
FORMATS: dict = {"cvr": (cvrarray.CVRArray, {}), "bbcsr": (cvrarray.BBCSRArray, {"block_size": 1})}


def stencil_rows(first: int, last: int, n: int, device: str, format: str) -> object:
    """Rows ``first .. last - 1`` of the 7-point Laplacian of an n x n x n grid, as an array on the worker's device."""
    target = cvrarray.core.devices.parse(device)
    with target.use():
        xp = target.xp
        row = xp.arange(first, last)
        place = (row // (n * n), row // n % n, row % n)
        neighbours = [(0, 0, 0)]  # offset, axis, step
        for axis, stride in enumerate((n * n, n, 1)):
            neighbours += [(step * stride, axis, step) for step in (-1, 1)]
        mask = xp.ones((last - first, 7), bool)
        for column, (_, axis, step) in enumerate(sorted(neighbours)):
            mask[:, column] = (place[axis] + step >= 0) & (place[axis] + step < n)
        offsets = xp.asarray([offset for offset, _, _ in sorted(neighbours)])
        values = xp.asarray([DIAGONAL if offset == 0 else -1.0 for offset, _, _ in sorted(neighbours)])
        indptr = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(mask.sum(axis=1))])
        indices = (row[:, None] + offsets)[mask].astype(np.int32 if n**3 < 2**31 else np.int64)
        data = xp.broadcast_to(values, mask.shape)[mask]
        cls, parameters = FORMATS[format]
        return cls((data, indices, indptr), shape=(last - first, n**3), device=device, **parameters)


def stencil(client, n: int, n_panels: int, addresses: list[str], device: str, format: str) -> da.Array:
    """The matrix in `n_panels` panels of rows, neighbours on one worker."""
    rows = np.linspace(0, n**3 // 32, n_panels + 1).astype(np.int64) * 32
    rows[-1] = n**3
    name = f"stencil-{n}-{time.monotonic_ns()}"
    panels = {}
    for k, (first, last) in enumerate(zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True)):
        address = addresses[k * len(addresses) // n_panels]
        panels[name, k, 0] = client.submit(stencil_rows, first, last, n, device, format, key=(name, k, 0), workers=[address])
    sizes = tuple(int(size) for size in np.diff(rows))
    cls, parameters = FORMATS[format]
    return da.Array(panels, name, (sizes, (n**3,)), meta=cls(np.zeros((0, 0)), device=device, **parameters))


def residual(x: np.ndarray, b: np.ndarray, n: int) -> float:
    """``|b - A x| / |b|`` from the definition, with NumPy alone."""
    grid = x.reshape(n, n, n)
    left = b.astype(np.float64).reshape(n, n, n)
    left -= DIAGONAL * grid
    for axis in range(3):
        lower, upper = ([slice(None)] * 3 for _ in range(2))
        lower[axis], upper[axis] = slice(None, -1), slice(1, None)
        left[tuple(upper)] += grid[tuple(lower)]
        left[tuple(lower)] += grid[tuple(upper)]
    return float(np.linalg.norm(left) / np.linalg.norm(b))


def product_seconds(*panels: object) -> float:
    """Median seconds of all products of a worker's panels, with nothing moved: what an iteration cannot do without."""
    target = panels[0]._target
    with target.use():
        x = target.xp.ones(panels[0].shape[1])
        outs = [target.xp.empty(panel.shape[0]) for panel in panels]
        times = []
        for _ in range(11):
            begin = time.perf_counter()
            for panel, out in zip(panels, outs, strict=True):
                panel.matvec(x, out=out)
            if target.kind != "cpu":
                target.xp.cuda.get_current_stream().synchronize()
            times.append(time.perf_counter() - begin)
    return float(np.median(times))


def to_host(chunk: object) -> np.ndarray:
    """A chunk as NumPy's."""
    return chunk.get() if hasattr(chunk, "get") else chunk


def equal_bits(x: object, y: object) -> np.ndarray:
    """Whether two chunks are equal."""
    return np.array([bool((x == y).all())])


def gpu() -> object:
    """What tells a worker's GPU from others, where NCCL can be used; None where it cannot."""
    from cvrarray.dask import transports

    return transports._gpu(cvrarray.core.devices.parse("cuda"))


def start(n_workers: int, arguments: argparse.Namespace):
    """A cluster of this machine with one worker a GPU, or `n_workers` on the CPU."""
    from distributed import Nanny, Scheduler, SpecCluster

    if arguments.dask_cuda:
        from dask_cuda import LocalCUDACluster

        return LocalCUDACluster(n_workers=n_workers, protocol=arguments.protocol, dashboard_address=None)
    common = {"host": "127.0.0.1", "protocol": arguments.protocol}
    quiet = {"silence_logs": logging.WARNING}
    options = common | quiet | {"nthreads": 1, "dashboard_address": None, "memory_limit": 0}
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(n_workers)))).split(",")
    envs = [{} if arguments.device == "cpu" else {"CUDA_VISIBLE_DEVICES": gpus[k]} for k in range(n_workers)]
    workers = {k: {"cls": Nanny, "options": options | {"env": env}} for k, env in enumerate(envs)}
    scheduler = {"cls": Scheduler, "options": common | {"dashboard": False, "port": 0}}
    return SpecCluster(scheduler=scheduler, workers=workers, **quiet)


def sent(dask_worker) -> int:
    """Bytes that a worker has sent to others so far."""
    return dask_worker.transfer_outgoing_bytes_total


def measure(n_workers: int, n: int, arguments: argparse.Namespace) -> tuple[dict, np.ndarray]:
    """What one number of workers gives, and the solution."""
    from distributed import Client, wait

    with start(n_workers, arguments) as cluster, Client(cluster) as client:
        client.wait_for_workers(n_workers, timeout=60)
        if arguments.device != "cpu" and n_workers > 1:
            print("GPUs:", *client.run(gpu).values(), flush=True)
        begin = time.perf_counter()
        A = stencil(client, n, arguments.panels, sorted(client.nthreads()), arguments.device, arguments.format)
        panels = client.futures_of(A)
        wait(panels)
        made = time.perf_counter() - begin
        held = {}
        for panel, (address, *_) in client.who_has(panels).items():
            held.setdefault(address, []).append(panel)
        mine = {panel.key: panel for panel in panels}
        products = [
            client.submit(product_seconds, *[mine[key] for key in keys], workers=[address], pure=False)
            for address, keys in held.items()
        ]
        product = max(client.gather(products))
        b = da.arange(n**3, chunks=(A.chunks[0],)) % 7 + 1
        options = {"rtol": arguments.rtol, "maxiter": arguments.iterations, "check_every": arguments.check_every}
        options |= {"transport": arguments.transport, "M": arguments.M}
        begin = time.perf_counter()
        found = cvrarray.dask.cg(A, b, **options)
        whole = time.perf_counter() - begin
        x = found.x.map_blocks(to_host, dtype=np.float64, meta=np.empty(0)).compute()
        same = None
        if arguments.twice:
            again = cvrarray.dask.cg(A, b, **options)
            chunks = ((1,) * A.numblocks[0],)
            equal = da.map_blocks(equal_bits, found.x, again.x, dtype=bool, chunks=chunks, meta=np.empty(0, bool))
            same = bool(equal.compute().all())
        plain = plain_seconds(client, A, b) if arguments.plain else (None, None)
    return {
        "workers": n_workers,
        "transport": found.traffic.transport,
        "seconds": found.traffic.seconds,
        "seconds_to_solve": whole,
        "product_seconds": product,
        "bytes_moved": found.traffic.bytes_moved,
        "iterations": found.iterations,
        "residual": found.residual,
        "true_residual": residual(x, np.arange(n**3) % 7 + 1, n),
        "same_bits_twice": same,
        "seconds_to_make": made,
        "panels": arguments.panels,
        "plain_seconds": plain[0],
        "plain_bytes_moved": plain[1],
    }, x


#: How ``--lose`` takes a worker away: its process dies, or answers no more.
LOSSES = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def lose(how: str, n_workers: int, n: int, arguments: argparse.Namespace) -> dict:
    """How a solve that would not end by itself does when a worker is lost: seconds after the loss, and the error."""
    from distributed import Client, wait

    raised: list[BaseException] = []

    def solve(A: da.Array, **limits: object) -> None:
        try:
            b = da.ones(n**3, chunks=(A.chunks[0],))
            cvrarray.dask.cg(A, b, timeout=arguments.timeout, transport=arguments.transport, M=arguments.M, **limits)
        except Exception as error:
            raised.append(error)

    with start(n_workers, arguments) as cluster, Client(cluster) as client:
        client.wait_for_workers(n_workers, timeout=60)
        A = stencil(client, n, arguments.panels, sorted(client.nthreads()), arguments.device, arguments.format)
        wait(A)
        solve(A, maxiter=2)  # compiles
        address, pid = max(client.run(os.getpid).items())
        # nobody looks at the residual
        endless = threading.Thread(
            target=solve, args=(A,), kwargs={"rtol": 0, "maxiter": 10**9, "check_every": 10**9}, daemon=True
        )
        endless.start()
        time.sleep(5)
        was_running, begin = endless.is_alive() and not raised, time.perf_counter()
        os.kill(pid, LOSSES[how])
        endless.join(arguments.timeout + 60)
        seconds = time.perf_counter() - begin
        if how == "stopped":
            os.kill(pid, signal.SIGCONT)
    text = f"{type(raised[0]).__name__}: {raised[0]}" if raised else "no error"
    in_time = seconds < arguments.timeout + ALLOWANCE
    return {"lost": how, "seconds": seconds, "error": text, "is_right": was_running and in_time and address in text}


def plain_seconds(client, A: da.Array, b: da.Array, iterations: int = 5) -> tuple[float, float]:
    """Seconds and bytes of an iteration of the example's CG."""
    from distributed import wait

    sys.path.insert(0, str(ROOT / "examples"))
    from cg_dask import cg

    b = b.astype(np.float64)
    if A._meta.device != "cpu":
        b = b.to_backend("cupy")
    b = b.persist()
    wait(b)
    cg(A, b, rtol=0, maxiter=1)  # compiles
    before, begin = sum(client.run(sent).values()), time.perf_counter()
    cg(A, b, rtol=0, maxiter=iterations)
    return (time.perf_counter() - begin) / iterations, (sum(client.run(sent).values()) - before) / iterations


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", "--gpus", default="1", help="how many: one number or several, as in 1,2,4")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--nonzeros", type=float, default=1e8)
    parser.add_argument("--panels", type=int, default=8, help="of all workers together")
    parser.add_argument("--format", default="bbcsr", choices=FORMATS)
    parser.add_argument("--rtol", type=float, default=1e-8)
    parser.add_argument("--M", choices=["jacobi", "block_jacobi", "multigrid"], help="the preconditioner. Default: none")
    parser.add_argument("--iterations", type=int, default=300, help="at most")
    parser.add_argument("--check-every", type=int, default=1, help="iterations from one look at the residual to the next")
    parser.add_argument("--transport", default="auto", choices=["auto", "nccl", "host"])
    parser.add_argument("--twice", action="store_true", help="solve again, and compare bits")
    parser.add_argument("--plain", action="store_true", help="also CG in plain Dask")
    parser.add_argument("--lose", action="store_true", help="also lose a worker of the last number in mid-solve")
    parser.add_argument("--timeout", type=float, default=10, help="of the solves that lose a worker")
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--dask-cuda", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    dask.config.set({"distributed.scheduler.work-stealing": False, "distributed.diagnostics.nvml": False})
    os.environ.setdefault("PYTHONPATH", str(ROOT))  # of workers that are started
    n = round((arguments.nonzeros / 7) ** (1 / 3))
    nonzeros = (7 * n - 6) * n * n
    print(f"{nonzeros / 1e6:.0f} M nonzeros, {n**3 / 1e6:.1f} M rows, {arguments.format}, {arguments.device}", flush=True)
    rows, losses, first, failed = [], [], None, 0

    def report() -> None:
        if arguments.json:
            found = {"nonzeros": nonzeros, "rows": n**3, "runs": rows, "losses": losses}
            arguments.json.write_text(json.dumps(found, indent=1))

    for n_workers in map(int, arguments.workers.split(",")):
        begin = time.perf_counter()
        try:
            row, x = measure(n_workers, n, arguments)
        except Exception:  # the other numbers are still worth having
            traceback.print_exc()
            failed += 1
            continue
        first = x if first is None else first
        row["difference"] = float(abs(x - first).max() / abs(first).max())
        rows.append(row)
        row["speedup"] = rows[0]["seconds"] / row["seconds"]
        row["seconds_in_all"] = time.perf_counter() - begin
        print(line(row), flush=True)
        report()
        # the recurrence's residual and the true one part by rounding
        failed += not row["true_residual"] <= 2 * max(arguments.rtol, row["residual"]) or row["same_bits_twice"] is False
    for how in LOSSES if arguments.lose else ():
        losses.append(lose(how, n_workers, n, arguments))
        failed += not losses[-1]["is_right"]
        print(f"a worker {how}: after {losses[-1]['seconds']:.1f} s {losses[-1]['error']}", flush=True)
        report()
    return 1 if failed else 0


def line(row: dict) -> str:
    """A run in words."""
    text = (
        f"{row['workers']} workers ({row['transport']}): {row['seconds'] * 1e3:.3f} ms an iteration"
        f" ({row['product_seconds'] * 1e3:.3f} ms of products), {row['speedup']:.2f}x, {row['bytes_moved'] / 1e6:.3f} MB moved;"
        f" {row['iterations']} iterations, residual {row['residual']:.2e}, true {row['true_residual']:.2e},"
        f" {row['difference']:.1e} from the first; solved in {row['seconds_to_solve']:.3f} s,"
        f" {row['seconds_in_all']:.0f} s in all"
    )
    if row["same_bits_twice"] is not None:
        text += f"; {'the same' if row['same_bits_twice'] else 'OTHER'} bits in a second run"
    if row["plain_seconds"]:
        text += f"; plain Dask {row['plain_seconds'] * 1e3:.1f} ms, {row['plain_bytes_moved'] / 1e6:.1f} MB moved"
    return text


if __name__ == "__main__":
    sys.exit(main())
