"""Stores: files that were changed or are missing, and panels and manifests that were forged with right checksums."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import cvrarray
from cvrarray.store import layout
from cvrarray.store.writer import Writer

from .. import edits, judge
from . import cvra

BASES = ["cvr", "bbcsr"]
_WORDS = (b"null", b"-1", b"4611686018427387904", b"[]", b"{}", b'"', b"true")


@cache
def _base(base: str) -> dict[str, bytes]:
    """The files of a store of two panels."""
    rng = np.random.default_rng(5)
    S = scipy.sparse.random_array((64, 30), density=0.1, rng=rng, format="csr")
    S.data = np.arange(S.nnz) % 9 + 1.0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s.zarr")
        parameters = {"n_lanes": 4} if base == "cvr" else {"block_size": 1}
        with Writer(path, 30, [0, 32, 64], format=base, device="cpu", **parameters) as writer:
            writer.write(0, S[:32])
            writer.write(1, S[32:])
        return files(path)


def files(folder: str) -> dict[str, bytes]:
    """All files below `folder`, by path, but locks."""
    paths = (path for path in Path(folder).rglob("*") if path.is_file() and "lock" not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write(folder: str, content: dict[str, bytes]) -> None:
    """The files of `content` below `folder`."""
    for name, data in content.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def damaged(content: dict[str, bytes], recipe: list[edits.Edit]) -> dict[str, bytes]:
    """`content` after the edits that change or remove a file."""
    found = dict(content)
    for edit in recipe:
        if edit[0] == "file" and edit[1] in found:
            found[edit[1]] = edits.apply_bytes(found[edit[1]], edit[2])
        elif edit[0] == "missing":
            found.pop(edit[1], None)
    return found


def _panel(k: int) -> tuple[str, str]:
    return f"{k:08d}.tables", f"{k:08d}.json"


def propose(rng: random.Random, base: str) -> list[edits.Edit]:
    found: list[edits.Edit] = []
    names = list(_base(base))
    manifest = json.loads(_base(base)[_panel(0)[1]])
    style = rng.random()
    for _ in range(rng.choice((1, 1, 2, 3))):
        if style < 0.5:
            tables = {name: _table(_base(base)[_panel(0)[0]], manifest, name) for name in manifest["header"]["arrays"]}
            filled = [name for name, table in tables.items() if table.size]
            found.append(["panel", rng.randrange(2), cvra.propose_table(rng, manifest["header"], tables, filled)])
        elif style < 0.75:
            where = rng.choice(("root", "manifest 0", "manifest 1"))
            found.append([where, rng.choice([*manifest, *layout.Root._fields]), _odd(rng)])
        elif style < 0.95:
            name = rng.choice(names)
            found.append(["file", name, edits.propose_bytes(rng, len(_base(base)[name]), _WORDS)])
        else:
            found.append(["missing", rng.choice(names)])
    return found


def _odd(rng: random.Random) -> Any:
    """A value that does not belong where it stands."""
    few = [edits.number(rng) for _ in range(rng.randint(0, 3))]
    return rng.choice((None, True, "", "cvr", "<f4", {}, 1.5, few, edits.number(rng), {"val": edits.number(rng)}))


def _table(content: bytes, manifest: dict[str, Any], name: str) -> np.ndarray:
    found = manifest["header"]["arrays"][name]
    dtype, n = np.dtype(found["dtype"]), int(np.prod(found["shape"]))
    return np.frombuffer(content, dtype, n, manifest["offsets"][name]).reshape(found["shape"])


def content(base: str, recipe: list[edits.Edit]) -> dict[str, bytes]:
    """The files of a recipe, by path."""
    found = dict(_base(base))
    for k in range(2):
        forge = [edit[2] for edit in recipe if edit[0] == "panel" and edit[1] == k]
        change = [edit[1:] for edit in recipe if edit[0] == f"manifest {k}"]
        if forge or change:
            data, name = _panel(k)
            manifest = json.loads(found[name])
            found[data] = _forged(found[data], manifest, forge)
            found[name] = json.dumps(_sealed(manifest, change)).encode()
    change = [edit[1:] for edit in recipe if edit[0] == "root"]
    if change:
        found["store.json"] = json.dumps(_sealed(json.loads(found["store.json"]), change)).encode()
    return damaged(found, recipe)


def _forged(content: bytes, manifest: dict[str, Any], recipe: list[edits.Edit]) -> bytes:
    """A panel's bytes after edits of its tables, `manifest` changed with them."""
    header = manifest["header"]
    tables = {name: _table(content, manifest, name) for name in header["arrays"]}
    header, tables = cvra.edited(header, tables, recipe)
    out = bytearray()
    for name, table in tables.items():
        out += bytes(-len(out) % 256)
        manifest["offsets"][name] = len(out)
        out += table.tobytes()
    out += bytes(-len(out) % 256) or (b"" if out else bytes(256))
    manifest |= {"header": header, "n_bytes": len(out), "pieces": [layout.checksum(out)]}
    return bytes(out)


def _sealed(attributes: dict[str, Any], changes: list[list[Any]]) -> dict[str, Any]:
    found = {name: value for name, value in attributes.items() if name != "checksum"} | dict(changes)
    return layout.sealed(found)


def examine(base: str, recipe: list[edits.Edit], folder: str) -> tuple[str, int]:
    """What the package makes of a recipe, and the bytes of the input."""
    forged = content(base, recipe)
    size = sum(map(len, forged.values()))
    path = os.path.join(folder, "s.zarr")
    shutil.rmtree(path, ignore_errors=True)
    write(path, forged)
    try:
        stored = cvrarray.Stored(path, device="cpu", threads=1, budget=0)
        x = np.ones(stored.shape[1]) if stored.shape[1] <= judge.MULTIPLIED else None
        if x is not None:
            stored @ x  # before check(): products must be safe without it
        stored.check()
    except Exception as error:
        return judge.refused(error, (ValueError, FileNotFoundError), path), size
    panels = [judge.accepted(stored.panel(k), size) for k in range(stored.n_panels)]
    csr = scipy.sparse.vstack(panels, format="csr")
    if csr.shape != stored.shape or csr.nnz != stored.nnz:
        raise judge.Violation(f"shape and nnz are {stored.shape}, {stored.nnz}; of the panels {csr.shape}, {csr.nnz}")
    if x is not None:
        judge.products(stored, csr, size)
    return "accepted", size
