"""Our arrays on a cluster of two worker processes. Panels stay where they are; a killed worker is no harm."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checks import assert_same_bits
from scipy.sparse import csr_array, eye_array, random_array

import cvrarray

pytest.importorskip("distributed")
pytest.importorskip("dask.array")
import dask
import dask.array as da
from distributed import Client, LocalCluster, wait

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = [
    pytest.mark.xdist_group("cluster"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets that a killed worker leaves
    pytest.mark.filterwarnings("ignore:Sending large graph"),
]


def example(name: str):
    """The module of an example, which is no package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def matrix(shape=(1000, 300), density=0.03, seed=0) -> csr_array:
    return csr_array(random_array(shape, density=density, rng=np.random.default_rng(seed), format="csr"))


def definite(n: int = 400, seed: int = 0) -> csr_array:
    a = matrix((n, n), 0.01, seed)
    return csr_array(a @ a.T + eye_array(n))


@pytest.fixture(scope="module")
def cluster():
    settings = {
        "distributed.comm.timeouts.connect": "20s",
        "distributed.scheduler.allowed-failures": 5,
        "distributed.scheduler.active-memory-manager.start": False,  # it drops copies on a second worker, every two seconds
    }
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, scheduler_port=0) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.mark.parametrize("format", ["cvr", "bbcsr"])
def test_products_have_the_same_bits_as_here(format, client):
    csr = matrix()
    d = cvrarray.to_dask(csr, chunks=128, format=format, device="cpu")
    x, y = np.random.default_rng(0).standard_normal(300), np.random.default_rng(1).standard_normal(1000)
    for product in (lambda: d @ x, lambda: d.T @ y, lambda: d.sum(axis=0), lambda: d.mean(axis=1), lambda: (d + d).max()):
        with dask.config.set(scheduler="synchronous"):
            expected = product().compute(scheduler="synchronous")
        np.testing.assert_array_equal(client.compute(product()).result(timeout=120), expected)
    np.testing.assert_array_equal(d.compute().todense(), csr.toarray())


def test_sweeps_have_the_same_bits_on_workers_as_here(client):
    """Gram matrices, moments and singular vectors: what is summed over chunks is summed in one order."""
    csr = matrix((20_000, 40))
    calls = [
        lambda d: [cvrarray.linalg.gram(d, center=True)],
        lambda d: cvrarray.linalg.mean_var(d, 0),
        lambda d: cvrarray.linalg.svds(d, 3, center=True),
    ]
    with dask.config.set(scheduler="synchronous"):
        expected = [list(call(cvrarray.to_dask(csr, chunks=3000, device="cpu"))) for call in calls]
    for call, arrays in zip(calls, expected, strict=True):
        for one, two in zip(call(cvrarray.to_dask(csr, chunks=3000, device="cpu")), arrays, strict=True):
            assert_same_bits(one, two)


def test_a_worker_that_meets_our_arrays_in_a_message_knows_them(client):
    """Chunks are made on one worker, moved to the other, and used there in what needs our rows in the registries."""
    d = cvrarray.to_dask(matrix(), chunks=250, format="cvr", device="cpu").persist()
    wait(d, timeout=60)
    client.replicate(d, n=2)
    known = client.run(_knows_our_arrays)
    assert len(known) == 2 and all(known.values())
    for placed in client.run(_tables_at_cache_lines).values():
        assert placed  # some arrays are there, and all of them well placed


def _knows_our_arrays():
    from dask.array.dispatch import numel_lookup

    from cvrarray.dask import registry

    return numel_lookup.dispatch(cvrarray.CVRArray) is registry.numel


@pytest.mark.parametrize(
    "first",
    ["cvrarray.bbcsr", pytest.param("cvrarray.store.layout", marks=pytest.mark.slow)],
)
def test_any_module_of_ours_may_be_met_first(first):
    """Where distributed is there already, as in a worker that gets a message: no circle of imports."""
    code = f"import distributed, importlib; importlib.import_module({first!r}); import cvrarray; cvrarray.CVRArray([[1.0]])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=EXAMPLES.parent, timeout=120)
    assert found.returncode == 0, found.stderr


def _tables_at_cache_lines(dask_worker):
    arrays = [value for value in dask_worker.data.values() if isinstance(value, cvrarray.CVRArray)]
    tables = [t for array in arrays for t in array._tables if getattr(t, "size", 0)]
    return bool(tables) and all(t.ctypes.data % 64 == 0 for t in tables)


def test_workers_count_the_bytes_of_the_tables(client):
    d = cvrarray.to_dask(matrix(), chunks=250, format="cvr", device="cpu").persist()
    wait(d, timeout=60)
    expected = sum(a.nbytes for a in client.gather(list(client.futures_of(d))))
    managed = sum(client.run(_managed_bytes).values())
    assert expected <= managed <= expected + 4 * 1000


def _managed_bytes(dask_worker):
    from dask.sizeof import sizeof

    return sum(sizeof(v) for v in dask_worker.data.values() if isinstance(v, cvrarray.CVRArray))


# ------------------------------------------------------------------------------------------------ solvers


def test_persisted_matrix_is_converted_once(client):
    """CG over a matrix of dense chunks, converted on the workers: each chunk once, however many products."""
    csr = definite()
    client.run(_count_conversions)
    blocks = da.from_array(csr.toarray(), chunks=(100, 400))
    A = cvrarray.to_dask(blocks, device="cpu").persist()
    wait(A, timeout=60)
    assert sum(client.run(_conversions).values()) == 4
    b = np.ones(400)
    x, iterations, _ = example("cg_dask").cg(A, da.from_array(b, chunks=(A.chunks[0],)), rtol=1e-9)
    assert np.linalg.norm(csr @ x.compute() - b) <= 1e-8 * np.linalg.norm(b)
    assert sum(client.run(_conversions).values()) == 4
    assert iterations > 5


def _count_conversions():
    from cvrarray.dask import panels

    if not hasattr(panels, "n_conversions"):
        convert = panels.asarray

        def counting(*args, **kwargs):
            panels.n_conversions += 1
            return convert(*args, **kwargs)

        panels.asarray = counting
    panels.n_conversions = 0


def _conversions():
    from cvrarray.dask import panels

    return panels.n_conversions


@pytest.mark.slow
def test_pagerank_from_a_store(client, tmp_path):
    pagerank = example("pagerank_dask")
    path, n = tmp_path / "links.zarr", 1 << 9
    cvrarray.to_store(pagerank.random_links(9, 8, piece=1000), path, shape=(n, n), chunks="10 kB", device="cpu")
    d = cvrarray.open_store(path, device="cpu")
    assert d.numblocks[0] > 2
    rank, iterations = pagerank.pagerank(d, rtol=1e-10)
    links = cvrarray.Stored(path, device="cpu")
    dense = np.concatenate([links.panel(k).todense() for k in range(links.n_panels)])
    out = dense.sum(axis=0)
    step = np.where(out > 0, dense / np.maximum(out, 1), 1 / n)
    google = 0.85 * step + 0.15 / n
    values, vectors = np.linalg.eig(google)
    best = vectors[:, np.argmax(values.real)].real
    np.testing.assert_allclose(rank.compute(), best / best.sum(), rtol=1e-6, atol=1e-12)
    assert 5 < iterations < 200


def test_lsqr(client):
    rng = np.random.default_rng(0)
    csr = matrix((2000, 50), 0.1)
    b = csr @ rng.standard_normal(50) + 0.1 * rng.standard_normal(2000)
    A = cvrarray.to_dask(csr, chunks=512, format="cvr", device="cpu").persist()
    x, _ = example("lsqr_dask").lsqr(A, da.from_array(b, chunks=(A.chunks[0],)), rtol=1e-12)
    np.testing.assert_allclose(x.compute(), np.linalg.lstsq(csr.toarray(), b)[0], rtol=1e-6)


# ------------------------------------------------------------------------------------------------ stores, kills


def test_workers_write_a_store(client, tmp_path):
    csr, path = matrix(), tmp_path / "m.zarr"
    d = cvrarray.to_dask(csr, chunks=128, format="cvr", device="cpu")
    cvrarray.to_store(d, path, device="cpu")
    stored = cvrarray.Stored(path, device="cpu")
    stored.check()
    assert stored.rows == (0, *np.cumsum(d.chunks[0]))
    np.testing.assert_allclose(stored @ np.ones(300), csr @ np.ones(300))


def _die_once(chunk, marker, block_id=None):
    """The worker that comes to the third panel first is gone."""
    if block_id[0] == 2:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os._exit(1)
    return chunk


def test_worker_killed_in_mid_product(client, tmp_path):
    csr, x = matrix(), np.random.default_rng(0).standard_normal(300)
    cvrarray.to_store(csr, tmp_path / "m.zarr", chunks="10 kB", format="cvr", device="cpu")
    d = cvrarray.open_store(tmp_path / "m.zarr", device="cpu")
    assert d.numblocks[0] > 4
    marker = str(tmp_path / "died")
    y = d.map_blocks(_die_once, marker, dtype=d.dtype, meta=d._meta) @ x
    found = client.compute(y).result(timeout=120)
    assert os.path.exists(marker)
    np.testing.assert_array_equal(found, (d @ x).compute(scheduler="synchronous"))
    client.wait_for_workers(2, timeout=60)


def test_a_damaged_panel_is_an_error_here(client, tmp_path):
    path = str(tmp_path / "m.zarr")
    cvrarray.to_store(matrix(), path, chunks="10 kB", format="cvr", device="cpu")
    from cvrarray.store import layout

    file = Path(layout.data_file(path, 1))
    bad = bytearray(file.read_bytes())
    bad[1000] ^= 1
    file.write_bytes(bad)
    with pytest.raises(ValueError, match=r"panel 1 of .* do not match their checksum"):
        client.compute(cvrarray.open_store(path, device="cpu") @ np.ones(300)).result(timeout=120)


# ------------------------------------------------------------------------------------------------ between GPUs


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("format", ["cvr", "bbcsr"])
def test_device_buffers_there_and_back(format, transposed, gpu):
    """The family "cuda": frames are the tables' own memory, and arrays are made around what arrives."""
    from distributed.protocol import deserialize, serialize

    xp = cvrarray.core.devices.parse(gpu).xp
    A = cvrarray.asarray(matrix(), format=format, device=gpu)
    A = A.T if transposed else A
    cvrarray.dask.register()
    header, frames = serialize(A, serializers=("cuda",))
    own = {t.data.ptr for t in (A.base if transposed else A)._tables if getattr(t, "size", 0)}
    assert {frame.data.ptr for frame in frames} == own
    again = deserialize(header, [xp.copy(frame) for frame in frames])
    assert again.device == gpu and again.shape == A.shape
    again.check()
    x = xp.arange(A.shape[1], dtype=float)
    np.testing.assert_array_equal((again @ x).get(), (A @ x).get())


def test_arrays_in_host_memory_are_pickled_out_of_band():
    from distributed.protocol import deserialize, serialize

    cvrarray.dask.register()
    A = cvrarray.CVRArray(matrix(), device="cpu")
    header, frames = serialize(A, serializers=("cuda", "dask", "pickle"))
    assert header["serializer"] == "pickle"
    sizes = [memoryview(frame).nbytes for frame in frames]
    assert sum(sizes[1:]) >= A.nbytes > 10 * sizes[0]  # tables as they are, beside a short pickle
    np.testing.assert_array_equal(deserialize(header, frames) @ np.ones(300), A @ np.ones(300))


def test_dask_cuda_spills_our_arrays(monkeypatch, device):
    """Its two registries, as dask-cuda declares them; the package itself pins an older Dask."""
    from types import ModuleType

    from dask.utils import Dispatch

    from cvrarray.dask import cluster

    package, is_device, memory = (
        ModuleType(name) for name in ("dask_cuda", "dask_cuda.is_device_object", "dask_cuda.get_device_memory_objects")
    )
    is_device.is_device_object, memory.dispatch = Dispatch("is_device_object"), Dispatch("get_device_memory_objects")
    for module in (package, is_device, memory):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cluster, "_registered", cluster._registered - {"dask_cuda"})
    cvrarray.dask.register()
    A = cvrarray.CVRArray(matrix(), device=device)
    for array in (A, A.T):
        assert is_device.is_device_object(array) == (device != "cpu")
        objects = memory.dispatch(array)
        assert sum(o.nbytes for o in objects) == (A.nbytes if device != "cpu" else 0)
