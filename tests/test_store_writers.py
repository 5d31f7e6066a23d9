"""Several writers of one store: one of them writes it, the others are told so, and what is there in the end is right.

A few rounds here; ``make kill-test`` (``CVRARRAY_KILL_POINTS=all``) takes a hundred of each kind.
"""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest
from checks import assert_same_csr, in_threads
from forked import Child, needs_fork
from test_store import dask_source, matrix, pieces_of, whole

from cvrarray import Stored, to_store
from cvrarray.store.lock import WriterLock, beside
from cvrarray.store.writer import Writer

ROUNDS = 100 if os.environ.get("CVRARRAY_KILL_POINTS") == "all" else 5
ONE, TWO = matrix((256, 40), 0.1), matrix((256, 40), 0.1, seed=5)
HOW = {"chunks": "6 kB", "device": "cpu", "format": "cvr"}


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "m.zarr")


def write_matrix(csr, path, **how):
    to_store(csr, path, **HOW, **how)


def write_pieces(csr, path, **how):
    to_store(pieces_of(csr, 5), path, shape=csr.shape, **HOW, **how)


def outcome(write):
    """A call's end: "ok", or an error of a writer who came second."""
    try:
        write()
    except BlockingIOError as error:
        assert "is being written by" in str(error) and "m.zarr" in str(error)
        return "refused"
    except FileExistsError as error:
        assert "must not exist" in str(error)
        return "refused"
    except ValueError as error:
        assert "only for the same source" in str(error)
        return "refused"
    return "ok"


def at_once(*writes):
    """The outcomes of calls that begin together, each in a process of its own."""
    ready, go = os.pipe()

    def wait_and(write):
        os.close(go)
        os.read(ready, 1)  # until the last who could write to it closes it
        return outcome(write)

    children = [Child(lambda write=write: wait_and(write)) for write in writes]
    os.close(go)
    ends = [child.wait() for child in children]
    os.close(ready)
    for status, text in ends:
        assert status == 0, text
    return [text.strip("'") for _, text in ends]


@needs_fork
@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}], ids=str)
@pytest.mark.parametrize("write", [write_matrix, write_pieces])
def test_two_processes(write, how, tmp_path):
    write(ONE, str(tmp_path / "warm"))  # compiled from here on
    refused = 0
    for k in range(ROUNDS):
        path = str(tmp_path / str(k) / "m.zarr")
        ends = at_once(lambda: write(ONE, path, **how), lambda: write(TWO, path, **how))  # noqa: B023
        refused += ends.count("refused")
        assert "ok" in ends
        stored = Stored(path, device="cpu")
        stored.check()
        found = whole(stored)
        assert any((found != csr).nnz == 0 for csr, end in zip((ONE, TWO), ends, strict=True) if end == "ok")
        assert os.listdir(os.path.dirname(path)) == ["m.zarr"]
    assert refused or ROUNDS < 100


def test_a_second_writer_is_refused_until_the_first_is_done(path):
    first = Writer(path, 40, [0, 256], device="cpu")
    first.write(0, ONE)
    message = f"is being written by another writer in this process. A store has one writer at a time.*{path}"
    for write in (
        lambda: Writer(path, 40, [0, 256], resume=True),
        lambda: write_matrix(ONE, path, overwrite=True),
        lambda: write_pieces(ONE, path, resume=True),
    ):
        with pytest.raises(BlockingIOError, match=message):
            write()
    first.close()
    assert not os.path.exists(beside(path, "lock"))
    write_matrix(TWO, path, overwrite=True)
    assert_same_csr(whole(Stored(path, device="cpu")), TWO)


def test_every_way_out_lets_others_write(path):
    with pytest.raises(ZeroDivisionError), Writer(path, 40, [0, 256], device="cpu") as writer:
        writer.write(0, ONE)
        1 / 0  # noqa: B018
    with pytest.raises(ValueError, match="same columns"):
        Writer(path, 41, [0, 256], resume=True)
    with pytest.raises(TypeError, match="row must hold integers"):
        to_store([([0.5], [0], np.ones(1))], path, shape=(4, 3), overwrite=True)
    Writer(path, 40, [0, 256], device="cpu", overwrite=True).release()
    assert os.listdir(os.path.dirname(path)) == ["m.zarr"]


def test_threads_of_one_process(path):
    ends = []
    gate = threading.Barrier(4)

    def write(csr):
        gate.wait()
        ends.append((csr, outcome(lambda: write_matrix(csr, path, overwrite=True))))

    in_threads(write, (ONE, TWO, ONE, TWO))
    found = whole(Stored(path, device="cpu"))
    assert any(end == "ok" and (found != csr).nnz == 0 for csr, end in ends)


@needs_fork
def test_a_dead_writers_lock_does_not_block(path):
    """What names the dead one in the file is not taken for a writer; a living one is named."""

    def die():
        Writer(path, 40, [0, 32, 256], device="cpu").write(0, ONE[:32])
        os._exit(0)

    Child(die).wait()
    assert os.path.exists(beside(path, "lock"))
    with WriterLock(path):
        status, text = Child(lambda: Writer(path, 40, [0, 32, 256], device="cpu", resume=True)).wait()
        assert status == 1 and f"is being written by process {os.getpid()}. A store has one writer" in text
    with Writer(path, 40, [0, 32, 256], device="cpu", resume=True) as writer:
        writer.write(1, ONE[32:])
    assert_same_csr(whole(Stored(path, device="cpu")), ONE)
    assert not os.path.exists(beside(path, "lock"))


def test_a_link_to_a_store_has_its_lock(path, tmp_path):
    write_matrix(ONE, path)
    (tmp_path / "link.zarr").symlink_to(path)
    with WriterLock(os.path.realpath(path)), pytest.raises(BlockingIOError):
        write_matrix(TWO, tmp_path / "link.zarr", overwrite=True)
    write_matrix(TWO, tmp_path / "link.zarr", overwrite=True)
    assert_same_csr(whole(Stored(path, device="cpu")), TWO)
    assert sorted(os.listdir(tmp_path)) == ["link.zarr", "m.zarr"]


def test_a_task_of_a_dead_writer_does_not_write_to_the_next_store(path):
    """A worker of Dask may outlive who sent it: its copy of the writer knows the store that it writes."""
    writer = Writer(path, 40, [0, 128, 256], device="cpu")
    copy = pickle.loads(pickle.dumps(writer))
    copy.write(0, ONE[:128])  # on the writer's behalf
    assert writer.missing() == [0, 1]  # not decided by this writer yet
    writer.refresh()
    assert writer.missing() == [1]
    writer.release()
    write_matrix(TWO, path, overwrite=True)
    with pytest.raises(ValueError, match="another writer has replaced it"):
        copy.write(1, ONE[128:])
    assert_same_csr(whole(Stored(path, device="cpu")), TWO)


def test_dask_tasks_write_on_behalf_of_the_caller(path):
    """The caller has the lock; tasks in threads write, and a second caller is refused while they do."""
    da = pytest.importorskip("dask.array")
    refused = []

    def block(chunk):
        refused.append(outcome(lambda: write_matrix(TWO, path, overwrite=True)))
        return chunk

    source = dask_source(ONE, (64, 40)).map_blocks(block, dtype=float, meta=dask_source(ONE, (64, 40))._meta)
    assert isinstance(source, da.Array)
    to_store(source, path, device="cpu", format="cvr")
    assert set(refused) == {"refused"}
    assert_same_csr(whole(Stored(path, device="cpu")), ONE)
