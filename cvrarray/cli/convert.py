"""Convert a matrix file to CVR or BBCSR and save it, or back.

The suffixes say what is meant: .cvra holds an array of ours, ready to be memory-mapped; .mtx, .mtx.gz and .npz hold
what other programs read.
"""

from __future__ import annotations

import argparse
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from . import sources
from .table import size

#: Options that are one class's own.
PARAMETERS = {"n_lanes": "cvr", "n_chunks": "cvr", "split": "cvr", "block_size": "bbcsr"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray convert``."""
    parser.add_argument("file", metavar="FILE", help=".mtx, .mtx.gz, .npz or .cvra")
    parser.add_argument("out", metavar="OUT", help=".cvra, or .mtx, .mtx.gz, .npz; replaced if it is there")
    parser.add_argument("--format", choices=("auto", "cvr", "bbcsr"), default="auto", help="default: %(default)s")
    parser.add_argument("--block-size", type=int, metavar="N", help="BBCSR: rows and columns of a block, 1 to 32")
    parser.add_argument("--n-lanes", type=int, metavar="N", help="CVR: lanes a chunk, 1 to 32")
    parser.add_argument("--n-chunks", type=int, metavar="N", help="CVR: chunks")
    parser.add_argument("--split", choices=("rows", "nnz"), help="CVR: where chunks end")
    parser.add_argument("--device", default="cpu", help="where to convert; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Read, convert, write, and say what was written."""
    import cvrarray

    out = Path(args.out)
    given = {name: getattr(args, name) for name in PARAMETERS if getattr(args, name) is not None}
    if out.suffix == ".cvra":
        array = _array(args, given)
        cvrarray.save(out, array)
        print(array)
    else:
        write = _writer(out)
        if given or args.format != "auto":
            raise ValueError(f"--format and the formats' own options need an OUT that ends in .cvra; got {out}")
        csr = sources.read(args.file)
        _replace(out, lambda file: write(file, csr))
    print(f"{out}: {size(out.stat().st_size)}")
    return 0


def _array(args: argparse.Namespace, given: dict[str, Any]) -> Any:
    """The array of ours that is asked for."""
    import cvrarray

    formats = {PARAMETERS[name] for name in given} | ({args.format} - {"auto"})
    if len(formats) > 1:
        options = ", ".join(f"--{name.replace('_', '-')} ({PARAMETERS[name]})" for name in given)
        raise ValueError(f"options must be of one format; got --format {args.format} with {options}")
    return cvrarray.asarray(sources.read(args.file), format=(formats or {"auto"}).pop(), device=args.device, **given)


def _writer(out: Path) -> Callable[[IO[bytes], Any], None]:
    """The function (file, csr) that writes what `out`'s suffix says."""
    if out.suffix == ".npz":
        return _write_npz
    if out.suffix == ".mtx":
        return _write_mtx
    if out.suffixes[-2:] == [".mtx", ".gz"]:
        return _write_mtx_gz
    raise ValueError(f"OUT must end in .cvra, .mtx, .mtx.gz or .npz; got {out}")


def _write_npz(file: IO[bytes], csr: Any) -> None:
    from scipy.sparse import save_npz

    save_npz(file, csr)


def _write_mtx(file: IO[bytes], csr: Any) -> None:
    from scipy.io import mmwrite

    # general: looking for a symmetry costs a transposed copy, and half the entries would be gone from the file
    mmwrite(file, csr, symmetry="general")


def _write_mtx_gz(file: IO[bytes], csr: Any) -> None:
    with gzip.open(file, "wb") as unpacked:
        _write_mtx(unpacked, csr)


def _replace(out: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write beside `out` and rename: `out` is either what it was or complete."""
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with open(beside, "xb") as file:
            write(file)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
