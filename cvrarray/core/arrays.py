"""Types of arguments and results: dense arrays of either device, products, file names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

#: A dense array on some device: ``numpy.ndarray`` or ``cupy.ndarray``.
DenseArray: TypeAlias = Any

#: ``numpy.ndarray`` of any shape and dtype.
NumpyArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

Dense = TypeVar("Dense", bound=Any)
Path: TypeAlias = "str | os.PathLike[str]"

#: Rules of ``numpy.can_cast``.
Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]

#: ``run(x, y, alpha, beta)``: a prepared product, ``y = alpha * A @ x + beta * y``.
Run: TypeAlias = "Callable[[Any, Any, Any, Any], None]"
