"""NumPy's protocols as tables: which ufunc and which function means what for a sparse array.

What stands in no table raises and names the remedy; nothing is ever densified behind the user's back.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _matmul(array: Any, left: Any, right: Any, out: tuple[Any, ...] = ()) -> Any:
    if left is not array:
        raise TypeError(f"x @ {type(array).__name__} is not offered yet. Use A.tocsr().T @ x")
    return array.matvec(right, *out)


#: ufunc -> rule(array, *inputs, out=)
UFUNCS = {np.matmul: _matmul}

#: NumPy function -> rule(array, *args, **kwargs)
FUNCTIONS = {
    np.dot: lambda array, left, right, out=None: _matmul(array, left, right, () if out is None else (out,)),
    np.shape: lambda array, _: array.shape,
    np.ndim: lambda array, _: array.ndim,
    np.size: lambda array, _: array.size,
}


def apply_ufunc(array: Any, ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__array_ufunc__`` of both formats."""
    if not all(_is_plain(value) or type(value) is type(array) for value in inputs):
        return NotImplemented
    rule = UFUNCS.get(ufunc) if method == "__call__" else None
    if rule is None or set(kwargs) - {"out"}:
        raise TypeError(f"numpy.{ufunc.__name__} is not offered for {type(array).__name__}. Call todense() or tocsr() first")
    return rule(array, *inputs, **kwargs)


def apply_function(array: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__array_function__`` of both formats."""
    rule = FUNCTIONS.get(function)
    if rule is None:
        raise TypeError(f"numpy.{function.__name__} is not offered for {type(array).__name__}. Call todense() or tocsr() first")
    return rule(array, *args, **kwargs)


def is_ours_to_multiply(other: Any) -> bool:
    """Whether ``A @ other`` is this package's to answer, if only with a better error, and not `other`'s own."""
    return _is_plain(other) or type(other).__module__.partition(".")[0] in ("scipy", "cupyx", "sparse", "cvrarray")


def _is_plain(value: Any) -> bool:
    """A NumPy or CuPy array, a sequence or a scalar: no class with rules of its own."""
    return (
        isinstance(value, (np.ndarray, np.generic, list, tuple, int, float, complex, str, type(None)))
        or type(value).__module__.partition(".")[0] == "cupy"
    )
