"""AnnData's files: what anndata writes, what its specification allows, and every way in which a file can be broken."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import zoo
from checks import assert_same_csr, in_turn
from scipy.sparse import csc_array, csr_array
from test_store import matrix, whole

import cvrarray
from cvrarray import Stored, cli, files, to_store
from cvrarray.files import anndata as encoding
from cvrarray.store import layout

h5py = pytest.importorskip("h5py")

BACKENDS = ["h5ad", "zarr 2", "zarr 3"]
CELLS, GENES = [f"cell {k}" for k in range(40)], [f"gène {k}" for k in range(30)]
S = matrix((40, 30), 0.2, dtype=np.float32)


def opened(folder: Path, backend: str):
    """A new file, and the group that is its root."""
    if backend == "h5ad":
        return folder / "a.h5ad", h5py.File(folder / "a.h5ad", "w")
    zarr = pytest.importorskip("zarr")
    return folder / "a.zarr", zarr.open_group(folder / "a.zarr", mode="w", zarr_format=int(backend[-1]))


def put_array(group, name, values, **how):
    """An array of numbers or texts."""
    values = np.asarray(values)
    if values.dtype.kind in "UO":  # texts of any length
        if isinstance(group, h5py.Group):
            return group.create_dataset(name, data=values.astype(object), dtype=h5py.string_dtype())
        array = group.create_array(name, shape=values.shape, dtype=str)
        array[...] = values
        return array
    if isinstance(group, h5py.Group):
        return group.create_dataset(name, data=values, **how)
    return group.create_array(name, data=values, **how)


def put_matrix(root, place, S, how="csr", index=None, **chunks):
    """A matrix as the specification says; `index` is the dtype of the index arrays."""
    if how == "array":
        put_array(root, place, S.toarray(), **chunks).attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        return None
    compressed = {"csr": csr_array, "csc": csc_array}[how](S) if S.format != how else S
    group = root.create_group(place)
    group.attrs.update({"encoding-type": f"{how}_matrix", "encoding-version": "0.1.0", "shape": list(S.shape)})
    for name in ("indptr", "indices", "data"):
        values = getattr(compressed, name)
        put_array(group, name, values if name == "data" or index is None else values.astype(index), **chunks)
    return group


def put_frame(root, name, texts):
    frame = root.create_group(name)
    frame.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "names", "column-order": []})
    put_array(frame, "names", texts)
    return frame


def close(root):
    if hasattr(root, "close"):
        root.close()


def write(folder, backend="h5ad", how="csr", S=S, names=True, **keywords):
    path, root = opened(folder, backend)
    put_matrix(root, "X", S, how, **keywords)
    if names:
        put_frame(root, "obs", [f"cell {k}" for k in range(S.shape[0])])
        put_frame(root, "var", [f"gène {k}" for k in range(S.shape[1])])
    close(root)
    return path


# What is read


@in_turn("name, how, backend", sorted(zoo.ZOO), ["csr", "csc", "array"], BACKENDS)
def test_zoo(name, how, backend, tmp_path):
    csr = zoo.floats(name, np.float32)
    if csr.nnz > 2**18 or (how == "array" and np.prod(csr.shape) > 2**22):
        pytest.skip("large; takes another path nowhere")
    if how == "array":
        csr.eliminate_zeros()  # a dense array tells none from what is not stored
        csr.data[csr.data == 0] = 1
    path = write(tmp_path, backend, how, csr)
    assert_same_csr(files.read_csr(path), csr)
    to_store(path, tmp_path / "m.store", device="cpu", chunks=max(1000, 8 * csr.nnz // 5))
    stored = Stored(tmp_path / "m.store", device="cpu")
    assert_same_csr(whole(stored), csr_array(csr.toarray()))
    assert stored.nnz == csr.nnz


@in_turn(
    "dtype, index, backend, how",
    ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", ">f4", ">f8"],
    ["int32", "int64", "uint32", "uint64", ">i4", "int16"],
    BACKENDS,
    ["csr", "csc"],
)
def test_dtypes(dtype, index, backend, how, tmp_path):
    values = csr_array((np.arange(1, S.nnz + 1) % 7, S.indices, S.indptr), shape=S.shape)
    if "16" in dtype and "float" in dtype:
        values = csr_array((values.data.astype(np.float32), S.indices, S.indptr), shape=S.shape)
    path, root = opened(tmp_path, backend)
    group = put_matrix(root, "X", values, how, index)
    data = group["data"][...]
    del group["data"]
    put_array(group, "data", data.astype(dtype))
    close(root)
    A = cvrarray.read(path, device="cpu")
    assert A.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(A.todense(), values.toarray().astype(dtype))
    to_store(path, tmp_path / "m.store", device="cpu", chunks="1 kB")
    stored = Stored(tmp_path / "m.store", device="cpu")
    np.testing.assert_array_equal(np.concatenate([stored.panel(k).todense() for k in range(stored.n_panels)]), A.todense())
    assert stored.dtype == A.dtype and np.array_equal(stored.column_names or [], A.column_names or [])


@pytest.mark.parametrize("compression", [{"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {"chunks": (7,)}])
@pytest.mark.parametrize("how", ["csr", "csc"])
def test_filters_and_pieces_of_arrays(compression, how, tmp_path, monkeypatch):
    """Whole chunks are read, and no array is read at once."""
    path = write(tmp_path, how=how, S=matrix((400, 300), 0.05), **compression)
    taken = []
    real = encoding._taken
    monkeypatch.setattr(encoding, "PIECE", 1 << 10)
    monkeypatch.setattr(encoding, "_taken", lambda *how: taken.append(real(*how)) or taken[-1])
    assert_same_csr(files.read_csr(path), matrix((400, 300), 0.05))
    taken.clear()
    to_store(path, tmp_path / "m.store", device="cpu", chunks="9 kB")
    assert_same_csr(whole(Stored(tmp_path / "m.store", device="cpu")), matrix((400, 300), 0.05))
    assert len(taken) > 8 and max(part.size for part in taken) < 1500 < 6000


def test_unsorted_rows_duplicates_zeros_and_nan(tmp_path):
    path, root = opened(tmp_path, "h5ad")
    indptr, indices, data = [0, 4, 4, 6], [3, 1, 3, 0, 2, 1], [1.0, np.nan, 2, 0, np.inf, -0.0]
    group = root.create_group("X")
    group.attrs.update({"encoding-type": "csr_matrix", "shape": (3, 4)})
    for name, values in (("indptr", indptr), ("indices", indices), ("data", data)):
        group[name] = values
    close(root)
    A = cvrarray.read(path, device="cpu")
    expected = np.array([[0, np.nan, 0, 3], [0, 0, 0, 0], [0, -0.0, np.inf, 0]])
    assert A.nnz == 5
    np.testing.assert_array_equal(A.todense(), expected)
    to_store(path, tmp_path / "m.store", device="cpu")
    stored = Stored(tmp_path / "m.store", device="cpu")
    assert stored.nnz == 5
    np.testing.assert_array_equal(whole(stored).toarray(), expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_anndata_writes(backend, tmp_path):
    ad, pd = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    data = ad.AnnData(S.copy(), obs=pd.DataFrame(index=CELLS), var=pd.DataFrame(index=GENES))
    data.layers["counts"], data.layers["dense"] = csc_array(S), S.toarray()
    data.raw = data.copy()
    data.obsp["near"], data.varp["near"] = matrix((40, 40)), csc_array(matrix((30, 30)))
    data.obsm["pca"], data.uns["of no axis"] = np.ones((40, 3)), matrix((5, 5))
    data = data[:, 5:].copy()  # raw keeps all genes
    if backend == "h5ad":
        path = tmp_path / "a.h5ad"
        data.write_h5ad(path, compression="gzip")
    else:
        pytest.importorskip("zarr")
        path = tmp_path / "a.zarr"
        with ad.settings.override(zarr_write_format=int(backend[-1])):
            data.write_zarr(path)
    expected = {
        "X": (S[:, 5:], CELLS, GENES[5:]),
        "/layers/counts/": (S[:, 5:], CELLS, GENES[5:]),
        "layers/dense": (S[:, 5:], CELLS, GENES[5:]),
        "raw/X": (S, CELLS, GENES),
        "obsp/near": (matrix((40, 40)), CELLS, CELLS),
        "varp/near": (matrix((30, 30))[5:, 5:], GENES[5:], GENES[5:]),
        "obsm/pca": (csr_array(np.ones((40, 3))), CELLS, None),
        "uns/of no axis": (matrix((5, 5)), None, None),
    }
    for group, (csr, rows, columns) in expected.items():
        A = cvrarray.read(path, group=group, device="cpu")
        assert_same_csr(A.to_scipy(), csr_array(csr))
        assert_same_csr(files.read_csr(path, group=group), csr_array(csr))
        to_store(path, tmp_path / "m.store", group=group, device="cpu", overwrite=True)
        stored = Stored(tmp_path / "m.store", device="cpu")
        assert_same_csr(whole(stored), csr_array(csr))
        for found in (A, stored):
            for names, of_axis in ((found.row_names, rows), (found.column_names, columns)):
                assert (names is None) is (of_axis is None)
                assert names is None or (names.dtype == object and names.tolist() == of_axis)
    assert cvrarray.read(path, device="cpu").shape == (40, 25)  # X


def test_root_that_is_a_matrix(tmp_path):
    """As ``anndata.io.write_elem(root, "/", matrix)`` leaves it."""
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(tmp_path / "a.zarr", mode="w")
    put_matrix(root, "layers/counts", S)
    zarr.create_array(tmp_path / "dense.zarr", data=S.toarray())
    for path in ("a.zarr/layers/counts", "dense.zarr"):
        A = cvrarray.read(tmp_path / path, device="cpu")
        np.testing.assert_array_equal(A.todense(), S.toarray())
        assert A.row_names is None
    assert_same_csr(files.read_csr(tmp_path / "a.zarr/layers", group="counts"), S)


# Names


@pytest.mark.parametrize("how", ["categorical", "nullable", "fixed", "records", "integers"])
def test_kinds_of_names(how, tmp_path):
    path, root = opened(tmp_path, "h5ad")
    put_matrix(root, "X", S)
    if how == "records":
        root["obs"] = np.array([(1.0, name.encode()) for name in CELLS], [("size", "f8"), ("index", "S9")])
        expected = CELLS
    else:
        frame = put_frame(root, "obs", CELLS)
        del frame["names"]
        expected = CELLS
        if how in ("categorical", "nullable"):
            group = frame.create_group("names")
            put_array(group, *(("categories", CELLS[::-1]) if how == "categorical" else ("values", CELLS)))
            put_array(group, *(("codes", np.arange(40)[::-1]) if how == "categorical" else ("mask", np.zeros(40, bool))))
        elif how == "fixed":
            frame["names"] = np.array([name.encode() for name in CELLS])
        else:
            frame["names"], expected = np.arange(40), [str(k) for k in range(40)]
    close(root)
    A = cvrarray.read(path, device="cpu")
    assert A.row_names.tolist() == expected and A.column_names is None


def test_names_of_a_matrix_of_old_anndata(tmp_path):
    path, root = opened(tmp_path, "h5ad")
    group = put_matrix(root, "X", S, "csc")
    for name in list(group.attrs):
        del group.attrs[name]
    group.attrs.update({"h5sparse_format": "csc", "h5sparse_shape": S.shape})
    close(root)
    assert_same_csr(files.read_csr(path), S)


def test_names_go_with_the_store(tmp_path):
    path, store = write(tmp_path), tmp_path / "m.store"
    A = cvrarray.read(path, device="cpu")
    assert (2 * A).row_names is None  # of what is computed nothing is known
    to_store(A, store, device="cpu")
    assert Stored(store, device="cpu").column_names.tolist() == GENES
    to_store(S, store, device="cpu", overwrite=True)
    assert Stored(store, device="cpu").row_names is None and not (store / "names.json").exists()
    A.row_names = CELLS[1:]
    with pytest.raises(ValueError, match="row_names must be as many as rows, 40; got 39"):
        to_store(A, store, device="cpu", overwrite=True)
    assert Stored(store, device="cpu").shape == S.shape  # as it was


def test_stores_without_names_and_with_damaged_ones(tmp_path):
    store = tmp_path / "m.store"
    to_store(write(tmp_path), store, device="cpu")
    content = layout.unsealed(json.loads((store / "store.json").read_text()))
    assert Stored(store, device="cpu").row_names.tolist() == CELLS
    (store / "names.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"names\.json: does not match the checksum in the store"):
        Stored(store, device="cpu").row_names  # noqa: B018
    for forged in ('{"rows": [1]}', '{"rows": 3}', '{"rows": ["a"], "columns": null}', "[]"):
        (store / "names.json").write_text(forged)
        names = layout.checksum(forged.encode())
        (store / "store.json").write_text(json.dumps(layout.sealed({**content, "names": names})))
        with pytest.raises(ValueError, match=r"names\.json: must"):
            Stored(store, device="cpu").row_names  # noqa: B018
    (store / "names.json").unlink()
    with pytest.raises(FileNotFoundError):
        Stored(store, device="cpu").row_names  # noqa: B018
    del content["names"]  # as stores had it before there were names
    (store / "store.json").write_text(json.dumps(layout.sealed(content)))
    stored = Stored(store, device="cpu")
    assert stored.row_names is stored.column_names is None
    assert_same_csr(whole(stored), S)


# To a store


def test_panels_are_read_as_they_come(tmp_path, monkeypatch):
    """An interrupt leaves what is written; the same call with resume reads the other panels alone."""
    big = matrix((4000, 200), 0.05)
    path, store = write(tmp_path, S=big), tmp_path / "m.store"
    spans = []
    rows = encoding.Matrix.rows

    def watched(self, first, last):
        spans.append((first, last))
        if stop and len(spans) == 4:
            raise KeyboardInterrupt
        return rows(self, first, last)

    monkeypatch.setattr(encoding.Matrix, "rows", watched)
    stop = True
    with pytest.raises(KeyboardInterrupt):
        to_store(path, store, device="cpu", chunks="50 kB")
    written = len(list(store.glob("0*.json")))
    assert written == 3
    stop, spans[:] = False, []
    to_store(path, store, device="cpu", chunks="50 kB", resume=True)
    stored = Stored(store, device="cpu")
    assert len(spans) == stored.n_panels - written > 4
    assert_same_csr(whole(stored), big)
    assert stored.row_names[-1] == "cell 3999"
    spans.clear()
    to_store(path, store, device="cpu", chunks="50 kB", resume=True)
    assert not spans
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match="only for the same source"):
        to_store(path, store, device="cpu", chunks="50 kB", resume=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("keywords", [{"format": "cvr"}, {"format": "bbcsr", "block_size": 3}], ids=str)
def test_formats_of_stores(keywords, backend, tmp_path):
    big = matrix((1000, 200), 0.05)
    to_store(write(tmp_path, backend, S=big), tmp_path / "m.store", device="cpu", chunks="20 kB", **keywords)
    stored = Stored(tmp_path / "m.store", device="cpu")
    assert stored.format == keywords["format"] and stored.n_panels > 4
    assert_same_csr(whole(stored), big)


# What is refused


def change(**arrays):
    def apply(root):
        for name, values in arrays.items():
            del root["X"][name]
            if values is not None:
                put_array(root["X"], name, values)

    return apply


def attributes(**values):
    return lambda root: root["X"].attrs.update({name.replace("_", "-"): value for name, value in values.items()})


def put_in_place(root):
    del root["X"]
    put_array(root, "X", CELLS)


BAD = {
    "group is not there": (lambda root: root.move("X", "Y"), r"must have a group 'X'; the matrices in it are Y"),
    "no matrix": (attributes(encoding_type="dict"), r"group X must be a csr_matrix, .* encoding-type 'dict'"),
    "unknown version": (attributes(encoding_version="9.9"), r"group X must be .* encoding-version '9.9'"),
    "no encoding": (lambda root: root["X"].attrs.clear(), r"group X must be .* encoding-type ''"),
    "texts": (put_in_place, r"group X must be|group X \(array\): must be an array of 2 dim"),
    "shape": (attributes(shape=[40, 31, 2]), r"group X \(csr_matrix\): attribute shape must be two integers"),
    "shape of texts": (attributes(shape="many"), r"group X \(csr_matrix\): attribute shape must be two integers.*many"),
    "negative": (attributes(shape=[-1, 30]), r"group X \(csr_matrix\): shape must not be negative"),
    "rows": (attributes(shape=[41, 30]), r"\(csr_matrix\): indptr must have n_rows \+ 1 = 42 entries; got 41"),
    "columns": (attributes(shape=[40, 3]), r"\(csr_matrix\).*: indices must lie in \[0, 3\)"),
    "many rows": (attributes(shape=[1 << 40, 30]), r"\(csr_matrix\): shape: 1099511627776 rows need .* limit"),
    "no indices": (change(indices=None), r"\(csr_matrix\): must have an array indices; it has (data, indptr|indptr, data)"),
    "indices short": (change(indices=S.indices[1:]), r"indices and data must have one length"),
    "index negative": (change(indices=S.indices - 1), r"indices must lie in \[0, 30\), the columns; got -1"),
    "index float": (change(indices=S.indices * 1.0), r"\(csr_matrix\): indices must hold integers; got float64"),
    "index of 64 bits": (change(indices=S.indices.astype(np.uint64) + (1 << 63)), r"must fit 64-bit signed integers"),
    "begins late": (change(indptr=S.indptr + 1), r"indptr must begin with 0; got 1"),
    "decreases": (change(indptr=np.r_[0, 9, 5, S.indptr[3:]]), r"indptr must never decrease; it does from row 1 to 2"),
    "ends late": (change(indptr=np.r_[S.indptr[:-1], S.nnz + 7]), r"indptr must end with the number of nonzeros"),
    "ends early": (change(indptr=np.r_[S.indptr[:-1], S.nnz - 1]), r"indptr must end with the number of nonzeros"),
    "data of 2-D": (change(data=S.data[:, None]), r"data: must be an array of 1 dimensions"),
    "data of texts": (change(data=["a"] * S.nnz), r"\(csr_matrix\): data must hold numbers"),
    "data a group": (lambda root: (change(data=None)(root), root["X"].create_group("data")), r"data: must be an array"),
    "names": (lambda root: put_frame(root, "obs", CELLS[1:]), r"names in obs: must be as many as the matrix has, 40; got 39"),
    "names not there": (lambda root: root.create_group("var"), r"names in var: must have the array '_index'"),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["h5ad", "zarr 2"])
@pytest.mark.parametrize("name", BAD)
def test_refused(name, backend, tmp_path):
    apply, message = BAD[name]
    path = write(tmp_path, backend, names=False)
    root = h5py.File(path, "a") if backend == "h5ad" else pytest.importorskip("zarr").open_group(path)
    if name == "group is not there" and backend != "h5ad":
        os.rename(path / "X", path / "Y")
    elif name == "no encoding":
        for key in list(root["X"].attrs):
            del root["X"].attrs[key]
    else:
        apply(root)
    close(root)
    message = rf"a\.{backend[:4]}: .*(?:{message})"
    with pytest.raises(ValueError, match=message):
        cvrarray.read(path, device="cpu")
    with pytest.raises(ValueError, match=message):
        to_store(path, tmp_path / "m.store", device="cpu")
    assert not (tmp_path / "m.store").exists() or not list((tmp_path / "m.store").glob("0*"))
    assert not [name for name in os.listdir(tmp_path) if "spool" in name]


@pytest.mark.parametrize("row", [-1, 40])
def test_rows_out_of_range_by_columns(row, tmp_path):
    path, root = opened(tmp_path, "h5ad")
    group = put_matrix(root, "X", S, "csc")
    group["indices"][77] = row
    close(root)
    for read in (cvrarray.read, lambda path: to_store(path, tmp_path / "m.store", device="cpu")):
        with pytest.raises(ValueError, match=rf"a\.h5ad: group X \(csc_matrix\): .*in \[0, 40\).*; got {row} at position 77"):
            read(path)
    assert not (tmp_path / "m.store").exists()


@pytest.mark.parametrize(
    ("codes", "message"),
    [(np.arange(40) - 1, r"lie in \[0, 40\); got -1 to 38"), (np.ones(40, bool), "hold integers; got bool")],
)
def test_codes_that_are_none(codes, message, tmp_path):
    path, root = opened(tmp_path, "h5ad")
    put_matrix(root, "X", S)
    frame = put_frame(root, "obs", CELLS)
    del frame["names"]
    put_array(frame.create_group("names"), "categories", CELLS)
    put_array(frame["names"], "codes", codes)
    close(root)
    with pytest.raises(ValueError, match=f"names in obs: codes must {message}"):
        cvrarray.read(path, device="cpu")


def test_files_that_are_cut(tmp_path):
    """At any length: no HDF5 file, or one that is truncated."""
    content = write(tmp_path).read_bytes()
    for length in [*range(1, 64, 9), *range(64, len(content), len(content) // 40)]:
        (tmp_path / "cut.h5ad").write_bytes(content[:length])
        for read in (files.read_csr, lambda path: to_store(path, tmp_path / "m.store", device="cpu")):
            with pytest.raises(ValueError, match=r"cut\.h5ad"):
                read(tmp_path / "cut.h5ad")
    assert not (tmp_path / "m.store").exists()


def test_no_hdf5_file(tmp_path):
    (tmp_path / "a.h5ad").write_text("hello")
    with pytest.raises(ValueError, match=r"a\.h5ad: must be a Matrix Market file .* \.h5ad \(HDF5\)"):
        cvrarray.read(tmp_path / "a.h5ad")
    for call in (cvrarray.read, lambda path, group: to_store(path, tmp_path / "m.store", group=group)):
        with pytest.raises(ValueError, match=r"a\.h5ad: must be an HDF5 file or a Zarr hierarchy to have a group 'X'"):
            call(tmp_path / "a.h5ad", group="X")
    with pytest.raises(FileNotFoundError):
        cvrarray.read(tmp_path / "b.h5ad", group="X")
    with pytest.raises(IsADirectoryError):
        cvrarray.read(tmp_path)
    for group in (5, b"X"):
        with pytest.raises(TypeError, match=f"group must be a text such as 'layers/counts'; got {group!r}"):
            cvrarray.read(write(tmp_path), group=group)
    with pytest.raises(ValueError, match="group needs the path of a file; got csr_array"):
        to_store(S, tmp_path / "m.store", group="X")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [".zgroup", "zarr.json"])
@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"zarr_format": 2}', '{"zarr_format": 3, "node_type": 7}'])
def test_zarr_of_broken_metadata(name, content, tmp_path):
    pytest.importorskip("zarr")
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / name).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=r"a\.zarr"):
        cvrarray.read(tmp_path / "a.zarr")


@pytest.mark.parametrize("field", ["filters", "compressor"])
def test_pickles_are_not_loaded(field, tmp_path):
    path = write(tmp_path, "zarr 2", names=False)
    for name in ("X/data", "X/indptr"):
        file = path / name / ".zarray"
        kept = file.read_text()
        codec = {"id": "pickle", "protocol": 5}
        file.write_text(json.dumps({**json.loads(kept), field: [codec] if field == "filters" else codec}))
        with pytest.raises(ValueError, match=r"holds Python objects \(pickles\)|cannot be read|pickle"):
            cvrarray.read(path)
        file.write_text(kept)


def test_arrays_that_promise_much(tmp_path):
    """Nothing is in the file of arrays that were never written to."""
    path, root = opened(tmp_path, "h5ad")
    for place, n_rows, n_entries in (("entries", 3, 1 << 40), ("rows", 1 << 36, 5)):
        group = root.create_group(place)
        group.attrs.update({"encoding-type": "csr_matrix", "shape": (n_rows, 4)})
        for name, size in (("indptr", n_rows + 1), ("indices", n_entries), ("data", n_entries)):
            group.create_dataset(name, (size,), "i8", chunks=(min(size, 1 << 20),))
    root["entries/indptr"][...] = np.array([0, 1, 2, 1 << 40])
    root.create_dataset("dense", (3, 1 << 40), "f8", chunks=(1, 1 << 20))
    group = root.create_group("columns")
    group.attrs.update({"encoding-type": "csc_matrix", "shape": (3, 1 << 27)})
    for name, size in (("indptr", (1 << 27) + 1), ("indices", 5), ("data", 5)):
        group.create_dataset(name, (size,), "i8", chunks=(5,))
    close(root)
    for place in ("entries", "rows", "dense", "columns"):
        for read in (cvrarray.read, partial(to_store, path=tmp_path / "m.store", device="cpu")):
            with pytest.raises(ValueError, match=rf"group {place} .*limit for a file"):
                read(path, group=place)
    assert not (tmp_path / "m.store").exists()


@pytest.mark.parametrize("how", ["array", "fixed", "categories"])
def test_names_that_promise_much(how, tmp_path):
    path, root = opened(tmp_path, "h5ad")
    put_matrix(root, "X", S)
    index = put_frame(root, "obs", CELLS)
    del index["names"]
    if how == "array":
        index.create_dataset("names", (1 << 40,), "i8", chunks=(1 << 20,))
    elif how == "fixed":
        index.create_dataset("names", (40,), "S100000000")
    else:
        group = index.create_group("names")
        group["codes"] = np.zeros(40, int)
        group.create_dataset("categories", (1 << 40,), "i8", chunks=(1 << 20,))
    close(root)
    message = "must be as many as the matrix has, 40" if how == "array" else "names need .* the limit for a file"
    with pytest.raises(ValueError, match=rf"names in obs: .*{message}"):
        cvrarray.read(path)


def test_links(tmp_path):
    """Those in a circle and to nothing are named; another file that one leads to counts."""
    path, root = opened(tmp_path, "h5ad")
    root["a"], root["b"], root["c"] = h5py.SoftLink("/b"), h5py.SoftLink("/a"), h5py.SoftLink("/missing")
    root["d"], root["e"] = h5py.ExternalLink("other.h5", "/X"), h5py.ExternalLink("none.h5", "/X")
    close(root)
    os.rename(path, tmp_path / "links.h5ad")
    os.rename(write(tmp_path), tmp_path / "other.h5")
    path = tmp_path / "links.h5ad"
    with pytest.raises(ValueError, match=r"links\.h5ad: group a: .*too many links"):
        cvrarray.read(path, group="a")
    for group in ("c", "e"):
        with pytest.raises(ValueError, match=rf"must have a group '{group}'; the matrices in it are d"):
            cvrarray.read(path, group=group)
    assert_same_csr(files.read_csr(path, group="d"), S)
    to_store(path, tmp_path / "m.store", group="d", device="cpu")
    os.utime(tmp_path / "other.h5", ns=(1 << 61, 1 << 61))
    with pytest.raises(ValueError, match="only for the same source"):
        to_store(path, tmp_path / "m.store", group="d", device="cpu", resume=True)


@pytest.mark.parametrize(("package", "extra"), [("h5py", "h5ad"), ("zarr", "zarr")])
def test_package_is_missing(package, extra, tmp_path, monkeypatch):
    path = write(tmp_path, "h5ad" if package == "h5py" else "zarr 2")
    monkeypatch.setitem(sys.modules, package, None)
    for read in (cvrarray.read, lambda path: to_store(path, tmp_path / "m.store")):
        with pytest.raises(ImportError, match=rf"needs {package}, which is not installed: pip install 'cvrarray\[{extra}\]'"):
            read(path)


# On the command line


def test_command_line(tmp_path, capsys, monkeypatch):
    path, root = opened(tmp_path, "h5ad")
    put_matrix(root, "X", S)
    put_matrix(root, "layers/counts", 2 * S, "csc")
    close(root)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["convert", "a.h5ad::layers/counts", "b.cvra"]) == 0
    assert_same_csr(cvrarray.load("b.cvra").to_scipy(), csr_array(2 * S))
    assert cli.main(["convert", "a.h5ad", "b.npz"]) == 0
    assert_same_csr(csr_array(scipy.sparse.load_npz("b.npz")), S)
    capsys.readouterr()
    assert cli.main(["info", f"{path}::X"]) == 0
    assert "40 x 30" in capsys.readouterr().out.replace(",", "")
    assert cli.main(["info", "a.h5ad::layers"]) != 0
    assert "group layers must be a csr_matrix" in capsys.readouterr().err
    assert cli.main(["info", "b.npz::X"]) != 0
    assert "to have a group 'X'" in capsys.readouterr().err
