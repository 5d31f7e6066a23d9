"""The same bits from every run: 100 repeats, any number of threads, many callers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zoo
from checks import assert_same_bits, assert_same_tables, bbcsr, cvr, get, put
from scipy.sparse import csr_array

from cvrarray.cpu.runtime import threads

BUILDS = [cvr(32, 7), bbcsr(6), cvr(4, 3000, "nnz"), bbcsr(3)]
BUILD = pytest.mark.parametrize("build", BUILDS, ids=str)


def uneven() -> csr_array:
    """Nonzeros enough for several threads, in rows from empty to 1000 long, so that chunks cut and lanes steal."""
    rng = np.random.default_rng(5)
    lengths = np.minimum(rng.pareto(0.6, 5000).astype(int), 1000)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.sort(rng.choice(5000, n, replace=False)) for n in lengths])
    return csr_array((rng.standard_normal(indices.size), indices, indptr), shape=(5000, 5000))


@pytest.fixture(scope="module")
def matrix():
    csr = uneven()
    assert csr.nnz > 2 * threads.SMALL
    return csr.astype(np.float32)


@BUILD
def test_hundred_products(build, matrix, device):
    """float32 sums of many sizes: any other order would show."""
    names = ("rows_of_mixed_length", "two_long_rows_share_a_chunk", "one_dense_row")
    for csr in (matrix, *(zoo.floats(name, np.float32) for name in names)):
        A = build(csr, device)
        x = put(zoo.float_vector(csr.shape[1], np.float32), device)
        expected = get(A @ x)
        for _ in range(100):
            assert_same_bits(A @ x, expected)


@BUILD
def test_conversions_repeat(build, matrix, device):
    expected = build(matrix, device)._tables
    for _ in range(3):
        assert_same_tables(build(matrix, device)._tables, expected)


@BUILD
def test_out_and_scalars_change_no_bit(build, matrix, device):
    """One product, however it is asked for."""
    A = build(matrix, device)
    x = put(zoo.float_vector(matrix.shape[1], np.float32), device)
    expected = get(A @ x)
    out = put(np.full(matrix.shape[0], np.nan, np.float32), device)
    assert_same_bits(A.matvec(x, out=out), expected)
    assert_same_bits(A.matvec(x, out=out, alpha=1.0, beta=0.0), expected)
    strided = put(np.repeat(get(x), 2), device)[::2]
    assert_same_bits(A @ strided, expected)


@BUILD
def test_any_number_of_threads(build, matrix, monkeypatch):
    """CPU: neither tables nor products depend on how many threads shared the work."""
    x = zoo.float_vector(matrix.shape[1], np.float32)
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", "1")
    expected = build(matrix)
    for count in ("2", "7"):
        monkeypatch.setenv("CVRARRAY_NUM_THREADS", count)
        A = build(matrix)
        assert_same_tables(A._tables, expected._tables)
        assert_same_bits(A @ x, expected @ x)
        A.check()


@BUILD
def test_many_callers_at_once(build, matrix, device):
    """One array, eight Python threads: no state is shared between calls."""
    A = build(matrix, device)
    vectors = [put(zoo.float_vector(matrix.shape[1], np.float32, seed), device) for seed in range(8)]
    expected = [get(A @ x) for x in vectors]

    def multiply(number):
        return [get(A @ vectors[number]) for _ in range(10)]

    with ThreadPoolExecutor(8) as pool:
        for number, results in enumerate(pool.map(multiply, range(8))):
            for y in results:
                assert_same_bits(y, expected[number])
