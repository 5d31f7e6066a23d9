"""What A and M may be: everything is checked here, before anything runs, and offers one kind of product afterwards.

That is ``matvec(x, out=)`` for vectors and ``matmat(X, out=)`` for matrices, as our arrays have them: x and out are
contiguous, of one dtype, on one device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..array.base import SparseArray
from ..array.stack import Stack
from ..choice.construct import asarray
from ..core import devices
from ..input import coercion

SINGLE = {np.dtype(np.float32), np.dtype(np.complex64)}


class Operator:
    """Anything that multiplies as an operator that writes to ``out``: see :func:`operator`.

    Parameters
    ----------
    shape : (n_rows, n_cols)
    dtype : of the matrix
    multiply, multiply_matrix : function(x, out)
        The second one is for (n_cols, k); without it columns are multiplied one by one.
    adjoint : function(x, out), optional
        By the conjugate transpose, of vectors.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype,
        multiply: Callable[[Any, Any], Any],
        multiply_matrix: Callable[[Any, Any], Any] | None = None,
        adjoint: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._multiply, self._multiply_matrix, self._adjoint = multiply, multiply_matrix, adjoint

    def matvec(self, x: Any, out: Any) -> Any:
        """``out = A @ x`` for vectors."""
        self._multiply(x, out)
        return out

    def matmat(self, x: Any, out: Any) -> Any:
        """``out = A @ X`` for matrices in C order."""
        if self._multiply_matrix is not None:
            self._multiply_matrix(x, out)
            return out
        for column in range(x.shape[1]):
            y = out[:, column].copy()
            self._multiply(x[:, column].copy(), y)
            out[:, column] = y
        return out

    def rmatvec(self, x: Any, out: Any) -> Any:
        """``out = A.H @ x`` for vectors."""
        if self._adjoint is None:
            raise TypeError("A must have rmatvec, the product with its conjugate transpose. Define it, or use an array")
        self._adjoint(x, out)
        return out


def operator(A: Any, device: devices.Device, name: str = "A") -> Any:
    """`A` as an array of ours, which it stays, or as an :class:`Operator` for vectors on `device`.

    Sparse matrices of other packages become an array of ours, which costs a few products.

    Raises
    ------
    TypeError
        `A` is nothing that multiplies, lies on another device, or has a dtype that is not numeric.
    """
    if isinstance(A, Operator):
        return A
    if isinstance(A, SparseArray):
        if A._target != device:
            raise TypeError(f"{name} must be on the device of b, {device}; got {A.device}. Use {name}.to_device, or move b")
        numeric(A.dtype, name)
        return A
    if coercion.package(A) in coercion.SPARSE_PACKAGES and not hasattr(A, "matvec"):
        numeric(A.dtype, name)
        _same_kind("cuda" if coercion.package(A) == "cupyx" else "cpu", device, A, name)
        return operator(asarray(A, device=str(device)), device, name)
    if isinstance(A, Stack):
        raise TypeError(f"{name} must be one matrix; got a Stack, which only cg solves with. Use S[i]")
    if isinstance(A, device.xp.ndarray):
        return _dense(A, device, name)
    if callable(getattr(A, "matvec", None)) and hasattr(A, "shape"):
        return _from_methods(A, device, name)
    if hasattr(A, "dtype"):
        _same_kind(devices.of(A).kind, device, A, name)
    if device.kind == "cpu" and not hasattr(A, "shape") and np.ndim(A) == 2:
        return _dense(np.asarray(A), device, name)
    raise TypeError(
        f"{name} must be an array of ours, a matrix, or have shape, dtype and matvec(x, out=); got {type(A).__name__}"
    )


def _same_kind(kind: str, device: devices.Device, A: Any, name: str) -> None:
    if kind != device.kind:
        where = "on a GPU" if kind == "cuda" else "in host memory"
        raise TypeError(f"{name} must be on the device of b, {device}; got a {type(A).__name__} {where}. Move one of them")


def _dense(A: Any, device: devices.Device, name: str) -> Operator:
    xp = device.xp
    if isinstance(A, np.ma.MaskedArray):
        raise TypeError(f"{name} must hold all its values; got a masked array. Use {name}.filled(0)")
    A = xp.asarray(A)
    numeric(A.dtype, name)
    if A.ndim != 2:
        raise ValueError(f"{name} must be a matrix (2-D); got shape {A.shape}")
    if A.dtype.kind not in "fc" or A.dtype.itemsize < 4:
        A = A.astype(np.float64)
    adjoint = A.conj().T

    def multiply(x: Any, out: Any) -> None:
        if np.can_cast(np.result_type(A.dtype, x.dtype), out.dtype):
            xp.matmul(A, x, out=out)
        else:  # a preconditioner in double for vectors in single precision
            out[...] = A @ x

    return Operator(A.shape, A.dtype, multiply, multiply, lambda x, out: out.__setitem__(..., adjoint @ x))


def _from_methods(A: Any, device: devices.Device, name: str) -> Operator:
    shape = tuple(A.shape)
    if len(shape) != 2:
        raise ValueError(f"{name} must be a matrix (2-D); got shape {shape}")
    dtype = getattr(A, "dtype", None)
    dtype = np.dtype(np.float64 if dtype is None else dtype)
    numeric(dtype, name)
    matmat = getattr(A, "matmat", None)
    rmatvec = getattr(A, "rmatvec", None)
    return Operator(
        (int(shape[0]), int(shape[1])),
        dtype,
        _writing(A.matvec, device, name),
        _writing(matmat, device, name) if callable(matmat) else None,
        _writing(rmatvec, device, name) if callable(rmatvec) else None,
    )


def _writing(method: Callable[..., Any], device: devices.Device, name: str) -> Callable[[Any, Any], None]:
    """``function(x, out)`` from a method that takes out, or returns the product."""
    if _takes_out(method):

        def call(x: Any, out: Any) -> None:
            result = method(x, out=out)
            if result is not None and result is not out:
                _copy(result, out)
    else:

        def call(x: Any, out: Any) -> None:
            _copy(method(x), out)

    def _copy(result: Any, out: Any) -> None:
        if devices.of(result).kind != device.kind:
            raise TypeError(f"a product with {name} must be on the device of b, {device}; got {type(result).__name__}")
        result = device.xp.asarray(result)
        if result.size != out.size:
            raise ValueError(f"a product with {name} must have shape {out.shape}; got {result.shape}")
        if result.dtype.kind == "c" and out.dtype.kind != "c":
            raise TypeError(f"a product with {name} is complex, but its dtype and b's are real. Give {name} its dtype")
        out[...] = result.reshape(out.shape)

    return call


def _takes_out(method: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False
    return "out" in parameters


def numeric(dtype: Any, name: str) -> None:
    """Raise TypeError unless `dtype` is one that a solver computes with, or promotes to such a one."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise TypeError(f"{name} must be of a numeric dtype, at most complex128; got {dtype}. Use astype('float64')")


def vector_dtype(*dtypes: Any) -> np.dtype:
    """The dtype that vectors have: single precision where all are; integers, bool and float16 count as float64, as in
    SciPy.
    """
    wide = [dtype if dtype.kind in "fc" and dtype.itemsize >= 4 else np.dtype(np.float64) for dtype in map(np.dtype, dtypes)]
    return np.result_type(*wide)


def dense_vector(value: Any, name: str, device: devices.Device | None = None) -> Any:
    """`value` as a dense numeric NumPy or CuPy array, on `device` where that is given."""
    package = coercion.package(value)
    if package in coercion.SPARSE_PACKAGES or isinstance(value, SparseArray):
        raise TypeError(f"{name} must be dense; got {type(value).__name__}. Use {name}.todense()")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must hold all its values; got a masked array. Use {name}.filled(0)")
    here = devices.of(value)
    array = value if here.kind == "cuda" else np.asarray(value)
    if device is not None and here != device:
        raise TypeError(f"{name} must be on the device of A, {device}; got {here}. Use cupy.asarray({name}), or {name}.get()")
    numeric(array.dtype, name)
    devices.check_aligned(array, name)
    return array


def check_out(out: Any, like: Any, name: str, device: devices.Device) -> None:
    """Raise unless what is like `like`, and made of it, can be written to `out`."""
    if devices.of(out) != device or not hasattr(out, "flags"):
        raise TypeError(f"out must be on the device of A, {device}; got {type(out).__name__} on {devices.of(out)}")
    if out.shape != like.shape or out.dtype != like.dtype or not out.flags.c_contiguous:
        wanted = f"contiguous, of shape {like.shape} and dtype {like.dtype}"
        raise ValueError(f"out must be {wanted}; got {out.shape} and {out.dtype}, with strides {out.strides}")
    if not getattr(out.flags, "writeable", True):
        raise ValueError("out must be writeable; it is read-only. Pass a copy")
    devices.check_aligned(out, "out")
    if device.may_share_memory(out, like):
        raise ValueError(f"out must not share memory with {name}, which is read until the end. Pass another array")


def device_of(A: Any, b: Any) -> devices.Device:
    """Where a system lives: where A does, if A says so, else where b does."""
    if isinstance(A, SparseArray):
        return A._target
    here = devices.of(A)
    return here if here.kind == "cuda" else devices.of(b)


def check_square(shape: tuple[int, ...], name: str = "A") -> int:
    """n of (n, n)."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{name} must be square; got shape {tuple(shape)}. For least squares use cvrarray.linalg.lsmr")
    return int(shape[0])


def multiply(matrix: Any, x: Any, out: Any) -> Any:
    """``out = matrix @ x`` for a vector or a matrix."""
    return matrix.matvec(x, out) if x.ndim == 1 else matrix.matmat(x, out)


def is_on_disk(A: Any) -> bool:
    """Whether A is a Stored, which gives its diagonal and no other entries."""
    return not isinstance(A, SparseArray) and hasattr(A, "_target") and hasattr(A, "diagonal")


def diagonal_source(A: Any, name: str = "M") -> Any:
    """An array of ours, whose entries can be read, for a matrix of any package, on its own device."""
    if isinstance(A, SparseArray):
        numeric(A.dtype, "A")
        return A
    is_dense = hasattr(A, "__array__") or hasattr(A, "__cuda_array_interface__")
    if coercion.package(A) in coercion.SPARSE_PACKAGES or (is_dense and not is_on_disk(A)):
        is_on_gpu = coercion.package(A) in ("cupyx", "cupy")
        return asarray(A, device=None if is_on_gpu else "cpu")
    raise TypeError(f"{name} needs the entries of A; a {type(A).__name__} only multiplies. Pass an array or a sparse matrix")
