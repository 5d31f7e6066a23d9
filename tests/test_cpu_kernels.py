"""What is particular to the CPU: threads, processes, alignment, and code that stays in vector registers."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from checks import assert_product, assert_same_tables
from numba import njit
from scipy.sparse import csr_array

import cvrarray
from cvrarray.cpu import bbcsr, cvr, lanes, memory, threads

BUILDS = {
    "cvr": lambda csr: cvrarray.CVRArray(csr, n_chunks=40),
    "cvr_nnz": lambda csr: cvrarray.CVRArray(csr, n_chunks=40, split="nnz"),
    "bbcsr": lambda csr: cvrarray.BBCSRArray(csr, block_size=2),
}


def uneven(n_cols: int = 200_000, seed: int = 0) -> csr_array:
    """700 rows: a third empty, most short, some long, one in many chunks; columns in one place, then anywhere."""
    rng = np.random.default_rng(seed)
    length = np.minimum(rng.zipf(1.6, 700), 500)
    length[rng.random(700) < 0.3] = 0
    length[5] = 20_000
    row = np.repeat(np.arange(700), length)
    col = np.where(row < 400, rng.integers(0, 60_000, len(row)), rng.integers(0, n_cols, len(row)))
    csr = csr_array((rng.random(len(row)), (row, col)), shape=(700, n_cols))
    csr.sum_duplicates()
    return csr


@pytest.fixture
def threaded(monkeypatch):
    """Make even small work use the number of threads that the test sets."""
    monkeypatch.setattr(threads, "SMALL", 64)
    return lambda n: monkeypatch.setenv("CVRARRAY_NUM_THREADS", str(n))


@pytest.mark.parametrize("build", BUILDS)
def test_same_bits_for_any_number_of_threads(threaded, build):
    csr = uneven()
    x = np.random.default_rng(1).random(csr.shape[1])
    arrays, products = [], []
    for n in (1, 2, 7):
        threaded(n)
        arrays.append(BUILDS[build](csr))
        products.append(arrays[-1] @ x)
    assert_product(products[0], csr, x)
    for array, product in zip(arrays[1:], products[1:], strict=True):
        assert_same_tables(array._tables, arrays[0]._tables)
        assert (array.to_scipy() != csr).nnz == 0
        np.testing.assert_array_equal(product, products[0])


@pytest.mark.parametrize("build", BUILDS)
def test_concurrent_calls(threaded, build):
    """As Dask makes them: conversions and products on several Python threads at once."""
    threaded(2)
    csr = uneven()
    xs = np.random.default_rng(1).random((24, csr.shape[1]))
    A = BUILDS[build](csr)
    expected = [A @ x for x in xs]
    with ThreadPoolExecutor(8) as pool:
        shared = list(pool.map(lambda x: A @ x, xs))
        own = list(pool.map(lambda x: BUILDS[build](csr) @ x, xs))
    np.testing.assert_array_equal(shared, expected)
    np.testing.assert_array_equal(own, expected)


IN_ANOTHER_PROCESS = """
import multiprocessing, warnings
import numpy as np
from cvrarray import CVRArray
from cvrarray.cpu import threads

def total(queue, A):
    queue.put(float((A @ np.ones(A.shape[1])).sum()))

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads running is what this is about
    threads.SMALL = 64
    A = CVRArray(np.ones((300, 100)), n_chunks=20)
    assert (A @ np.ones(100)).sum() == 30000  # the pool's threads exist now
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    children = [context.Process(target=total, args=(queue, A)) for _ in range(2)]
    for child in children:
        child.start()
    print([queue.get(timeout=60) for _ in children])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(tmp_path, method):
    if method == "fork" and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    script = tmp_path / "script.py"
    script.write_text(IN_ANOTHER_PROCESS.format(method=method))
    environment = os.environ | {"CVRARRAY_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[30000.0, 30000.0]"


@pytest.mark.parametrize("sizes", [[], [0], [1000], [0, 0, 500, 0, 0], [5000, 1, 1, 1], [1] * 1000, [100] * 7])
@pytest.mark.parametrize("n_threads", [1, 2, 7])
def test_ranges_cover_every_tile_once(threaded, sizes, n_threads):
    threaded(n_threads)
    ranges = []
    threads.run(lambda first, last: ranges.append((first, last)), memory.offsets(np.array(sizes, int)))
    tiles = [tile for first, last in sorted(ranges) for tile in range(first, last)]
    assert tiles == list(range(len(sizes)))


def test_an_error_in_another_thread_is_raised(threaded):
    threaded(3)

    def fail(first, last):
        raise ArithmeticError(first)

    with pytest.raises(ArithmeticError):
        threads.run(fail, np.arange(0, 1000, 100))


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_thread_count_is_checked(monkeypatch, value):
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", value)
    with pytest.raises(ValueError, match="CVRARRAY_NUM_THREADS must be a whole number from 1; got"):
        threads.count()


@pytest.mark.parametrize("build", BUILDS)
def test_products_of_complex_infinities(build):
    """alpha = 1 is no multiplication: 1 * (inf + 0j) would be inf + nan j."""
    x = np.array([np.inf, 1], np.complex128)
    y = BUILDS[build](csr_array(np.eye(2))) @ x
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_tables_begin_at_cache_lines(dtype):
    csr = uneven().astype(dtype)
    for build in BUILDS.values():
        t = build(csr)._tables
        assert t.col_narrow.size and t.col_wide.size, "the matrix has narrow tiles and wide ones"
        for array in (t.val if "val" in t._fields else t.data, t.col_narrow, t.col_wide):
            assert array.ctypes.data % 64 == 0


@njit(**lanes.OPTIONS)
def _masks(array, at, value, bit, out):
    out[0] = lanes.different(array, at, value)
    out[1] = lanes.bit_set(array, at, bit)
    out[2] = lanes.lowest(np.uint32(0x50))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("at", [0, 1])
def test_masks(dtype, at):
    array = np.arange(100, 133).astype(dtype)
    array[15] = 7
    out = np.zeros(3, np.uint32)
    _masks(array, at, 7, 2, out)
    seen = array[at : at + 32].astype(int)
    assert out[0] == sum(1 << lane for lane in range(32) if seen[lane] != 7)
    assert out[1] == sum(1 << lane for lane in range(32) if seen[lane] >> 2 & 1)
    assert out[2] == 4


@njit(**lanes.OPTIONS)
def _loads(x, offsets, at, mask, out):
    lanes.store(lanes.load_each(x, 1, offsets, at), out, 0)
    lanes.store(lanes.load_runs(x, 1, offsets, at), out, 32)
    lanes.store(lanes.gather(x, 1, offsets, at, mask), out, 64)


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("offset_dtype", [np.uint16, np.int32, np.int64])
def test_loads_agree(dtype, offset_dtype):
    rng = np.random.default_rng(0)
    x = (rng.integers(-9, 9, 90) + 1j * rng.integers(-9, 9, 90)).astype(dtype if dtype[0] == "c" else "complex128")
    x = x.astype(dtype) if dtype[0] == "c" else x.real.astype(dtype)
    offsets = np.concatenate(([5], np.arange(32), rng.integers(0, 89, 32))).astype(offset_dtype)
    offsets[20] = 3  # one odd lane in a run
    for at in (1, 33):
        out = np.full(96, 7, dtype)
        _loads(x, offsets, at, np.uint32(0xFFFF0F0F), out)
        expected = x[1 + offsets[at : at + 32].astype(int)]
        np.testing.assert_array_equal(out[:32], expected)
        np.testing.assert_array_equal(out[32:64], expected)
        in_mask = np.array([0xFFFF0F0F >> lane & 1 for lane in range(32)])
        np.testing.assert_array_equal(out[64:], expected * in_mask.astype(dtype))


@njit(**lanes.OPTIONS)
def _block_of_rows(data, x, col, phase, within, out):
    acc = lanes.load(out, 0, out)
    lanes.store(lanes.multiply_add_blocks(acc, data, 1, x, len(within), col, 1, phase, within), out, 0)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64", "complex64"])
@pytest.mark.parametrize("col_dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("size", lanes.BLOCK_SIZES)
def test_blocks_take_x_once(dtype, col_dtype, size):
    """Wherever a bin may begin in a block row; x ends with the last block."""
    rng = np.random.default_rng(0)
    data = rng.integers(-9, 9, 1 + 32 * size).astype("float32" if dtype == "float64" else dtype)
    x = (rng.integers(-9, 9, 41 * size) * (1 + 2j if dtype[0] == "c" else 1)).astype(dtype)
    lane = np.arange(32)
    for phase in sorted({32 * i % size for i in range(size)}):
        blocks = rng.permutation(40)
        blocks[1] = 39
        col = np.append(0, blocks[(lane + phase) // size]).astype(col_dtype)
        out = np.ones(32, dtype)
        _block_of_rows(data, x, col, phase, tuple(range(size)), out)
        expected = 1 + sum(data[1 + 32 * j + lane] * x[size + size * col[1:].astype(int) + j] for j in range(size))
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("block_size", [2, 3, 5, 6])
def test_block_rows_with_and_without_holes(threaded, block_size):
    """Some block rows are copied and some merged, in one bin and over the bins' ends; the last is cut off."""
    threaded(2)
    rng = np.random.default_rng(0)
    dense = np.kron(rng.random((40, 30)) < 0.2, np.ones((block_size, block_size))) * rng.integers(1, 9, (1, 30 * block_size))
    dense[7::50, ::3] = 0
    csr = csr_array(dense[:-1])
    A = cvrarray.BBCSRArray(csr, block_size=block_size)
    assert A._tables.present is not None
    A.check()
    np.testing.assert_array_equal(A.todense(), dense[:-1])
    x = np.arange(1.0, csr.shape[1] + 1)
    np.testing.assert_array_equal(A @ x, csr @ x)


@pytest.mark.parametrize("module", [cvr, bbcsr])
def test_kernels_keep_sums_in_registers_and_count_no_references(monkeypatch, module):
    """The two things that a change of Numba could undo without any wrong result."""
    uncached = njit(**lanes.OPTIONS | {"cache": False})(module._product.py_func)
    monkeypatch.setattr(module, "_product", uncached)
    csr = uneven()
    BUILDS[module.__name__.rpartition(".")[2]](csr) @ np.ones(csr.shape[1])
    (code,) = uncached.inspect_llvm().values()
    assert "fmuladd.v32f64" in code
    assert "NRT_incref" not in code
