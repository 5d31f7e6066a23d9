"""Elementwise functions of a store: recorded as steps, and applied to each panel when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import numpy as np

from ..array.base import SparseArray
from ..array.elementwise import DenseResultError
from ..core import devices
from ..input import coercion

#: Functions that take a dense operand: whatever it holds, entries that are not stored stay 0.
_OF_DENSE = {np.multiply, np.divide}


class Cast(NamedTuple):
    """``panel.astype(dtype)``."""

    dtype: np.dtype

    def __call__(self, panel: SparseArray, first: int, last: int) -> Any:
        return panel.astype(self.dtype)

    def __str__(self) -> str:
        return f"astype({self.dtype})"


class Apply(NamedTuple):
    """``ufunc(*operands)``: the panel replaces Ellipsis, and dense operands are cut to its rows."""

    ufunc: np.ufunc
    operands: tuple[Any, ...]
    keywords: dict[str, Any]

    def __call__(self, panel: SparseArray, first: int, last: int) -> Any:
        inputs = (panel if value is ... else _rows(value, first, last) for value in self.operands)
        return panel.__array_ufunc__(self.ufunc, "__call__", *inputs, **self.keywords)

    def __str__(self) -> str:
        return self.ufunc.__name__


Step = Cast | Apply


class Functions:
    """NumPy's elementwise functions of a store: each returns a store with one more step."""

    path: str
    _target: devices.Device

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        raise NotImplementedError

    def _with(self, step: Step) -> Self:
        raise NotImplementedError

    def astype(self, dtype: Any, *, copy: bool = True) -> Self:
        """The matrix with values of another dtype: panels are cast when they are read.

        Parameters
        ----------
        dtype : bool, an integer, float16, float32, float64, complex64 or complex128
        copy : ignored; NumPy has it

        Raises
        ------
        TypeError
            Values of the dtype cannot be stored.

        Examples
        --------
        >>> cvrarray.Stored(path, device="cpu").astype("float32").dtype.name
        'float32'
        """
        return self._with(Cast(coercion.check_dtype(dtype)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if ufunc is np.matmul and method == "__call__" and not keywords:
            left, right = inputs
            return self @ right if left is self else self.__rmatmul__(left)  # type: ignore[attr-defined]
        if any(type(value).__module__.startswith("dask.") for value in inputs):
            return NotImplemented
        if method != "__call__" or keywords.keys() - {"dtype", "casting"}:
            what = f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method}"
            raise TypeError(f"{what} of a Stored is not offered with {', '.join(keywords) or method}. Use panel(k), or Dask")
        operands = tuple(... if value is self else value for value in inputs)
        return self._with(apply(ufunc, operands, self.shape, self._target, keywords))

    if TYPE_CHECKING:  # set by the loop below; add, sub and reflected division, which raise, are left out

        def __mul__(self, other: Any, /) -> Self: ...
        def __rmul__(self, other: Any, /) -> Self: ...
        def __truediv__(self, other: Any, /) -> Self: ...
        def __floordiv__(self, other: Any, /) -> Self: ...
        def __mod__(self, other: Any, /) -> Self: ...
        def __pow__(self, other: Any, /) -> Self: ...
        def __lt__(self, other: Any, /) -> Self: ...
        def __le__(self, other: Any, /) -> Self: ...
        def __gt__(self, other: Any, /) -> Self: ...
        def __ge__(self, other: Any, /) -> Self: ...

    def __eq__(self, other: Any) -> Any:
        return _compared(np.equal, self, other)

    def __ne__(self, other: Any) -> Any:
        return _compared(np.not_equal, self, other)

    __hash__ = object.__hash__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TypeError(
            "a Stored does not become dense by itself. Use A.sum(axis), cvrarray.linalg.mean_var(A) for means and variances, "
            "or panel(k).todense() of each panel"
        )

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(
            "a Stored has no indexing: rows and columns are chosen on the way to another store. Use "
            f"cvrarray.to_store(cvrarray.open_store({self.path!r})[:, columns], other), or index each panel(k)"
        )

    def __bool__(self) -> bool:
        raise ValueError("the truth of a Stored is that of many entries. Use A.nnz or A.sum()")

    def __neg__(self) -> Self:
        return self._with(Apply(np.negative, (...,), {}))

    def __abs__(self) -> Self:
        return self._with(Apply(np.absolute, (...,), {}))


def _compared(ufunc: np.ufunc, store: Functions, other: Any) -> Any:
    """Elementwise with numbers and dense arrays; anything else, another store too, is equal if it is the same object."""
    return store.__array_ufunc__(ufunc, "__call__", store, other) if _is_dense(other) else NotImplemented


def _is_dense(value: Any) -> bool:
    """Whether `value` is a number or a dense array."""
    return coercion.package(value) in ("numpy", "cupy") or isinstance(value, int | float | complex)


def _operator(ufunc: np.ufunc) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``A op other`` and ``other op A``."""

    def forward(self: Functions, other: Any) -> Any:
        return self.__array_ufunc__(ufunc, "__call__", self, other)

    def reflected(self: Functions, other: Any) -> Any:
        return self.__array_ufunc__(ufunc, "__call__", other, self)

    return forward, reflected


for _name, _ufunc in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power,
}.items():  # fmt: skip
    for _prefix, _method in zip(("__", "__r"), _operator(_ufunc), strict=True):
        setattr(Functions, f"{_prefix}{_name}__", _method)
for _name, _ufunc in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}.items():
    setattr(Functions, f"__{_name}__", _operator(_ufunc)[0])


def checked(step: Step, first_row: SparseArray) -> Any:
    """`step` of the first row; DenseResultError where 0 would not stay 0."""
    try:
        return step(first_row, 0, first_row.shape[0])
    except DenseResultError as error:
        reason, _, _ = str(error).partition(". Call todense()")
        raise DenseResultError(
            f"{reason}. A store has sparse results only: apply it to panel(k).todense() of each panel"
        ) from None


def _rows(value: Any, first: int, last: int) -> Any:
    """Rows ``first .. last - 1`` of a dense operand; a single row and a scalar broadcast, so they stay whole."""
    return value[first:last] if getattr(value, "ndim", 0) == 2 and value.shape[0] != 1 else value


def apply(
    ufunc: np.ufunc, operands: tuple[Any, ...], shape: tuple[int, int], device: devices.Device, keywords: dict[str, Any]
) -> Apply:
    """The step ``ufunc(*operands)`` for a store of `shape`, in place of which is Ellipsis. Dense operands are copied.

    Raises
    ------
    TypeError
        An operand is neither a number nor a dense array, or the function takes no dense one.
    ValueError
        An operand does not broadcast to the shape.
    """
    if sum(value is ... for value in operands) > 1:
        raise TypeError(f"numpy.{ufunc.__name__} of a store and itself is not offered. Use numpy.square or 2 * A, or panel(k)")
    taken = []
    for value in operands:
        if isinstance(value, list | tuple):
            value = device.xp.asarray(value)
        if value is not ... and not _is_dense(value):
            raise TypeError(f"an operand of a store must be a number or a dense array; got {type(value).__name__}")
        if value is not ... and np.ndim(value):
            if ufunc not in _OF_DENSE:
                raise TypeError(
                    f"numpy.{ufunc.__name__} of a store and a dense array is not offered: only multiply and divide are. "
                    "Apply it to each panel(k)"
                )
            if value.ndim > 2 or any(n not in (1, m) for n, m in zip(value.shape[::-1], shape[::-1], strict=False)):
                raise ValueError(f"an operand must broadcast to the store's shape, {shape}; got shape {value.shape}")
        taken.append(value.copy() if hasattr(value, "copy") else value)
    return Apply(ufunc, tuple(taken), keywords)
