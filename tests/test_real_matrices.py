"""Real matrices from the folder that CVRARRAY_MATRICES names; the project ships none of them.

A file ``<name>.npz`` holds indptr, indices, shape, and data unless every value is 1. A module ``recipes.py`` beside
them (``REG``: the names, ``build(name)``: a SciPy CSR) makes larger ones, which CVRARRAY_MATRICES_RECIPES=1 includes.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import zoo
from checks import Build, assert_product, assert_same_csr, assert_same_tables, bbcsr, get, put
from scipy.sparse import csr_array

import cvrarray

FOLDER = os.environ.get("CVRARRAY_MATRICES")
WITH_RECIPES = os.environ.get("CVRARRAY_MATRICES_RECIPES") == "1"
BUILDS = [Build("cvr", {}), bbcsr(1), bbcsr(3), bbcsr(6)]
MAX_SLOTS = 3e8  # BBCSR pads to the longest row of a bin: it is not tried where that takes gigabytes

if not FOLDER:
    pytest.skip("CVRARRAY_MATRICES names no folder of matrices", allow_module_level=True)


@cache
def recipes():
    """The module beside the matrices; None where there is none."""
    path = Path(FOLDER) / "recipes.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("recipes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILES = sorted(path.stem for path in Path(FOLDER).glob("*.npz"))
BUILT = sorted(recipes().REG) if WITH_RECIPES and recipes() else []


@cache
def _latest(name: str) -> csr_array:
    if name in BUILT:
        return csr_array(recipes().build(name))
    with np.load(Path(FOLDER) / f"{name}.npz") as stored:
        indptr, indices, shape = stored["indptr"], stored["indices"], tuple(int(n) for n in stored["shape"])
        data = stored["data"] if "data" in stored else np.ones(indices.size)
    return csr_array((data, indices, indptr), shape=shape)


def load(name: str) -> csr_array:
    """The matrix; only the last one is kept, because some are large."""
    if _latest.cache_info().currsize > 1:
        _latest.cache_clear()
    return _latest(name)


@pytest.mark.parametrize("name", FILES + BUILT)
def test_product_and_round_trip(name, device):
    """Both formats: invariants, every entry back, and products in float64 and float32 within the bound."""
    csr = load(name)
    for build in fitting_builds(csr):
        A = build(csr, device)
        if csr.nnz < 5_000_000:
            A.check()
        assert_same_csr(A.to_scipy(), csr)
        for dtype in (np.float64, np.float32):
            x = zoo.float_vector(csr.shape[1], dtype)
            assert_product(A @ put(x, device), csr, x)
    single = csr.astype(np.float32)
    x = zoo.float_vector(csr.shape[1], np.float32)
    A = cvrarray.asarray(single, device=device)
    y = A @ put(x, device)
    assert_product(y, single, x)
    np.testing.assert_array_equal(get(A @ put(x, device)), get(y))


@pytest.mark.parametrize("name", FILES + BUILT)
def test_devices_agree(name, gpu):
    csr = load(name)
    for build in fitting_builds(csr):
        A = build(csr, gpu)
        # defaults depend on the device
        same = {"n_lanes": A.n_lanes, "n_chunks": A.n_chunks} if build.format == "cvr" else {}
        B = type(A)(csr, **{**build.keywords, **same}, device="cpu")
        assert_same_tables(A._tables, B._tables)


def fitting_builds(csr: csr_array) -> list[Build]:
    return [b for b in BUILDS if b.format == "cvr" or _slots(csr, b.keywords["block_size"]) <= MAX_SLOTS]


def _slots(csr: csr_array, block_size: int) -> int:
    """BBCSR's slots, before they are made: a bin is as long as the longest block row that touches it."""
    block_row = np.repeat(np.arange(csr.shape[0], dtype=np.int64) // block_size, np.diff(csr.indptr))
    n_block_cols = csr.shape[1] // block_size + 1
    blocks = np.unique(block_row * n_block_cols + csr.indices // block_size)
    per_row = np.bincount(blocks // n_block_cols, minlength=-(-csr.shape[0] // block_size)).repeat(block_size)
    in_bins = np.zeros(-(-csr.shape[0] // 32) * 32, np.int64)
    in_bins[: csr.shape[0]] = per_row[: csr.shape[0]]
    return 32 * block_size * int(in_bins.reshape(-1, 32).max(axis=1, initial=0).sum())
