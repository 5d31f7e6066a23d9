"""NumPy's other sums of products (tensordot, einsum, inner, vdot, vecdot), expressed by ``@`` and ``*``.

One operand or both are our arrays. A contraction over one axis is ``@``; over both axes it is the sum of an elementwise
product. A contraction over no axis would be dense or have more than two dimensions, and raises.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..input import coercion
from . import elementwise, products, reductions


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """``numpy.tensordot``: dense operands may have any number of dimensions.

    Raises
    ------
    TypeError
        No axis is contracted.
    ValueError
        Axes do not match.
    """
    a, b = _operands(a, b)
    if np.ndim(axes) == 0:
        n = operator.index(axes)
        axes_a, axes_b = list(range(a.ndim - n, a.ndim)), list(range(n))
    else:
        axes_a, axes_b = ([operator.index(k) for k in np.atleast_1d(part).tolist()] for part in axes)
    axes_a, axes_b = _normal(axes_a, a.ndim), _normal(axes_b, b.ndim)
    if len(axes_a) != len(axes_b) or any(a.shape[i] != b.shape[j] for i, j in zip(axes_a, axes_b, strict=True)):
        raise ValueError(f"axes must have equal lengths in a and b; got axes {axes_a} of {a.shape} and {axes_b} of {b.shape}")
    if len(axes_a) == 1:
        return _matrices(a, axes_a[0], b, axes_b[0])
    if len(axes_a) == 2 and a.ndim == b.ndim == 2:
        return reductions.sum_(_product(a, b if axes_a == axes_b else b.T))
    raise TypeError(
        f"tensordot of a sparse array contracts one of its axes, or both with another matrix; got {len(axes_a)} axes for "
        f"shapes {a.shape} and {b.shape}. Call todense() first"
    )


def _normal(axes: list[int], ndim: int) -> list[int]:
    for axis in axes:
        if not -ndim <= axis < ndim:
            raise np.exceptions.AxisError(axis, ndim)
    return [axis % ndim for axis in axes]


def _matrices(a: Any, axis_a: int, b: Any, axis_b: int) -> Any:
    """The contraction over one axis of each, as a product of matrices."""
    if _is_sparse(a):
        left, rest_a = (a if axis_a == 1 else a.T), (a.shape[1 - axis_a],)
    else:
        moved = _moved(a, axis_a, -1)
        left, rest_a = moved.reshape(-1, moved.shape[-1]), moved.shape[:-1]
    if _is_sparse(b):
        right, rest_b = (b if axis_b == 0 else b.T), (b.shape[1 - axis_b],)
    else:
        moved = _moved(b, axis_b, 0)
        right, rest_b = moved.reshape(moved.shape[0], -1), moved.shape[1:]
    product = _multiply(left, right)
    return product if _is_sparse(product) else product.reshape(*rest_a, *rest_b)


def _moved(dense: Any, axis: int, to: int) -> Any:
    rest = [k for k in range(dense.ndim) if k != axis]
    return dense.transpose([axis, *rest] if to == 0 else [*rest, axis])


def einsum(subscripts: str, /, *operands: Any, optimize: Any = False) -> Any:
    """``numpy.einsum`` of one array, or of two of which at least one is sparse.

    The subscripts may say a product, a sum, a transpose or an elementwise product of matrices and vectors, with any
    letters, with or without ``->``.

    Raises
    ------
    TypeError
        The subscripts say something else.
    """
    inputs, output = _parse(subscripts)
    if len(inputs) == len(operands):
        for letters, value in zip(inputs, operands, strict=True):
            if len(letters) != np.ndim(value):
                raise ValueError(f"einsum: {letters!r} must have a letter for each of {np.ndim(value)} dimensions")
        if len(inputs) == 1:
            result = _einsum_one(inputs[0], output, operands[0])
        elif len(inputs) == 2:
            left, right = inputs
            result = _einsum_two(left, right, output, *operands)
        else:
            result = None
        if result is not None:
            return result
    raise TypeError(
        f"einsum({subscripts!r}) is not offered for sparse arrays; products like 'ij,j->i' and 'ij,jk->ik' are. "
        f"Call todense() first"
    )


def _parse(subscripts: Any) -> tuple[list[str], str]:
    """The letters of each operand and of the result. Without ``->`` the result has those that occur once, sorted."""
    if not isinstance(subscripts, str):
        raise TypeError("einsum of sparse arrays takes its subscripts as text, such as 'ij,j->i'")
    text = subscripts.replace(" ", "")
    left, arrow, output = text.partition("->")
    if not arrow:
        letters = left.replace(",", "")
        output = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return left.split(","), output


def _einsum_one(letters: str, output: str, a: Any) -> Any:
    i, j = tuple(letters)
    if i == j:
        return {i: lambda: reductions.diagonal(a), "": lambda: reductions.trace(a)}.get(output, lambda: None)()
    rules = {
        i + j: lambda: a,
        j + i: lambda: a.T,
        i: lambda: reductions.sum_(a, axis=1),
        j: lambda: reductions.sum_(a, axis=0),
        "": lambda: reductions.sum_(a),
    }
    return rules.get(output, lambda: None)()


def _einsum_two(left: str, right: str, output: str, a: Any, b: Any) -> Any:
    if any(len(set(letters)) < len(letters) for letters in (left, right, output)) or set(output) - set(left + right):
        return None
    a, b = _operands(a, b)
    shared = set(left) & set(right)
    for letter in shared:
        if a.shape[left.index(letter)] != b.shape[right.index(letter)]:
            raise ValueError(f"einsum: {letter!r} must mean one length; got shapes {a.shape} and {b.shape}")
    if len(shared) == 1 and not shared & set(output) and set(output) == set(left + right) - shared:
        (letter,) = shared
        rest = (left + right).replace(letter, "")
        product = _matrices(a, left.index(letter), b, right.index(letter))
        return product if rest == output else product.T
    if len(left) < len(right):  # the matrix first
        left, right, a, b = right, left, b, a
    if len(left) == 2 and set(right) <= set(left):
        if len(right) == 2:
            b = b if right == left else b.T
        elif right == left[0]:
            b = b[:, None]
        return _einsum_one(left, output, _product(a, b))
    return None


def inner(a: Any, b: Any) -> Any:
    """``numpy.inner``: the sum over the last axes of both."""
    if any(not _is_sparse(value) and np.ndim(value) == 0 for value in (a, b)):
        return _product(a, b)
    return tensordot(a, b, ([-1], [-1]))


def vdot(a: Any, b: Any) -> Any:
    """``numpy.vdot`` of two matrices: the sum of ``conj(a) * b`` over all entries."""
    a, b = _operands(a, b)
    if a.shape != b.shape:
        raise ValueError(f"vdot needs arrays of one shape; got {a.shape} and {b.shape}")
    return reductions.sum_(_product(a.conj(), b))


def vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    """``numpy.vecdot``: the dot product of each pair of rows, ``conj(x1) * x2`` summed over the last axis."""
    if operator.index(axis) not in (-1, 1):
        raise TypeError(f"vecdot of sparse arrays takes the last axis; got axis={axis}. Use A.T")
    x1, x2 = _operands(x1, x2)
    if x2.ndim == 1:
        return _multiply(x1.conj(), x2)
    if x1.ndim == 1:
        return _multiply(x2, x1.conj())
    return reductions.sum_(_product(x1.conj(), x2), axis=1)


def matvec(x1: Any, x2: Any) -> Any:
    """``numpy.matvec``: a matrix times a vector, or times each row of a matrix; each product is a row of the result.

    Raises
    ------
    TypeError
        `x1` is not a matrix.
    """
    x1, x2 = _operands(x1, x2)
    _check_matrix(x1, "x1", "matvec")
    return _multiply(x1, x2) if x2.ndim == 1 else _multiply(x1, x2.T).T


def vecmat(x1: Any, x2: Any) -> Any:
    """``numpy.vecmat``: the conjugate of a vector, or of each row of a matrix, times a matrix.

    Raises
    ------
    TypeError
        `x2` is not a matrix.
    """
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


def _product(a: Any, b: Any) -> Any:
    return elementwise.binary(np.multiply, a, b)


def _is_sparse(value: Any) -> bool:
    return coercion.package(value) in coercion.SPARSE_PACKAGES
