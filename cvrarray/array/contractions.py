"""NumPy's other sums of products (tensordot, einsum, inner, vdot, vecdot), expressed by ``@`` and ``*``.

At least one operand is an array of ours. A contraction over one axis is ``@``; over both axes it is the sum of an
elementwise product. A contraction over no axis would be dense or have more than two dimensions, and raises. Results
have NumPy's dtype, which for all of these is the one of ``@``: bool is a disjunction, and narrow integers wrap.
"""

from __future__ import annotations

import itertools
import math
import operator
import string
from typing import Any

import numpy as np

from ..core import devices
from ..input import coercion
from . import elementwise, products, reductions
from .indexing import axis_number


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
        axes_a, axes_b = (np.atleast_1d(part).tolist() for part in axes)
    axes_a, axes_b = ([axis_number(k, array.ndim) for k in axes] for axes, array in ((axes_a, a), (axes_b, b)))
    if len(axes_a) != len(axes_b) or any(a.shape[i] != b.shape[j] for i, j in zip(axes_a, axes_b, strict=True)):
        raise ValueError(f"axes must have equal lengths in a and b; got axes {axes_a} of {a.shape} and {axes_b} of {b.shape}")
    if len(axes_a) == 1:
        return _matrices(a, axes_a[0], b, axes_b[0])
    if len(axes_a) == 2 and _is_sparse(a) and _is_sparse(b):
        return _total(_product(a, b if axes_a == axes_b else b.T), None, np.result_type(a.dtype, b.dtype))
    if len(axes_a) == 2:
        return _at_entries(a, axes_a, b, axes_b) if _is_sparse(a) else _at_entries(b, axes_b, a, axes_a)
    raise TypeError(
        f"tensordot of a sparse array contracts one of its axes, or both; got {len(axes_a)} axes for shapes {a.shape} and "
        f"{b.shape}. Call todense() first"
    )


def _at_entries(array: Any, axes: list[int], dense: Any, axes_dense: list[int]) -> Any:
    """The sum of ``array * dense`` over both axes of `array` and the dense array's axes that belong to them."""
    dtype = np.result_type(array.dtype, dense.dtype)
    if dense.ndim == 2:
        return _total(_product(array, dense if axes == axes_dense else dense.T), None, dtype)
    csr = coercion.as_csr(array)
    target = devices.of(csr.data)
    with target.use():
        first, second = axes_dense if axes == [0, 1] else axes_dense[::-1]
        rest = [k for k in range(dense.ndim) if k not in axes_dense]
        values = dense.transpose([*rest, first, second])[..., coercion.rows(csr), csr.indices]
        return (values @ csr.data).astype(dtype, copy=False)


def _matrices(a: Any, axis_a: int, b: Any, axis_b: int) -> Any:
    """The contraction over one axis of each, as a product of matrices."""
    if _is_sparse(a):
        left, rest_a = (a if axis_a == 1 else a.T), (a.shape[1 - axis_a],)
    else:
        moved = _moved(a, axis_a, -1)
        rest_a = moved.shape[:-1]
        left = moved.reshape(math.prod(rest_a), moved.shape[-1])  # -1 would say nothing where there is no entry
    if _is_sparse(b):
        right, rest_b = (b if axis_b == 0 else b.T), (b.shape[1 - axis_b],)
    else:
        moved = _moved(b, axis_b, 0)
        rest_b = moved.shape[1:]
        right = moved.reshape(moved.shape[0], math.prod(rest_b))
    product = _multiply(left, right)
    return product if _is_sparse(product) else product.reshape(*rest_a, *rest_b)


def _moved(dense: Any, axis: int, to: int) -> Any:
    rest = [k for k in range(dense.ndim) if k != axis]
    return dense.transpose([axis, *rest] if to == 0 else [*rest, axis])


def einsum(subscripts: str, /, *operands: Any, optimize: Any = False) -> Any:
    """``numpy.einsum`` of any number of arrays, at least one of them ours, where no step has more than two dimensions.

    Two operands at a time are contracted, first those that leave the fewest dimensions. The subscripts may have any
    letters, an ellipsis, and ``->`` or not. The result is sparse where it is an elementwise product, or a product of
    sparse matrices.

    Raises
    ------
    TypeError
        A step would have three dimensions, or be an outer product.
    ValueError
        Subscripts do not fit the operands.
    """
    inputs, output = _parse(subscripts, [np.ndim(value) for value in operands])
    _check_lengths(inputs, output, operands)
    ours = next(value for value in operands if _is_sparse(value))
    dtype = np.result_type(*[getattr(value, "dtype", value) for value in operands])
    values = [value if _is_sparse(value) else products.operand(ours, value, "an operand") for value in operands]
    terms = list(zip(inputs, values, strict=True))
    while len(terms) > 1:
        terms = _contracted(terms, output, dtype)
        if not terms:
            raise TypeError(
                f"einsum({subscripts!r}) has a step that is an outer product or has three dimensions, which no sparse array "
                f"has; 'ij,j->i' and 'ij,jk->ik' are offered. Call todense() first"
            )
    return _einsum_one(*terms[0], output, dtype)


def _parse(subscripts: Any, ndims: list[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, an ellipsis as letters too.

    Without ``->`` the result has the letters that occur once, sorted, behind the ellipsis.
    """
    if not isinstance(subscripts, str):
        raise TypeError("einsum of sparse arrays takes its subscripts as text, such as 'ij,j->i'. Call todense() first")
    left, arrow, output = subscripts.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(ndims):
        raise ValueError(f"einsum: {subscripts!r} must have subscripts for each of {len(ndims)} operands")
    unused = [letter for letter in string.ascii_letters if letter not in subscripts]
    longest = max(
        (ndim - len(term.replace("...", "")) for term, ndim in zip(inputs, ndims, strict=True) if "..." in term), default=0
    )
    dots = "".join(unused[: max(0, longest)])
    inputs = [
        term.replace("...", dots[len(dots) - max(0, ndim - len(term.replace("...", ""))) :])
        for term, ndim in zip(inputs, ndims, strict=True)
    ]
    if arrow and dots and "..." not in output:
        raise ValueError(f"einsum: {subscripts!r} must have an ellipsis in its result as well")
    if not arrow:
        letters = "".join(inputs)
        output = dots + "".join(sorted(letter for letter in set(letters) - set(dots) if letters.count(letter) == 1))
    return inputs, output.replace("...", dots)


def _check_lengths(inputs: list[str], output: str, operands: tuple[Any, ...]) -> None:
    """ValueError where subscripts do not fit the operands' shapes."""
    lengths: dict[str, int] = {}
    for letters, value in zip(inputs, operands, strict=True):
        if len(letters) != np.ndim(value):
            raise ValueError(f"einsum: {letters!r} must have a letter for each of {np.ndim(value)} dimensions")
        for letter, length in zip(letters, np.shape(value), strict=True):
            if lengths.setdefault(letter, length) != length:
                raise ValueError(f"einsum: {letter!r} must mean one length; got {lengths[letter]} and {length}")
    if set(output) - set(lengths) or len(set(output)) < len(output):
        raise ValueError(f"einsum: the result's subscripts, {output!r}, must be different ones of the operands'")


def _contracted(terms: list[tuple[str, Any]], output: str, dtype: np.dtype) -> list[tuple[str, Any]]:
    """The terms with two of them contracted, or none of them if no two can be."""
    found = []
    for i, j in itertools.combinations(range(len(terms)), 2):
        rest = [term for k, term in enumerate(terms) if k not in (i, j)]
        kept = set(output).union(*(letters for letters, _ in rest))
        found.append((len(kept & set(terms[i][0] + terms[j][0])), i, j, kept, rest))
    for _, i, j, kept, rest in sorted(found, key=operator.itemgetter(0, 1, 2)):
        (left, a), (right, b) = (_reduced(letters, value, kept | set(terms[other][0]), dtype)
                                 for (letters, value), other in ((terms[i], j), (terms[j], i)))  # fmt: skip
        pair = _pair(left, a, right, b, kept, dtype)
        if pair is not None:
            return [*rest, pair]
    return []


def _reduced(letters: str, value: Any, kept: set[str], dtype: np.dtype) -> tuple[str, Any]:
    """A term without letters that it has twice, and without those that no one else needs."""
    needed = "".join(dict.fromkeys(letter for letter in letters if letter in kept))
    return (letters, value) if needed == letters else (needed, _einsum_one(letters, value, needed, dtype))


def _pair(left: str, a: Any, right: str, b: Any, kept: set[str], dtype: np.dtype) -> tuple[str, Any] | None:
    """The contraction of two terms to the letters in `kept`; None where it is not offered."""
    result = "".join(letter for letter in dict.fromkeys(left + right) if letter in kept)
    if not (_is_sparse(a) or _is_sparse(b)):
        return result, _dense_einsum(f"{left},{right}->{result}", a, b, dtype=dtype)
    shared = set(left) & set(right)
    if len(shared) == 1 and not shared & kept:
        (letter,) = shared
        return (left + right).replace(letter, ""), _matrices(a, left.index(letter), b, right.index(letter))
    if not _is_sparse(a) or len(left) < len(right):  # the sparse matrix first
        left, right, a, b = right, left, b, a
    if not set(right) <= set(left):
        return None
    if len(right) == 2:
        b = b if right == left else b.T
    elif right == left[0]:
        b = b[:, None]
    return result, _einsum_one(left, _product(a, b), result, dtype)


def _einsum_one(letters: str, value: Any, output: str, dtype: np.dtype) -> Any:
    if letters == output:
        return value
    if not _is_sparse(value):
        return _dense_einsum(f"{letters}->{output}", value, dtype=dtype)
    i, j = tuple(letters)
    if i == j:
        diagonal = reductions.diagonal(value)
        return diagonal if output else _dense_einsum("i->", diagonal, dtype=dtype)
    if output == j + i:
        return value.T
    return _total(value, {i: 1, j: 0, "": None}[output], dtype)


def _dense_einsum(subscripts: str, *operands: Any, dtype: np.dtype) -> Any:
    with devices.of(operands[0]).use():
        return devices.of(operands[0]).xp.einsum(subscripts, *operands).astype(dtype, copy=False)


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
    return _total(_product(a.conj(), b), None, np.result_type(a.dtype, b.dtype))


def vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    """``numpy.vecdot``: the dot product of each pair of rows (``axis=0``: columns), ``conj(x1) * x2`` summed over
    `axis`.

    Raises
    ------
    TypeError
        An operand is neither a vector nor a matrix.
    ValueError
        Lengths differ.
    """
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
    return _total(_product(x1.conj(), x2), 1, np.result_type(x1.dtype, x2.dtype))


def matvec(x1: Any, x2: Any) -> Any:
    """``numpy.matvec``: a matrix times a vector, or times each vector along the last axis of `x2`; each product lies along the
    last axis of the result.

    Raises
    ------
    TypeError
        `x1` is not a matrix.
    """
    x1, x2 = _operands(x1, x2)
    _check_matrix(x1, "x1", "matvec")
    if x2.ndim > 2:
        return _multiply(x2, x1.T)
    return _multiply(x1, x2) if x2.ndim == 1 else _multiply(x1, x2.T).T


def vecmat(x1: Any, x2: Any) -> Any:
    """``numpy.vecmat``: the conjugate of a vector, or of each vector along the last axis of `x1`, times a matrix.

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


def _total(array: Any, axis: int | None, dtype: np.dtype) -> Any:
    """The sum over an axis or both in the dtype of a product, as ``@`` has it: bool stays bool, int8 wraps."""
    return reductions.sum_(array, axis=axis, dtype=dtype)


def _product(a: Any, b: Any) -> Any:
    return elementwise.binary(np.multiply, a, b)


def _is_sparse(value: Any) -> bool:
    return coercion.package(value) in coercion.SPARSE_PACKAGES
