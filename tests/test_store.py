"""The store on disk: what goes in comes out, from every source; kills, damage, a full disk give no wrong answer."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import zoo
from checks import assert_product, assert_same_bits, assert_same_csr, get, in_turn, put
from scipy.io import mmwrite
from scipy.sparse import csr_array, random_array

import cvrarray
from cvrarray import Stored, to_store
from cvrarray.input import partition
from cvrarray.store import layout, sources, spool
from cvrarray.store.lock import beside
from cvrarray.store.writer import Writer

FORMATS = [{"format": "cvr"}, {"format": "bbcsr", "block_size": 3}, {}]


def matrix(shape=(1000, 300), density=0.03, seed=0, dtype=np.float64) -> csr_array:
    rng = np.random.default_rng(seed)
    return csr_array(random_array(shape, density=density, rng=rng, format="csr", dtype=dtype))


def whole(stored: Stored) -> csr_array:
    """The matrix in a store, on the host."""
    return csr_array(np.concatenate([get(stored.panel(k).todense()) for k in range(stored.n_panels)]))


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "matrix.zarr")


# ------------------------------------------------------------------------------------------------ there and back


@in_turn("name, keywords", sorted(zoo.ZOO), FORMATS)
def test_zoo(name, keywords, path, device):
    """Every matrix of the zoo, in panels of a few rows: entries, explicit zeros among them, and products."""
    csr = zoo.floats(name, np.float32)
    if csr.nnz > 2**18:
        pytest.skip("large; takes another path nowhere")
    to_store(csr, path, chunks=max(1000, 8 * csr.nnz // 5), device=device, **keywords)
    stored = Stored(path, device=device)
    assert (stored.shape, stored.dtype, stored.nnz) == (csr.shape, csr.dtype, csr.nnz)
    assert stored.rows[0] == 0 and stored.rows[-1] == csr.shape[0]
    x = zoo.float_vector(csr.shape[1], np.float32)
    assert_product(stored @ put(x, device), csr, x)
    for k in range(stored.n_panels):
        assert_same_csr(stored.panel(k).to_scipy(), csr[stored.rows[k] : stored.rows[k + 1]])
    stored.check()


def test_panels_are_balanced_and_aligned(path):
    csr = matrix((4000, 500))
    to_store(csr, path, chunks="100 kB", format="bbcsr", block_size=3, device="cpu")
    stored = Stored(path, device="cpu")
    assert stored.n_panels > 3
    assert all(row % 96 == 0 for row in stored.rows[:-1])
    sizes = [panel.n_bytes for panel in stored._manifest]
    assert max(sizes) < 1.5 * np.mean(sizes)
    assert stored.panel_bytes == max(sizes) < 150_000
    assert all(offset % 256 == 0 for panel in stored._manifest for offset in panel.offsets.values())


@pytest.mark.parametrize("n_rows", [0, 1, 31, 32, 33])
@pytest.mark.parametrize("n_cols", [0, 1, 5])
def test_small_shapes(n_rows, n_cols, path, device):
    to_store(csr_array(np.ones((n_rows, n_cols))), path, chunks=100, device=device)
    y = Stored(path, device=device) @ put(np.ones(n_cols), device)
    np.testing.assert_array_equal(get(y), np.full(n_rows, float(n_cols)))


# ------------------------------------------------------------------------------------------------ sources


def pieces_of(csr: csr_array, n: int, seed: int = 1):
    """The entries in random order, in n pieces; one of them is empty."""
    coo = csr.tocoo()
    order = np.random.default_rng(seed).permutation(coo.nnz)
    for part in [*np.array_split(order, n), []]:
        part = np.asarray(part, int)
        yield coo.row[part], coo.col[part], coo.data[part]


@pytest.mark.parametrize("buffer", [1 << 12, 1 << 30], ids=["many flushes", "one flush"])
@pytest.mark.parametrize("keywords", FORMATS, ids=str)
def test_pieces_in_any_order(keywords, buffer, path, monkeypatch):
    monkeypatch.setattr(spool, "BUFFER", buffer)
    monkeypatch.setattr(spool, "MOST_BUCKETS", 7)  # buckets that panels' ends cut
    csr = matrix((3000, 200))
    to_store(pieces_of(csr, 13), path, shape=csr.shape, chunks="10 kB", device="cpu", **keywords)
    stored = Stored(path, device="cpu")
    assert stored.n_panels > 7
    assert_same_csr(whole(stored), csr)
    assert not os.path.exists(beside(path, "spool"))


def test_duplicates_are_summed_in_the_order_in_which_they_come(path):
    values = np.array([1.0, 1e16, -1e16, 0.5])  # another order gives another sum
    expected = ((values[0] + values[1]) + values[2]) + values[3]
    pieces = [([5], [2], values[:1]), ([5, 5], [2, 2], values[1:3]), ([5], [2], values[3:])]
    to_store(pieces, path, shape=(40, 3), device="cpu")
    assert Stored(path, device="cpu").panel(0).todense()[5, 2] == expected != math.fsum(values)


def test_one_heavy_row_range(path, monkeypatch):
    """A bucket far larger than a panel, as in a graph with its hubs first."""
    monkeypatch.setattr(spool, "BUFFER", 1 << 14)
    rng = np.random.default_rng(0)
    row = (10_000 * rng.random(50_000) ** 4).astype(int)
    dense = np.zeros((10_000, 50))
    col, val = rng.integers(0, 50, row.size), rng.integers(1, 5, row.size).astype(float)
    np.add.at(dense, (row, col), val)
    monkeypatch.setattr(spool, "MOST_BUCKETS", 3)
    to_store(_triplets(row, col, val, 9), path, shape=dense.shape, chunks="30 kB", device="cpu")
    stored = Stored(path, device="cpu")
    assert stored.n_panels > 5
    np.testing.assert_array_equal(whole(stored).toarray(), dense)


def _triplets(row, col, val, n):
    return [(row[part], col[part], val[part]) for part in np.array_split(np.arange(row.size), n)]


@pytest.mark.parametrize(
    ("piece", "error", "message"),
    [
        (([0], [0], np.ones(2)), ValueError, "piece 1: row must be 1-D and as long as val, 2"),
        (([-1], [0], np.ones(1)), ValueError, r"piece 1: row must lie in \[0, 4\)"),
        (([0], [3], np.ones(1)), ValueError, r"piece 1: col must lie in \[0, 3\)"),
        (([0.5], [0], np.ones(1)), TypeError, "piece 1: row must hold integers"),
        (([0], [0], np.ones(1, np.float32)), TypeError, "piece 1: val must have the dtype of the first piece"),
        (([0], [0]), TypeError, r"piece 1: must be a triplet \(row, col, val\)"),
        (csr_array((1, 3)), TypeError, r"piece 1: must be a triplet \(row, col, val\) of arrays; got csr_array"),
        (([0], [0], np.ma.masked_equal(np.ones(1), 1)), TypeError, "piece 1: row, col and val must hold all"),
    ],
)
def test_bad_pieces(piece, error, message, path):
    good = ([0], [0], np.ones(1))
    with pytest.raises(error, match=message):
        to_store([good, piece], path, shape=(4, 3), device="cpu")
    with pytest.raises(FileNotFoundError):
        Stored(path, device="cpu")


def test_pieces_in_any_byte_order(path):
    piece = (np.array([0, 2], ">i8"), np.array([1, 2], ">i4"), np.array([3.0, 4], ">f8"))
    to_store([piece, ([1], [0], [5.0])], path, shape=(3, 3), device="cpu")
    np.testing.assert_array_equal(whole(Stored(path, device="cpu")).toarray(), [[0, 3, 0], [5, 0, 0], [0, 0, 4]])


def test_no_pieces_at_all(path):
    with pytest.raises(ValueError, match="one piece at least"):
        to_store([], path, shape=(4, 3), device="cpu")


SYMMETRIES = {
    "general": lambda a: a,
    "symmetric": lambda a: a + a.T,
    "skew-symmetric": lambda a: a - a.T,
}


@in_turn("symmetry, zipped", SYMMETRIES, [False, True])
def test_matrix_market_in_pieces(symmetry, zipped, path, tmp_path, monkeypatch):
    from cvrarray.files import matrix_market

    monkeypatch.setattr(matrix_market, "BLOCK", 4096)  # many pieces of a small file
    monkeypatch.setattr(sources, "TEXT_BYTES", 4096)
    csr = csr_array(SYMMETRIES[symmetry](matrix((600, 600), 0.01)))
    file = str(tmp_path / "a.mtx")
    mmwrite(file, csr, symmetry=symmetry, precision=17)
    text = Path(file).read_bytes().replace(b"\n", b"\n\n  \n", 5)  # blank lines count for nothing
    if zipped:
        text = gzip.compress(text)
    Path(file).write_bytes(text)
    to_store(file, path, chunks="10 kB", device="cpu")
    stored = Stored(path, device="cpu")
    assert stored.n_panels > 3
    assert_same_csr(whole(stored), cvrarray.files.read_csr(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1.0\n", "promises 2 entries, but holds 1"),
        (b"%%MatrixMarket matrix coordinate real general\n3 3 1\n1 1 1.0\n2 2 1.0\n", "holds more"),
        (b"%%MatrixMarket matrix coordinate real general\n3 3 1\n4 1 1.0\n", "a.mtx"),
        (b"%%MatrixMarket matrix coordinate real general\n3 3 1\n1 1 x\n", "line 3: must read 'row column number'"),
        (b"%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n1 2 1.0\n3 1 1.0\n", "one triangle"),
    ],
)
def test_bad_matrix_market(text, message, path, tmp_path):
    file = tmp_path / "a.mtx"
    file.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        to_store(str(file), path, device="cpu")


def test_other_files_are_read_whole(path, tmp_path):
    csr = matrix()
    cvrarray.save(tmp_path / "a.cvra", cvrarray.CVRArray(csr, device="cpu"))
    to_store(tmp_path / "a.cvra", path, chunks="50 kB", device="cpu")
    assert_same_csr(whole(Stored(path, device="cpu")), csr)


def test_an_array_of_ours_keeps_its_format(path, device):
    A = cvrarray.BBCSRArray(matrix(), block_size=2, device=device)
    to_store(A, path, chunks="50 kB")
    stored = Stored(path, device=device)
    assert stored.format == "bbcsr"
    assert stored.panel(0).block_size == 2


def test_panels_in_any_order(path, device):
    csr = matrix()
    rows = [0, 200, 400, 600, 800, 1000]
    with Writer(path, 300, rows, format="cvr", device=device) as writer:
        for k in (0, 1, 4, 3, 2):
            writer.write(k, csr[rows[k] : rows[k + 1]])
            partial = Stored(path, device=device, incomplete=True)  # readers see whole panels, up to one that is missing
            assert partial.shape == (1000 if k == 2 else 200 * min(k + 1, 2), 300)
            np.testing.assert_allclose(get(partial @ put(np.ones(300), device)), csr[: partial.shape[0]] @ np.ones(300))
    with pytest.raises(ValueError, match="300 columns"):
        Writer(path, 300, rows, resume=True).write(0, csr[:200, :5])
    with pytest.raises(ValueError, match="dtype, <f8; got float32"):
        Writer(path, 300, rows, resume=True, device="cpu").write(0, matrix((200, 300), dtype=np.float32))


# ------------------------------------------------------------------------------------------------ dask


def dask_source(csr, chunks):
    da = pytest.importorskip("dask.array")
    sparse = pytest.importorskip("sparse")
    return da.from_array(sparse.COO.from_scipy_sparse(csr), chunks=chunks)


@pytest.mark.parametrize("chunks", [(300, 300), (128, 77)], ids=str)
@pytest.mark.parametrize("keywords", FORMATS, ids=str)
def test_dask_array(keywords, chunks, path):
    csr = matrix()
    source = dask_source(csr, chunks)
    to_store(source, path, device="cpu", **keywords)
    stored = Stored(path, device="cpu")
    assert stored.rows == (0, *np.cumsum(source.chunks[0]))
    assert_same_csr(whole(stored), csr)


def test_open_store_is_lazy_and_right(path, device):
    pytest.importorskip("dask.array")
    csr = matrix()
    to_store(csr, path, chunks="20 kB", device=device)
    d = cvrarray.open_store(path, device=device)
    assert d.shape == csr.shape
    assert d.numblocks[0] > 3
    assert isinstance(d._meta, (cvrarray.CVRArray, cvrarray.BBCSRArray))
    x = np.random.default_rng(0).standard_normal(300)
    y = (d @ put(x, device)).compute()
    np.testing.assert_array_equal(get(y), get(Stored(path, device=device) @ put(x, device)))
    last = layout.data_file(path, d.numblocks[0] - 1)
    os.rename(last, f"{last}.away")
    cvrarray.open_store(path, device=device)  # reads manifests alone
    with pytest.raises(FileNotFoundError, match=f"panel {d.numblocks[0] - 1} of .* is missing"):
        (d @ put(x, device)).compute()


def test_tokens_of_stores(path, tmp_path):
    pytest.importorskip("dask.array")
    to_store(matrix(), path, device="cpu")
    name = cvrarray.open_store(path, device="cpu").name
    assert cvrarray.open_store(path, device="cpu").name == name
    to_store(matrix(seed=2), path, device="cpu", overwrite=True)
    assert cvrarray.open_store(path, device="cpu").name != name


def test_dask_arrays_that_are_no_matrix(path):
    da = pytest.importorskip("dask.array")
    with pytest.raises(ValueError, match="2 dimensions"):
        to_store(da.ones((2, 2, 2)), path)
    unknown = da.ones((4, 4), chunks=2)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        to_store(unknown[unknown[:, 0] > 0], path)


def test_pieces_need_their_shape(path):
    with pytest.raises(TypeError, match=r"must come with its shape; got generator alone\. Pass shape=\(n_rows, n_cols\)"):
        to_store((piece for piece in pieces_of(matrix(), 3)), path)


def test_a_name_makes_delayed_chunks_the_same_source(path):
    """dask.delayed names its tasks anew in every process; a call here is as good as one."""
    da = pytest.importorskip("dask.array")
    from dask import delayed

    def source(load):
        chunks = [da.from_delayed(delayed(load)(k), (500, 300), dtype=float) for k in range(2)]
        return cvrarray.to_dask(da.concatenate(chunks), device="cpu")

    def half(k):
        return matrix()[500 * k : 500 * k + 500]

    to_store(source(half), path, device="cpu", name="cells")
    to_store(source(half), path, device="cpu", name="cells", resume=True)
    with pytest.raises(ValueError, match=r"same source: it has cells; got .*pass name='cells'"):
        to_store(source(half), path, device="cpu", resume=True)


# ------------------------------------------------------------------------------------------------ streaming


@pytest.mark.parametrize("hold", [2, 3, 7])
@pytest.mark.parametrize("budget", [0, "60 kB", None])
def test_products_are_the_same_however_they_are_streamed(hold, budget, path, device):
    csr = matrix((4000, 300))
    to_store(csr, path, chunks="20 kB", format="cvr", device=device)
    x = put(np.random.default_rng(1).standard_normal(300), device)
    expected = np.concatenate([get(Stored(path, device=device).panel(k) @ x) for k in range(Stored(path).n_panels)])
    stored = Stored(path, device=device, hold=hold, budget=budget)
    for _ in range(3):
        np.testing.assert_array_equal(get(stored @ x), expected)
    out = put(np.full(4000, np.nan), device)
    assert stored.matvec(x, out=out) is out
    np.testing.assert_array_equal(get(out), expected)


@pytest.mark.parametrize("dtype", [np.float64, bool], ids=lambda d: np.dtype(d).name)
def test_all_products(dtype, path, device):
    """Integers, so that sums in any order are exact."""
    rng = np.random.default_rng(3)
    dense = (rng.integers(1, 5, (500, 80)) * (rng.random((500, 80)) < 0.1) * (1j if dtype is np.complex128 else 1)).astype(
        dtype
    )
    to_store(csr_array(dense), path, chunks="5 kB", device=device)
    stored = Stored(path, device=device, budget=0)
    assert stored.n_panels > 3
    x, y, X = (rng.integers(0, 3, shape).astype(dtype) for shape in (80, 500, (80, 3)))
    on = lambda array: put(array, device)  # noqa: E731
    for found, expected in (
        (stored @ on(x), dense @ x),
        (stored @ on(X), dense @ X),
        (on(y) @ stored, y @ dense),
        (stored.rmatvec(on(y)), dense.conj().T @ y),
        (stored.T @ on(y), dense.T @ y),
        (stored.T @ on(dense), dense.T @ dense),
        (stored.matmat(on(X), out=on(np.ones((500, 3), dtype))), dense @ X),
    ):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(get(found), expected)


def test_resident_panels_are_read_once(path, device, monkeypatch):
    from cvrarray.store import stream

    to_store(matrix((4000, 300)), path, chunks="20 kB", format="cvr", device=device)
    reads = []
    read = layout.read_piece
    monkeypatch.setattr(stream.layout, "read_piece", lambda path, k, *rest: reads.append(k) or read(path, k, *rest))
    x = put(np.ones(300), device)
    stored = Stored(path, device=device, budget=None)
    for _ in range(3):
        stored @ x
    assert sorted(reads) == list(range(stored.n_panels))
    assert stored.resident_bytes == stored.nbytes
    reads.clear()
    some = Stored(path, device=device, budget="70 kB")
    for _ in range(2):
        some @ x
    assert 0 < some.resident_bytes <= 70_000
    n_kept = len(some._resident)
    assert sorted(reads) == sorted([*range(some.n_panels), *range(n_kept, some.n_panels)])
    reads.clear()
    none = Stored(path, device=device, budget=0)
    for _ in range(2):
        none @ x
    assert len(reads) == 2 * none.n_panels
    assert none.resident_bytes == 0


def test_no_more_panels_are_held_than_stated(path, monkeypatch):
    """Reading runs ahead, by less than `hold` panels of what is computed."""
    from cvrarray.store import stream

    to_store(matrix((4000, 300)), path, chunks="10 kB", format="cvr", device="cpu")
    stored = Stored(path, device="cpu", hold=3, budget=0)
    begun, ahead = set(), []
    read = layout.read_piece
    monkeypatch.setattr(stream.layout, "read_piece", lambda path, k, *rest: begun.add(k) or read(path, k, *rest))
    for k, _ in enumerate(stored._panels()):
        time.sleep(0.005)
        ahead.append(max(begun) - k)
    assert len(ahead) == stored.n_panels > 10
    assert max(ahead) == 2
    assert stored._staging._buffers[0].size * len(stored._staging._buffers) <= 3 * stored.panel_bytes


def test_operand_errors(path, device):
    to_store(matrix(), path, device=device)
    stored = Stored(path, device=device)
    with pytest.raises(ValueError, match="length 300"):
        stored @ put(np.ones(299), device)
    with pytest.raises(ValueError, match="out must have length 1000; got 5"):
        stored.matvec(put(np.ones(300), device), out=put(np.ones(5), device))
    with pytest.raises(TypeError, match="out must"):
        stored.matvec(put(np.ones(300), device), out=[0] * 1000)
    for operand in (matrix(), np.ma.masked_array(np.ones(300), np.arange(300) < 3)):
        with pytest.raises(TypeError, match="x must"):
            stored @ operand
    for bad in (0, 1.5, "all"):
        with pytest.raises(ValueError, match="threads must be an integer"):
            Stored(path, device=device, threads=bad)
    for bad in (1, 0, 2.5):
        with pytest.raises(ValueError, match="hold must be"):
            Stored(path, device=device, hold=bad)
    with pytest.raises(ValueError, match="budget must be"):
        Stored(path, device=device, budget="lots")
    with pytest.raises(IndexError):
        stored.panel(stored.n_panels)


@pytest.mark.parametrize("columns", [(), (2,)], ids=["matvec", "matmat"])
def test_x_that_is_out(columns, path, device):
    """Each panel's product is of x as it was, and not of what the panels before have written there."""
    csr = matrix((300, 300))
    to_store(csr, path, chunks=4000, device=device)
    stored, x = Stored(path, device=device), put(np.random.default_rng(1).random((300, *columns)), device)
    assert stored.n_panels > 2
    multiply = stored.matmat if columns else stored.matvec
    expected = multiply(x)
    assert_same_bits(multiply(x, out=x), expected)


def test_host_operand_on_a_gpu(gpu, path):
    to_store(matrix(), path, device=gpu)
    with pytest.raises(TypeError, match="must be on the store's device"):
        Stored(path, device=gpu) @ np.ones(300)


def test_pickle_opens_the_same_store(path):
    to_store(matrix(), path, device="cpu")
    stored = Stored(path, device="cpu")
    again = pickle.loads(pickle.dumps(stored))
    np.testing.assert_array_equal(again @ np.ones(300), stored @ np.ones(300))
    data = pickle.dumps(stored)
    to_store(matrix(seed=3), path, device="cpu", overwrite=True)
    with pytest.raises(ValueError, match="which was pickled"):
        pickle.loads(data)


def test_threads_take_turns(path):
    from concurrent.futures import ThreadPoolExecutor

    csr = matrix((4000, 300))
    to_store(csr, path, chunks="20 kB", device="cpu")
    stored = Stored(path, device="cpu", budget=0)
    xs = np.random.default_rng(0).standard_normal((6, 300))
    with ThreadPoolExecutor(3) as pool:
        for x, y in zip(xs, pool.map(stored.matvec, xs), strict=True):
            np.testing.assert_allclose(y, csr @ x, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------------------ damage


@pytest.fixture
def damaged(path):
    """A store of several panels, and a function that asserts an error that names the panel, by every way of reading."""
    to_store(matrix(), path, chunks="20 kB", format="cvr", device="cpu")
    n_panels = Stored(path, device="cpu").n_panels
    assert n_panels > 4

    def refuses(error, message):
        for read in (
            lambda: Stored(path, device="cpu", budget=0) @ np.ones(300),
            lambda: Stored(path, device="cpu").panel(3),
            lambda: Stored(path, device="cpu").check(),
        ):
            with pytest.raises(error, match=message):
                read()

    return refuses


def test_flipped_byte_anywhere_in_a_panel(path, damaged):
    file = Path(layout.data_file(path, 3))
    good = file.read_bytes()
    for place in np.linspace(0, len(good) - 1, 23).astype(int):
        bad = bytearray(good)
        bad[place] ^= 1 << (place % 8)
        file.write_bytes(bad)
        damaged(ValueError, f"panel 3 of .*{os.path.basename(path)}.*tables do not match their checksum")
    file.write_bytes(good)
    Stored(path, device="cpu").check()


def test_flipped_byte_anywhere_in_a_manifest(path, damaged):
    """Wherever it is, the matrix that is read is the right one or none."""
    expected = Stored(path, device="cpu") @ np.arange(300.0)
    for file in (Path(layout.manifest_file(path, 3)), Path(layout.root_file(path))):
        good = file.read_bytes()
        refused = 0
        for place in range(0, len(good), 11):
            bad = bytearray(good)
            bad[place] ^= 4
            file.write_bytes(bad)
            try:
                found = Stored(path, device="cpu", budget=0) @ np.arange(300.0)
            except ValueError as error:
                assert str(file) in str(error)
                refused += 1
            else:  # in white space
                np.testing.assert_array_equal(found, expected)
        assert refused > len(good) / 11 / 2
        file.write_bytes(good)


@pytest.mark.parametrize("change", [-1, -300, 1], ids=["one byte less", "much less", "one byte more"])
def test_wrong_length(change, path, damaged):
    file = Path(layout.data_file(path, 3))
    good = file.read_bytes()
    file.write_bytes(good[:change] if change < 0 else good + b"\0")
    damaged(ValueError, f"panel 3 of .* must have {len(good)} bytes; it has {len(good) + change}")


def test_missing_data_and_missing_manifest(path, damaged):
    for name in (layout.data_file, layout.manifest_file):
        os.rename(name(path, 3), f"{path}.away")
        damaged(FileNotFoundError, "panel 3 of .* is missing")
        os.rename(f"{path}.away", name(path, 3))


def test_panel_of_another_store(path, damaged, tmp_path):
    other = str(tmp_path / "other.zarr")
    to_store(matrix(seed=9), other, chunks="20 kB", format="cvr", device="cpu")
    for name in (layout.data_file, layout.manifest_file):
        Path(name(path, 3)).write_bytes(Path(name(other, 3)).read_bytes())
    damaged(ValueError, "panel 3 of .* belongs to another store")


def test_panels_exchanged(path, damaged):
    for name in (layout.data_file, layout.manifest_file):
        a, b = Path(name(path, 3)), Path(name(path, 2))
        a_bytes, b_bytes = a.read_bytes(), b.read_bytes()
        a.write_bytes(b_bytes)
        b.write_bytes(a_bytes)
    damaged(ValueError, "panel 2 of .* rows must be")


def test_newer_version_and_no_store(path, tmp_path):
    to_store(matrix(), path, device="cpu")
    file = Path(layout.root_file(path))
    metadata = json.loads(file.read_text())
    metadata["version"] = 99
    file.write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="has version 99 of the store"):
        Stored(path, device="cpu")
    with pytest.raises(FileNotFoundError, match="there is no store"):
        Stored(tmp_path / "nothing", device="cpu")
    (tmp_path / "store.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a store of cvrarray"):
        Stored(tmp_path, device="cpu")


def test_unverified_reading_is_asked_for_by_name(path):
    to_store(matrix(), path, format="cvr", device="cpu")
    panel = Stored(path, device="cpu")._manifest[0]
    file = Path(layout.data_file(path, 0))
    bad = bytearray(file.read_bytes())
    bad[panel.offsets["val"] + 7] ^= 0x10  # a value's exponent
    file.write_bytes(bad)
    y = Stored(path, device="cpu", verify=False) @ np.ones(300)
    assert (y != matrix() @ np.ones(300)).any()
    with pytest.raises(ValueError, match="checksum"):
        Stored(path, device="cpu") @ np.ones(300)


# ------------------------------------------------------------------------------------------ kills, full disks, going on


def test_what_is_there_is_not_overwritten_by_accident(path, tmp_path):
    to_store(matrix(), path, device="cpu")
    with pytest.raises(FileExistsError, match="resume=True, or replace it with overwrite=True"):
        to_store(matrix(), path, device="cpu")
    with pytest.raises(FileExistsError):
        to_store(pieces_of(matrix(), 3), path, shape=(1000, 300), device="cpu")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("all of it")
    for how in ({"overwrite": True}, {"resume": True}, {}):
        with pytest.raises((FileExistsError, ValueError)):
            to_store(matrix(), tmp_path / "home", device="cpu", **how)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "all of it"
    to_store(matrix(seed=1), path, device="cpu", overwrite=True)
    assert_same_csr(whole(Stored(path, device="cpu")), matrix(seed=1))


def test_a_store_that_is_overwritten_while_it_is_open(path):
    """Nothing is damaged: to remove its panels would be wrong."""
    to_store(matrix(), path, chunks="20 kB", format="cvr", values="plain", device="cpu")
    stored = Stored(path, device="cpu", budget=0)
    for other in (-matrix(), matrix((1000, 300), density=0.1)):  # of the same length, and of another
        to_store(other, path, chunks="20 kB", format="cvr", values="plain", device="cpu", overwrite=True)
        with pytest.raises(ValueError, match="Another store has been written there since this one was opened: open it anew"):
            stored @ np.ones(300)


def test_going_on_with_another_source_is_refused(path):
    rows = _panels_of(matrix())
    with pytest.raises(ZeroDivisionError), Writer(path, 300, rows, source="one", device="cpu") as writer:
        writer.write(0, matrix()[: rows[1]])
        1 / 0  # noqa: B018
    with pytest.raises(ValueError, match=r"same source: it has one; got two\. Where .*pass name='one'; else overwrite=True"):
        Writer(path, 300, rows, source="two", resume=True)
    with pytest.raises(ValueError, match=r"same columns.*Use overwrite=True"):
        Writer(path, 301, rows, source="one", resume=True)
    with pytest.raises(ValueError, match="same panels"):
        Writer(path, 300, [0, 1000], source="one", resume=True)
    with pytest.raises(ValueError, match="holds"):
        Writer(path, 300, rows, source="one", resume=True, format="bbcsr", block_size=5)
    with pytest.raises(ValueError, match="panel 1 is missing"):
        Writer(path, 300, rows, source="one", resume=True).close()


def _panels_of(csr):
    return sources.panel_rows(csr_parts(csr), 20_000)


def csr_parts(csr):
    from cvrarray.input import coercion

    return coercion.as_csr(csr)


def test_another_matrix_of_the_same_shape_is_refused(path):
    """The default name of a matrix in memory knows its bytes."""
    one, two = matrix(), matrix()
    two.data[5] += 1
    to_store(one, path, chunks="20 kB", device="cpu", format="cvr")
    _interrupt(path)
    with pytest.raises(ValueError, match="same source"):
        to_store(two, path, chunks="20 kB", device="cpu", format="cvr", resume=True)
    to_store(one, path, chunks="20 kB", device="cpu", format="cvr", resume=True)
    Stored(path, device="cpu").check()


def _interrupt(path):
    """Make a complete store look as a kill before the last panel leaves it."""
    root = layout.read_root(path)
    os.unlink(layout.manifest_file(path, len(root.rows) - 2))
    layout.replace_root(path, root._replace(complete=False))


def test_a_cut_panel_is_written_again(path):
    to_store(matrix(), path, chunks="20 kB", device="cpu", format="cvr")
    _interrupt(path)
    Path(layout.data_file(path, 1)).write_bytes(b"half of it")
    to_store(matrix(), path, chunks="20 kB", device="cpu", format="cvr", resume=True)
    assert_same_csr(whole(Stored(path, device="cpu")), matrix())


@pytest.fixture
def disk(monkeypatch):
    """A function that gives the disk so many bytes of room."""
    fsync = os.fsync

    def give(n_bytes):
        room = [n_bytes]

        def full(descriptor):
            room[0] -= os.fstat(descriptor).st_size
            if room[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", full)

    return give


def test_full_disk(path, disk):
    """ENOSPC after some panels: an OSError that names panel and file; then there is room again."""
    how = {"chunks": "20 kB", "device": "cpu", "format": "cvr"}
    disk(100_000)
    with pytest.raises(OSError, match="panel") as caught:
        to_store(matrix(), path, **how)
    assert caught.value.errno == errno.ENOSPC
    assert path in caught.value.filename
    assert not list(Path(path).rglob("*.tmp"))
    with pytest.raises(ValueError, match="must be complete"):
        Stored(path, device="cpu")
    partial = Stored(path, device="cpu", incomplete=True)
    partial.check()
    assert 0 < partial.n_panels < 10
    disk(10**9)
    to_store(matrix(), path, resume=True, **how)
    assert_same_csr(whole(Stored(path, device="cpu")), matrix())


def test_full_disk_with_entries_in_any_order(path, disk, monkeypatch):
    how = {"chunks": "20 kB", "device": "cpu", "format": "cvr", "shape": (1000, 300)}

    def full(file, mode):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(spool, "open", full, raising=False)
        with pytest.raises(OSError, match="entries cannot be set aside") as caught:
            to_store(pieces_of(matrix(), 7), path, **how)
    assert caught.value.errno == errno.ENOSPC
    disk(100_000)
    with pytest.raises(OSError, match="panel"):
        to_store(pieces_of(matrix(), 7), path, **how)
    assert not os.path.exists(beside(path, "spool"))
    disk(10**9)
    to_store(pieces_of(matrix(), 7), path, resume=True, **how)
    assert_same_csr(whole(Stored(path, device="cpu")), matrix())


# ------------------------------------------------------------------------------------------------ panels


@pytest.mark.parametrize(
    ("text", "count"),
    [("128 MiB", 128 << 20), ("2GB", 2 * 10**9), ("1.5k", 1500), (77, 77), ("10", 10), ("3 TiB", 3 << 40), ("5 b", 5)],
)
def test_bytes(text, count):
    assert partition.n_bytes(text, "chunks") == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", -1, 0, 2.5, None, "1 i", "1 XB", "9" * 400])
def test_bad_bytes(text):
    with pytest.raises(ValueError, match="chunks must be a number of bytes"):
        partition.n_bytes(text, "chunks")


@pytest.mark.parametrize("align", [1, 32, 96])
def test_cuts_are_aligned_balanced_and_complete(align):
    rng = np.random.default_rng(0)
    before = np.concatenate(([0.0], np.cumsum(rng.integers(1, 100, 10_000))))
    rows = partition.cut(before, 20_000, align)
    assert rows[0] == 0 and rows[-1] == 10_000
    assert (np.diff(rows) > 0).all()
    assert (rows[:-1] % align == 0).all()
    shares = np.diff(before[rows])
    assert shares.max() <= 20_000 + 100 * align


def test_a_row_larger_than_a_panel_is_a_panel_of_its_own():
    rows = partition.cut(np.array([0.0, 1, 2, 1000, 1001, 1002]), 100, 1)
    assert rows.tolist() == [0, 2, 3, 5]


def _fused(d):
    (found,) = pytest.importorskip("dask").optimize(d + d)
    return found


def _from_delayed(d):
    da, parts = pytest.importorskip("dask.array"), zip(d.chunks[0], d.to_delayed()[:, 0], strict=True)
    return da.concatenate([da.from_delayed(part, (n, d.shape[1]), meta=d._meta) for n, part in parts])


@pytest.mark.parametrize("derive", [lambda d: d, lambda d: 2 * d, lambda d: d[:100], _fused, _from_delayed])
def test_a_store_is_not_overwritten_by_what_is_read_from_it(tmp_path, derive):
    pytest.importorskip("dask.array")
    csr, path, link = matrix(), tmp_path / "a.zarr", tmp_path / "link.zarr"
    to_store(csr, path, device="cpu", chunks="16 KiB")
    link.symlink_to(path)
    source = derive(cvrarray.open_store(link, device="cpu"))
    with pytest.raises(ValueError, match="must not be read from the store that is overwritten"):
        to_store(source, path, device="cpu", overwrite=True)
    assert (cvrarray.open_store(path, device="cpu").compute().to_scipy() != csr).nnz == 0
    to_store(source, tmp_path / "b.zarr", device="cpu", overwrite=True)


def test_panels_of_blocks_keep_to_what_was_asked(path):
    """Where some rows are in whole blocks, and others nearly fill one for each entry."""
    rng, n = np.random.default_rng(0), 8000
    dense = np.repeat(np.arange(n // 2), 64), (np.repeat(np.arange(n // 2) // 8 * 8, 64) + np.tile(np.arange(64), n // 2)) % n
    thin = np.repeat(np.arange(n // 2, n), 4), rng.integers(0, n, 2 * n)
    row, col = (np.concatenate(parts) for parts in zip(dense, thin, strict=True))
    to_store(csr_array((rng.random(row.size), (row, col)), shape=(n, n)), path, chunks="1 MiB", format="bbcsr", block_size=8)
    stored = Stored(path, device="cpu")
    assert stored.n_panels > 5
    assert stored.panel_bytes < 1.1 * 2**20
