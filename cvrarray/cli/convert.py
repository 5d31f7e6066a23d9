"""Convert a matrix file to CVR or BBCSR and save it, or back.

The suffixes say what is meant: .cvra holds an array of ours, ready to be memory-mapped; .mtx, .mtx.gz and .npz hold
what other programs read. A .cvra file keeps its format and parameters on the way to another, but for those named.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from .. import formats  # noqa: F401 (makes them known)
from ..array.format import FORMATS, FormatArray
from . import sources
from .table import size

#: Options that are one class's own.
PARAMETERS = {"n_lanes": "cvr", "n_chunks": "cvr", "split": "cvr", "block_size": "bbcsr"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray convert``."""
    parser.add_argument(
        "file", metavar="FILE", help=".mtx, .mtx.gz, .npz, .cvra, or .h5ad::GROUP and .zarr::GROUP, such as ::layers/counts"
    )
    parser.add_argument("out", metavar="OUT", help=".cvra, or .mtx, .mtx.gz, .npz; replaced if it is there")
    parser.add_argument("--format", choices=("auto", *FORMATS), help="default: that of FILE where it is a .cvra, else auto")
    parser.add_argument("--block-size", type=int, metavar="N", help="BBCSR: rows and columns of a block, 1 to 32")
    parser.add_argument("--n-lanes", type=int, metavar="N", help="CVR: lanes a chunk, 1 to 32")
    parser.add_argument("--n-chunks", type=int, metavar="N", help="CVR: chunks")
    parser.add_argument("--split", choices=("rows", "nnz", "even"), help="CVR: where chunks end")
    parser.add_argument("--device", default="cpu", help="where to convert; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Read, convert, write, and say what was written."""
    from .. import files
    from ..core import devices, progress

    out = Path(args.out)
    given = {name: getattr(args, name) for name in PARAMETERS if getattr(args, name) is not None}
    device = devices.parse(args.device)
    if out.suffix == ".cvra":
        format = _format(args.format, given)
        files.check_target(out)
        array = _array(args.file, format, device, given)
        files.save(out, array)
        print(array)
        if array._stored_as:
            print(f"version 2 of the file format, for values that are stored in fewer bytes ({array._stored_as})")
    else:
        write = _writer(out)
        if given or args.format is not None:
            raise ValueError(f"--format and the formats' own options need an OUT that ends in .cvra; got {out}")
        files.check_target(out)
        csr = sources.read(args.file)
        with progress.shown(f"writing {out.name}", unit="B") as update, files.replacing(out, update) as file:
            write(file, csr)
    print(f"{out}: {size(out.stat().st_size)}")
    return 0


def _format(named: str | None, given: dict[str, Any]) -> str | None:
    """The format that ``--format`` and the options ask for; None where they name none."""
    asked = {PARAMETERS[name] for name in given} | ({named} - {None, "auto"})
    if len(asked) > 1:
        options = ", ".join(f"--{name.replace('_', '-')} ({PARAMETERS[name]})" for name in given)
        raise ValueError(f"options must be of one format; got {f'--format {named} with ' if named else ''}{options}")
    return asked.pop() if asked else named


def _array(path: str, format: str | None, device: Any, given: dict[str, Any]) -> Any:
    """The array of ours that is asked for; of a file of ours, with what the options do not change."""
    import cvrarray

    matrix = sources.read_as_stored(path)
    if isinstance(matrix, FormatArray):
        if format in (None, matrix.format) and not given:
            return matrix.to_device(device)
        if format == matrix.format:
            given = matrix._parameters() | given
    return cvrarray.asarray(matrix, format=format or "auto", device=device, **given)


def _writer(out: Path) -> Callable[[Any, Any], None]:
    """The function (file, csr) that writes what `out`'s suffix says."""
    if out.suffix == ".npz":
        return _write_npz
    if out.suffix == ".mtx":
        return _write_mtx
    if out.suffixes[-2:] == [".mtx", ".gz"]:
        return _write_mtx_gz
    remedy = ". A store is written in Python, by cvrarray.to_store(FILE, OUT)" if out.suffix == ".store" else ""
    raise ValueError(f"OUT must end in .cvra, .mtx, .mtx.gz or .npz; got {out}{remedy}")


def _write_npz(file: IO[bytes], csr: Any) -> None:
    from scipy.sparse import save_npz

    save_npz(file, csr)


def _write_mtx(file: IO[bytes] | gzip.GzipFile, csr: Any) -> None:
    from scipy.io import mmwrite

    # general: looking for a symmetry costs a transposed copy, and half the entries would be gone from the file
    mmwrite(file, csr, symmetry="general")


def _write_mtx_gz(file: IO[bytes], csr: Any) -> None:
    with gzip.open(file, "wb") as unpacked:
        _write_mtx(unpacked, csr)
