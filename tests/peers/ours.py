"""Our arrays in the places of a peer's: one way to make them for each kind, callable like the peer's class.

``Ours`` takes what SciPy's and pydata's constructors take. An array of one or of three dimensions is skipped: it is out
of scope, and where it is made is the first place that knows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import cvrarray


class _Named(type):
    """A class whose instances are arrays of ours that were made in one way."""

    def __instancecheck__(cls, value: Any) -> bool:
        return hasattr(value, "_canonical_csr")


class Ours(metaclass=_Named):
    """The base of the three; ``Ours(...)`` is an array of ours, never of this class."""

    def __new__(cls, arg: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("fill_value", 0) != 0 or getattr(arg, "fill_value", 0) != 0:
            return Absent("ours have fill value 0")
        if not has_two_dimensions(arg):
            return Absent("ours have two dimensions")
        return cls.made(arg, *args, **kwargs)

    @classmethod
    def made(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def from_numpy(cls, x: Any, fill_value: Any = 0, **_: Any) -> Any:
        return cls(x, fill_value=0 if fill_value is None else fill_value)

    from_scipy_sparse = from_coo = from_numpy


class Cvr(Ours):
    made = cvrarray.CVRArray


class Bbcsr(Ours):
    made = cvrarray.BBCSRArray


class Transposed(Ours):
    @classmethod
    def made(cls, *args: Any, **kwargs: Any) -> Any:
        return cvrarray.CVRArray(*args, **kwargs).T.copy().T


KINDS = {"cvr": Cvr, "bbcsr": Bbcsr, "transposed": Transposed}


class Absent:
    """An array that ours cannot be: what uses it is skipped. Some are made where no test runs yet."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest looks for a name
            raise AttributeError(name)
        pytest.skip(self._reason)

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        pytest.skip(self._reason)

    def __array_function__(self, *args: Any, **kwargs: Any) -> Any:
        pytest.skip(self._reason)

    def _skip(self, *args: Any) -> Any:
        pytest.skip(self._reason)

    __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __matmul__ = __getitem__ = __setitem__ = __abs__ = __neg__ = _skip
    __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __gt__ = __lt__ = __ge__ = __le__ = __len__ = __iter__ = _skip


def has_two_dimensions(arg: Any) -> bool:
    return (getattr(arg, "ndim", 2) if not isinstance(arg, list) else np.ndim(arg)) == 2


def is_matrix(value: Any) -> bool:
    """Whether it is a matrix that could be an array of ours, and is none yet."""
    if not (scipy.sparse.issparse(value) or type(value) is np.ndarray):
        return False
    return (
        value.ndim == 2
        and value.dtype.kind in "biufc"
        and value.dtype.itemsize in (1, 2, 4, 8, 16)
        and value.dtype.char not in "gG"
    )
