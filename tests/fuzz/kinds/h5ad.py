"""AnnData's ``.h5ad``: groups whose arrays and shape were changed, read whole and to a store. (Bytes of HDF5 are h5py's.)"""

from __future__ import annotations

import os
import random

import h5py
import numpy as np
import scipy.sparse

import cvrarray
from cvrarray import files

from .. import edits, judge, meaning
from . import objects

BASES = [base for base in objects.BASES if base.split()[0] in ("csr", "csc")]
_WORDS = ("csr_matrix", "csc_matrix", "array", "dataframe", "")


def propose(rng: random.Random, base: str) -> list[edits.Edit]:
    found = objects.propose(rng, base)
    if rng.random() < 0.1:
        found.append(rng.choice((["encoding", rng.choice(_WORDS)], ["drop", rng.choice(("data", "indices", "indptr"))])))
    return found


def write(path: str, base: str, recipe: list[edits.Edit]) -> tuple[str, tuple[int, int], dict[str, np.ndarray]]:
    """The file; and the encoding, the shape and the arrays in it."""
    own = [edit for edit in recipe if edit[0] in ("encoding", "drop")]
    format, shape, arrays = objects.forged(base, [edit for edit in recipe if edit not in own])
    encoding = f"{format}_matrix"
    for edit in own:
        if edit[0] == "drop":
            arrays.pop(edit[1], None)
        else:
            encoding = edit[1]
    with h5py.File(path, "w") as root:
        group = root.create_group("X")
        group.attrs.update({"encoding-type": encoding, "encoding-version": "0.1.0", "shape": shape})
        for name, array in arrays.items():
            group[name] = array
    return encoding, shape, arrays


def examine(base: str, recipe: list[edits.Edit], folder: str) -> tuple[str, int]:
    """What the package makes of a recipe, and the bytes of the input."""
    path, store = os.path.join(folder, "m.h5ad"), os.path.join(folder, "m.store")
    try:
        encoding, shape, arrays = write(path, base, recipe)
    except (TypeError, ValueError, OverflowError):  # h5py will not hold it
        return "never made", 0
    size = os.stat(path).st_size
    try:
        csr = files.read_csr(path)
    except Exception as error:
        _refused_by_to_store(path, store)
        return judge.refused(error, (ValueError,), path), size
    try:
        entries = meaning.of_arrays(encoding.removesuffix("_matrix"), shape, arrays)
    except (meaning.Invalid, KeyError) as error:
        raise judge.Violation(f"accepted what breaks its format's rule: {error}") from error
    judge.same(csr, shape, entries, keeps_zeros=True)
    judge.accepted(judge.converted(csr, size), size)
    if csr.dtype.name in judge.COMPILED and max(shape) <= judge.MULTIPLIED:
        cvrarray.to_store(path, store, device="cpu", format="cvr", n_lanes=32, overwrite=True)
        stored = cvrarray.Stored(store, device="cpu")
        parts = [stored.panel(k).to_scipy() for k in range(stored.n_panels)]
        judge.same(scipy.sparse.vstack(parts, format="csr"), shape, entries, keeps_zeros=True)
    return "accepted", size


def _refused_by_to_store(path: str, store: str) -> None:
    try:
        cvrarray.to_store(path, store, device="cpu", overwrite=True)
    except Exception as error:
        judge.refused(error, (ValueError,), path)
    else:
        raise judge.Violation("to_store takes what read refuses")
