"""Products on several streams of a GPU: what an array keeps for them, and what streams leave behind."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
import zoo
from checks import assert_same_bits
from scipy.sparse import csr_array

from cvrarray import BBCSRArray, CVRArray


def long_rows() -> csr_array:
    """Rows that lie in several chunks, or are cut in pieces."""
    rng = np.random.default_rng(5)
    lengths = np.full(20_000, 12)
    lengths[::300] = 9_000
    row = np.repeat(np.arange(lengths.size), lengths)
    return csr_array((rng.standard_normal(row.size), (row, rng.integers(0, lengths.size, row.size))), shape=(20_000, 20_000))


BUILDS = {
    "cvr": lambda csr, device: CVRArray(csr, device=device),
    "bbcsr": lambda csr, device: BBCSRArray(csr, block_size=1, device=device),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("product", ["A @ x", "A @ X", "A.T @ x"])
def test_another_stream_has_the_handle_of_one_that_is_gone(build, product, gpu):
    """Its products would share memory with those that the first one has not done yet, and wait for each other for ever."""
    import cupy

    csr = long_rows()
    A = BUILDS[build](csr, gpu)
    op = A.T if "T" in product else A
    x = cupy.asarray(zoo.float_vector(csr.shape[1] * 4).reshape(-1, 4))
    x = x if "X" in product else cupy.ascontiguousarray(x[:, 0])
    right, busy = op @ x, cupy.ones((3000, 3000))
    cupy.cuda.Device().synchronize()
    found, handles, n_reused = [], set(), 0
    for _ in range(30):
        stream = cupy.cuda.Stream(non_blocking=True)
        n_reused += stream.ptr in handles
        handles.add(stream.ptr)
        with stream:
            busy @ busy
            found += [op @ x for _ in range(3)]
        del stream
        gc.collect()
    cupy.cuda.Device().synchronize()
    for y in found:
        assert_same_bits(y, right)
    if not n_reused:
        pytest.skip("no handle was used again")


def test_per_thread_streams(gpu):
    """A thread that ends leaves its own default stream behind, and its number to the next one."""
    import cupy

    csr = long_rows()
    A, x = CVRArray(csr, device=gpu), cupy.asarray(zoo.float_vector(csr.shape[1]))
    right = A @ x
    cupy.cuda.Device().synchronize()
    found = []

    def work():
        with cupy.cuda.Stream.ptds:
            found.extend(A @ x for _ in range(5))

    for _ in range(10):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    cupy.cuda.Device().synchronize()
    for y in found:
        assert_same_bits(y, right)


def test_a_stream_that_is_gone_while_another_thread_captures(gpu):
    """To wait for the device would end the capture, which a solver makes unseen, and be an error."""
    import cupy

    from cvrarray.linalg.gpu import cg

    csr = long_rows()
    A, x = CVRArray(csr, device=gpu), cupy.asarray(zoo.float_vector(csr.shape[1]))
    right, y = A @ x, cupy.zeros(9)
    cupy.cuda.Device().synchronize()
    handles, n_reused, is_over, errors = set(), 0, threading.Event(), []

    def capture():
        try:
            while not is_over.is_set():
                cg.captured(lambda: (y.fill(1), time.sleep(0.005)))
        except cupy.cuda.runtime.CUDARuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        for _ in range(60):
            stream = cupy.cuda.Stream(non_blocking=True)
            n_reused += stream.ptr in handles
            handles.add(stream.ptr)
            with stream:
                assert_same_bits(A @ x, right)
            del stream
            gc.collect()
    finally:
        is_over.set()
        thread.join()
    assert not errors
    if not n_reused:
        pytest.skip("no handle was used again")
