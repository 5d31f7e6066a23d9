"""Popular columns in shared memory: other kernels, the same bits."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from checks import assert_same_bits
from scipy.sparse import csr_array

from cvrarray import CVRArray

N = 1 << 17


@pytest.fixture
def small(monkeypatch):
    """A test's matrices count as large, packing as worth it; shared memory has room for some popular columns only."""
    from cvrarray.gpu import popular

    monkeypatch.setattr(popular, "LEAST_SLOTS", 1)
    monkeypatch.setattr(popular, "WORTH_IT", np.inf)
    monkeypatch.setattr(popular, "shared_memory", lambda device: 4096)
    return popular


def skewed(dtype) -> csr_array:
    """Columns of a power law, numbered at random; a long row that chunks cut, and rows without entries."""
    rng = np.random.default_rng(4)
    col = (N * rng.random(60_000) ** 6).astype(np.int64) * 40_503 % N
    row = np.r_[np.full(9000, 700), rng.integers(0, 2000, 51_000) // 2 * 2]
    val = rng.standard_normal(col.size)
    csr = csr_array((val.astype(dtype), (row, col)), shape=(2000, N))
    csr.sum_duplicates()
    return csr


@pytest.mark.small
@pytest.mark.parametrize("n_lanes", [32, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32"])
def test_same_bits_before_and_after(small, n_lanes, dtype, gpu):
    import cupy

    csr = skewed(dtype)
    A = CVRArray(csr, n_lanes=n_lanes, device=gpu)
    x = np.random.default_rng(5).standard_normal(N).astype(dtype)
    x[7] = 3
    on_gpu, out = cupy.asarray(x), cupy.empty(2000, dtype)
    products = []
    for _ in range(small.PREPARE_AT + 2):
        out.fill(77)
        products.append(A.matvec(on_gpu, out=out, alpha=2, beta=1).get())
    expected, bound = oracle.product(csr, x, 2, 1, np.full(2000, 77, dtype))
    for product in products:
        assert_same_bits(product, products[0])
        assert (np.abs(product - expected) <= bound).all()


def test_columns_are_packed(small, gpu):
    """The kernel for packed columns is the one that ran; packing loses no column."""
    A = CVRArray(skewed("float32"), device=gpu)
    packed = small.columns(A._tables, np.dtype(np.float32))
    col, popular = A._tables.col_wide.get(), packed.popular.get()
    code = packed.col_wide.get()
    np.testing.assert_array_equal(np.where(code < 0, popular[np.where(code < 0, ~code, 0)], code), col)
    assert 0 < popular.size <= 1024
    share = (code < 0).mean()
    assert small.LEAST_SHARE < share < 1
    hits = np.bincount(col, minlength=N)
    assert hits[popular].min() >= 1


def test_even_columns_are_not_packed(small, gpu):
    rng = np.random.default_rng(6)
    csr = csr_array((np.ones(40_000), (rng.integers(0, 2000, 40_000), rng.permutation(N)[:40_000])), shape=(2000, N))
    assert small.columns(CVRArray(csr, device=gpu)._tables, np.dtype(np.float64)) is None


def test_arrays_with_fewer_popular_columns_later(small, gpu, monkeypatch):
    """The kernel's limit of shared memory is the kernel's, not an array's: a later, smaller need leaves it."""
    import cupy

    monkeypatch.setattr(small, "shared_memory", lambda device: 100_000)
    monkeypatch.setattr(small, "LEAST_SHARE", 0)
    many = CVRArray(skewed("complex128"), device=gpu)
    few = CVRArray(csr_array((np.ones(500, complex), (np.arange(500), np.arange(500) % 50)), shape=(500, N)), device=gpu)
    x, dtype = cupy.ones(N), np.dtype(np.complex128)
    for A in (many, few, many):
        for _ in range(small.PREPARE_AT + 1):
            y = A @ x
        np.testing.assert_allclose(y.get(), A.to_scipy() @ np.ones(N), atol=1e-12)
    assert small.columns(many._tables, dtype).popular.size * 16 > 48 << 10
