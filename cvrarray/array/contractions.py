"""NumPy's other sums of products (tensordot, einsum, inner, vdot, vecdot), expressed by ``@`` and ``*``.

At least one operand is an array of ours. A contraction over one axis is ``@``; others are left to pydata/sparse. Results
have NumPy's dtype, which for all of these is the one of ``@``: bool is a disjunction, and narrow integers wrap.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ..input import coercion
from . import borrowed, elementwise, products, reductions
from .indexing import axis_number


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """``numpy.tensordot``: dense operands may have any number of dimensions. Contractions over other than one axis are
    pydata's.
    """
    a, b = _operands(a, b)
    if np.ndim(axes) == 0:
        n = operator.index(axes)
        axes_a, axes_b = list(range(a.ndim - n, a.ndim)), list(range(n))
    else:
        axes_a, axes_b = (np.atleast_1d(part).tolist() for part in axes)
    axes_a, axes_b = ([axis_number(k, array.ndim) for k in axes] for axes, array in ((axes_a, a), (axes_b, b)))
    if len(axes_a) != len(axes_b) or any(a.shape[i] != b.shape[j] for i, j in zip(axes_a, axes_b, strict=True)):
        raise ValueError(f"axes must have equal lengths in a and b; got axes {axes_a} of {a.shape} and {axes_b} of {b.shape}")
    if len(axes_a) == 1:
        return _matrices(a, axes_a[0], b, axes_b[0])
    found = borrowed.call(a if _is_sparse(a) else b, np.tensordot, a, b, (axes_a, axes_b))
    return found.astype(np.result_type(a.dtype, b.dtype))


def _matrices(a: Any, axis_a: int, b: Any, axis_b: int) -> Any:
    """The contraction over one axis of each, as a product of matrices."""
    (left, rest_a), (right, rest_b) = _as_matrix(a, axis_a), _as_matrix(b, axis_b)
    product = _multiply(left, right.T)
    return product if _is_sparse(product) else product.reshape(*rest_a, *rest_b)


def _as_matrix(value: Any, axis: int) -> tuple[Any, tuple[int, ...]]:
    """The array with `axis` as its columns and all others as its rows, and the lengths of those others."""
    others = [k for k in range(value.ndim) if k != axis]
    rest = tuple(value.shape[k] for k in others)
    if _is_sparse(value):
        return value if axis == 1 else value.T, rest
    # -1 would say nothing where there is no entry
    return value.transpose([*others, axis]).reshape(math.prod(rest), value.shape[axis]), rest


def einsum(subscripts: str, /, *operands: Any, optimize: Any = False) -> Any:
    """``numpy.einsum``: what is a product of two matrices, or of a matrix and a vector, by ``@``; any other by
    pydata/sparse, which needs memory for all products that are summed. The result has NumPy's dtype.
    """
    operands = tuple(value if hasattr(value, "ndim") else np.asarray(value) for value in operands)
    np.einsum_path(subscripts, *(np.broadcast_to(0.0, value.shape) for value in operands))  # which checks the subscripts
    terms, arrow, output = subscripts.replace(" ", "").partition("->")
    left, _, right = terms.partition(",")
    shared, rest = set(left) & set(right), "".join(k for k in left + right if not (k in left and k in right))
    letters = [len(set(term)) for term in (left, right, rest)] == [np.ndim(operands[0]), np.ndim(operands[-1]), len(rest)]
    if len(operands) == 2 and len(shared) == 1 and letters and "." not in terms:
        if rest == (output if arrow else "".join(sorted(rest))):
            (letter,) = shared
            return tensordot(*operands, ([left.index(letter)], [right.index(letter)]))
    ours = next(value for value in operands if coercion.is_ours(value))
    return borrowed.call(ours, np.einsum, subscripts, *operands).astype(np.result_type(*(v.dtype for v in operands)))


def inner(a: Any, b: Any) -> Any:
    """``numpy.inner``: the sum over the last axes of both."""
    if any(not _is_sparse(value) and np.ndim(value) == 0 for value in (a, b)):
        return scaled(a, b)
    return tensordot(a, b, ([-1], [-1]))


def scaled(a: Any, b: Any) -> Any:
    """``a * b`` where one is a number, of whose own dtype the result is, as of ``numpy.dot``: a Python float is float64."""
    a, b = (np.asarray(value)[()] if isinstance(value, (int, float, complex)) else value for value in (a, b))
    return elementwise.binary(np.multiply, a, b)


def vdot(a: Any, b: Any) -> Any:
    """``numpy.vdot`` of two matrices: the sum of ``conj(a) * b`` over all entries."""
    a, b = _operands(a, b)
    if a.shape != b.shape:
        raise ValueError(f"vdot needs arrays of one shape; got {a.shape} and {b.shape}")
    return reductions.sum_(elementwise.binary(np.multiply, a.conj(), b), dtype=np.result_type(a.dtype, b.dtype))


def vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    """``numpy.vecdot``: the dot product of each pair of rows (``axis=0``: columns), ``conj(x1) * x2`` summed."""
    x1, x2 = _operands(x1, x2)
    if not {x1.ndim, x2.ndim} <= {1, 2}:
        raise TypeError(f"vecdot takes vectors and matrices; got shapes {x1.shape} and {x2.shape}. Call todense() first")
    x1, x2 = (x.T if x.ndim == 2 and axis_number(axis) == 0 else x for x in (x1, x2))
    if x1.shape[-1] != x2.shape[-1]:
        raise ValueError(f"vecdot needs vectors of one length along axis {axis}; got {x1.shape[-1]} and {x2.shape[-1]}")
    if x2.ndim == 1:
        return _multiply(x1.conj(), x2)
    if x1.ndim == 1:
        return _multiply(x2, x1.conj())
    return reductions.sum_(elementwise.binary(np.multiply, x1.conj(), x2), 1, np.result_type(x1.dtype, x2.dtype))


def matvec(x1: Any, x2: Any) -> Any:
    """``numpy.matvec``: a matrix times a vector, or times each vector along the last axis of `x2`."""
    x1, x2 = _operands(x1, x2)
    _check_matrix(x1, "x1", "matvec")
    if x2.ndim > 2:
        return _multiply(x2, x1.T)
    return _multiply(x1, x2) if x2.ndim == 1 else _multiply(x1, x2.T).T


def vecmat(x1: Any, x2: Any) -> Any:
    """``numpy.vecmat``: the conjugate of a vector, or of each vector along the last axis of `x1`, times a matrix."""
    x1, x2 = _operands(x1, x2)
    _check_matrix(x2, "x2", "vecmat")
    return _multiply(x1.conj(), x2)


def _operands(x1: Any, x2: Any) -> tuple[Any, Any]:
    """Both as arrays, on the device of the one that is ours."""
    return (
        x1 if _is_sparse(x1) else products.operand(x2, x1, "the first operand"),
        x2 if _is_sparse(x2) else products.operand(x1, x2, "the second operand"),
    )


def _check_matrix(value: Any, name: str, function: str) -> None:
    if value.ndim != 2:
        raise TypeError(f"{name} of {function} must be a matrix (2-D); got shape {value.shape}. Use np.matmul, or todense()")


def _multiply(a: Any, b: Any) -> Any:
    if _is_sparse(a) and _is_sparse(b):
        return products.multiply_sparse(a, b)
    return products.multiply(a, b) if _is_sparse(a) else products.multiply_left(a, b)


def _is_sparse(value: Any) -> bool:
    return coercion.package(value) in coercion.SPARSE_PACKAGES
