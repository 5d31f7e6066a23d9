"""``.cvra``: bytes that were changed, and tables and headers that were forged with right checksums."""

from __future__ import annotations

import copy
import json
import os
import random
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse

import cvrarray
from cvrarray.files import cvra

from .. import archive, edits, judge

_BUILDS = {
    "cvr 32": lambda csr: cvrarray.CVRArray(csr, n_lanes=32, device="cpu"),
    "cvr 4": lambda csr: cvrarray.CVRArray(csr, n_lanes=4, n_chunks=4, device="cpu"),
    "cvr 4 nnz": lambda csr: cvrarray.CVRArray(csr, n_lanes=4, n_chunks=5, split="nnz", device="cpu"),
    "cvr 24": lambda csr: cvrarray.CVRArray(csr, n_lanes=24, n_chunks=2, device="cpu"),
    "bbcsr 6": lambda csr: cvrarray.BBCSRArray(csr, block_size=6, device="cpu"),
    "bbcsr 1": lambda csr: cvrarray.BBCSRArray(csr, block_size=1, device="cpu"),
    "bbcsr 3": lambda csr: cvrarray.BBCSRArray(csr, block_size=3, device="cpu"),
}
_BUILDS |= {
    "cvr 32, few": lambda csr: judge.few(_BUILDS["cvr 32"](csr)),
    "bbcsr 6, few": lambda csr: judge.few(_BUILDS["bbcsr 6"](csr)),
    "cvr 32, one": lambda csr: judge.few(_BUILDS["cvr 32"](abs(csr).sign())),
    "bbcsr 6, one": lambda csr: judge.few(_BUILDS["bbcsr 6"](abs(csr).sign())),
}
_SHAPES = {"even": (40, 30), "wide": (40, 90_000), "tall": (100, 6), "empty": (5, 4)}
_MADE = {
    f"{build}, {shape}": (build, shape, "f8")
    for build in _BUILDS
    for shape in _SHAPES
    if shape == "even" or not build.endswith(("few", "one"))  # for these alone kernels are compiled beforehand
}
_MADE |= {"cvr 32, c16": ("cvr 32", "even", "c16"), "bbcsr 6, c16": ("bbcsr 6", "even", "c16")}
BASES = list(_MADE)

_WORDS = (b"PK\1\2", b"PK\3\4", b"\x93NUMPY", b"'<i8'", b'"version": 2', b'"nnz": 1', b"-1", b"4611686018427387904")


def matrix(base: str) -> Any:
    """The array of a base."""
    build, name, dtype = _MADE[base]
    shape = n_rows, n_cols = _SHAPES[name]
    n_entries = 0 if name == "empty" else 100
    place = np.arange(n_entries)
    row = np.concatenate([place * 7 % n_rows, np.zeros(n_entries // 4, int)])  # and a long row, which chunks cut
    col = np.concatenate([place * place * 13 % n_cols, place[: n_entries // 4] * 3571 % n_cols])
    csr = scipy.sparse.coo_array((np.ones(row.size), (row, col)), shape=shape).tocsr()
    csr.data = (np.arange(csr.nnz) % 9 + 1).astype(dtype)
    return _BUILDS[build](csr)


@cache
def description(base: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and tables of a base; not to be written to."""
    return cvra.describe(matrix(base))


def propose(rng: random.Random, base: str) -> list[edits.Edit]:
    header, arrays = description(base)
    names = [name for name, array in arrays.items() if array.size]
    found: list[edits.Edit] = []
    style = rng.random()
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        if style < 0.8:
            found.append(propose_table(rng, header, arrays, names))
        else:
            found.append(["zip", edits.propose_bytes(rng, 3000, _WORDS)])
    return found


def propose_table(rng: random.Random, header: dict[str, Any], arrays: dict[str, np.ndarray], names: list[str]) -> edits.Edit:
    """One edit of tables or header."""
    kind = rng.random()
    if kind < 0.75 and names:
        name = rng.choice(names)
        place = rng.randrange(arrays[name].size)
        style = rng.random()
        if style < 0.2:
            return ["ramp", name, rng.choice((59, 60, 61, 62, 63)), rng.randint(1, 15)]
        if style < 0.4:
            return ["swap", name, place, rng.randrange(arrays[name].size)]
        if style < 0.5:
            return ["resize", name, rng.randint(0, 40)]
        return ["item", name, place, edits.number(rng)]
    if kind < 0.85:
        return ["parameter", rng.choice(list(header["parameters"])), rng.choice((edits.number(rng), rng.randint(0, 33)))]
    if kind < 0.95:
        return ["size", rng.randrange(2), rng.choice((edits.number(rng), rng.randint(0, 100)))]
    return ["header", rng.choice(list(header)), rng.choice((None, -1, True, 2, "cvr", "bbcsr", [], [1], {}, "<f4", 1e9))]


def forged(base: str, recipe: list[edits.Edit]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and tables of a recipe, that agree with one another as far as the edits let them."""
    return edited(*description(base), recipe)


def edited(
    header: dict[str, Any], arrays: dict[str, np.ndarray], recipe: list[edits.Edit]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and tables after the edits of :func:`propose_table`."""
    header, arrays = copy.deepcopy(header), dict(arrays)
    for edit in recipe:
        if edit[0] == "swap" and edit[1] in arrays:
            table = arrays[edit[1]].copy()
            flat = table.reshape(-1)
            i, j = (place % max(1, flat.size) for place in edit[2:])
            if flat.size:
                flat[[i, j]] = flat[[j, i]]
            arrays[edit[1]] = table
        elif edit[0] == "parameter":
            header["parameters"][edit[1]] = edit[2]
        elif edit[0] == "size":
            header["shape"][edit[1]] = edit[2]
        elif edit[0] in ("item", "ramp", "resize"):
            edits.apply_array(arrays, edit)
    header["arrays"] = {name: {"dtype": a.dtype.str, "shape": list(a.shape)} for name, a in arrays.items()}
    for edit in recipe:
        if edit[0] == "header":
            header[edit[1]] = edit[2]
    return header, arrays


def content(base: str, recipe: list[edits.Edit]) -> bytes:
    """The file of a recipe."""
    header, arrays = forged(base, recipe)
    members = {"cvrarray.json": json.dumps(header).encode()}
    members |= {f"{name}.npy": archive.npy(array) for name, array in arrays.items()}
    file = archive.pack(members, alignment=64)
    for edit in recipe:
        if edit[0] == "zip":
            file = edits.apply_bytes(file, edit[1])
    return file


def examine(base: str, recipe: list[edits.Edit], folder: str) -> tuple[str, int]:
    """What the package makes of a recipe, and the bytes of the input."""
    file = content(base, recipe)
    path = os.path.join(folder, "m.cvra")
    with open(path, "wb") as stream:  # anew: an array that lives on maps the file before
        stream.write(file)
    try:
        A = cvrarray.load(path)
    except Exception as error:
        return judge.refused(error, (ValueError,), path), len(file)
    finally:
        os.unlink(path)
    judge.accepted(A, len(file))
    return "accepted", len(file)
