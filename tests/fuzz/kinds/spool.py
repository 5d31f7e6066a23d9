"""What a writer that was stopped has left: entries set aside, changed or missing, and then ``resume=True``."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from functools import cache

import numpy as np
from scipy.sparse import csr_array

import cvrarray
from cvrarray.store import lock

from .. import edits, judge
from . import store

BASES = ["cvr", "bbcsr"]
_SHAPE = (600, 20)
_ROW, _COL = np.arange(1500) * 7 % _SHAPE[0], np.arange(1500) * 11 % _SHAPE[1]
_VAL = np.arange(1500) % 9 + 1.0
_WORDS = (b"null", b"-1", b"1", b"[]", b'"<f4"', b"600", b"99999999999")


class _Stopped(Exception):
    """The writer comes to its end here."""


def _write(path: str, base: str, stop: int = -1, **options: bool) -> None:
    """Write the matrix, in the order in which its entries come; `stop` panels are written before the writer is stopped."""
    parameters = {"n_lanes": 32} if base == "cvr" else {"block_size": 1}
    pieces = [(_ROW[:700], _COL[:700], _VAL[:700]), (_ROW[700:], _COL[700:], _VAL[700:])]
    write_panel, written = store.layout.write_panel, []

    def counted(*args, **kwargs):
        if len(written) == stop:
            raise _Stopped
        written.append(0)
        return write_panel(*args, **kwargs)

    store.layout.write_panel = counted
    try:
        cvrarray.to_store(
            pieces, path, shape=_SHAPE, chunks=6000, format=base, device="cpu", name="entries", **parameters, **options
        )
    finally:
        store.layout.write_panel = write_panel


@cache
def _base(base: str) -> dict[str, bytes]:
    """The files of a store of which one panel was written, and of what was set aside for it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _write(os.path.join(folder, "s.zarr"), base, stop=1)
        except _Stopped:
            return store.files(folder)
    raise AssertionError("the writer must be stopped")


def propose(rng: random.Random, base: str) -> list[edits.Edit]:
    names = [name for name in _base(base) if "-spool" in name]
    found: list[edits.Edit] = []
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(names)
        damage = ["file", name, edits.propose_bytes(rng, len(_base(base)[name]), _WORDS)]
        found.append(damage if rng.random() < 0.95 else ["missing", name])
    return found


def examine(base: str, recipe: list[edits.Edit], folder: str) -> tuple[str, int]:
    """What the package makes of a recipe, and the bytes of the input."""
    files = store.damaged(_base(base), recipe)
    size = sum(map(len, files.values()))
    shutil.rmtree(folder, ignore_errors=True)
    store.write(folder, files)
    path = os.path.join(folder, "s.zarr")
    try:
        _write(path, base, resume=True)
    except Exception as error:
        return judge.refused(error, (ValueError, FileNotFoundError), path, lock.beside(path, "spool")), size
    stored = cvrarray.Stored(path, device="cpu", threads=1, budget=0)
    stored.check()
    csr = csr_array((_VAL, (_ROW, _COL)), shape=_SHAPE)
    judge.products(stored, csr, size)
    if stored.nnz != csr.nnz:
        raise judge.Violation(f"{stored.nnz} entries instead of {csr.nnz}")
    return "accepted", size
