"""Sums of the transposed product where terms of a column differ by any number of magnitudes.

A column of small terms, terms that cancel, and terms near the ends of the exponents' range must be as right as any others.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from checks import get, in_turn
from scipy.sparse import csr_array

from cvrarray import BBCSRArray, CVRArray

BUILDS = {
    "cvr": lambda csr, device: CVRArray(csr, device=device),
    "cvr of 4 lanes": lambda csr, device: CVRArray(csr, n_lanes=4, n_chunks=7, split="nnz", device=device),
    "bbcsr 1": lambda csr, device: BBCSRArray(csr, block_size=1, device=device),
    "bbcsr 3": lambda csr, device: BBCSRArray(csr, block_size=3, device=device),
}
build = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)

ENDS = [
    ("float32", 1e30, 1e8), ("float32", 1e-30, 1e-12), ("float32", 1e-44, 1.0), ("float32", 1e38, 1e-38),
    ("float64", 1e300, 1e8), ("float64", 1e-300, 1e-10), ("float64", 5e-324, 1.0), ("float64", 1e308, 1e-300),
]  # fmt: skip


def matrix(longest: int, dtype) -> csr_array:
    """200 columns of 1 to `longest` entries, in 900 rows, values of both signs over 6 magnitudes."""
    rng = np.random.default_rng(longest)
    lengths = np.r_[longest, rng.integers(1, min(longest, 9) + 1, 199)]
    row = np.concatenate([rng.permutation(900)[:n] for n in lengths])
    val = rng.standard_normal(row.size) * 10.0 ** rng.uniform(-3, 3, row.size)
    if np.dtype(dtype).kind == "c":
        val = val * np.exp(6j * rng.random(row.size))
    return csr_array((val.astype(dtype), (row, np.repeat(np.arange(200), lengths))), shape=(900, 200))


def check(A, csr: csr_array, x: np.ndarray, device: str) -> None:
    """Every column within 8 n eps of the exact sum of its terms, inf beyond the range; the same bits in another call."""
    xp = np if device == "cpu" else __import__("cupy")
    y = get(A.T @ xp.asarray(x))
    assert get(A.T @ xp.asarray(x)).tobytes() == y.tobytes()
    columns, real = csr.tocsc(), x.real.dtype
    eps, tiny = Fraction(float(np.finfo(real).eps)), Fraction(float(np.finfo(real).smallest_subnormal))
    largest = Fraction(float(np.finfo(real).max))
    for j in range(csr.shape[1]):
        at = slice(columns.indptr[j], columns.indptr[j + 1])
        exact, size = [Fraction(0), Fraction(0)], Fraction(0)
        for a, v in zip(columns.data[at].tolist(), x[columns.indices[at]].tolist(), strict=True):
            (ar, ai), (vr, vi) = ((Fraction(z.real), Fraction(z.imag)) for z in (complex(a), complex(v)))
            exact[0] += ar * vr - ai * vi
            exact[1] += ar * vi + ai * vr
            size += (abs(ar) + abs(ai)) * (abs(vr) + abs(vi))
        n = at.stop - at.start
        bound = 8 * n * eps * size + 4 * n * tiny
        for found, wanted in zip((y[j].real, y[j].imag), exact, strict=True):
            if abs(wanted) > largest:
                assert float(found) == (np.inf if wanted > 0 else -np.inf), (j, n, float(found))
                continue
            assert abs(Fraction(float(found)) - wanted) <= bound, (j, n, float(found), float(wanted))


@in_turn(
    "magnitudes, longest, dtype, build",
    [0, 4, 12, 30],
    [1, 20, 200, 900],
    ["float32", "float64", "complex64", "complex128"],
    BUILDS.values(),
    times=4,
)
def test_graded(build, dtype, longest, magnitudes, device):
    csr = matrix(longest, dtype)
    rng = np.random.default_rng(magnitudes)
    x = rng.standard_normal(900) * 10.0 ** -rng.uniform(0, magnitudes, 900)
    if np.dtype(dtype).kind == "c":
        x = x * np.exp(6j * rng.random(900))
    check(build(csr, device), csr, x.astype(dtype), device)


@build
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_terms_that_cancel(build, dtype, device):
    """Column 0's terms cancel but for the last bits; columns 1 on hold nothing else that large."""
    val = np.r_[1e6, -1e6, 1.0, np.full(60, 1e-9)]
    csr = csr_array((val.astype(dtype), (np.arange(63), np.r_[0, 0, 0, np.arange(1, 61)])), shape=(63, 61))
    check(build(csr, device), csr, np.ones(63, dtype), device)


@in_turn("dtype, a, x, build", ENDS, BUILDS.values())
def test_ends_of_the_range(build, dtype, a, x, device):
    """A column of terms near the largest or the smallest number, beside one of ordinary terms."""
    val = np.r_[np.full(8, a), np.full(8, 1.0)].astype(dtype)
    csr = csr_array((val, (np.arange(16), np.repeat([0, 1], 8))), shape=(16, 3))
    vector = np.r_[np.full(8, x), np.linspace(-1, 2, 8)].astype(dtype)
    check(build(csr, device), csr, vector, device)


@build
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_inf_and_nan(build, dtype, device):
    """A column is inf or nan where one of its own terms is, or where they are of both signs; no other column is."""
    val = np.array([1, 2, 1, -1, 3, 0, 1, 1], dtype)
    csr = csr_array((val, ([0, 1, 2, 2, 3, 4, 5, 6], [0, 0, 1, 2, 3, 4, 5, 5])), shape=(7, 6))
    x = np.array([1, 1, np.inf, np.nan, np.inf, np.inf, -np.inf])
    xp = np if device == "cpu" else __import__("cupy")
    with np.errstate(invalid="ignore"):
        y = get(build(csr, device).T @ xp.asarray(x.astype(dtype)))
    if np.dtype(dtype).kind == "c":  # a complex infinity has other parts than its real one
        assert np.isfinite(y[0])
        assert not np.isfinite(y[1:]).any()
    else:
        np.testing.assert_array_equal(y, [3, np.inf, -np.inf, np.nan, np.nan, np.nan])
