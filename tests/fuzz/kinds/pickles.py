"""Pickles of arrays whose bytes were changed. No hostile ones: a pickle is a program, and may do anything."""

from __future__ import annotations

import pickle
import random
from functools import cache

from cvrarray.array.base import SparseArray

from .. import edits, judge
from . import cvra

BASES = ["cvr 4, even", "cvr 32, c16", "bbcsr 6, even", "bbcsr 3, tall"]
BASES += [f"{base}, protocol 4" for base in BASES]


@cache
def _pickled(base: str) -> bytes:
    name, _, protocol = base.partition(", protocol ")
    return pickle.dumps(cvra.matrix(name), protocol=int(protocol or 5))


def propose(rng: random.Random, base: str) -> list[edits.Edit]:
    size = len(_pickled(base))
    found = [
        [kind, rng.randrange(size), rng.randrange(8 if kind == "flip" else 256)] for kind in rng.choices(("flip", "set"), k=2)
    ]
    return [["cut", rng.randrange(size), 0]] if rng.random() < 0.05 else found[: rng.randint(1, 2)]


def examine(base: str, recipe: list[edits.Edit], folder: str) -> tuple[str, int]:
    """What the package makes of a recipe, and the bytes of the input."""
    content = _pickled(base)
    for edit in recipe:
        content = edits.apply_bytes(content, edit)
    try:
        A = pickle.loads(content)
    except Exception:  # whatever the changed program raises
        return "refused", len(content)
    if not isinstance(A, SparseArray):
        return "refused", len(content)  # it makes something else
    judge.accepted(A, len(content))
    return "accepted", len(content)
