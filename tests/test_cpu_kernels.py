"""What is particular to the CPU: threads, processes, alignment, and code that stays in vector registers."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zoo
from checks import DIFFERENT, assert_product, assert_same_bits, assert_same_tables, in_turn
from checks import bbcsr as bbcsr_build
from checks import cvr as cvr_build
from scipy.sparse import csr_array, eye_array

import cvrarray
from cvrarray.array.transposed import TransposedArray
from cvrarray.cpu import bbcsr, cvr, plan, simd, statistics
from cvrarray.cpu import csr as canonical_csr
from cvrarray.cpu.products import parts, tiling
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import OPTIONS, kernel, njit
from cvrarray.cpu.runtime.spin import spin_wait
from cvrarray.input import coercion

MODULES = {"cvr": cvr, "bbcsr": bbcsr}
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
    for n in (7, 2, 1):  # a prepared call takes as many threads as are allowed when it is made
        threaded(n)
        np.testing.assert_array_equal(arrays[0] @ x, products[0])


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
from cvrarray.cpu.runtime import threads

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


@pytest.mark.parametrize("method", ["fork"])
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


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("row_length", [1, 2, 30])
@pytest.mark.parametrize("at", [0, 1, 500, -1])
@pytest.mark.parametrize("fault", ["none", "negative", "too large", "equal", "descending", "offsets"])
def test_csr_is_checked_everywhere(threaded, n_threads, row_length, at, fault):
    """More rows than are looked at together, and a fault in the first, a middle or the last of them."""
    threaded(n_threads)
    n_rows, n_cols = 2 * canonical_csr.ROWS + 77, 100
    indptr = np.arange(n_rows + 1, dtype=np.int32) * row_length
    indices = np.tile(3 * np.arange(row_length, dtype=np.int32), n_rows)
    row = np.arange(n_rows)[at]
    last = indptr[row + 1] - 1
    expected = (0, indices.size, -1, -1, fault == "none")
    if fault in ("negative", "too large"):
        position = last if fault == "too large" else indptr[row]
        indices[position] = n_cols if fault == "too large" else -1
        expected = (0, indices.size, -1, position, False)
    elif fault == "offsets":
        row = max(row, 1)  # the first offset is 0, which is looked at before
        indptr[row] = indptr[row + 1] + 1 if row < n_rows - 1 else indptr[row - 1] - 1
        expected = (0, indices.size, row if row < n_rows - 1 else row - 1, -1, False)
    elif fault in ("equal", "descending"):
        if row_length == 1:
            pytest.skip("one column is in order")
        indices[last] = indices[last - 1] - (fault == "descending")
        if indices[last] < 0:
            indices[last - 1 : last + 1] = (1, 0)
    assert canonical_csr.check(indptr, indices, n_cols)[:5] == expected


@pytest.mark.parametrize(("last_row", "in_order"), [([3], True), ([2, 3], True), ([3, 2], False), ([2, 2], False)])
def test_empty_rows_hide_no_fault(last_row, in_order):
    """One place where columns do not ascend begins a row after empty ones: it is forgiven once."""
    indptr = np.array([0, 0, 1, 1, 1, 1 + len(last_row), 1 + len(last_row)])
    indices = np.array([5, *last_row])
    assert canonical_csr.check(indptr, indices, 6)[:5] == (0, indices.size, -1, -1, in_order)


def test_an_error_in_another_thread_is_raised(threaded):
    threaded(3)

    def fail(first, last):
        raise ArithmeticError(first)

    with pytest.raises(ArithmeticError):
        threads.run(fail, np.arange(0, 1000, 100))


def test_helpers_take_part_awake_and_asleep(threaded):
    """Two ranges that wait for each other: the call ends only if two threads are in it at once."""
    threaded(2)
    both = threading.Barrier(2, timeout=30)
    for pause in (0, 0, 0.05):  # a helper looks for work for some 0.1 ms before it sleeps
        time.sleep(pause)
        threads.run(lambda first, last: both.wait(), np.array([0, 1000, 2000]))


@pytest.mark.parametrize("helpers_are_slow", [False, True])
def test_short_calls_have_helpers_where_that_is_faster(threaded, monkeypatch, helpers_are_slow):
    """By a clock that tells how calls went: helpers either halve the time or treble it, and then this changes."""
    threaded(2)
    ranges = []
    call = threads.prepare(lambda first, last: ranges.append((first, last)), np.array([0, 1000, 2000]))

    def with_helpers(slow):
        ranges.clear()
        seconds = {0: 0.0, 1: 1.0, 2: 3.0 if slow else 0.5}  # since the call began, by the ranges that are done
        monkeypatch.setattr(threads.time, "perf_counter", lambda: seconds[len(ranges)])
        call()
        assert sorted(ranges) in ([(0, 2)], [(0, 1), (1, 2)])
        return len(ranges) == 2

    share = np.mean([with_helpers(helpers_are_slow) for _ in range(200)])
    assert share < 0.2 if helpers_are_slow else share > 0.8
    for _ in range(200):
        with_helpers(not helpers_are_slow)
    share = np.mean([with_helpers(not helpers_are_slow) for _ in range(200)])
    assert share > 0.8 if helpers_are_slow else share < 0.2


@pytest.mark.parametrize("burst", [10, 24])
@pytest.mark.parametrize(
    ("alone", "with_helpers", "wake"),
    [(285, 150, (470, 273)), (285, 150, (504, 515)), (167, 115, (334, 278, 177)), (285, 150, (2158,))],
)
def test_helpers_who_must_wake_are_not_given_up(burst, alone, with_helpers, wake):
    """Times of ba_ladybug21_J and ba_kitti_J in us, in bursts of calls between which helpers sleep."""
    choice = threads.helpers_or_alone()
    ways = []
    for call in range(2000):
        ways.append(choice.choose())
        seconds = wake[call % burst] if call % burst < len(wake) else with_helpers
        choice.record(ways[-1], alone if ways[-1] == threads.ALONE else seconds)
    assert np.mean(ways[:100]) < 0.15
    assert np.mean(ways) < 0.05


@pytest.mark.parametrize("with_helpers", [(470, 390, 520), (850,), (150, 900, 900, 900)])
def test_helpers_who_mostly_are_slow_are_given_up(with_helpers):
    """Calls so far apart that helpers sleep before each; or other work that has their CPU, always or mostly."""
    choice = threads.helpers_or_alone()
    ways = []
    for call in range(2000):
        ways.append(choice.choose())
        choice.record(ways[-1], 285 if ways[-1] == threads.ALONE else with_helpers[call % len(with_helpers)])
    assert np.mean(ways) > 0.9


def test_a_helper_keeps_no_operand(threaded):
    threaded(2)

    class Operand:
        pass

    operand = Operand()
    gone = weakref.ref(operand)
    threads.run(lambda first, last, operand: None, np.array([0, 1000, 2000]), operand)
    del operand
    end = time.monotonic() + 30
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.001)  # the helper may still hold a task that the caller took back
    assert gone() is None


def test_spinning_ends_with_a_change_or_after_so_many_reads():
    number = np.zeros(1, np.int64)
    assert not spin_wait(number, 0, 1000, 0)
    assert spin_wait(number, 1, 1000, 0)
    timer = threading.Timer(0.02, number.__setitem__, (0, 5))
    timer.start()
    assert spin_wait(number, 0, 10**12, 10)  # the timer can only run because the interpreter is free meanwhile
    timer.join()


def test_all_calls_share_one_pool(threaded, monkeypatch):
    """Which grows with the largest number of threads that was asked for."""
    monkeypatch.setattr(threads, "_pools", [])
    sizes = []
    for n in (1, 3, 2, 5, 4):
        threaded(n)
        threads.run(lambda first, last: None, np.arange(0, 10_000, 100))
        sizes.append([pool.size for pool in threads._pools])
    assert sizes == [[], [2], [2], [4], [4]]


def test_read_only_and_mixed_operands():
    """Prepared once for a dtype, products take every contiguous array of it."""
    csr = uneven()
    for build in BUILDS.values():
        A = build(csr)
        x = np.arange(csr.shape[1], dtype=float)
        frozen = x.copy()
        frozen.setflags(write=False)
        np.testing.assert_array_equal(A @ frozen, A @ x)
        np.testing.assert_array_equal(A.T @ (A @ frozen), A.T @ (A @ x))
        assert_product(A @ x.astype("complex64"), csr, x.astype("complex64"))


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tables_begin_at_cache_lines(dtype):
    csr = uneven().astype(dtype)
    for build in BUILDS.values():
        t = build(csr)._tables
        assert t.col_narrow.size and t.col_wide.size, "the matrix has narrow tiles and wide ones"
        for array in (t.val if "val" in t._fields else t.data, t.col_narrow, t.col_wide):
            assert array.ctypes.data % 64 == 0


@kernel
def _gather_store(source, start, columns, mask, padding, base, out, at):
    offsets = simd.scratch(columns, simd.SINGLE)
    for k in range(32):
        offsets[k] = columns[k]
    simd.gather_store(simd.pointer(source, start), offsets, mask, padding, base, out, at)


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [(np.int32, np.uint16), (np.int32, np.int32), (np.int64, np.uint16), (np.int64, np.int64)],
)
@pytest.mark.parametrize("offset_dtype", [np.int32, np.int64])
def test_columns_are_stored_relative_to_a_base(dtype, out_dtype, offset_dtype):
    rng = np.random.default_rng(0)
    base = 2**31 - 70_000 if out_dtype == np.uint16 else 0
    source = (base + rng.integers(0, 65_535, 100)).astype(dtype)
    offsets = rng.integers(-5, 60, 32).astype(offset_dtype)  # a lane's may lie before the start
    mask = np.uint32(0x0F37_A5C1)
    padding = 65_535 if out_dtype == np.uint16 else -1
    out = np.full(40, 7, out_dtype)
    _gather_store(source, 10, offsets, mask, base + padding, base, out, 4)
    chosen = (int(mask) >> np.arange(32) & 1).astype(bool)
    expected = np.where(chosen, source[10 + offsets.astype(int)].astype(np.int64) - base, padding)
    np.testing.assert_array_equal(out[4:36], expected.astype(out.dtype))
    assert (out[:4] == 7).all() and (out[36:] == 7).all()


@kernel
def _masks(array, at, value, bit, out):
    out[0] = simd.not_equal_mask(array, at, value)
    out[1] = simd.bit_set(array, at, bit)
    out[2] = simd.lowest(np.uint32(0x50))


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


@kernel
def _loads(x, offsets, at, mask, out):
    simd.store(simd.take(x, 1, offsets, at, simd.LOADS), out, 0, simd.WHOLE)
    simd.store(simd.take(x, 1, offsets, at, simd.RUNS), out, 32, simd.WHOLE)
    simd.store(simd.take(x, 1, offsets, at, simd.GATHERS), out, 64, simd.WHOLE)
    simd.store(simd.gather(x, 1, offsets, at, mask), out, 96, simd.WHOLE)


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("offset_dtype", [np.uint16, np.int32, np.int64])
def test_loads_agree(dtype, offset_dtype):
    rng = np.random.default_rng(0)
    x = (rng.integers(-9, 9, 90) + 1j * rng.integers(-9, 9, 90)).astype(dtype if dtype[0] == "c" else "complex128")
    x = x.astype(dtype) if dtype[0] == "c" else x.real.astype(dtype)
    offsets = np.concatenate(([5], np.arange(32), rng.integers(0, 89, 32))).astype(offset_dtype)
    offsets[20] = 3  # one odd lane in a run
    for at in (1, 33):
        out = np.full(128, 7, dtype)
        _loads(x, offsets, at, np.uint32(0xFFFF0F0F), out)
        expected = x[1 + offsets[at : at + 32].astype(int)]
        np.testing.assert_array_equal(out[:96], np.tile(expected, 3))
        in_mask = np.array([0xFFFF0F0F >> lane & 1 for lane in range(32)])
        np.testing.assert_array_equal(out[96:], expected * in_mask.astype(dtype))


def test_the_spread_that_chunks_follow():
    """Row lengths' standard deviation over their mean."""
    indptr = np.array([0, 2, 4, 6, 6, 7, 8])
    for dtype in (np.int32, np.int64):
        assert statistics.spread(indptr.astype(dtype)) == pytest.approx(np.std([2, 2, 2, 0, 1, 1]) / (8 / 6))
        assert statistics.spread(np.zeros(1, dtype)) == statistics.spread(np.zeros(4, dtype)) == 0


def test_chunks_follow_the_rows():
    """Short ones keep lanes in phase. Long ones where lengths differ, but for long rows."""

    def steps(csr):
        return csr.nnz / 32 / cvr.default_n_chunks(coercion.as_csr(csr), 32)

    even, long = eye_array(3000, format="csr"), csr_array(np.tri(300))
    lengths = np.repeat([1, 30], 5000)
    many = csr_array((np.ones(lengths.sum()), np.concatenate([np.arange(n) for n in lengths]), np.r_[0, lengths.cumsum()]))
    assert steps(coercion.as_csr(even)) < 40
    assert 200 < steps(many) < 600
    assert steps(long) < 200


@pytest.mark.parametrize("dtype", ["float64"])
@pytest.mark.parametrize("n_chunks", [1, 4])
def test_many_short_rows_with_wide_columns(dtype, n_chunks):
    """One of them is cut by chunks, and lanes steal from it."""
    rng = np.random.default_rng(3)
    length = rng.integers(0, 4, 3000)
    length[1500] = 4000
    row = np.repeat(np.arange(3000), length)
    csr = csr_array((rng.integers(-1, 2, row.size).astype(dtype), (row, rng.integers(0, 99_999, row.size))), (3000, 100_000))
    csr.sum_duplicates()
    x = rng.integers(-1, 2, 100_000).astype(dtype)
    array = cvrarray.CVRArray(csr, n_chunks=n_chunks, split="nnz")
    assert len(array._tables.col_wide)
    np.testing.assert_array_equal(array @ x, csr @ x)


@kernel
def _block_of_rows(data, x, col, phase, within, out):
    acc = simd.load(out, 0, out)
    values, x, col = simd.pointer(data, 1), simd.pointer(x, len(within)), simd.pointer(col, 1)
    simd.store(simd.multiply_add_blocks(acc, values, x, col, phase, within), out, 0, simd.WHOLE)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64", "complex64"])
@pytest.mark.parametrize("col_dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("size", simd.BLOCK_SIZES)
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


@pytest.mark.parametrize("block_size", [2, 3, 5])
def test_rows_that_share_no_block(threaded, block_size):
    """Merging finds as much as a nonzero may take, so ranges fill their room to the last place: none takes another's."""
    n = 2 * threads.QUICK * threads.SMALL
    indices = np.random.default_rng(0).permutation(n).astype(np.int32) * block_size
    csr = csr_array((np.arange(1, n + 1), indices, np.arange(n + 1)), shape=(n, n * block_size))
    threaded(1)
    A = cvrarray.BBCSRArray(csr, block_size=block_size)
    np.testing.assert_array_equal(A.tocsr().indices, indices)
    threaded(3)
    assert_same_tables(cvrarray.BBCSRArray(csr, block_size=block_size)._tables, A._tables)


BEYOND_X = """
import ctypes, mmap
import numpy as np
from scipy.sparse import csr_array
import cvrarray

PROT_NONE = 0
libc = ctypes.CDLL(None, use_errno=True)
rooms = []

def before_a_closed_page(values):
    n = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    room = mmap.mmap(-1, n + mmap.PAGESIZE)
    rooms.append(room)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    assert libc.mprotect(ctypes.c_void_p(start + n), ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE) == 0
    x = np.frombuffer(room, values.dtype, values.size, n - values.nbytes)
    x[:] = values
    return x

rng = np.random.default_rng(0)
for size in (1, 2, 3, 4, 6, 8):
    for n_blocks in (40, 70_000):  # narrow columns, and wide
        for holes in (False, True):
            for cut in {0, size - 1}:
                n_cols = n_blocks * size - cut
                blocks = [np.append(rng.choice(n_blocks - 1, 1 + i % 7), n_blocks - 1) for i in range(40)]
                col = np.concatenate([(size * b[:, None] + np.arange(size)).ravel() for b in blocks for _ in range(size)])
                row = np.repeat(np.arange(40 * size), [size * len(b) for b in blocks for _ in range(size)])
                kept = (col < n_cols) & ((rng.random(col.size) < 0.8) | (not holes))
                val = rng.integers(1, 9, kept.sum()).astype(float)
                csr = csr_array((val, (row[kept], col[kept])), shape=(40 * size, n_cols))
                csr.sum_duplicates()
                x = before_a_closed_page(rng.integers(-9, 9, n_cols).astype(float))
                for array in (cvrarray.BBCSRArray(csr, block_size=size, device="cpu"), cvrarray.CVRArray(csr, device="cpu")):
                    np.testing.assert_array_equal(array @ x, csr @ x)
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="mprotect is POSIX")
def test_products_read_nothing_beyond_x():
    """x ends where a page begins that nobody may read: blocks with holes, padding, and a last block that the edge cuts."""
    run = subprocess.run([sys.executable, "-c", BEYOND_X], capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "done", (run.returncode, run.stderr)


@pytest.mark.parametrize("dtype", ["float64"])
@pytest.mark.parametrize("build", [cvr_build(32, 7), bbcsr_build(1)], ids=str)
def test_candidates_have_the_same_bits(build, dtype):
    """All ways to load x, by all matrices of the zoo; with narrow columns, wide ones, and both."""
    seen = set()
    for name in zoo.ZOO:
        csr = zoo.floats(name, dtype)
        array = build(csr, "cpu")
        product = MODULES[array.format]._product_of(array._tables, np.dtype(dtype))
        x = zoo.float_vector(csr.shape[1], dtype)
        products = {}
        for way, ways in product.candidates.items():
            y = products[way] = poison(csr.shape[0], dtype)
            carry = [np.zeros(len(array._tables.carry_row), dtype)] if array.format == "cvr" else []
            product.prepared(ways)(x, y, *carry)
            seen.add((way, *map(bool, ways)))
            assert_same_bits(y, next(iter(products.values())))
            for other in carry:
                assert_same_bits(other, products.setdefault("carry", other))
        assert len(products) > 1
    assert {(way, True, True) for way in ("loads", "runs", "gathers")} <= seen


@pytest.mark.parametrize("measures", ["1", "0"])
@pytest.mark.parametrize("build", [cvr_build(32, 7), bbcsr_build(1)], ids=str)
def test_the_fastest_way_is_measured_once(threaded, monkeypatch, build, measures):
    """After so many seconds, or at once where kernels are compared; other arrays of the structure know it."""
    threaded(1)
    monkeypatch.setenv("CVRARRAY_MEASURE", measures)
    timed, clock = [], itertools.count()
    monkeypatch.setattr(plan, "_seconds", lambda call, operands: timed.append(call) or 1.0 / len(timed))  # the last wins
    csr = uneven()
    x = np.random.default_rng(1).random(csr.shape[1])
    array = build(csr, "cpu")
    y = array @ x
    for _ in range(3):
        assert_same_bits(array @ x, y)
    assert not timed
    monkeypatch.setattr(plan.time, "perf_counter", lambda: float(next(clock)))  # a call takes a second
    assert_same_bits(array @ x, y)
    n = len(timed)
    assert n == (0 if measures == "0" else plan.SAMPLES * 3)
    of = MODULES[array.format]._product_of(array._tables, x.dtype)
    assert of.chosen() == list(of.candidates.values())[0 if measures == "0" else -1]
    assert_same_bits(array @ x, y)
    assert_same_bits(array.with_values(2 * csr) @ x, 2 * y)
    assert len(timed) == n
    other = build(csr, "cpu")
    with array._target.comparing():
        assert_same_bits(other @ x, y)
    assert len(timed) == 2 * n


def test_ways_by_name(threaded, monkeypatch):
    """CVRARRAY_KERNEL names those that take part."""
    threaded(1)
    tables = cvrarray.CVRArray(uneven(), device="cpu")._tables
    for wanted, expected in (("runs", simd.RUNS), ("loads", simd.LOADS), ("gathers", simd.GATHERS)):
        monkeypatch.setenv("CVRARRAY_KERNEL", wanted)
        assert cvr._product_of(tables, np.dtype(float)).chosen().wide == expected


@pytest.mark.parametrize("module", [cvr, bbcsr])
def test_kernels_keep_sums_in_registers_and_count_no_references(monkeypatch, module):
    """The two things that a change of Numba could undo without any wrong result."""
    csr = uneven()
    array = BUILDS[module.__name__.rpartition(".")[2]](csr)
    calls = {
        "_product": (lambda: array @ np.ones(csr.shape[1]), "fmuladd.v32f64"),
        "_product_matrix": (lambda: array @ np.ones((csr.shape[1], 16)), "fmuladd.v16f64"),
    }
    if module is cvr:
        calls["_scatter"] = lambda: TransposedArray.once(array) @ np.ones(csr.shape[0]), "fmuladd.v32f64"
    for name, (call, instruction) in calls.items():
        uncached = njit(**OPTIONS | {"cache": False})(getattr(module, name).py_func)
        monkeypatch.setattr(module, name, uncached)
        call()
        (code,) = uncached.inspect_llvm().values()
        assert instruction in code
        assert "NRT_incref" not in code


# ---------------------------------------------------------------------- products with a dense and the transposed matrix

DTYPES = [  # stored, of the product
    ("bool", "int64"), ("int8", "int8"), ("uint8", "int16"), ("int32", "float64"), ("uint64", "uint64"), ("bool", "float32"),
    ("float32", "float32"), ("float32", "float64"), ("float64", "complex128"), ("complex64", "complex64"),
    ("complex64", "complex128"),
]  # fmt: skip


def poison(shape, dtype) -> np.ndarray:
    """What must never be read: nan, or the largest integer."""
    dtype = np.dtype(dtype)
    return np.full(shape, np.nan if dtype.kind in "fc" else np.iinfo(dtype).max, dtype)


def transposed(array, dtype):
    return MODULES[array.format].product_transposed(array._tables, np.dtype(dtype))


def matrix(array, dtype):
    return MODULES[array.format].product_matrix(array._tables, np.dtype(dtype))


def assert_transposed(array, csr, x, alpha=1, beta=0, before=None):
    y = poison(csr.shape[1], x.dtype) if before is None else before.copy()
    transposed(array, x.dtype)(x, y, x.dtype.type(alpha), x.dtype.type(beta))
    assert_product(y, csr.T.tocsr(), x, alpha, beta, before)


def assert_matrix(array, csr, x, alpha=1, beta=0, before=None):
    y = poison((csr.shape[0], x.shape[1]), x.dtype) if before is None else before.copy()
    matrix(array, x.dtype)(x, y, x.dtype.type(alpha), x.dtype.type(beta))
    for j in range(x.shape[1]):
        assert_product(y[:, j], csr, x[:, j], alpha, beta, None if before is None else before[:, j])


def columns_of(csr, k, dtype=np.float64):
    return zoo.float_vector(csr.shape[1] * k, dtype).reshape(csr.shape[1], k)


@pytest.mark.parametrize("build", DIFFERENT, ids=str)
@pytest.mark.parametrize("name", zoo.ZOO)
def test_transposed_and_dense_products_over_the_zoo(name, build):
    csr = zoo.floats(name)
    array = build(csr, "cpu")
    assert_transposed(array, csr, zoo.float_vector(csr.shape[0]))
    assert_matrix(array, csr, columns_of(csr, 3))  # test_any_number_of_columns has others


@pytest.mark.parametrize(
    "build", [cvr_build(32, 7), cvr_build(31, 6), cvr_build(5, 4), bbcsr_build(1), bbcsr_build(3), bbcsr_build(7)], ids=str
)
@pytest.mark.parametrize(("stored", "dtype"), DTYPES)
@pytest.mark.parametrize("name", ["rows_of_mixed_length", "explicit_zeros_beside_holes", "narrow_and_wide_tiles", "power_law"])
@pytest.mark.slow  # test_transposed and test_matmat try dtypes on the same kernels
def test_dtypes_of_transposed_and_dense_products(name, stored, dtype, build):
    """Integers wrap; stored values that are narrower than the product's dtype are widened in registers."""
    csr = zoo.integers(name, stored)
    array = build(csr, "cpu")
    assert_transposed(array, csr, zoo.vector(csr.shape[0], dtype))
    assert_matrix(array, csr, zoo.vector(csr.shape[1] * 5, dtype).reshape(-1, 5))


@pytest.mark.parametrize("build", [cvr_build(32, 7), cvr_build(4, 5), bbcsr_build(6)], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(2, 0), (1, 1), (-1, 3), (0, 0.5)])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_scaled_transposed_and_dense_products(alpha, beta, dtype, build):
    if dtype == "int32":
        beta = int(beta)
    csr = zoo.integers("rows_of_mixed_length", dtype)
    array = build(csr, "cpu")
    x, y = zoo.vector(csr.shape[0], dtype), zoo.vector(csr.shape[1], dtype, seed=5)
    assert_transposed(array, csr, x, alpha, beta, y if beta else None)
    x, y = zoo.vector(csr.shape[1] * 4, dtype).reshape(-1, 4), zoo.vector(csr.shape[0] * 4, dtype, seed=5).reshape(-1, 4)
    assert_matrix(array, csr, x, alpha, beta, y if beta else None)


@pytest.mark.parametrize(
    "build",
    [cvr_build(32, 7), cvr_build(4, 5), bbcsr_build(6)],
    ids=str,
)
@pytest.mark.parametrize("name", ["explicit_zeros", "explicit_zeros_beside_holes", "blocks_with_holes", "nonzeros_33"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_padding_meets_no_x_and_explicit_zeros_do(name, value, build):
    """0 * inf is nan where the 0 is an entry, and must not happen where it is padding."""
    csr = zoo.floats(name)
    array = build(csr, "cpu")
    for at in range(0, csr.shape[0], 3):
        x = np.ones(csr.shape[0])
        x[at] = value
        assert_transposed(array, csr, x)
    x = np.ones((csr.shape[1], 4))
    x[::5, 1] = value
    x[3, 2] = value
    assert_matrix(array, csr, x)


@in_turn(
    "k, build, dtype",
    [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 67, 129, 130],
    [cvr_build(32, 7), bbcsr_build(6)],
    ["float32"],
)
def test_any_number_of_columns(k, dtype, build):
    csr = zoo.floats("rows_of_mixed_length", dtype)
    assert_matrix(build(csr, "cpu"), csr, columns_of(csr, k, dtype))


@pytest.mark.parametrize("itemsize", [1, 4, 8, 16])
def test_tiles_cover_all_columns(itemsize):
    for k in range(300):
        seen = np.zeros(k, int)
        for first, size in tiling.tiles(k, itemsize):
            assert 0 <= first
            assert first + size <= k
            assert size in tiling.SIZES
            assert size * itemsize <= tiling.MOST_BYTES
            seen[first : first + size] += 1
        assert (seen > 0).all()


@pytest.fixture
def in_parts(monkeypatch):
    """Make even small matrices have many parts."""
    monkeypatch.setattr(parts, "LEAST_SLOTS", 64)
    monkeypatch.setattr(parts, "SLOTS_A_NUMBER", 1)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("n_cols", [90, 3000, 200_000])
def test_same_bits_of_transposed_and_dense_products(threaded, in_parts, build, n_cols):
    """For any number of threads, and with the parts' own vectors a second time."""
    csr = uneven(n_cols) if n_cols > 60_000 else csr_array(uneven()[:, ::31][:, :n_cols])
    array = BUILDS[build](csr)
    rng = np.random.default_rng(1)
    x, dense = rng.standard_normal(csr.shape[0]), rng.standard_normal((csr.shape[1], 5))
    products = []
    for n in (1, 2, 7):
        threaded(n)
        run, run_matrix = transposed(array, "float64"), matrix(array, "float64")
        for _ in range(2):
            y, z = poison(csr.shape[1], "float64"), poison((csr.shape[0], 5), "float64")
            run(x, y, 1, 0)
            run_matrix(dense, z, 1, 0)
            products.append((y, z))
    assert_product(products[0][0], csr.T.tocsr(), x)
    for y, z in products:
        assert_same_bits(y, products[0][0])
        assert_same_bits(z, products[0][1])


@pytest.mark.parametrize("build", BUILDS)
def test_concurrent_transposed_products(threaded, in_parts, build):
    """Calls at once must not share the vectors of their parts."""
    threaded(2)
    csr = uneven(300_000)
    run = transposed(BUILDS[build](csr), "float64")

    def multiply(x):
        y = np.empty(csr.shape[1])
        run(x, y, 1, 0)
        return y

    xs = np.random.default_rng(1).random((24, csr.shape[0]))
    expected = [multiply(x) for x in xs]
    with ThreadPoolExecutor(8) as pool:
        np.testing.assert_array_equal(list(pool.map(multiply, xs)), expected)


def test_parts_are_bounded():
    """In their number, in the memory of their vectors, and by the work that there is."""
    n_tiles, n_cols = 1000, 10_000
    work = np.arange(n_tiles + 1) * 2048
    everywhere = np.zeros(n_tiles, np.int64), np.full(n_tiles, n_cols)
    band = np.arange(n_tiles) * 10, np.arange(n_tiles) * 10 + 10
    of = parts.divide(work, 1, *everywhere, n_cols)
    assert 1 < len(of.tile) - 1 <= parts.MOST_VECTORS
    assert of.at[-1] <= parts.MOST_VECTORS * n_cols
    of = parts.divide(work, 1, *band, n_cols)
    assert len(of.tile) - 1 > parts.MOST_VECTORS
    assert of.at[-1] == n_cols
    for few in (parts.divide(work[:20], 1, *(c[:19] for c in band), n_cols), parts.divide(work[:1], 1, *everywhere, n_cols)):
        assert len(few.tile) == 2
        assert few.low[0] == 0
        assert few.at.tolist() == [0, n_cols]


@in_turn(
    "name, build, dtype",
    ["explicit_zeros_beside_holes", "narrow_and_wide_tiles"],
    [cvr_build(5, 4), bbcsr_build(6)],
    ["float32"],
)
def test_float16_values_are_widened_in_registers(name, dtype, build):
    """Exactly: the bits are those of the same tables in the product's precision, also for what float16 cannot sum."""
    csr = zoo.floats(name, np.float32)
    csr.data = np.clip(csr.data, -60_000, 60_000).astype(np.float16).astype(np.float32)
    csr.data[::7] = 6e-8  # subnormal
    csr.data[3] = np.inf
    wide = build(csr, "cpu")
    value_table = "val" if wide.format == "cvr" else "data"
    values = getattr(wide._tables, value_table)
    with np.errstate(over="ignore"):
        tables = wide._tables._replace(**{value_table: values.astype(np.float16)})
    wide = wide._tables._replace(**{value_table: tables._asdict()[value_table].astype(np.float32)})
    module = MODULES["cvr" if value_table == "val" else "bbcsr"]
    n_rows, n_cols = csr.shape
    for kind, x_shape, y_shape in (
        ("product", n_cols, n_rows), ("product_transposed", n_rows, n_cols), ("product_matrix", (n_cols, 4), (n_rows, 4))
    ):  # fmt: skip
        x = zoo.float_vector(int(np.prod(x_shape)), dtype).reshape(x_shape)
        y, expected = poison(y_shape, dtype), poison(y_shape, dtype)
        getattr(module, kind)(tables, np.dtype(dtype))(x, y, 1, 0)
        getattr(module, kind)(wide, np.dtype(dtype))(x, expected, 1, 0)
        assert np.isfinite(expected).any()
        assert_same_bits(y, expected)


def test_float16_code():
    """Halves are converted a vector at a time, not by calls."""
    array = cvrarray.CVRArray(uneven().astype("float32"))
    tables = array._tables._replace(val=array._tables.val.astype(np.float16))
    uncached = njit(**OPTIONS | {"cache": False})(cvr._product.py_func)
    product = cvr._product_of(tables, np.dtype(np.float32))._replace(kernel=uncached)
    product.version(product.chosen())
    (code,) = uncached.inspect_llvm().values()
    assert "fpext <32 x half>" in code
    (assembly,) = uncached.inspect_asm().values()
    assert "__extendhfsf2" not in assembly
