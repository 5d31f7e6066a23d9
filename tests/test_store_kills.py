"""A writer that is killed at any call that changes the disk: the same call with resume, and with overwrite, ends well.

A few points a kind here; ``make kill-test`` (``CVRARRAY_KILL_POINTS=all``) takes every one, and prints how many there
were.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from checks import assert_same_csr
from forked import kill, needs_fork, points
from scipy.io import mmwrite
from scipy.sparse import csr_array
from test_store import dask_source, matrix, pieces_of, whole

import cvrarray
from cvrarray import Stored, to_store
from cvrarray.core import atomic
from cvrarray.store import spool

pytestmark = needs_fork

ALL = os.environ.get("CVRARRAY_KILL_POINTS") == "all"
FEW = 6  #: points of a kind, where not all are taken

NEW, OLD = matrix((256, 40), 0.1), matrix((200, 30), 0.1, seed=5)
HOW = {"chunks": "6 kB", "device": "cpu", "format": "cvr"}


def write_matrix(path, **how):
    to_store(NEW, path, **HOW, **how)


def write_pieces(path, **how):
    to_store(pieces_of(NEW, 5), path, shape=NEW.shape, name="entries", **HOW, **how)


def write_unnamed_pieces(path, **how):
    to_store(pieces_of(NEW, 5), path, shape=NEW.shape, **HOW, **how)


def write_file(path, **how):
    to_store(Path(path).parent.parent / "new.mtx", path, **HOW, **how)


def write_dask(path, **how):
    dask = pytest.importorskip("dask")
    with dask.config.set(scheduler="synchronous"):
        to_store(dask_source(NEW, (100, 40)), path, device="cpu", format="cvr", **how)


def write_h5ad(path, **how):
    to_store(Path(path).parent.parent / "new.h5ad", path, **HOW, **how)


def write_h5ad_by_columns(path, **how):
    to_store(Path(path).parent.parent / "new.h5ad", path, group="layers/by columns", **HOW, **how)


def overwriting(write):
    return lambda path, **how: write(path, **(how or {"overwrite": True}))


def old_store(path):
    to_store(OLD, path, **HOW)


def old_store_with_names(path):
    array = cvrarray.CVRArray(OLD, device="cpu")
    array.row_names, array.column_names = names(OLD)
    to_store(array, path, **HOW)


def names(csr):
    """Of rows and of columns."""
    return tuple([f"{axis} {k}" for k in range(n)] for axis, n in zip(("cell", "gene"), csr.shape, strict=True))


def write_new_h5ad(path):
    """The new matrix by rows and by columns, and names."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as root:
        for place, csr in (("X", NEW), ("layers/by columns", NEW.tocsc())):
            group = root.create_group(place)
            group.attrs.update({"encoding-type": f"{csr.format}_matrix", "shape": csr.shape})
            for name in ("indptr", "indices", "data"):
                group.create_dataset(name, data=getattr(csr, name), chunks=(40,), compression="gzip")
        for frame, of_axis in zip(("obs", "var"), names(NEW), strict=True):
            root.create_group(frame).create_dataset("_index", data=of_axis, dtype=h5py.string_dtype())


def assert_names(stored, are_there):
    """All names, or none."""
    for found, expected in zip((stored.row_names, stored.column_names), names(NEW), strict=True):
        assert (found.tolist() == expected) if are_there else found is None


class Kind(NamedTuple):
    write: object  # (path, **{resume or overwrite})
    prepare: object = None  # (path): what is there before
    before: csr_array | None = None  # the matrix that it holds


KINDS = {
    "matrix": Kind(write_matrix),
    "pieces": Kind(write_pieces),
    "pieces without a name": Kind(write_unnamed_pieces),
    "file": Kind(write_file),
    "dask": Kind(write_dask),
    "h5ad": Kind(write_h5ad),
    "h5ad by columns": Kind(write_h5ad_by_columns),
    "overwrite": Kind(overwriting(write_matrix), old_store, OLD),
    "overwrite with pieces": Kind(overwriting(write_pieces), old_store, OLD),
    "overwrite with h5ad": Kind(overwriting(write_h5ad), old_store, OLD),
    "overwrite h5ad": Kind(overwriting(write_matrix), old_store_with_names, OLD),
}


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch):
    """Several flushes, and buckets that panels' ends cut; no waiting for the disk."""
    monkeypatch.setattr(spool, "BUFFER", 1 << 12)
    monkeypatch.setattr(spool, "MOST_BUCKETS", 2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a kill loses nothing that the system has


def chosen(n_points, seed):
    """The points to be killed at."""
    if ALL:
        return range(n_points)
    return sorted(np.random.default_rng(seed).choice(n_points, min(FEW, n_points), replace=False).tolist())


def assert_nothing_left(folder):
    """Nothing lies beside the store, and nothing unfinished in it."""
    assert os.listdir(folder) == ["m.zarr"]
    assert not [path for path in folder.rglob("*") if atomic.TEMPORARY.fullmatch(path.name)]


def acknowledged(path):
    """The panels that are there, and which files they are: they are neither lost nor written again."""
    return {file.name: os.stat(file.with_suffix(".tables")).st_ino for file in path.glob("0*.json")}


@pytest.mark.parametrize("name", KINDS)
def test_killed_anywhere(name, tmp_path):
    kind = KINDS[name]
    mmwrite(tmp_path / "new.mtx", NEW, precision=17)
    has_names = "h5ad" in name and kind.prepare is not old_store_with_names
    if has_names:
        write_new_h5ad(tmp_path / "new.h5ad")
    template = tmp_path / "template"
    template.mkdir()
    if kind.prepare:
        kind.prepare(str(template / "m.zarr"))
    folder, again = tmp_path / "killed", tmp_path / "again"

    shutil.copytree(template, folder)
    kind.write(str(folder / "m.zarr"))  # compiled from here on
    assert_same_csr(whole(Stored(folder / "m.zarr", device="cpu")), NEW)
    shutil.rmtree(folder)
    shutil.copytree(template, folder)
    n_points = points(lambda: kind.write(str(folder / "m.zarr")), str(tmp_path))
    assert_nothing_left(folder)

    untouched, changed = [], []
    for point in chosen(n_points, sorted(KINDS).index(name)):
        shutil.rmtree(folder)
        shutil.copytree(template, folder)
        kill(lambda: kind.write(str(folder / "m.zarr")), str(tmp_path), point)
        assert_readers_are_safe(folder / "m.zarr", kind.before)
        for how in ("resume", "overwrite"):
            shutil.rmtree(again, ignore_errors=True)
            shutil.copytree(folder, again)
            there = {} if kind.before is not None or how == "overwrite" else acknowledged(again / "m.zarr")
            try:
                kind.write(str(again / "m.zarr"), **{how: True})
            # the kill came before the first change to the store, and it is of another matrix
            except ValueError as error:
                assert how == "resume" and kind.before is OLD and "only for the same" in str(error)
                assert_same_csr(whole(Stored(folder / "m.zarr", device="cpu")), OLD)
                untouched.append(point)
                continue
            changed.append(point)
            stored = Stored(again / "m.zarr", device="cpu")
            stored.check()
            assert_same_csr(whole(stored), NEW)
            assert_names(stored, has_names)
            assert there.items() <= acknowledged(again / "m.zarr").items()
            assert_nothing_left(again)
    assert max(untouched, default=-1) < min(point for point in changed if point not in untouched)
    if ALL:
        print(f"\n{name}: {n_points} points, {len(untouched)} of them before the first change; all recovered")


def assert_readers_are_safe(path, before):
    """Whoever opens the store after a kill sees the old matrix, the new one, or a clear error."""
    try:
        stored = Stored(path, device="cpu")
    except FileNotFoundError as error:
        assert "there is no store" in str(error)
    except ValueError as error:
        assert "must be complete; it is still being written, or its writer was stopped" in str(error)
    else:
        found = whole(stored)
        assert_same_csr(found, before if before is not None and found.shape == before.shape else NEW)


def test_killed_save(tmp_path):
    """`save` over a file: it is the old array or the new one, and saving again ends well, with nothing else left."""
    old, new = cvrarray.CVRArray(OLD, device="cpu"), cvrarray.CVRArray(NEW, device="cpu")
    file = tmp_path / "a.cvra"
    cvrarray.save(file, new)
    n_points = points(lambda: cvrarray.save(file, new), str(tmp_path))
    for point in chosen(n_points, 0):
        cvrarray.save(file, old)
        kill(lambda: cvrarray.save(file, new), str(tmp_path), point)
        found = cvrarray.load(file, device="cpu")
        found.check()
        assert_same_csr(found.to_scipy(), NEW if found.shape == NEW.shape else OLD)
        cvrarray.save(file, new)
        assert_same_csr(cvrarray.load(file, device="cpu").to_scipy(), NEW)
        assert os.listdir(tmp_path) == ["a.cvra"]
    if ALL:
        print(f"\nsave: {n_points} points, all recovered")
