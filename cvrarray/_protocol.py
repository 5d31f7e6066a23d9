"""NumPy's protocols as tables: which ufunc and which function means what for a sparse array.

What stands in no table raises and names the remedy; nothing is ever densified behind the user's back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _csr, _products


def matmul(left: Any, right: Any, out: Any = None) -> Any:
    """``left @ right`` where one or both are sparse arrays of ours; NotImplemented where the other side has its own rules."""
    ours = left if hasattr(left, "_canonical_csr") else right
    other = right if ours is left else left
    if not (_is_plain(other) or _csr.package(other) in _csr.SPARSE_PACKAGES):
        return NotImplemented
    if _csr.package(other) in _csr.SPARSE_PACKAGES:
        raise TypeError(f"a product of two sparse arrays is not offered yet; got {type(other).__name__}")
    return _products.multiply(left, right, out) if ours is left else _products.multiply_left(left, right, out)


#: ufunc -> rule(*inputs, out=)
UFUNCS = {np.matmul: lambda left, right, out=(None,): matmul(left, right, *out)}

#: NumPy function -> rule(*args, **kwargs)
FUNCTIONS = {
    np.dot: lambda a, b, out=None: matmul(a, b, out),
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a: a.size,
}


def apply_ufunc(array: Any, ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__array_ufunc__`` of both formats."""
    if not all(_is_plain(value) or type(value) is type(array) for value in inputs):
        return NotImplemented
    rule = UFUNCS.get(ufunc) if method == "__call__" else None
    if rule is None or set(kwargs) - {"out"}:
        raise TypeError(f"numpy.{ufunc.__name__} is not offered for {type(array).__name__}. Call todense() or tocsr() first")
    return rule(*inputs, **kwargs)


def apply_function(array: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__array_function__`` of both formats."""
    rule = FUNCTIONS.get(function)
    if rule is None:
        raise TypeError(f"numpy.{function.__name__} is not offered for {type(array).__name__}. Call todense() or tocsr() first")
    return rule(*args, **kwargs)


def _is_plain(value: Any) -> bool:
    """A NumPy or CuPy array, a sequence or a scalar: no class with rules of its own."""
    return (
        isinstance(value, (np.ndarray, np.generic, list, tuple, int, float, complex, str, type(None)))
        or type(value).__module__.partition(".")[0] == "cupy"
    )
