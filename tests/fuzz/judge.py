"""What may happen to an input: a documented exception refuses it and says why, or it is taken for what it says.

A matrix that is taken passes ``check()``, holds what the input says, and its products are those of its CSR.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

import cvrarray
from cvrarray.cpu import distinct

from .meaning import Entries

#: Larger matrices are not multiplied: their vectors alone would take long.
MULTIPLIED = 20_000

#: dtypes whose kernels are compiled before the first input; others are multiplied as one of these.
COMPILED = ("float64", "complex128")


class Violation(Exception):
    """What must never happen."""


def refused(error: Exception, kinds: tuple[type[Exception], ...], *names: str) -> str:
    """``"refused"``; Violation unless `error` is of `kinds` and says something, with one of `names` where there are any."""
    text = str(error).strip()
    if type(error) not in kinds:
        raise Violation(f"another exception, {type(error).__name__}: {text}") from error
    if not text or text.endswith(":"):
        raise Violation(f"a message that ends in nothing: {type(error).__name__}: {text}") from error
    if names and not any(name in text for name in names):
        raise Violation(f"a message without the name {' or '.join(names)}: {text}") from error
    return "refused"


def widened(csr: Any) -> Any:
    """A SciPy CSR with values of a dtype that kernels are compiled for; where indices are wide, the real parts."""
    is_wide = max(csr.shape) >= 2**31
    if csr.dtype.name in COMPILED[: 1 if is_wide else 2]:
        return csr
    if csr.dtype.kind == "c" and is_wide:
        return csr.real
    with np.errstate(all="ignore"):
        return csr.astype(np.complex128 if csr.dtype.kind == "c" else np.float64)


def converted(csr: csr_array, k: int) -> Any:
    """An array of ours from a SciPy CSR, in a format that `k` chooses and for which kernels are compiled."""
    csr = widened(csr)
    return _BUILDS[k % len(_BUILDS)](csr)


_BUILDS = (
    lambda csr: cvrarray.CVRArray(csr, n_lanes=32, device="cpu"),
    lambda csr: cvrarray.BBCSRArray(csr, block_size=1, device="cpu"),
    lambda csr: cvrarray.BBCSRArray(csr, block_size=6, device="cpu"),
)


def few(array: Any) -> Any:
    """The array with its values as numbers of a table, or as one."""
    csr = array.tocsr()
    numbers, table = distinct.numbered(csr.data) if csr.nnz else (csr.data.astype(np.uint8), np.ones(1))
    numbered = array.with_values(numbers)
    return numbered._with_table(numbered._values(numbered._tables), table)


def compile_kernels() -> None:
    """Compile what inputs will need, or load it from the disk: no input may wait for it."""
    for shape in ((7, 9), (7, 2**31 + 9)):  # narrow and wide indices
        for dtype in COMPILED:
            csr = csr_array(([1, 2, 3], ([0, 0, 5], [0, 8, 3])), shape=shape).astype(dtype)
            for k in range(len(_BUILDS)):
                accepted(converted(csr, k), k)
    csr = csr_array(([1.0, 2, 3], ([0, 0, 5], [0, 8, 3])), shape=(40, 30))
    for build in (_BUILDS[0], _BUILDS[2]):
        for array in (few(build(csr)), few(build(abs(csr).sign()))):
            accepted(array, 0)


def accepted(A: Any, x_seed: int) -> csr_array:
    """The CSR of an array of ours; Violation unless it keeps its invariants, and its products are its CSR's."""
    try:
        A.check()
    except ValueError as error:
        raise Violation(f"accepted, but check() says {error}") from error
    csr = A.tocsr()
    try:
        csr.check_format(full_check=True)
    except ValueError as error:
        raise Violation(f"tocsr() is no CSR: {error}") from error
    if csr.nnz != A.nnz or csr.shape != A.shape:
        raise Violation(f"nnz and shape are {A.nnz}, {A.shape}; of tocsr() {csr.nnz}, {csr.shape}")
    if max(csr.shape) <= MULTIPLIED:
        if A.dtype.name not in COMPILED:
            A, csr = A.astype(widened(csr[:0]).dtype), widened(csr)
        products(A, csr, x_seed)
    return csr


def products(A: Any, csr: csr_array, x_seed: int) -> None:
    """Violation unless the products of `A` are those of `csr`."""
    for name, ours, theirs in (("A @ x", A, csr), ("A @ X", A, csr), ("A.T @ x", getattr(A, "T", None), csr.T)):
        if ours is None:  # a stored matrix
            continue
        x = ((np.arange(theirs.shape[1] * 3) * 7 + x_seed) % 5 + 1).astype(csr.dtype)
        x = x.reshape(-1, 3) if name == "A @ X" else x[::3]
        with np.errstate(all="ignore"):
            found, expected, size = ours @ x, theirs @ x, abs(theirs).astype(np.float64) @ abs(x).astype(np.float64)
            if csr.dtype.kind in "iub":
                right = (found == expected).all()
            else:
                near = abs(found - expected) <= 64 * np.finfo(csr.dtype).eps * size
                right = (near | ~np.isfinite(expected) & ~np.isfinite(found) | ~np.isfinite(size)).all()
        if not right:
            raise Violation(f"{name} is not that of tocsr()")


def same(csr: Any, shape: tuple[int, int], entries: Entries, keeps_zeros: bool = True) -> None:
    """Violation unless a SciPy CSR holds the `entries`; zeros count where `keeps_zeros`."""
    if tuple(csr.shape) != tuple(shape):
        raise Violation(f"shape {csr.shape} instead of {shape}")
    coo = csr.tocoo()
    found = dict(zip(zip(coo.row.tolist(), coo.col.tolist(), strict=True), coo.data, strict=True))
    if not keeps_zeros:
        found, entries = ({p: v for p, v in each.items() if v != 0} for each in (found, entries))
    if found.keys() != entries.keys():
        raise Violation(f"entries at {sorted(found)[:8]}... instead of {sorted(entries)[:8]}...")
    for place, value in entries.items():
        if not _equal(found[place], value):
            raise Violation(f"entry {place} is {found[place]!r} instead of {value!r}")


def _equal(a: Any, b: Any) -> bool:
    if np.asarray(a).dtype.kind == "c" or np.asarray(b).dtype.kind == "c":
        return _equal(np.real(a), np.real(b)) and _equal(np.imag(a), np.imag(b))
    if np.asarray(b).dtype.kind in "iub":
        return int(a) == int(b) if np.asarray(a).dtype.kind in "iub" else float(a) == float(b)
    eps = max(np.finfo(np.asarray(v).dtype).eps for v in (a, b))
    a, b = float(a), float(b)
    if a == 0 and b == 0:
        return bool(np.signbit(a) == np.signbit(b))
    return a == b or (a != a and b != b) or abs(a - b) <= 8 * eps * abs(b)
