"""NumPy's functions that arrays of ours do not have themselves, done by pydata/sparse.

The function gets ``A.tocoo()`` in the place of each array of ours, in host memory also for an array on a GPU. A result that
is sparse, has two dimensions, fill value 0 and a dtype of ours becomes an array of ours, of the same class and device. Any
other result is what pydata/sparse gives: a ``sparse.COO``, or an array of NumPy's.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np

from ..input import coercion
from . import reductions

#: What reduces axes: its results are dense here, as those of ``A.sum(axis)`` are.
REDUCES = {np.prod, np.nansum, np.nanprod, np.nanmean, np.nanmax, np.nanmin}
#: Its results of less than two dimensions, and those with a dense operand, are dense here, as those of ``A @ x`` are.
CONTRACTS = {np.einsum, np.tensordot}


def offers(function: Any) -> bool:
    """Whether pydata/sparse has a function of NumPy's."""
    return function.__module__ == "numpy" and _theirs(function) is not None


def call(array: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """NumPy's `function` by pydata/sparse; the result goes back to the class and device of `array`, one of the arguments.

    Raises
    ------
    TypeError, ValueError
        pydata/sparse does not take these arguments.
    """
    try:
        if function in CONTRACTS:  # pydata/sparse compiles these, and Numba has no float16
            args = tuple(value.astype(np.float32) if getattr(value, "dtype", None) == np.float16 else value for value in args)
        args, kwargs = _by_name(function, args, kwargs)
        out, axis = kwargs.pop("out", None), kwargs.get("axis", -1)
        if function in (np.nanmax, np.nanmin) and not reductions._count(array, reductions._axis(kwargs.get("axis"))):
            raise ValueError("zero-size array to reduction operation which has no identity")
        if function is np.sort and axis is not None and not array.size:
            return array
        if function is np.sort and axis is None:  # pydata/sparse has no such axis
            args, kwargs = (array.tocoo().reshape(-1),), kwargs | {"axis": -1}
        with np.errstate(all="ignore"):
            result = _theirs(function)(*map(_sent, args), **{name: _sent(value) for name, value in kwargs.items()})
    except _refusals() as error:  # which is called where there is one
        words = str(error).partition("\n")[0].rstrip(".")
        is_value = isinstance(error, ValueError) and "fill value" not in words  # what would be dense is a TypeError
        kind = ValueError if is_value else TypeError
        name = f"numpy.{function.__name__} of {type(array).__name__}"
        raise kind(f"{name}, by pydata/sparse: {words}. Call todense() first") from error
    if function is np.nanmean:  # pydata/sparse divides by 64-bit counts
        result = result.astype(kwargs.get("dtype") or np.zeros(1, array.dtype).mean().dtype)
    if function in REDUCES or (function in CONTRACTS and (result.ndim < 2 or any(map(_is_dense, args)))):
        result = result.todense() if hasattr(result, "todense") else result
    found = _returned(array, result)
    if out is None:
        return found
    with array._target.use():
        reductions._checked_out(array, out, found.shape, found.dtype)[...] = found
    return out


def _is_dense(value: Any) -> bool:
    return hasattr(value, "__array_interface__") or hasattr(value, "__cuda_array_interface__")


def _refusals() -> tuple[type[Exception], ...]:
    """What pydata/sparse raises for arguments that it does not take."""
    from numba.core.errors import NumbaError

    return TypeError, ValueError, AttributeError, KeyError, AssertionError, RuntimeError, NumbaError


@cache
def _theirs(function: Any) -> Any:
    import sparse

    found = getattr(sparse, function.__name__, None)
    return found if callable(found) else None


def _by_name(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with all but the first by name: pydata/sparse has them in another order."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C, as numpy.where
        return args, kwargs
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds or not args:
        return args, kwargs
    named: dict[str, Any] = {}
    for name, value in list(signature.bind(*args, **kwargs).arguments.items())[1:]:
        parameter = signature.parameters[name]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif value is not None or parameter.default is not None:
            named[name] = value
    return args[:1], named


def _sent(value: Any) -> Any:
    """An argument as pydata/sparse takes it, in host memory."""
    if isinstance(value, (list, tuple)):
        return type(value)([_sent(part) for part in value])
    if coercion.is_ours(value):
        coo = value.tocoo()
        return coo if coo.data.all() else value.eliminate_zeros().tocoo()  # its unique_counts counts stored zeros apart
    if coercion.package(value) in ("scipy", "cupyx"):
        import sparse

        return sparse.COO.from_scipy_sparse(value.get() if hasattr(value, "get") else value)
    return value.get() if coercion.package(value) == "cupy" else value


def _returned(array: Any, result: Any) -> Any:
    """A result of pydata's as an array of the class and device of `array`, where it can be one."""
    target = array._target
    if isinstance(result, (list, tuple)):
        parts = [_returned(array, part) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    if hasattr(result, "fill_value"):
        is_ours = result.ndim == 2 and result.fill_value == 0 and result.dtype.kind in "biufc"
        return array._like(coercion.move(coercion.as_csr(result), target)) if is_ours else result
    if not isinstance(result, (np.ndarray, np.generic)):
        return result
    with target.use():
        result = target.xp.asarray(result)
    return result if result.ndim or target.kind == "cuda" else result[()]
