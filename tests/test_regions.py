"""Memory of large arrays on a CPU, which is kept for the next ones."""

import mmap

import numpy as np
import pytest
from checks import in_threads

import cvrarray
from cvrarray.cpu.runtime import memory, regions

MEGABYTE = 1 << 20
pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="the system cannot mark memory as free to take")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """And arrays are large from a size on at which tests are quick."""
    monkeypatch.setattr(regions, "SMALLEST", MEGABYTE)
    regions._kept.clear()
    yield
    regions._kept.clear()


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", ["uint8", "float64", "complex128"])
def test_memory_is_used_again(dtype):
    array = memory.empty(3 * MEGABYTE, dtype)
    assert (array.size, array.dtype) == (3 * MEGABYTE, np.dtype(dtype))
    assert address(array) % 64 == 0
    array[:] = 1
    where = address(array)
    part = array[5:9]
    del array
    assert not regions._kept  # a part holds all
    del part
    assert len(regions._kept) == 1
    again = memory.empty(3 * MEGABYTE - 1000, dtype)
    assert address(again) == where
    again[:] = 2
    assert (again == 2).all()


def test_an_array_never_gets_memory_that_another_has():
    arrays = [memory.empty(MEGABYTE, np.int64) for _ in range(4)]
    for number, array in enumerate(arrays):
        array[:] = number
    del arrays[1:3]
    arrays += [memory.empty(MEGABYTE, np.int64) for _ in range(3)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [set(array.tolist()[::1000]) for array in arrays] == [{number} for number in range(5)]


def test_what_is_kept_makes_room():
    """No more is mapped than arrays had together once: what does not fit is given back first."""
    arrays = [memory.empty(size * MEGABYTE, np.uint8) for size in (2, 4)]
    arrays.clear()
    assert sorted(region.size // MEGABYTE for region in regions._kept) == [2, 4]
    array = memory.empty(3 * MEGABYTE, np.uint8)  # neither fits: one is much too large
    assert sum(region.size for region in regions._kept) <= 3 * MEGABYTE
    del array
    assert 3 in [region.size // MEGABYTE for region in regions._kept]


def test_no_more_than_a_share_of_the_machine_is_kept(monkeypatch):
    monkeypatch.setattr(regions, "installed", lambda: 8 * regions.SHARE * MEGABYTE)
    arrays = [memory.empty(3 * MEGABYTE, np.uint8) for _ in range(4)]
    arrays.clear()
    assert sum(region.size for region in regions._kept) <= 8 * MEGABYTE
    assert len(regions._kept) == 2


def test_without_memory_it_is_numpys_error(monkeypatch):
    def nothing_left(size):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(regions, "_Region", nothing_left)
    assert memory.empty(2 * MEGABYTE, np.uint8).size == 2 * MEGABYTE
    with pytest.raises(MemoryError, match="Unable to allocate"):
        memory.empty(1 << 60, np.uint8)


def test_a_kernel_that_cannot_mark_memory(monkeypatch):
    monkeypatch.setattr(regions.mmap, "MADV_FREE", -1)
    array = memory.empty(2 * MEGABYTE, np.uint8)
    del array
    assert not regions._kept


def test_small_arrays_are_the_allocators():
    array = memory.empty(1000, np.float64)
    del array
    assert not regions._kept


def test_threads_take_and_leave():
    """Each writes its number to all of its arrays, and finds it there."""
    wrong = []

    def work(number):
        for turn in range(50):
            array = memory.empty(MEGABYTE + turn, np.uint8)
            array[::4096] = number
            if set(array[::4096].tolist()) != {number}:
                wrong.append(number)

    in_threads(work, range(4))
    assert not wrong


@pytest.mark.parametrize("array_class", [cvrarray.CVRArray, cvrarray.BBCSRArray])
def test_a_large_array_can_be_written_in_place(array_class):
    """Its tables lie in a region, whose memory is this process's; and a view of it keeps its values when it is gone."""
    csr = cvrarray.generate.poisson7(32)
    A = array_class(csr, device="cpu")
    assert A.nbytes > 2 * regions.SMALLEST
    values = A.data
    assert A.with_values(2 * csr.data, out=A) is A
    np.testing.assert_array_equal(A.tocsr().data, 2 * csr.data)
    kept = values.copy()
    del A
    B = array_class(csr * 3.0, device="cpu")
    np.testing.assert_array_equal(values, kept)
    np.testing.assert_array_equal(B.tocsr().data, 3 * csr.data)
