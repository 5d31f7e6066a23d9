"""Products in turn, forwards and backwards, whether or not L2 keeps the tables: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from checks import assert_products, autotune_at
from scipy.sparse import csr_array

from cvrarray import BBCSRArray, CVRArray

N = 3011  # no multiple of any block's rows


def uneven(dtype) -> csr_array:
    """Short rows, a long one that is cut, and empty ones."""
    rng = np.random.default_rng(8)
    row = np.r_[np.full(2000, 1500), rng.integers(0, N, 30_000) // 2 * 2]
    csr = csr_array((rng.standard_normal(row.size).astype(dtype), (row, rng.integers(0, N, row.size))), shape=(N, N))
    csr.sum_duplicates()
    return csr


@pytest.fixture(params=[0.0, 1e-3, np.inf])
def kept(request, monkeypatch, gpu):
    """No tables stay in L2, some of the bins at either end, or all."""
    from cvrarray.gpu import left_in_l2

    for name in ("KEPT", "KEPT_ALONE", "KEPT_AT_AN_END", "LARGE"):
        monkeypatch.setattr(left_in_l2, name, request.param)
    return request.param


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("way", ["chunks", "shared", "lanes", "lanes that wait twice"])
def test_cvr(way, dtype, kept, gpu, monkeypatch):
    from cvrarray.gpu import row_lanes

    monkeypatch.setattr(row_lanes, "suits", lambda tables: way.startswith("lanes"))
    if way == "lanes that wait twice":
        monkeypatch.setattr(row_lanes, "AT_ONCE", {})
    if way == "shared":
        autotune_at(monkeypatch, 2)
    csr = uneven(dtype)
    assert_products(CVRArray(csr, device=gpu), csr, dtype)


@pytest.mark.small
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sharers", [1, 4, 16])
@pytest.mark.parametrize("way", ["bins, plain", "bins, at once", "bins, near", "blocks"])
def test_bbcsr(way, sharers, dtype, kept, gpu, monkeypatch):
    from cvrarray.gpu import bbcsr

    monkeypatch.setattr(bbcsr, "_sharers", lambda *of: sharers)
    if way != "blocks":
        monkeypatch.setattr(bbcsr, "layouts", lambda *of: {way: bbcsr.LAYOUTS[way]})
    csr = uneven(dtype)
    assert_products(BBCSRArray(csr, block_size=3 if way == "blocks" else 1, device=gpu), csr, dtype)


@pytest.mark.parametrize("megabytes, expected", [(1, 100), (23, 100), (25, 0), (53, 0), (60, 50), (300, 10)])
def test_bins_that_l2_keeps(megabytes, expected, monkeypatch):
    """Of 100, on a device with 60 MB."""
    pytest.importorskip("cupy")
    from cvrarray.gpu import left_in_l2

    monkeypatch.setattr(left_in_l2, "attribute", {"L2CacheSize": 60 << 20}.__getitem__)
    monkeypatch.setattr(left_in_l2, "bytes_of_tables", lambda tables: megabytes << 20)
    assert left_in_l2.kept_at_ends(None, 100) == expected
    assert left_in_l2.keeps(megabytes << 20) == (expected == 100)


def test_every_second_product_is_backwards():
    pytest.importorskip("cupy")
    from cvrarray.gpu import left_in_l2

    turns = left_in_l2.turns()
    assert [next(turns) for _ in range(4)] == [left_in_l2.FORWARDS, left_in_l2.BACKWARDS] * 2
