"""What the recorded runs are given: matrices of files, and numbers of threads."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

from cvrarray import generate
from cvrarray.core import devices
from cvrarray.cpu.runtime import threads


def add_values(parser: argparse.ArgumentParser) -> None:
    """The option ``--values``."""
    parser.add_argument(
        "--values",
        choices=generate.VALUES,
        default="random",
        help=f"of the matrices: all 1, or {generate.FEW} different ones; default: %(default)s",
    )


def label(name: str, values: str) -> str:
    """What a matrix with such values is called where it is measured."""
    return {"random": name, "one": f"{name} (one value)", "few": f"{name} (few values)"}[values]


def stored() -> dict[str, Path]:
    """Files ``<name>.npz`` of the folder that ``CVRARRAY_MATRICES`` names, by name; none where it is unset.

    Raises
    ------
    ValueError
        It names no folder.
    """
    folder = os.environ.get("CVRARRAY_MATRICES")
    if not folder:
        return {}
    if not Path(folder).is_dir():
        raise ValueError(f"CVRARRAY_MATRICES must name a folder of .npz files; got {folder!r}. Unset it to do without")
    return {path.stem: path for path in sorted(Path(folder).glob("*.npz"))}


def read_stored(path: Path) -> Any:
    """A ``scipy.sparse.csr_array`` of the indptr, indices, shape and data of an .npz; every value is 1 without data."""
    from scipy import sparse

    with np.load(path) as arrays:
        missing = {"indptr", "indices", "shape"} - set(arrays)
        if missing:
            raise ValueError(f"{path} must hold indptr, indices and shape; it has no {', '.join(sorted(missing))}")
        indptr, indices, shape = arrays["indptr"], arrays["indices"], arrays["shape"].tolist()
        data = arrays["data"] if "data" in arrays else np.ones(indices.size)
    csr = sparse.csr_array((data, indices, indptr), shape=shape)
    csr.sum_duplicates()
    return csr


def thread_counts(text: str | None, device: devices.Device) -> list[int | None]:
    """The numbers of threads of ``--threads 1,all``, ascending; left out: all of them. A GPU has no number: None.

    Raises
    ------
    ValueError
        It is neither a whole number from 1 nor ``all``, or `device` is a GPU.
    """
    if device.kind != "cpu":
        if text:
            raise ValueError(f"--threads is for the CPU; got --device {device}. Leave one of them out")
        return [None]
    counts: set[int] = set()
    for word in (text or "all").split(","):
        if word != "all" and not (word.isdecimal() and int(word)):
            raise ValueError(f"--threads must be whole numbers from 1, or all, parted by commas; got {word!r}")
        counts.add(threads.count() if word == "all" else int(word))
    return sorted(counts)  # type: ignore[return-value]  # a list of int, where None may stand too
