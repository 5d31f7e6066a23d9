"""Products with a matrix on disk, larger than the device may hold: rates of disk, copy and product.

    python -m asv_bench.record.store_stream --gigabytes 40 --device cuda --pool-limit 5 --store /scratch/big.store
    python -m asv_bench.record.store_stream --gigabytes 2 --device cpu

1. Writes the store, if it is not there: a random matrix of float32, panel by panel.
2. Measures the disk (the same panels, read and not used; `--cold` drops them from the system's cache first) and the
   copy from pinned memory to the device.
3. Streams A @ x, with CuPy's pool limited to `--pool-limit` GB.
4. Resident: with panels kept on the device, beside one undivided array of as many of their rows as fit (`--resident`
   GB).
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import cvrarray
from cvrarray.core import devices
from cvrarray.cpu.runtime import memory
from cvrarray.input import partition
from cvrarray.store import layout
from cvrarray.store.writer import Writer


def write(path: Path, gigabytes: float, panel_bytes: int, device: str, per_row: int = 32) -> None:
    """A store of random rows of `per_row` entries; going on with what is there."""
    target = devices.parse(device)
    rows = int(panel_bytes / (per_row * 8 + 4)) // 32 * 32
    n_panels = max(1, round(gigabytes * 1e9 / panel_bytes))
    n_cols, xp = rows * n_panels, target.xp
    first = [rows * k for k in range(n_panels + 1)]
    writer = Writer(path, n_cols, first, format="cvr", device=device, source=f"random, {per_row} a row", resume=True)
    if writer.complete:
        return
    begin = time.perf_counter()
    with writer, target.use():
        for k in writer.missing():
            rng = xp.random.default_rng(k)
            width = n_cols // per_row  # one column of each stripe: sorted, and never twice
            indices = rng.integers(0, width, (rows, per_row)) + xp.arange(per_row) * width
            indices = indices.astype(xp.int32 if n_cols < 2**31 else xp.int64).ravel()
            data = rng.random(indices.size, dtype=xp.float32)
            writer.write(k, cvrarray.CVRArray((data, indices, xp.arange(rows + 1) * per_row), shape=(rows, n_cols)))
    print(f"written: {n_panels} panels in {time.perf_counter() - begin:.0f} s")


def drop_from_cache(stored: cvrarray.Stored) -> None:
    """Ask the system to forget the store's files, so that they are read from the disk."""
    os.sync()
    for k in range(stored.n_panels):
        with open(layout.data_file(stored.path, k), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_rate(stored: cvrarray.Stored, threads: int, verify: bool) -> float:
    """GB/s at which `threads` threads read the panels, and do nothing with them but compare checksums if asked to."""
    buffers = [memory.empty(stored.panel_bytes, np.uint8) for _ in range(3)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for k, panel in enumerate(stored._manifest):
            read = lambda i, k=k, panel=panel: layout.read_piece(stored.path, k, panel, i, buffers[k % 3], verify)  # noqa: E731
            list(pool.map(read, range(len(panel.pieces))))
    return stored.nbytes / (time.perf_counter() - begin) / 1e9


def copy_rate(stored: cvrarray.Stored, target) -> float:
    """GB/s of copies from pinned memory to the device; infinite on the CPU, which copies nothing."""
    if target.kind == "cpu":
        return float("inf")
    with target.use():
        staging = target.backend("staging").Staging(stored.panel_bytes, 2)
        content = staging.host(0, stored.panel_bytes, False)
        staging.to_device(0, content, False)
        staging.drain()
        begin, n = time.perf_counter(), 20
        for _ in range(n):
            staging.to_device(0, content, False)
        staging.drain()
        return n * stored.panel_bytes / (time.perf_counter() - begin) / 1e9


def products(A, x, target, n: int) -> list[float]:
    """Seconds of each of `n` products after one that is not counted."""
    A @ x
    _wait(target)
    seconds = []
    for _ in range(n):
        begin = time.perf_counter()
        A @ x
        _wait(target)
        seconds.append(time.perf_counter() - begin)
    return seconds


def _wait(target) -> None:
    if target.kind == "cuda":
        target.xp.cuda.runtime.deviceSynchronize()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("stream.store"))
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--panel", default="256 MiB", help="bytes of a panel")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pool-limit", type=float, help="GB that CuPy's pool may take; default: an eighth of the store")
    parser.add_argument("--hold", type=int, default=4)
    parser.add_argument("--threads", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="drop the store from the system's cache before each reading")
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--resident", type=float, default=0.0, help="GB of panels to keep, beside one undivided array")
    arguments = parser.parse_args()

    target, verify = devices.parse(arguments.device), not arguments.no_verify
    write(arguments.store, arguments.gigabytes, partition.n_bytes(arguments.panel, "panel"), arguments.device)
    if target.kind == "cuda":
        target.xp.get_default_memory_pool().free_all_blocks()
        limit = arguments.pool_limit or arguments.gigabytes / 8
        target.xp.get_default_memory_pool().set_limit(size=int(limit * 1e9))
        print(f"pool limit: {limit:.2f} GB")

    def reopen(budget):
        return cvrarray.Stored(
            arguments.store,
            device=arguments.device,
            hold=arguments.hold,
            budget=budget,
            verify=verify,
            threads=arguments.threads,
        )

    stored = reopen(0)
    print(stored)
    x = target.xp.ones(stored.shape[1], np.float32)
    if arguments.cold:
        drop_from_cache(stored)
    disk, copy = disk_rate(stored, arguments.threads, verify), copy_rate(stored, target)
    print(f"disk {disk:.2f} GB/s{' (cold)' if arguments.cold else ' (cached where it fits)'}, copy {copy:.2f} GB/s")
    stored.panel(0) @ x  # compiles
    rates = []
    for _ in range(arguments.repeat):
        if arguments.cold:
            drop_from_cache(stored)
        begin = time.perf_counter()
        stored.matvec(x)
        _wait(target)
        rates.append(stored.nbytes / (time.perf_counter() - begin) / 1e9)
    best = max(rates)
    print(
        f"streamed: {', '.join(f'{rate:.2f}' for rate in rates)} GB/s; best is {best / min(disk, copy):.0%} of the slower rate"
    )
    if target.kind == "cuda":
        print(f"pool holds {target.xp.get_default_memory_pool().total_bytes() / 1e9:.2f} GB")
    stored.close()

    if arguments.resident:
        if target.kind == "cuda":
            target.xp.get_default_memory_pool().set_limit(size=0)
        n_panels = max(1, int(arguments.resident * 1e9 // stored.panel_bytes))
        kept = reopen(int(n_panels * stored.panel_bytes))
        kept._manifest = kept._manifest[:n_panels]
        divided = min(products(kept, x, target, 10))
        print(f"resident, {kept.n_panels} panels: {kept.nbytes / divided / 1e9:.1f} GB/s ({divided * 1e3:.3f} ms)")
        parts = [kept.panel(k)._canonical_csr() for k in range(n_panels)]
        kept.close()
        xp, offset = target.xp, np.cumsum([0, *(part.nnz for part in parts)])
        indptr = xp.concatenate([parts[0].indptr[:1], *(p.indptr[1:] + int(o) for p, o in zip(parts, offset, strict=False))])
        indices, data = (xp.concatenate([part[i] for part in parts]) for i in (1, 2))
        shape = (sum(part.shape[0] for part in parts), stored.shape[1])
        del parts
        undivided = cvrarray.CVRArray((data, indices, indptr), shape=shape)
        whole = min(products(undivided, x, target, 10))
        print(f"undivided: {undivided.nbytes / whole / 1e9:.1f} GB/s ({whole * 1e3:.3f} ms); resident: {divided / whole:.2f} x")


if __name__ == "__main__":
    main()
