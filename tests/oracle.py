"""What a product should be, in double precision, and how far from it rounding may lead.

Every other test file compares with this one; it shares no code with the package.

The bound. Let a row have n entries, u = eps / 2 be the unit roundoff, and the order of its sums be any. Each term meets
at most one rounding of a product (up to 2 sqrt(2) u when complex), n - 1 of sums, one each of converting the value and
the x, and one each of scaling by alpha and of adding beta * y. The oracle itself, in float64, adds at most n + 3.
Together at most (2 n + 13) u < 8 n eps for every n >= 1, times the sum of the sizes of what is added: hence K = 8.
"""

from __future__ import annotations

import numpy as np

K = 8


def product(csr, x, alpha=1, beta=0, y=None):
    """``alpha * A @ x + beta * y`` and the bound on its error, both (n_rows,), from any object with CSR's attributes.

    Integers and bool are exact (bound 0), wrapped as NumPy wraps them; y counts for nothing when beta is 0.
    """
    dtype = np.result_type(csr.dtype, x.dtype)
    wide = object if dtype.kind in "biu" else np.complex128 if dtype.kind == "c" else np.float64
    length = np.diff(csr.indptr)
    with np.errstate(invalid="ignore", over="ignore"):
        terms = csr.data.astype(wide) * x.astype(wide)[csr.indices]
        total, size = np.zeros(csr.shape[0], wide), np.zeros(csr.shape[0])
        np.add.at(total, np.repeat(np.arange(csr.shape[0]), length), terms)
        total = alpha * total + (beta * y.astype(wide) if beta else 0)
        if wide is object:
            return _wrapped(total, dtype), size
        np.add.at(size, np.repeat(np.arange(csr.shape[0]), length), abs(terms))
        size = abs(alpha) * size + (abs(beta) * abs(y) if beta else 0)
        return total, K * np.maximum(length, 1) * np.finfo(dtype).eps * size


def _wrapped(exact, dtype):
    """Python integers as NumPy leaves them in `dtype` after overflow; for bool, whether any term was True."""
    if dtype.kind == "b":
        return exact != 0
    unsigned = np.array([int(value) % (1 << 8 * dtype.itemsize) for value in exact], f"u{dtype.itemsize}")
    return unsigned.view(dtype)
