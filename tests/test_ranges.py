"""Every product within (k + 2) eps |A| |x| of the exact one in each row, k its entries, whatever the range of x.

The products are checked against sums of Python's integers, which are exact: float64 itself has nothing wider to compare
with.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
from checks import bbcsr, cvr, get, in_turn, put
from scipy.sparse import csr_array


@cache
def web(dtype: str, hub: bool) -> csr_array:
    """Links of a small web: many columns of one entry, some of many; a hub has 300."""
    rng = np.random.default_rng(3)
    row, col = rng.integers(0, 320, 700), (150 * rng.random(700) ** 3).astype(np.int64)
    if hub:
        row, col = np.r_[row, np.arange(300)], np.r_[col, np.full(300, 77)]
    csr = csr_array((np.ones(row.size), (row, col)), shape=(320, 150))  # sums duplicates
    csr.data = (rng.standard_normal(csr.nnz) * rng.choice([1, 1e-3], csr.nnz)).astype(dtype)
    if csr.dtype.kind == "c":
        csr.data *= np.exp(6j * rng.random(csr.nnz)).astype(dtype)
    return csr


@cache
def operand(dtype: str, extent: int | str, n: int) -> np.ndarray:
    """(n, 2) of both signs; the second column in reverse."""
    rng = np.random.default_rng(n)
    info = np.finfo(dtype)
    if isinstance(extent, int):
        largest = min(extent / 2, 17)  # products in float32 are finite
        smallest = max(largest - extent, math.ceil(math.log10(info.smallest_normal)))
        x = 10.0 ** rng.uniform(smallest, largest, n)
    else:
        x = rng.random(n)
        x[slice(None, None, 2 if extent == "some denormal" else 1)] *= float(info.smallest_normal)
    x *= rng.choice([-1, 1], n)
    if np.dtype(dtype).kind == "c":
        x = x * np.exp(6j * rng.random(n))
    x = x.astype(dtype)
    return np.stack([x, x[::-1]], axis=1)


def integers(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Python's integers of the real and of the imaginary parts, (2, *values.shape), and an exponent: values are these
    times two to its power.
    """
    mantissa, exponent = np.frexp(np.stack([values.real, values.imag]).astype(np.float64))
    mantissa, exponent = (mantissa * 2.0**53).astype(np.int64), exponent.astype(np.int64) - 53
    least = int(exponent[mantissa != 0].min())
    return mantissa.astype(object) << np.where(mantissa != 0, exponent - least, 0).astype(object), least


@cache
def exact(dtype: str, hub: bool, extent: int | str, transposed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Both parts of the exact product, (2, n_rows, 2); |A| |X|; entries of each row; the exponent of both."""
    csr = web(dtype, hub)
    csr = csr.T.tocsr() if transposed else csr
    (a_re, a_im), a_exponent = integers(csr.data)
    (x_re, x_im), x_exponent = integers(operand(dtype, extent, csr.shape[1])[csr.indices])
    a_re, a_im = a_re[:, None], a_im[:, None]
    modulus = np.frompyfunc(lambda re, im: math.isqrt((re * re + im * im) << 40), 2, 1)  # and 20 bits
    terms = np.stack([a_re * x_re - a_im * x_im, a_re * x_im + a_im * x_re, modulus(a_re, a_im) * modulus(x_re, x_im) >> 40])
    sums = np.zeros((3, csr.shape[0], 2), object)
    lengths = np.diff(csr.indptr)
    np.add.at(sums, (slice(None), np.repeat(np.arange(csr.shape[0]), lengths)), terms)
    return sums[:2], sums[2], lengths, a_exponent + x_exponent


def assert_near(y: np.ndarray, expected: tuple, dtype: str) -> None:
    parts, size, lengths, exponent = expected
    unit, info = Fraction(2) ** exponent, np.finfo(dtype)
    eps, tiny = Fraction(float(info.eps)), Fraction(float(info.smallest_subnormal))
    y = y.reshape(len(lengths), -1)
    assert np.isfinite(y).all()
    for (row, column), found in np.ndenumerate(y):
        k = int(lengths[row])
        error = [Fraction(float(part)) - parts[i, row, column] * unit for i, part in enumerate((found.real, found.imag))]
        # a product below the normal numbers is off by up to `tiny`
        bound = (k + 2) * eps * size[row, column] * unit + 2 * k * tiny
        assert error[0] ** 2 + error[1] ** 2 <= bound**2, (
            f"row {row}, {k} entries: {found} is off by {math.hypot(*error):.3g}, {float(bound):.3g} is allowed"
        )


@in_turn(
    "extent, build, hub, dtype",
    [0, 3, 6, 12, 25, 100, "some denormal", "all denormal"],
    [(cvr(), False), (cvr(), True), (bbcsr(3), False)],  # hub: a column, a row of the transpose, that is much longer
    ["float32", "float64", "complex64"],
    times=2,
)
def test_error_does_not_grow_with_the_range(build, hub, dtype, extent, device):
    A = build(web(dtype, hub), device)
    for array in (A, A.T):
        expected = exact(dtype, hub, extent, array is not A)
        X = operand(dtype, extent, array.shape[1])
        x = put(np.ascontiguousarray(X[:, 0]), device)
        first = get(array @ x)
        assert first.tobytes() == get(array @ x).tobytes()
        assert_near(first, expected, dtype)
        assert_near(get(array @ put(X, device)), expected, dtype)
