"""``.npz`` of ``scipy.sparse.save_npz`` and of ``sparse.save_npz``, and plain ``.npy``."""

from __future__ import annotations

import os
import random

import numpy as np

from cvrarray import files

from .. import archive, edits, judge, meaning
from . import objects

BASES = [*objects.BASES, "npy f8"]
_MEMBERS = ("data", "indptr", "indices", "row", "col", "coords", "offsets", "shape", "format", "compressed_axes", "fill_value")
_WORDS = (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"\x93NUMPY", b"'<i8'", b"'|O'", b"(9999999,)", b"\xff\xff\xff\xff", b"\0\0\0\0")


def propose(rng: random.Random, base: str) -> list[edits.Edit]:
    found: list[edits.Edit] = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        kind = rng.random()
        if kind < 0.6:
            found.append(edits.propose_array(rng, list(_members(base)), objects.DTYPES))
        elif kind < 0.7:
            found.append(["item", "shape", rng.randrange(2), rng.choice((edits.number(rng), 3 * 10**8, 10**6))])
        elif kind < 0.75:
            found.append(["lie", rng.choice(_MEMBERS), [edits.number(rng) for _ in range(rng.randint(0, 2))]])
        elif kind < 0.8:
            found.append([rng.choice(("drop", "empty")), rng.choice(_MEMBERS)])
        elif kind < 0.85:
            found.append(["deflate"])
        elif kind < 0.92:
            found.append(["member", rng.choice(_MEMBERS), edits.propose_bytes(rng, 160, _WORDS)])
        else:
            found.append(["zip", edits.propose_bytes(rng, 1500, _WORDS)])
    return found


def _members(base: str) -> dict[str, np.ndarray]:
    if base == "npy f8":
        return {"data": np.eye(3)}
    format, shape, arrays = objects.parts(base)
    ours = dict(arrays)
    if format == "COO":
        ours["coords"] = np.stack([ours.pop("row"), ours.pop("col")])
    if format[0] in "CG":
        ours["fill_value"] = np.zeros((), ours["data"].dtype)
    if format.startswith("GCXS"):
        ours["compressed_axes"] = np.array([int(format[-1])])
    if not format.startswith("GCXS") and format != "COO":
        ours["format"] = np.array(format.encode())
    return ours | {"shape": np.array(shape)}


def content(base: str, recipe: list[edits.Edit]) -> tuple[bytes, dict[str, np.ndarray] | None]:
    """The file, and its members where no byte was changed."""
    arrays, lies = _members(base), {}
    for edit in recipe:
        if edit[0] == "drop":
            arrays.pop(edit[1], None)
        elif edit[0] == "lie":
            lies[edit[1]] = tuple(edit[2])
        elif edit[0] not in ("member", "zip", "deflate", "empty"):
            edits.apply_array(arrays, edit)
    members = {
        f"{name}.npy": b"" if ["empty", name] in recipe else archive.npy(array, lies.get(name))
        for name, array in arrays.items()
    }
    for edit in recipe:
        if edit[0] == "member" and f"{edit[1]}.npy" in members:
            members[f"{edit[1]}.npy"] = edits.apply_bytes(members[f"{edit[1]}.npy"], edit[2])
    file = members["data.npy"] if base == "npy f8" and members else archive.pack(members, ["deflate"] in recipe)
    for edit in recipe:
        if edit[0] == "zip":
            file = edits.apply_bytes(file, edit[1])
    whole = not any(edit[0] in ("member", "zip", "lie", "empty") for edit in recipe)
    return file, arrays if whole else None


def examine(base: str, recipe: list[edits.Edit], folder: str) -> tuple[str, int]:
    """What the package makes of a recipe, and the bytes of the input."""
    file, arrays = content(base, recipe)
    path = os.path.join(folder, "m.npz")
    with open(path, "wb") as stream:
        stream.write(file)
    try:
        csr = files.read_csr(path)
    except Exception as error:
        return judge.refused(error, (ValueError,), path), len(file)
    if arrays is not None:
        try:
            format, shape, entries = _meaning(arrays)
        except (meaning.Invalid, KeyError) as error:
            raise judge.Violation(f"accepted what breaks its format's rule: {error}") from error
        judge.same(csr, shape, entries, keeps_zeros=format not in ("dia", "bsr"))
    judge.accepted(judge.converted(csr, len(file)), len(file))
    return "accepted", len(file)


def _meaning(arrays: dict[str, np.ndarray]) -> tuple[str, tuple[int, int], meaning.Entries]:
    shape = tuple(meaning.integers(arrays["shape"]))
    meaning.require(len(shape) == 2 and min(shape) >= 0, "two sizes")
    meaning.require("fill_value" not in arrays or not arrays["fill_value"].any(), "fill value 0")
    missing = "gcxs" if "compressed_axes" in arrays else "coo"
    format = arrays["format"].astype(str).item() if "format" in arrays else missing
    if format == "gcxs":
        format = ("csr", "csc")[int(arrays["compressed_axes"].item())]
    if format == "coo" and "row" not in arrays:
        meaning.require(arrays["coords"].ndim == 2 and len(arrays["coords"]) == 2, "two coordinates")
        arrays = arrays | {"row": arrays["coords"][0], "col": arrays["coords"][1]}
    return format, shape, meaning.of_arrays(format, shape, arrays)
