"""Stores that somebody forged, with checksums that fit: a ValueError that names the file, never a product."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from checks import assert_same_csr, put
from scipy.sparse.linalg import svds
from test_store import matrix, pieces_of, whole

import cvrarray
from cvrarray import Stored, to_store
from cvrarray.store import layout, stream
from cvrarray.store.lock import beside

TABLES = {"cvr": "step_ptr", "bbcsr": "bin_rowptr"}


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "m.zarr")


def write(path, format="cvr"):
    to_store(matrix(), path, chunks="20 kB", format=format, device="cpu")


def edit(file, change):
    """Change a root or a manifest, and put a checksum that fits."""
    found = layout.unsealed(json.loads(Path(file).read_text()))
    change(found)
    Path(file).write_text(json.dumps(layout.sealed(found)))


def forge(path, k, table, change):
    """Change a table of a panel, and put checksums that fit."""
    panel = Stored(path, device="cpu")._manifest[k]
    file = Path(layout.data_file(path, k))
    content = np.frombuffer(file.read_bytes(), np.uint8).copy()
    header = panel.header["arrays"][table]
    start, size = panel.offsets[table], np.prod(header["shape"]) * np.dtype(header["dtype"]).itemsize
    change(content[start : start + size].view(header["dtype"]))
    file.write_bytes(content)
    crcs = [layout.checksum(content[first : first + layout.PIECE]) for first in range(0, content.size, layout.PIECE)]
    edit(layout.manifest_file(path, k), lambda found: found.update(pieces=crcs))


@pytest.mark.parametrize("format", TABLES)
def test_forged_tables(format, path, device):
    """Every way of reading verifies the tables of a panel before a product trusts them."""
    write(path, format)
    forge(path, 2, TABLES[format], lambda ptr: np.put(ptr, 1, 1 << 40))
    x = put(np.ones(300), device)
    for read in (
        lambda: Stored(path, device=device, budget=0) @ x,
        lambda: Stored(path, device=device) @ x,
        lambda: Stored(path, device=device).panel(2),
        lambda: Stored(path, device=device).check(),
    ):
        with pytest.raises(ValueError, match=r"panel 2 of .*breaks invariant"):
            read()
    pytest.importorskip("dask.array")
    with pytest.raises(ValueError, match=r"panel 2 of .*breaks invariant"):
        cvrarray.open_store(path, device=device).compute()


def test_tables_are_verified_once(path, device, monkeypatch):
    write(path)
    calls = []
    check = cvrarray.CVRArray.check
    monkeypatch.setattr(cvrarray.CVRArray, "check", lambda array: calls.append(1) or check(array))
    stored, x = Stored(path, device=device, budget=0), put(np.ones(300), device)
    for _ in range(3):
        stored @ x
    assert len(calls) == stored.n_panels
    stored.panel(0)
    Stored(path, device=device) @ x
    assert len(calls) == stored.n_panels
    stored.check()  # asks for it
    assert len(calls) == 2 * stored.n_panels
    to_store(matrix(seed=1), path, chunks="20 kB", format="cvr", device="cpu", overwrite=True)
    Stored(path, device=device) @ x  # other panels
    assert len(calls) == 3 * stored.n_panels
    stream._CHECKED.clear()
    Stored(path, device=device, verify=False) @ x
    assert len(calls) == 3 * stored.n_panels


def _in_root(**values):
    return lambda path: edit(layout.root_file(path), lambda found: found.update(values))


def _in_panel(**values):
    return lambda path: edit(layout.manifest_file(path, 2), lambda found: found.update(values))


def _in_header(*keys, value):
    def change(found):
        entry = found["header"]
        for key in keys[:-1]:
            entry = entry[key]
        entry[keys[-1]] = value

    return lambda path: edit(layout.manifest_file(path, 2), change)


HOSTILE = {
    "columns are negative": _in_root(n_cols=-1),
    "columns are a fraction": _in_root(n_cols=300.0),
    "columns are many": _in_root(n_cols=1 << 62),
    "columns do not fit": _in_root(n_cols=1 << 80),
    "rows are negative": _in_root(rows=[0, -5]),
    "rows are a text": _in_root(rows="1000"),
    "rows are fractions": _in_root(rows=[0, 1000.0]),
    "rows do not fit": _in_root(rows=[0, 1 << 80]),
    "more rows": lambda path: edit(layout.root_file(path), lambda found: found["rows"].append(1 << 62)),
    "first rows descend": _in_root(rows=[0, 500, 400, 1000]),
    "first rows are no list": _in_root(rows={"0": 1}),
    "panels are none": _in_root(rows=[0]),
    "complete is a count": _in_root(complete=1),
    "dtype is an object": _in_root(dtype="|O"),
    "dtype is a list": _in_root(dtype=["<f8"]),
    "dtype is another": _in_root(dtype="<f4"),
    "format is unknown": _in_root(format="../../x"),
    "format is a list": _in_root(format=[]),
    "format is null": _in_root(format=None),
    "parameters are others": _in_root(parameters={"device": "cuda"}),
    "parameters are large": _in_root(parameters={"n_lanes": 1 << 40}),
    "version is a text": _in_root(version="1"),
    "source is a list": _in_root(source=[1]),
    "root is nested deeply": lambda path: Path(layout.root_file(path)).write_text("[" * 100_000),
    "root is a list": lambda path: Path(layout.root_file(path)).write_text("[]"),
    "root is no text": lambda path: Path(layout.root_file(path)).write_bytes(b"\xff\xfe\x00"),
    "root is empty": lambda path: Path(layout.root_file(path)).write_text("{}"),
    "panel's rows overlap": _in_panel(rows=[0, 96]),
    "panel's rows leave a gap": _in_panel(rows=[500, 596]),
    "panel's rows descend": _in_panel(rows=[400, 300]),
    "panel's rows are fractions": _in_panel(rows=[0.0, 96.0]),
    "panel's rows are three": _in_panel(rows=[0, 1, 2]),
    "panel's bytes are negative": _in_panel(n_bytes=-1),
    "panel's bytes are huge": _in_panel(n_bytes=1 << 62),
    "panel's bytes are huge, with checksums": _in_panel(n_bytes=1 << 38, pieces=[0] * (1 << 16)),
    "offsets are negative": _in_panel(offsets={"val": -256}),
    "offsets are missing": _in_panel(offsets={}),
    "offsets are huge": _in_header("arrays", "val", "shape", value=[1 << 61]),
    "tables are negative": _in_header("arrays", "val", "shape", value=[-8]),
    "tables wrap": _in_header("arrays", "tail", "shape", value=[1 << 32, 1 << 32]),
    "nnz is negative": _in_header("parameters", "nnz", value=-1),
    "lanes are none": _in_header("parameters", "n_lanes", value=0),
    "lanes are others": _in_header("parameters", "n_lanes", value=3),
    "header is a list": _in_panel(header=[]),
    "checksums are texts": _in_panel(pieces=["0"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_metadata(name, path):
    """Nothing but an error that names the store (a panel may be missing), from readers and those who go on or write
    anew.
    """
    write(path)
    HOSTILE[name](path)
    with pytest.raises((ValueError, FileNotFoundError), match=os.path.basename(path)):
        Stored(path, device="cpu", budget=0) @ np.ones(300)
    for how in ({"resume": True}, {"overwrite": True}):
        try:
            to_store(matrix(), path, chunks="20 kB", format="cvr", device="cpu", **how)
        except (ValueError, FileNotFoundError) as error:
            assert os.path.basename(path) in str(error)
        else:
            assert abs(whole(Stored(path, device="cpu")) - matrix()).nnz == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_pipes_and_devices_are_not_waited_for(path):
    write(path)
    data, manifest = Path(layout.data_file(path, 2)), Path(layout.manifest_file(path, 2))
    for file in (data, manifest, Path(layout.root_file(path))):
        content = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(ValueError, match="must be a regular file"):
            Stored(path, device="cpu") @ np.ones(300)
        file.unlink()
        file.symlink_to("/dev/zero")
        with pytest.raises(ValueError, match="must be a regular file"):
            Stored(path, device="cpu") @ np.ones(300)
        file.unlink()
        file.write_bytes(content)
    Stored(path, device="cpu").check()


def test_writers_do_not_follow_links_out_of_a_store(path, tmp_path):
    """Neither removing a store nor going on with it touches what a link in it leads to."""
    away = tmp_path / "away"
    away.mkdir()
    (away / "thesis.tex").write_text("all of it")
    write(path)
    (Path(path) / "link").symlink_to(away)
    (Path(path) / "00000077.tables").symlink_to(away)
    to_store(matrix(seed=1), path, chunks="20 kB", format="cvr", device="cpu", overwrite=True)
    os.rename(layout.data_file(path, 2), away / "panel")
    os.symlink(away / "thesis.tex", layout.data_file(path, 2))
    to_store(matrix(seed=1), path, chunks="20 kB", format="cvr", device="cpu", resume=True)
    assert abs(whole(Stored(path, device="cpu")) - matrix(seed=1)).nnz == 0
    assert sorted(os.listdir(away)) == ["panel", "thesis.tex"]
    assert (away / "thesis.tex").read_text() == "all of it"


# ------------------------------------------------------------------------------------------------ what is not ours


def write_pieces(path, **how):
    to_store(pieces_of(matrix(), 2), path, shape=(1000, 300), device="cpu", **how)


def write_matrix(path, **how):
    to_store(matrix(), path, device="cpu", **how)


@pytest.mark.parametrize("name", ["{}.spool", "{}.lock", ".{}.cvrarray-spool/thesis.txt"])
@pytest.mark.parametrize("write", [write_matrix, write_pieces])
def test_files_of_others_beside_a_store_stay(write, name, path):
    file = Path(path).parent / name.format("matrix.zarr")
    path = str(file.parent if file.parent.name[0] != "." else file.parent.parent) + "/matrix.zarr"
    file.parent.mkdir(exist_ok=True)
    file.write_text("ten years")
    if "/" in name and write is write_pieces:
        with pytest.raises(FileExistsError, match=r"something else\. Move it away"):
            write(path)
    else:
        write(path)
        write(path, overwrite=True)
        assert_same_csr(whole(Stored(path, device="cpu")), matrix())
    assert file.read_text() == "ten years"


def test_a_folder_of_others_that_links_lead_to_stays(path, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "counts").write_text("ten years")
    os.symlink(there, beside(path, "spool"))
    with pytest.raises(FileExistsError, match="something else"):
        write_pieces(path)
    assert (there / "counts").read_text() == "ten years"


@pytest.mark.parametrize("make", [lambda file: file.symlink_to("thesis.txt"), Path.mkdir], ids=["link", "folder"])
def test_what_has_the_name_of_a_lock_stays(make, path):
    file = Path(beside(path, "lock"))
    make(file)
    with pytest.raises(FileExistsError, match=r"must be the lock of a store.*something else\. Move it away"):
        write_matrix(path)
    assert file.is_dir() or not file.resolve().exists()


@pytest.mark.parametrize("content", [b"", b'{"proc', b'{"process": 1}'])
def test_a_lock_that_a_killed_writer_left_is_taken_over(content, path):
    Path(beside(path, "lock")).write_bytes(content)
    write_matrix(path)
    assert not os.path.exists(beside(path, "lock"))


@pytest.mark.parametrize("write", [write_matrix, write_pieces])
def test_an_empty_folder_is_overwritten(write, path):
    os.mkdir(path)
    write(path, overwrite=True)
    assert_same_csr(whole(Stored(path, device="cpu")), matrix())


def test_files_of_others_in_a_store_stay(path):
    write_matrix(path)
    (Path(path) / "notes").mkdir()
    (Path(path) / "notes" / "thesis.txt").write_text("ten years")
    write_pieces(path, overwrite=True)
    assert_same_csr(whole(Stored(path, device="cpu")), matrix())
    layout.remove(path)
    assert layout.remains(path) and (Path(path) / "notes" / "thesis.txt").read_text() == "ten years"


# ------------------------------------------------------------------------------------------------ linear operators


def test_solvers_take_a_store_and_columns_are_vectors(path):
    write_matrix(path)
    with Stored(path, device="cpu") as stored:
        for product, n in ((stored.matvec, 300), (stored.rmatvec, 1000)):
            x = np.arange(n) % 7 - 3.0
            np.testing.assert_array_equal(product(x[:, None]), product(x))
            with pytest.raises(ValueError, match="must be a vector of length"):
                product(np.ones((n, 2)))
        assert svds(stored, k=1, v0=np.ones(300))[1] > 0
