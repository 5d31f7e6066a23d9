"""Describe a matrix: rows, blocks, the format chosen and why, and what each format would store."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from ..core import devices
from . import bench, sources
from .table import finite, render, significant, size

#: Pixels of the spy plot, each way.
PIXELS = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray info``."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help=".mtx, .mtx.gz, .npz, .cvra or .h5ad::GROUP, or a generated matrix"
    )
    parser.add_argument(
        "--device", action="store_true", help="in place of FILE: what the choice of a format knows of the device"
    )
    parser.add_argument("--plot", metavar="OUT", help="draw where the nonzeros lie, and how long rows are: .png, .svg, ...")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Read, describe, draw."""
    if (args.file is None) != args.device:
        raise ValueError("info needs a FILE or --device, one of them")
    if args.device:
        facts = of_device()
        print(
            json.dumps(facts, indent=1) if args.json else render(["", ""], [[key, str(value)] for key, value in facts.items()])
        )
        return 0
    if args.plot is not None:
        check_plot(args.plot)
    csr = sources.load(args.file, scale="small", seed=0, device=devices.CPU)
    facts = describe(csr)
    print(json.dumps({"file": args.file, **facts}, indent=1) if args.json else text(args.file, facts))
    if args.plot is not None:
        plot(csr, args.file, args.plot)
    return 0


def of_device() -> dict[str, Any]:
    """What the choice of a format knows of the default device; of a CPU, that bytes decide."""
    device = devices.default()
    if device.kind == "cpu":
        return {"device": "cpu", "choice": "by bytes of the tables"}
    gpu = device.profile()
    return {
        "device": str(device),
        "memory, GB/s": round(gpu.memory / 1e3),
        "gathers from L2, billions/s": round(gpu.gathers / 1e3),
        "multiprocessors": gpu.processors,
        "L2, MB": gpu.l2_bytes / (1 << 20),
        "L1 for x, KB": gpu.l1_bytes / (1 << 10),
    }


def describe(csr: Any) -> dict[str, Any]:
    """What there is to say of a SciPy CSR, in JSON's types. Bytes are those of the arrays, built to be counted."""
    from ..choice import model
    from ..core import progress
    from ..input import coercion

    csr = coercion.as_csr(csr)  # checked once for all that follows
    stats = model.statistics(csr)
    kind = devices.default().kind  # as asarray would here
    seen = model.statistics(csr, exact=False)
    plan = model.choose(seen, kind)
    csr_bytes = csr.data.nbytes + csr.indices.nbytes + csr.indptr.nbytes
    memory: dict[str, int | None] = {"csr": csr_bytes}
    with progress.shown("converting", len(stats.table_bytes), "formats") as update:
        for done, name in enumerate(stats.table_bytes):
            # What would be many times larger is not worth its time, and might not fit: the model's word has to do.
            too_large = stats.table_bytes[name] > bench.MOST_BYTES * csr_bytes
            update(done)
            memory[name] = None if too_large else int(_build(csr, name).nbytes)
    return {
        "shape": list(stats.shape),
        "dtype": str(stats.dtype),
        "nnz": stats.nnz,
        "row_lengths": {
            "min": stats.row_min,
            "median": finite(stats.row_median),
            "mean": stats.row_mean,
            "max": stats.row_max,
            "std": finite(stats.row_std),
            "empty": stats.empty_rows,
        },
        "values": stats.values,
        "block_fill": {str(block_size): fill for block_size, fill in stats.block_fill.items() if block_size > 1},
        "format": plan.format,
        "block_size": plan.block_size,
        "reason": plan.reason,
        "sampled": seen.sampled,
        "memory_bytes": memory,
        "memory_bytes_modelled": {"csr": csr_bytes, **stats.table_bytes},
        "product_seconds_modelled": {"device": kind, **{n: us * 1e-6 for n, us in model.predict(stats, kind).items()}},
    }


def text(name: str, facts: dict[str, Any]) -> str:
    """The facts for people."""
    rows, fill = facts["row_lengths"], facts["block_fill"]
    n_rows, n_cols = facts["shape"]
    lines = [
        ("shape", f"{n_rows:,} x {n_cols:,}, {facts['dtype']}"),
        ("nonzeros", f"{facts['nnz']:,}"),
        (
            "row lengths",
            f"min {rows['min']:,}, median {significant(rows['median'])}, mean {significant(rows['mean'])}, "
            f"max {rows['max']:,}, std {significant(rows['std'])}; {rows['empty']:,} empty",
        ),
        ("values", facts["values"]),
        ("block fill", ", ".join(f"{k} x {k}: {significant(v)}" for k, v in fill.items()) or "no blocks"),
        ("", "entries of the blocks that are not all zero, over nonzeros: 1.00 is perfect"),
        ("format", facts["reason"]),
    ]
    if facts["sampled"]:
        lines.append(("", "as asarray chooses: by a sample of the rows. Block fill and the table count all rows"))
    width = max(len(key) for key, _ in lines)
    csr_bytes = facts["memory_bytes"]["csr"]
    modelled, seconds = facts["memory_bytes_modelled"], facts["product_seconds_modelled"]
    memory = [
        [
            f"{key[:5]}, block size {key[5:]}" if key.startswith("bbcsr") else key,
            size(modelled[key]) if n_bytes is None else size(n_bytes),
            f"{(modelled[key] if n_bytes is None else n_bytes) / max(1, csr_bytes):.2f}",
            significant(seconds[key] * 1e6) if key in seconds else "-",
            "not built: estimated" if n_bytes is None else "",
        ]
        for key, n_bytes in facts["memory_bytes"].items()
    ]
    about = "\n".join(f"  {key:{width}}  {value}" for key, value in lines)
    return f"{name}\n{about}\n\n" + render(["format", "bytes", "of CSR", f"us on {seconds['device']}, predicted", ""], memory)


def _build(csr: Any, name: str) -> Any:
    """The array that ``Statistics.table_bytes`` calls `name`: ``"cvr"``, or ``"bbcsr"`` and the block size."""
    from ..formats import of_variant

    cls, keywords = of_variant(name)
    return cls(csr, **keywords)


def check_plot(path: str) -> None:
    """Whether :func:`plot` could draw to `path`: to be asked before a matrix is read.

    Raises
    ------
    ModuleNotFoundError
        matplotlib is not installed.
    ValueError
        `path`'s suffix is no image format.
    OSError
        There is no such folder, or it may not be written to.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "--plot draws with matplotlib, which is not installed: pip install 'cvrarray[plot]'", name="matplotlib"
        ) from error
    formats = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in formats:
        raise ValueError(f"--plot must name a file that ends in one of {', '.join(f'.{f}' for f in formats)}; got {path}")
    sources.check_output(path)


def plot(csr: Any, title: str, path: str) -> None:
    """A spy plot (how full each pixel is) and a histogram of row lengths, to an image file; see :func:`check_plot`."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure  # a Figure of its own: no pyplot, no window system
    from matplotlib.ticker import MaxNLocator

    from .. import files

    n_rows, n_cols = csr.shape
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    figure.suptitle(f"{Path(title).name}: {n_rows:,} x {n_cols:,}, {csr.nnz:,} nonzeros")
    spy, lengths = figure.subplots(1, 2)
    counts = pixel_counts(csr)
    image = spy.imshow(
        np.ma.masked_equal(counts, 0),
        cmap="viridis_r",
        norm=LogNorm(1, max(2, counts.max())),
        interpolation="nearest",
        extent=(0, max(n_cols, 1), max(n_rows, 1), 0),
        aspect="auto" if max(csr.shape) > 4 * max(min(csr.shape), 1) else "equal",
    )
    figure.colorbar(image, ax=spy, label="nonzeros a pixel", shrink=0.8)
    spy.set(xlabel="column", ylabel="row")
    per_row = np.diff(csr.indptr)
    longest = int(per_row.max(initial=0))
    # Whole numbers stand in the middle of their bar; long tails get bars that grow by a constant factor.
    edges = np.arange(longest + 2) - 0.5 if longest <= 60 else np.unique(np.geomspace(1, longest + 1, 60).astype(int)) - 0.5
    if longest > 60:
        lengths.set_xscale("symlog", linthresh=1)
        edges = np.concatenate([[-0.5], edges])
    else:
        lengths.xaxis.set_major_locator(MaxNLocator(integer=True))
    lengths.hist(per_row, bins=edges, color="#3b528b")
    lengths.set_yscale("symlog", linthresh=1)
    lengths.set(
        xlabel="nonzeros a row",
        ylabel="rows",
        title=f"median {np.median(per_row) if n_rows else 0:g}, longest {longest:,}",
    )
    with files.replacing(path) as file:
        figure.savefig(file, dpi=150, format=Path(path).suffix.removeprefix(".").lower())


def pixel_counts(csr: Any) -> np.ndarray:
    """(rows, columns) nonzeros that fall into each of at most PIXELS x PIXELS equal rectangles of the matrix."""
    n_rows, n_cols = csr.shape
    height, width = min(max(n_rows, 1), PIXELS), min(max(n_cols, 1), PIXELS)
    row = np.repeat(np.arange(n_rows) * height // max(n_rows, 1), np.diff(csr.indptr))
    col = csr.indices.astype(np.int64) * width // max(n_cols, 1)
    return np.bincount(row * width + col, minlength=height * width).reshape(height, width)
