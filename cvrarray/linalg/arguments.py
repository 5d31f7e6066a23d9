"""Arguments that all methods share: checked, coerced and scaled before anything runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..array.base import SparseArray
from ..core import devices
from . import operators, preconditioners
from .system import apply

#: Iterations, of which multiples are counted in 64 bits.
MOST = 1 << 48


class Arguments(NamedTuple):
    """A linear system, ready to be solved."""

    matrix: Any  # our array, or an Operator
    preconditioner: Any  # None, one of ours with apply(r, out), or as matrix
    b: Any  # contiguous, (n,) or (n, k), of the vectors' dtype; not written to
    x: Any  # the start, a copy
    device: devices.Device
    has_start: bool = True  # False: x is 0


def system(A: Any, b: Any, x0: Any, M: Any, out: Any = None) -> Arguments:
    """The checked system of a square A; x is `out` where that is given.

    Raises
    ------
    TypeError
        Something is on another device, not dense, or of a dtype that nothing can be computed in.
    ValueError
        Shapes do not fit.
    RuntimeError
        A CUDA graph is being captured, and memory would have to be taken, which replays would write to later.
    """
    device = operators.device_of(A, b)
    matrix = operators.operator(A, device)
    n = operators.check_square(matrix.shape)
    with device.use():
        preconditioner = as_preconditioner(M, A, matrix, device)
        given = right_side(b, n, device)
        dtype = operators.vector_dtype(matrix.dtype, given.dtype)
        b = device.xp.ascontiguousarray(given, dtype)
        if device.is_capturing() and (out is None or b is not given):
            raise RuntimeError(
                f"a solve in a CUDA graph takes no memory: pass out=, and b contiguous and of dtype {dtype}; got {given.dtype}"
            )
        x = start(x0, b, preconditioner, device, out)
    return Arguments(matrix, preconditioner, b, x, device, x0 is not None)


def right_side(b: Any, n: int, device: devices.Device) -> Any:
    """b as an array on the device: (n,) or (n, k)."""
    b = operators.dense_vector(b, "b", device)
    if b.ndim not in (1, 2) or b.shape[0] != n:
        raise ValueError(f"b must have shape ({n},) or ({n}, k) for this A; got {b.shape}")
    return b


def start(x0: Any, b: Any, preconditioner: Any, device: devices.Device, out: Any = None) -> Any:
    """x0 as an array of b's shape and dtype, 0 where there is none: a new one, or `out`."""
    if out is not None:
        operators.check_out(out, b, "b", device)
    x = device.xp.empty_like(b) if out is None else out
    if x0 is None:
        x.fill(0)
        return x
    if isinstance(x0, str):
        if x0 != "Mb":
            raise ValueError(f"x0 must be a vector, None, or 'Mb' for M @ b; got {x0!r}")
        return apply(preconditioner, b, x)
    x0 = operators.dense_vector(x0, "x0", device)
    if x0.shape != b.shape and x0.size == b.size and b.ndim == 1 and x0.ndim == 2:
        x0 = x0.reshape(b.shape)
    if x0.shape != b.shape:
        raise ValueError(f"x0 must have b's shape, {b.shape}; got {x0.shape}")
    if x0.dtype.kind == "c" and b.dtype.kind != "c":
        raise TypeError(f"x0 is complex ({x0.dtype}) and the system is real ({b.dtype}). Use x0.real, or make b complex")
    x[...] = x0
    return x


def as_preconditioner(M: Any, A: Any, matrix: Any, device: devices.Device) -> Any:
    """M as what :func:`cvrarray.linalg.system.apply` takes."""
    if M is None:
        return None
    if isinstance(M, str):
        return preconditioners.named(M, matrix if isinstance(matrix, SparseArray) else A)
    if isinstance(M, preconditioners.Preconditioner):
        if M.device != device:
            raise TypeError(f"M must be on the device of A, {device}; got one on {M.device}. Make it from A, or move A before")
        M = M.frozen()
    if hasattr(M, "apply") and hasattr(M, "shape"):
        found = M
    else:
        found = operators.operator(M, device, "M")
    if tuple(found.shape) != tuple(matrix.shape):
        raise ValueError(f"M must have A's shape, {tuple(matrix.shape)}; got {tuple(found.shape)}")
    if np.dtype(getattr(found, "dtype", matrix.dtype)).kind == "c" and matrix.dtype.kind != "c":
        raise TypeError(f"M is complex ({found.dtype}) and A is real ({matrix.dtype}). Use A.astype('complex128')")
    return found


def tolerance(value: Any, name: str) -> float:
    """A tolerance: a real number from 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, str) or not number >= 0:
        raise ValueError(f"{name} must be a real number from 0; got {value!r}. Leave it out for the default")
    return number


def real(value: Any, name: str) -> float:
    """A real number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if isinstance(value, str) or not np.isfinite(number):
        raise ValueError(f"{name} must be a finite real number; got {value!r}")
    return number


def count(value: Any, name: str, default: int, least: int = 0) -> int:
    """A number of iterations, no more than kernels count."""
    if value is None:
        return default
    try:
        number = least - 1 if isinstance(value, bool | np.bool_) else int(value)
    except (TypeError, ValueError, OverflowError):
        number = least - 1
    if number != value or number < least:
        raise ValueError(f"{name} must be a whole number from {least}; got {value!r}. Leave it out for the default")
    return min(number, MOST)


def norms(vector: Any, device: devices.Device) -> np.ndarray:
    """(columns,) Euclidean norms in host memory; one for a vector. They neither overflow nor underflow."""
    xp = device.xp
    columns = vector[:, None] if vector.ndim == 1 else vector
    wide = np.result_type(columns.dtype, np.float64)
    if not columns.size:
        return np.zeros(columns.shape[1])
    with np.errstate(all="ignore"):
        if device.kind == "cuda":  # one kernel, and no memory of b's size
            from .gpu import vectors

            found = vectors.norms(xp.ascontiguousarray(vector))
        else:
            found = np.linalg.norm(columns.astype(wide, copy=False), axis=0)
        if not ((found > 1e-140) & (found < 1e140)).all():
            largest = xp.maximum(abs(columns.real), abs(columns.imag)).max(axis=0).astype(xp.float64)
            usual = (largest > 0) & (largest < xp.inf)
            scale = xp.exp2(xp.clip(xp.floor(xp.log2(xp.where(usual, largest, 1.0))), -1000, 1000))  # its inverse is finite
            found = devices.move(xp.linalg.norm(columns.astype(wide) * (1 / scale), axis=0) * scale, devices.CPU)
    norms: np.ndarray = found
    return norms
