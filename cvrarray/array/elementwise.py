"""Elementwise functions with f(0) = 0: only stored values are computed, and the result is sparse again.

The structure of the result depends on the operands:

* one array, or an array and a scalar: the array's structure. Explicit zeros stay, and a result of 0 or False is stored
  like any other.
* an array and a dense one: the sparse array's structure.
* two sparse arrays: the union of both, for a product the intersection. Entries whose result is 0 are left out, as in
  SciPy: ``(A != B).nnz == 0`` where A equals B.

An entry that is not stored counts as 0. A function that does not map it to 0 raises, as ``A + 1`` does. Two exceptions
follow SciPy and pydata/sparse: entries that are not stored stay 0 in ``A * X`` where X, sparse or dense, is inf or nan,
and in ``A / X`` where a dense X is 0 or nan. NumPy has nan there.

Result dtypes are NumPy's; Python scalars are weak. CuPy computes float16 in float32 and rounds once, as NumPy does.
"""

from __future__ import annotations

import contextvars
import operator
from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR
from ..input import coercion
from . import encoding, indexing
from .values import is_one_structure

_COMPARISONS = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
_LOGICAL = {np.logical_and, np.logical_or, np.logical_xor}
_OF_BITS = {np.nextafter, np.spacing}  # their results in float16 are not those in float32
#: What SciPy has for two CSRs, but for float16, and without zeros in the result.
_IN_SCIPY: dict[np.ufunc, Any] = {np.add: operator.add, np.subtract: operator.sub}
_SCALARS = (bool, int, float, complex, np.generic)


def unary(array: Any, ufunc: np.ufunc, **kwargs: Any) -> Any:
    """``ufunc(array)``, where ``ufunc(0)`` is 0: an array of the same structure, or a tuple of them (``np.modf``)."""
    dtypes = _check_zero(ufunc, (np.zeros(1, array.dtype),), kwargs)
    return _mapped(array, dtypes, lambda values: _compute(ufunc, (values,), kwargs, dtypes))


def binary(ufunc: np.ufunc, left: Any, right: Any, **kwargs: Any) -> Any:
    """``ufunc(left, right)`` of operands on one device; the result has the format of the first that is ours.

    Raises
    ------
    TypeError
        The result would not be 0 wherever nothing is stored, its dtype cannot be stored, or the operands live on two devices.
    ValueError
        The shapes do not broadcast to two dimensions.
    """
    array = left if coercion.is_ours(left) else right
    target = array._target
    with target.use():
        left, right = (_operand(value, target) for value in (left, right))
        if isinstance(left, _SCALARS) or isinstance(right, _SCALARS):
            return _with_scalar(ufunc, array, left, right, kwargs)
        if not (_is_sparse(left) and _is_sparse(right)):
            return _with_dense(ufunc, array, left, right, kwargs)
        return _with_sparse(ufunc, array, left, right, kwargs)


def masked(array: Any, condition: Any, x: Any, dtype: np.dtype) -> Any:
    """`x` where `condition` is not 0, else 0, both sparse and of one shape: like `array`, of `dtype`."""
    target = array._target
    with target.use():
        mask, csr = (coercion.as_csr(_operand(value, target)) for value in (condition, x))
        indptr, indices, is_true, data = target.backend("csr").union(mask, csr, True)
        data = target.xp.where(is_true != 0, data.astype(dtype, copy=False), dtype.type(0))
        return array._like(_without_zeros(CSR(indptr, indices, data, csr.shape)))


def power(array: Any, exponent: Any, dtype: Any = None) -> Any:
    """``A.power``."""
    return binary(np.power, array, exponent, **({} if dtype is None else {"dtype": dtype}))


def clip(
    array: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None, **dtype: Any
) -> Any:
    """``A.clip``; without bounds `array` itself."""
    _check_no_out(out)
    min, max = (min if a_min is None else a_min), (max if a_max is None else a_max)
    for ufunc, bound in ((np.maximum, min), (np.minimum, max)):
        if bound is not None:
            if type(bound) is int and array.dtype.kind in "iu":  # a bound outside the dtype's range is no bound
                limits = np.iinfo(array.dtype)
                bound = int(np.clip(bound, limits.min, limits.max))
            try:
                array = ufunc(array, bound, **dtype)
            except DenseResultError:
                raise DenseResultError(
                    f"clip's bounds must have 0 between them, or the result is dense; got min={min!r}, max={max!r}. "
                    "Call todense() first"
                ) from None
    return array


def round_(array: Any, decimals: int = 0, out: Any = None) -> Any:
    """``A.round``."""
    _check_no_out(out)
    if array.dtype.kind == "b":
        return array._map(lambda values: values.astype(np.float16))
    xp = array._target.xp
    return array._map(lambda values: xp.round(values, decimals))


def _check_no_out(out: Any) -> None:
    if out is not None:
        raise TypeError("out must be left out: arrays of ours are immutable")


class DenseResultError(TypeError):
    """The result would not be 0 at entries that are not stored."""


# ---------------------------------------------------------------------------------------------------- operands


def _is_sparse(value: Any) -> bool:
    return isinstance(value, CSR) or coercion.is_ours(value)


def _operand(value: Any, target: devices.Device) -> Any:
    """Our arrays and scalars as they are, other sparse matrices as CSR, anything else as a dense array."""
    if coercion.is_ours(value) or (isinstance(value, _SCALARS) and np.asarray(value).dtype.kind in "biufc"):
        device = value._target if coercion.is_ours(value) else target
    else:
        package = type(value).__module__.partition(".")[0]
        if package in ("scipy", "cupyx", "sparse"):
            value = coercion.as_csr(value)
            device = devices.of(value.data)
        elif package == "cupy":
            device = devices.of(value)
            devices.check_aligned(value, "an operand")
        else:
            if isinstance(value, np.ma.MaskedArray):
                raise TypeError("an operand must hold all its values; got a masked array. Call .filled(0) first")
            device = target if not isinstance(value, np.ndarray) or value.ndim == 0 else devices.CPU
            value = np.asarray(value)
            if device.kind == "cuda" and value.ndim:  # a list
                value = device.xp.asarray(value)
        if not isinstance(value, CSR) and value.dtype.kind not in "biufc":
            raise TypeError(f"an operand must be numeric; got dtype {value.dtype}")
        if getattr(value, "ndim", 2) == 0:
            value = value[()] if isinstance(value, np.ndarray) else value.get()[()]
    if device != target:
        raise TypeError(
            f"operands must be on one device, {target}; got one on {device}. Use A.to_device, cupy.asarray or .get()"
        )
    return value


# ---------------------------------------------------------------------------------------------------- the rules


def _with_scalar(ufunc: np.ufunc, array: Any, left: Any, right: Any, kwargs: dict[str, Any]) -> Any:
    """The array's structure; requires f(0, scalar) == 0."""
    dtypes = _check_zero(ufunc, [np.zeros(1, array.dtype) if v is array else v for v in (left, right)], kwargs)
    scalar = right if left is array else left
    if ufunc in _COMPARISONS and type(scalar) is int and array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        if not limits.min <= scalar <= limits.max:  # every value compares with it as 0 does; CuPy would not see that
            return array._map(lambda values: array._target.xp.zeros(values.shape, bool))

    def function(values: Any) -> Any:
        if ufunc is np.divide and left is array and array.dtype.kind == "c" and np.isrealobj(scalar):
            # real and imaginary parts apart, as NumPy: CuPy divides 0 by a complex infinity to nan; padding must stay 0
            parts = values.astype(dtypes[0], copy=False).view(dtypes[0].type(0).real.dtype)
            return (parts / parts.dtype.type(scalar)).view(dtypes[0])
        return _compute(ufunc, [values if v is array else v for v in (left, right)], kwargs, dtypes)

    return _mapped(array, dtypes, function)


def _with_dense(ufunc: np.ufunc, array: Any, left: Any, right: Any, kwargs: dict[str, Any]) -> Any:
    """The sparse operand's structure; requires f(0, dense) == 0, except where we follow SciPy."""
    dense = right if left is array else left
    shape = _broadcast_shape(array.shape, dense.shape)
    zero = np.zeros(1, array.dtype)
    with np.errstate(all="ignore"):
        sample = [zero if v is array else np.zeros(1, v.dtype) for v in (left, right)]
        dtypes = _dtypes(ufunc(*sample, **kwargs))
        as_in_scipy = ufunc is np.multiply or (ufunc is np.divide and left is array)
        if ufunc in (np.add, np.subtract):
            raise DenseResultError(
                f"numpy.{ufunc.__name__} of a sparse and a dense array is dense. Call todense() on the sparse one first; "
                f"where a function of SciPy's adds them, give it A.tocsc(), or A.aslinearoperator(); where Dask's var or std "
                f"subtracts them, make the dask array by cvrarray.to_dask"
            )
        if not as_in_scipy:
            nothing = array._target.xp.zeros((), array.dtype)
            results = _compute(ufunc, [nothing if v is array else v for v in (left, right)], kwargs, dtypes)
            for result in results if isinstance(results, tuple) else (results,):
                if not bool((result == 0).all()):
                    raise DenseResultError(
                        f"numpy.{ufunc.__name__} turns 0 into {result[result != 0].ravel()[0]} for this dense operand, "
                        "so the result is dense. Call todense() on the sparse one first"
                    )
    csr = _broadcast(array._canonical_csr(), shape)
    row = coercion.rows(csr)
    dense = dense.reshape((1,) * (2 - dense.ndim) + dense.shape)
    if dense.shape[0] == 1 or dense.shape[1] == 1:  # a row or column of values: not broadcast in memory
        line = dense.ravel()
        at = csr.indices if dense.shape[0] == 1 else row
        dense = line[at] if line.size > 1 else line
    else:
        dense = dense[row, csr.indices]
    values = _compute(ufunc, [csr.data if v is array else dense for v in (left, right)], kwargs, dtypes)
    return _wrapped(values, lambda data: array._like(csr._replace(data=data)))


def _with_sparse(ufunc: np.ufunc, array: Any, left: Any, right: Any, kwargs: dict[str, Any]) -> Any:
    """f over the union of the stored entries, for a product the intersection; requires f(0, 0) == 0."""
    target = array._target
    shape = _broadcast_shape(left.shape, right.shape)
    dtypes = _check_zero(ufunc, [np.zeros(1, v.data.dtype if isinstance(v, CSR) else v.dtype) for v in (left, right)], kwargs)
    if _is_one_structure(left, right):
        data = _compute(ufunc, (encoding.plain(left), encoding.plain(right)), kwargs, dtypes)
        if all(_n_nonzero(part) == left.nnz for part in (data if isinstance(data, tuple) else (data,))):
            return _wrapped(data, left._with_table)
        return _wrapped(data, lambda part: left._like(_without_zeros(left._with_table(part)._canonical_csr())))
    a, b = (_broadcast(v if isinstance(v, CSR) else v._canonical_csr(), shape) for v in (left, right))
    operation = None if kwargs or target.kind == "cuda" or dtypes[0] == np.float16 else _IN_SCIPY.get(ufunc)
    if operation:
        return array._like(coercion.as_csr(target.backend("taking").combined(operation, a, b, dtypes[0])))
    indptr, indices, *operands = target.backend("csr").union(a, b, ufunc is np.multiply)
    values = _compute(ufunc, operands, kwargs, dtypes)
    return _wrapped(values, lambda data: array._like(_without_zeros(CSR(indptr, indices, data, shape))))


def _without_zeros(csr: CSR) -> CSR:
    """`csr` without the entries that are 0; itself where there are none."""
    if _n_nonzero(csr.data) == csr.nnz:
        return csr
    device = devices.of(csr.data)
    if device.kind == "cpu" and csr.data.dtype != np.float16:
        found: CSR = device.backend("taking").without_zeros(csr)
        return found
    return entries(csr, csr.data != 0)


def entries(csr: CSR, kept: Any) -> CSR:
    """The entries of `csr` where `kept`, a bool for each, is true. Rows stay in order, so nothing is sorted."""
    xp = devices.of(csr.data).xp
    kept = xp.flatnonzero(kept)
    return CSR(xp.searchsorted(kept, csr.indptr), csr.indices[kept], csr.data[kept], csr.shape)


def _n_nonzero(data: Any) -> int:
    return int(np.count_nonzero(data)) if isinstance(data, np.ndarray) else int((data != 0).sum())


def _is_one_structure(left: Any, right: Any) -> bool:
    """Whether both are arrays of ours whose tables, but for the values, are the same."""
    if type(left) is not type(right) or not hasattr(left, "_structure") or left._target != right._target:
        return False
    has_tables = left._origin.pending is None and right._origin.pending is None
    return has_tables and left.shape == right.shape and is_one_structure(left, right)


def _broadcast_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, int]:
    """The shape to which two shapes of at most two dimensions broadcast, as in NumPy; ValueError where they do not."""
    if len(left) > 2 or len(right) > 2:
        raise ValueError(f"operands must have at most 2 dimensions; got shapes {left} and {right}")
    pairs = list(zip((1, 1, *left)[-2:], (1, 1, *right)[-2:], strict=True))
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        raise ValueError(f"operands could not be broadcast together with shapes {left} {right}")
    (rows, cols) = (n if m == 1 else m for m, n in pairs)
    return rows, cols


def _broadcast(csr: CSR, shape: tuple[int, int]) -> CSR:
    """`csr` with its only row or column repeated to `shape`."""
    xp = devices.of(csr.data).xp
    if csr.shape[0] != shape[0]:
        csr = indexing._rows(csr, xp.zeros(shape[0], np.int64))
    return csr if csr.shape[1] == shape[1] else indexing._columns(csr, xp.zeros(shape[1], np.int64))


# ---------------------------------------------------------------------------------------------------- computing


def _check_zero(ufunc: np.ufunc, operands: Any, kwargs: dict[str, Any]) -> list[np.dtype]:
    """The dtypes of the results, from an evaluation at 0 on the host; DenseResultError where one of them is not 0
    there.
    """
    given = ", ".join("0" if isinstance(value, np.ndarray) else repr(value) for value in operands)
    try:
        with np.errstate(all="ignore", divide="raise", invalid="raise"):
            results = ufunc(*operands, **kwargs)
    except FloatingPointError:
        raise DenseResultError(f"numpy.{ufunc.__name__}({given}) is undefined. Call todense() first") from None
    for result in results if isinstance(results, tuple) else (results,):
        if not result[0] == 0:
            raise DenseResultError(
                f"numpy.{ufunc.__name__}({given}) is {result[0]}, so the result is dense. Call todense() first"
            )
    return _dtypes(results)


def _dtypes(results: Any) -> list[np.dtype]:
    """The dtypes in which results are stored."""
    dtypes = [result.dtype for result in (results if isinstance(results, tuple) else (results,))]
    return [coercion.check_dtype(dtype) for dtype in dtypes]


def _compute(ufunc: np.ufunc, operands: Any, kwargs: dict[str, Any], dtypes: list[np.dtype]) -> Any:
    """``ufunc(*operands)`` on the device, in `dtypes`; several results as a tuple."""
    if ufunc in _LOGICAL:  # CuPy's do not take complex numbers
        operands = [v != 0 for v in operands]
    types = [v.dtype if hasattr(v, "dtype") else np.dtype(bool) if type(v) is bool else type(v) for v in operands]
    loop: dict[str, Any] = {name: value for name, value in kwargs.items() if name == "casting"}
    if "dtype" in kwargs:
        loop["signature"] = (*[None] * ufunc.nin, *[np.dtype(kwargs["dtype"])] * ufunc.nout)
    # cast first, as NumPy would: CuPy has fewer loops and other rules for scalars
    taken = list(ufunc.resolve_dtypes((*types, *[None] * ufunc.nout), **loop))
    xp = next(devices.of(v).xp for v in operands if getattr(v, "ndim", 0))
    if xp is not np and ufunc not in _OF_BITS:
        operands = [v if hasattr(v, "dtype") or t != np.float16 else t.type(v) for v, t in zip(operands, taken, strict=False)]
        taken = [coercion.wide(dtype) for dtype in taken]
    operands = [v.astype(t, copy=False) if hasattr(v, "dtype") else v for v, t in zip(operands, taken, strict=False)]
    shapes = [v.shape for v in operands if getattr(v, "ndim", 0)]
    shape = shapes[0] if len(shapes) == 1 else np.broadcast_shapes(*shapes)
    if xp is np and ufunc.nout == len(shape) == 1 and taken[-1] == dtypes[0]:
        # at a cache line, as an array's values shall be
        out = devices.CPU.backend("runtime.memory").empty(shape[0], dtypes[0])
        _by_threads(ufunc, operands, out)
        return out
    results = _of_module(xp, ufunc)(*operands)
    if not isinstance(results, tuple):
        return results.astype(dtypes[0], copy=False)
    return tuple(result.astype(dtype, copy=False) for result, dtype in zip(results, dtypes, strict=True))


def _by_threads(ufunc: np.ufunc, operands: Any, out: np.ndarray) -> None:
    """``ufunc(*operands, out=out)`` of vectors and scalars on the host, a range a thread: NumPy releases the GIL."""
    context = contextvars.copy_context()  # with numpy.errstate
    threads = devices.CPU.backend("runtime.threads")
    bounds = np.minimum(np.arange(-(-out.size // threads.SMALL) + 1) * threads.SMALL, out.size)

    def compute(first: int, last: int) -> None:
        at = slice(first * threads.SMALL, last * threads.SMALL)
        parts = (v[at] if getattr(v, "size", 1) == out.size and getattr(v, "ndim", 0) else v for v in operands)
        context.copy().run(ufunc, *parts, out=out[at])

    threads.run(compute, bounds, least=threads.QUICK)


def _of_module(xp: Any, ufunc: np.ufunc) -> Any:
    """The array module's ufunc: NumPy's itself, or CuPy's of the same name."""
    return ufunc if xp is np else getattr(xp, ufunc.__name__, ufunc)


def _mapped(array: Any, dtypes: list[np.dtype], function: Any) -> Any:
    """One array or several, with `array`'s structure and the values ``function(values)``."""
    if len(dtypes) == 1:
        return array._map(function)
    return tuple(array._map(lambda values, k=k: function(values)[k]) for k in range(len(dtypes)))


def _wrapped(values: Any, make: Any) -> Any:
    """`make` of each of the results."""
    return tuple(make(v) for v in values) if isinstance(values, tuple) else make(values)
