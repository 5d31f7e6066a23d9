"""NumPy's protocols as tables: what each ufunc, function and operator does with a sparse array.

Every ufunc of NumPy is in exactly one set. A function that is in no table is done by pydata/sparse where that has it
(:mod:`.borrowed`), else raises an error that names the remedy. Nothing becomes dense unless asked by name.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy as np

from ..core import extensions
from ..input import coercion
from . import borrowed, contractions, elementwise, indexing, joining, products, rearranging, reductions, statistics, structure
from .indexing import axis_number

# --------------------------------------------------------------------------------------------------------------- ufuncs

#: f(0) = 0: applied to the stored values; structure and format stay.
KEEPS_ZERO = {
    np.absolute, np.arcsin, np.arcsinh, np.arctan, np.arctanh, np.bitwise_count, np.cbrt, np.ceil, np.conjugate, np.deg2rad,
    np.degrees, np.expm1, np.fabs, np.floor, np.frexp, np.isinf, np.isnan, np.log1p, np.modf, np.negative, np.positive,
    np.rad2deg, np.radians, np.rint, np.sign, np.signbit, np.sin, np.sinh, np.sqrt, np.square, np.tan, np.tanh, np.trunc,
}  # fmt: skip

#: f(0) != 0: every entry would have to be stored.
DENSIFIES = {
    np.arccos, np.arccosh, np.cos, np.cosh, np.exp, np.exp2, np.invert, np.isfinite, np.log, np.log10, np.log2,
    np.logical_not, np.reciprocal, np.spacing,
}  # fmt: skip

#: Two operands: whether the result would be dense depends on both. See :func:`cvrarray.array.elementwise.binary`.
BINARY = {
    np.add, np.arctan2, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.copysign, np.divide, np.divmod, np.equal,
    np.float_power, np.floor_divide, np.fmax, np.fmin, np.fmod, np.gcd, np.greater, np.greater_equal, np.heaviside,
    np.hypot, np.lcm, np.ldexp, np.left_shift, np.less, np.less_equal, np.logaddexp, np.logaddexp2, np.logical_and,
    np.logical_or, np.logical_xor, np.maximum, np.minimum, np.multiply, np.nextafter, np.not_equal, np.power,
    np.remainder, np.right_shift, np.subtract,
}  # fmt: skip

#: Not for numbers.
UNSUPPORTED = {np.isnat}


def matmul(left: Any, right: Any, out: Any = None) -> Any:
    """``left @ right``, where one or both are ours; NotImplemented if the other operand's class has own rules."""
    if type(right) is getattr(left, "_dense_type", None):  # what nearly every call has
        return products.multiply(left, right, out)
    ours = left if coercion.is_ours(left) else right
    other = right if ours is left else left
    if coercion.is_tensor(other):
        if out is not None:
            raise TypeError("out must be left out of a product with a tensor: its result is a tensor")
        return extensions.load("torch").multiply(left, right)
    if coercion.package(other) in coercion.SPARSE_PACKAGES:
        if out is not None:
            raise TypeError("out must be left out of a product of two sparse arrays: its result is sparse")
        return products.multiply_sparse(left, right)
    if type(other).__module__.partition(".")[0] == "pandas":  # the values alone, as SciPy's matrices take them
        left, right = (value if value is ours else value.to_numpy() for value in (left, right))
    elif not _is_known(other):
        return _theirs(np.matmul, "__call__", (left, right), {} if out is None else {"out": out})
    return products.multiply(left, right, out) if ours is left else products.multiply_left(left, right, out)


#: ufunc -> rule(left, right), where one or both are ours
CONTRACTIONS: dict[Any, Callable[..., Any]] = {
    np.matmul: matmul,
    np.vecdot: contractions.vecdot,
}
if hasattr(np, "matvec"):  # since NumPy 2.2
    CONTRACTIONS[np.matvec] = contractions.matvec
    CONTRACTIONS[np.vecmat] = contractions.vecmat

#: ``ufunc.reduce`` -> rule(array, axis=, dtype=, out=, keepdims=)
REDUCTIONS: dict[Any, Callable[..., Any]] = {
    np.add: reductions.sum_,
    np.maximum: reductions.max_,
    np.minimum: reductions.min_,
    np.logical_or: reductions.any_,
    np.logical_and: reductions.all_,
    np.multiply: lambda array, **kwargs: np.prod(array, **kwargs),
}

#: Axes of operands and result that are the usual ones of ``@``, as ``x @= A`` names them
_AXES_OF_MATMUL = ([(-2, -1)] * 3, [(-1,), (-2, -1), (-1,)])


def apply_ufunc(array: Any, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__array_ufunc__`` of all arrays of ours."""
    out, *more = kwargs.pop("out", (None,))
    if (
        ufunc is np.matmul
        and method == "__call__"
        and not kwargs
        and {type(inputs[1]), type(out)} <= {array._dense_type, NoneType}
    ):
        left, right = inputs
        return matmul(left, right, out)
    name = type(array).__name__
    if not all(_is_known(value) for value in (*inputs, out)):
        return _theirs(ufunc, method, inputs, kwargs if out is None else kwargs | {"out": (out, *more)})
    if any(place is not None for place in more):
        raise TypeError(f"numpy.{ufunc.__name__} of {name} takes no out. Call todense() first")
    if method == "reduce" and ufunc in REDUCTIONS:
        if kwargs.pop("where", True) is not True or kwargs.pop("initial", None) is not None:
            raise TypeError(f"numpy.{ufunc.__name__}.reduce of {name} takes neither where nor initial. Call todense() first")
        if kwargs.get("dtype") is None:  # as np.maximum.reduce(A, 0, None, None, True) names it
            kwargs.pop("dtype", None)
        elif ufunc not in (np.add, np.multiply):
            raise TypeError(f"numpy.{ufunc.__name__}.reduce of {name} takes no dtype. Call astype(dtype) first")
        return REDUCTIONS[ufunc](*inputs, **{"axis": 0} | kwargs, **({} if out is None else {"out": out}))
    if method != "__call__" or ufunc in UNSUPPORTED:
        method = "" if method == "__call__" else f".{method}"
        raise TypeError(f"numpy.{ufunc.__name__}{method} is not offered for {name}. Call todense() or tocsr() first")
    if coercion.is_ours(out):
        raise TypeError(f"out must be a dense array; got {type(out).__name__}, which is immutable. Use A.todense() as out")
    if ufunc is np.matmul and kwargs.get("axes") in _AXES_OF_MATMUL:
        del kwargs["axes"]
    if ufunc is np.matmul and not kwargs:
        left, right = inputs
        return matmul(left, right, out)
    if ufunc in CONTRACTIONS:
        if set(kwargs) - ({"axis"} if ufunc is np.vecdot else set()):
            raise TypeError(f"numpy.{ufunc.__name__} of {name} takes no {', '.join(kwargs)}. Call todense() first")
        return _into(out, lambda: CONTRACTIONS[ufunc](*inputs, **kwargs), ufunc)
    if unknown := set(kwargs) - {"dtype", "casting"}:
        raise TypeError(f"numpy.{ufunc.__name__} of {name} takes no {', '.join(sorted(unknown))}. Call todense() first")
    try:
        return _into(out, lambda: _elementwise(name, ufunc, inputs, kwargs), ufunc)
    except elementwise.DenseResultError:
        if out is None:
            raise
        return ufunc(*(value.todense() if coercion.is_ours(value) else value for value in inputs), out=out, **kwargs)


def _elementwise(name: str, ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if ufunc in DENSIFIES:
        raise elementwise.DenseResultError(
            f"numpy.{ufunc.__name__} of 0 is not 0, so {name} would become dense. Call todense() first"
        )
    if ufunc in BINARY:
        return elementwise.binary(ufunc, *inputs, **kwargs)
    if ufunc in KEEPS_ZERO:
        return elementwise.unary(inputs[0], ufunc, **kwargs)
    raise TypeError(f"numpy.{ufunc.__name__} is not offered for {name}. Call todense() or tocsr() first")


def _into(out: Any, compute: Callable[[], Any], ufunc: Any) -> Any:
    """The result of `compute`, written into a dense `out` where there is one: it asks for a dense result."""
    result = compute()
    if out is None or result is NotImplemented:
        return result
    if isinstance(result, tuple):
        raise TypeError(f"out must be left out of numpy.{ufunc.__name__} here: it has several results")
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise TypeError(f"out must have a dtype that {result.dtype} casts to; got {out.dtype}")
    if out.shape != result.shape:
        raise ValueError(f"out must have shape {result.shape}; got {out.shape}")
    if coercion.is_ours(result):
        return result.todense(out=out)
    out[...] = result
    return out


def operate(ufunc: np.ufunc, left: Any, right: Any) -> Any:
    """A binary operator; NotImplemented if the other operand's class has rules of its own."""
    if any(value is None or isinstance(value, str) for value in (left, right)):
        return NotImplemented  # so that A == None is False
    if not (_is_known(left) and _is_known(right)):
        return _theirs(ufunc, "__call__", (left, right), {})
    return elementwise.binary(ufunc, left, right)


# ------------------------------------------------------------------------------------------------------------ functions


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return _into(out, lambda: contractions.scaled(a, b), np.multiply)
    if np.ndim(a) > 2 or np.ndim(b) > 2:  # where the axes of the result come in another order than matmul's
        return _into(out, lambda: contractions.tensordot(a, b, ([-1], [-2 if np.ndim(b) > 1 else -1])), np.dot)
    return matmul(a, b, out)


def _transpose(a: Any, axes: Any = None) -> Any:
    if axes is None:
        return a.T
    axes = axes if isinstance(axes, tuple | list) else (axes,)
    axes = tuple(operator.index(axis) % 2 if -2 <= axis < 2 else axis for axis in axes)
    if sorted(axes) != [0, 1]:
        raise ValueError(f"axes must be a permutation of (0, 1); got {axes}")
    return a.T if axes == (1, 0) else a


def _swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    axis1, axis2 = (axis_number(axis) for axis in (axis1, axis2))
    return a if axis1 == axis2 else a.T


def _take(a: Any, indices: Any, axis: int | None = None) -> Any:
    if axis is None:
        raise TypeError(
            "axis must be 0 or 1 for a sparse array: entries of the flattened one make no matrix. Call todense() first"
        )
    return indexing.getitem(a, indices if axis_number(axis) == 0 else (slice(None), indices))


def _some(a: Any, axis: int | None, choose: Callable[[np.ndarray], np.ndarray]) -> Any:
    """The rows (``axis=0``) or columns that `choose` makes of the numbers of all of them."""
    return _take(a, None if axis is None else choose(np.arange(_size(a, axis))), axis)


def _on_host(value: Any) -> Any:
    return value.get() if coercion.package(value) == "cupy" else value


def _flip(m: Any, axis: Any = None) -> Any:
    axes = {0, 1} if axis is None else {axis_number(k) for k in (axis if isinstance(axis, tuple) else (axis,))}
    return indexing.getitem(m, tuple(slice(None, None, -1 if k in axes else 1) for k in (0, 1)))


def _full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None
) -> Any:
    if shape is not None and np.size(shape) != 2:  # an array that has not two dimensions is dense
        with a._target.use():
            return a._target.xp.full(shape, fill_value, a.dtype if dtype is None else dtype)
    if np.ndim(fill_value) or fill_value != 0:
        raise TypeError(f"full_like of a sparse array needs fill_value 0; got {fill_value!r}. Use A.todense()")
    zeros = structure.zeros_like(a, dtype, shape)
    return zeros if device is None else zeros.to_device(device)


def _where(condition: Any, *xy: Any) -> Any:
    if not xy:
        return structure.nonzero(condition)
    ours = next(value for value in (condition, *xy) if coercion.is_ours(value))
    is_product = len(xy) == 2 and all(coercion.package(value) in coercion.SPARSE_PACKAGES for value in (condition, xy[0]))
    if is_product and np.ndim(xy[1]) == 0 and xy[1] == 0 and condition.shape == xy[0].shape:
        return elementwise.masked(ours, condition, xy[0], np.result_type(xy[0].dtype, xy[1]))
    return borrowed.call(ours, np.where, condition, *xy)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    axes = None if axis is None else tuple(axis_number(k) for k in (axis if isinstance(axis, tuple) else (axis,)))
    if axes is not None and len(axes) == 1:
        return structure.vector_norm(x, ord, axes[0], keepdims)
    return structure.norm(x if axes in (None, (0, 1)) else x.T, ord, keepdims)


def _vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    if axis is None:
        if ord != 2:
            raise TypeError(f"vector_norm of a sparse array needs an axis for ord={ord!r}. Call todense() first")
        return structure.norm(x, "fro", keepdims)
    return structure.vector_norm(x, ord, axis_number(axis), keepdims)


def _angle(z: Any, deg: bool = False) -> Any:
    xp = z._target.xp
    return z._map(lambda values: xp.angle(values, deg=deg))


def _astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    cast = x.astype(dtype, copy=copy)
    return cast if device is None else cast.to_device(device)


def _size(a: Any, axis: int | None = None) -> int:
    return int(a.size if axis is None else a.shape[axis_number(axis)])


def _dtypes(values: tuple[Any, ...]) -> list[Any]:
    return [value.dtype if coercion.is_ours(value) else value for value in values]


#: NumPy function -> rule with NumPy's argument names
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    # products
    np.dot: _dot,
    np.tensordot: contractions.tensordot,
    np.einsum: contractions.einsum,
    np.inner: contractions.inner,
    np.vdot: contractions.vdot,
    np.linalg.outer: lambda x1, x2, /: np.outer(x1, x2),
    np.linalg.matrix_power: rearranging.matrix_power,
    np.linalg.matmul: lambda x1, x2, /: matmul(x1, x2),
    np.linalg.tensordot: lambda x1, x2, /, *, axes=2: contractions.tensordot(x1, x2, axes),
    np.linalg.vecdot: lambda x1, x2, /, *, axis=-1: contractions.vecdot(x1, x2, axis),
    # reductions
    np.sum: reductions.sum_,
    np.mean: reductions.mean,
    np.max: reductions.max_,
    np.amax: reductions.max_,
    np.min: reductions.min_,
    np.amin: reductions.min_,
    np.var: statistics.var,
    np.std: statistics.std,
    np.argmax: statistics.argmax,
    np.argmin: statistics.argmin,
    np.unique: statistics.unique,
    np.any: reductions.any_,
    np.all: reductions.all_,
    np.count_nonzero: reductions.count_nonzero,
    np.diagonal: reductions.diagonal,
    np.diag: lambda v, k=0: reductions.diagonal(v, k),
    np.trace: reductions.trace,
    np.linalg.diagonal: lambda x, /, *, offset=0: reductions.diagonal(x, offset),
    np.linalg.trace: lambda x, /, *, offset=0, dtype=None: reductions.trace(x, offset, dtype=dtype),
    np.linalg.norm: _norm,
    np.linalg.vector_norm: _vector_norm,
    np.linalg.matrix_norm: lambda x, /, *, keepdims=False, ord="fro": structure.norm(x, ord, keepdims),
    # elementwise
    np.real: lambda val: val.real,
    np.imag: lambda val: val.imag,
    np.round: elementwise.round_,
    np.around: elementwise.round_,
    np.clip: elementwise.clip,
    np.fix: lambda x: elementwise.unary(x, np.trunc),
    np.nan_to_num: structure.nan_to_num,
    np.isposinf: lambda x: x._map(lambda values: values == np.inf),
    np.isneginf: lambda x: x._map(lambda values: values == -np.inf),
    np.iscomplex: lambda x: x.imag != 0,
    np.angle: _angle,
    np.astype: _astype,
    np.array_equal: structure.array_equal,
    np.tril: structure.tril,
    np.triu: structure.triu,
    np.allclose: structure.allclose,
    # structure
    np.transpose: _transpose,
    np.matrix_transpose: lambda x, /: x.T,
    np.linalg.matrix_transpose: lambda x, /: x.T,
    np.swapaxes: _swapaxes,
    np.copy: lambda a, order="K", subok=False: a.copy(),
    np.zeros_like: lambda a, *args, **kwargs: _full_like(a, 0, *args, **kwargs),
    np.empty_like: lambda prototype, *args, **kwargs: _full_like(prototype, 0, *args, **kwargs),
    np.full_like: _full_like,
    np.ones_like: lambda a, *args, **kwargs: _full_like(a, 1, *args, **kwargs),
    np.reshape: lambda a, /, shape, order="C", *, copy=None: rearranging.reshape(a, shape, order, copy=copy),
    np.squeeze: rearranging.squeeze,
    np.rot90: rearranging.rot90,
    np.compress: lambda condition, a, axis=None: _some(a, axis, lambda all_: np.compress(_on_host(condition), all_)),
    np.delete: lambda arr, obj, axis=None: _some(arr, axis, lambda all_: np.delete(all_, _on_host(obj))),
    np.repeat: lambda a, repeats, axis=None: _some(a, axis, lambda all_: np.repeat(all_, _on_host(repeats))),
    np.extract: lambda condition, arr: indexing.getitem(arr, condition),
    np.split: rearranging.split,
    np.array_split: rearranging.array_split,
    np.vsplit: lambda ary, indices_or_sections: rearranging.split(ary, indices_or_sections, 0),
    np.hsplit: lambda ary, indices_or_sections: rearranging.split(ary, indices_or_sections, 1),
    np.take: _take,
    np.flip: _flip,
    np.flipud: lambda m: _flip(m, 0),
    np.fliplr: lambda m: _flip(m, 1),
    np.nonzero: structure.nonzero,
    np.argwhere: lambda a: a._target.xp.stack(structure.nonzero(a), axis=1),
    np.where: _where,
    np.concatenate: joining.concatenate,
    np.vstack: joining.vstack,
    np.hstack: joining.hstack,
    np.block: joining.block,
    np.append: joining.append,
    np.stack: joining.stack,
    np.atleast_1d: lambda *arys: arys[0] if len(arys) == 1 else arys,
    np.atleast_2d: lambda *arys: arys[0] if len(arys) == 1 else arys,
    # properties
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: _size,
    np.result_type: lambda *arrays_and_dtypes: np.result_type(*_dtypes(arrays_and_dtypes)),
    np.can_cast: lambda from_, to, casting="safe": np.can_cast(from_.dtype, to, casting),
    np.min_scalar_type: lambda a, /: a.dtype,
    np.iscomplexobj: lambda x: x.dtype.kind == "c",
    np.isrealobj: lambda x: x.dtype.kind != "c",
    np.array_repr: lambda arr, *_, **__: repr(arr),
    np.array_str: lambda a, *_, **__: str(a),
}

#: Makes an array, dense and on the device of an array of ours that is given as ``like=``
LIKE = {np.array, np.asarray, np.asanyarray, np.ones, np.zeros, np.empty, np.full, np.arange, np.eye, np.identity, np.tri}

_SOLVE = "Use scipy.sparse.linalg (on a GPU cupyx.scipy.sparse.linalg) with A, or with A.tocsr() where it factorises"

#: NumPy function that is not offered -> the remedy, where it is not to call todense()
REMEDIES = {
    np.save: "Use cvrarray.save",
    np.savez: "Use cvrarray.save",
    np.savez_compressed: "Use cvrarray.save",
    np.savetxt: "Use cvrarray.save",
    np.linalg.solve: _SOLVE,
    np.linalg.lstsq: _SOLVE,
    np.linalg.inv: _SOLVE,
    np.linalg.eig: _SOLVE,
    np.linalg.eigh: _SOLVE,
    np.linalg.svd: _SOLVE,
    np.copyto: "Arrays are immutable: use A.todense(), or A.with_values(data)",
}


def apply_function(array: Any, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__array_function__`` of all arrays of ours."""
    if not all(coercion.is_ours(t) or issubclass(t, np.ndarray) or coercion.package_of(t) for t in types):
        if any(t.__module__.startswith("dask.") for t in types):
            return extensions.load("dask").apply_function(function, types, args, kwargs)
        return NotImplemented
    if function in LIKE and not any(coercion.is_ours(value) for value in args):
        with array._target.use():
            return getattr(array._target.xp, function.__name__)(*args, **kwargs)
    name = f"numpy.{function.__module__.removeprefix('numpy').lstrip('.')}.{function.__name__}".replace("..", ".")
    rule = FUNCTIONS.get(function)
    if rule is None and borrowed.offers(function):
        return borrowed.call(array, function, *args, **kwargs)
    if rule is None:
        remedy = REMEDIES.get(function, "Call todense() or tocsr() first")
        raise TypeError(f"{name} is not offered for {type(array).__name__}. {remedy}")
    try:
        return rule(*args, **kwargs)
    except TypeError:
        try:
            inspect.signature(rule).bind(*args, **kwargs)
        except TypeError as misfit:  # an argument of NumPy's that the rule does not have
            raise TypeError(f"{name} of {type(array).__name__}: {misfit}. Call todense() first") from None
        raise


# --------------------------------------------------------------------------------------------------------- whose is it?


def _is_known(value: Any) -> bool:
    """Whether it is an array of ours, of a dense or sparse package, a sequence or a scalar: no class with own rules."""
    return (
        isinstance(value, (np.ndarray, np.generic, list, tuple, int, float, complex, str, range, type(None)))
        or coercion.package(value) != ""
    )


def _theirs(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result if an operand's class has own rules: Dask's or PyTorch's, once it knows our arrays; else
    NotImplemented.
    """
    if ufunc is np.matmul and any(coercion.is_tensor(value) for value in inputs):
        return matmul(*inputs, **kwargs)
    if any(type(value).__module__.startswith("dask.") for value in inputs):
        return extensions.load("dask").apply_ufunc(ufunc, method, inputs, kwargs)
    return NotImplemented
