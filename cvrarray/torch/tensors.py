"""Tensors as arrays of NumPy and CuPy, arrays as numbers: what the operators share.

An operator takes tensors and numbers alone: an array is its number to it, under which the operator finds it while it lives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, reduce
from typing import Any

import numpy as np
import torch
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from ..array.base import SparseArray
from ..array.format import LIVING
from ..array.transposed import TransposedArray
from ..core import devices

_OPERATORS = torch.library.Library("cvrarray", "DEF")


def _number(A: Any) -> int:
    """The number under which an operator finds an array while it lives; negative for a transposed view."""
    if not isinstance(A, SparseArray):
        raise TypeError(f"A must be an array of ours; got {type(A).__name__}. Use cvrarray.asarray")
    base: Any = A.base if isinstance(A, TransposedArray) else A
    number: int = base._number
    return number if base is A else -number


def _array(number: int) -> Any:
    """The array or preconditioner of a number, or of a negative one the array's transposed view."""
    array = LIVING.get(abs(number))
    if array is None:
        raise RuntimeError(
            "the array of this product is gone. Keep it as long as its gradients, or its compiled code, are used"
        )
    return array if number > 0 else array.T


def _version(A: Any) -> Any:
    """How often the values of an array, or of the one that a view shows, were replaced in place."""
    return getattr(getattr(A, "base", A), "_version", 0)


def _check_version(ctx: Any, values: torch.Tensor | None) -> None:
    """RuntimeError if the array's own values count and are not those of the forward pass; PyTorch checks `values`."""
    if values is None and (version := _version(ctx.array)) != ctx.version:
        raise RuntimeError(
            "a value needed for the gradient was modified in place: the array's values must be those of the forward pass, of"
            f" version {ctx.version}; got version {version}. Call backward() before with_values(out=A), or pass values"
        )


# ------------------------------------------------------------------------------------------------------- operators


# Names of PyTorch's own, which may go in any version, are quicker than the public way: to use `autograd.Function` always.
_are_functions_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def _are_transformed() -> bool:
    """Whether vmap, torch.func.grad, forward-mode derivatives or the like are at work, of which operators know nothing."""
    return _are_functions_transformed() or _is_forward_mode()


def _is_forward_mode() -> bool:
    level: int = getattr(forward_ad, "_current_level", 0)
    return level >= 0


def _operator(
    schema: str, computed: Callable[..., Any], shape: Callable[..., Any], keep: Any, back: Any, ahead: Any, mapped: Any
) -> Callable[..., torch.Tensor]:
    """The operator that `computed` computes of tensors that have memory, registered, as a function that every transform of
    PyTorch's takes.

    ``shape(*inputs)`` is an empty tensor like its output; ``keep(ctx, inputs, output)`` and ``back(ctx, gradient)`` are its
    gradient's, ``ahead(ctx, *tangents)`` is forward mode's, ``mapped(info, dims, *inputs)`` is ``torch.func.vmap``'s.
    """
    name = schema.partition("(")[0]
    _OPERATORS.define(schema)
    for kind in ("CPU", "CUDA"):
        _OPERATORS.impl(name, computed, kind)

    def traced(*inputs: Any) -> Any:
        if _is_forward_mode():  # is_compiling() is False here in PyTorch 2.11
            raise NotImplementedError(
                f"torch.compile would drop the tangents of {name}. Compile the function alone, or use reverse mode"
            )
        return shape(*inputs)

    torch.library.register_fake(f"cvrarray::{name}", traced, lib=_OPERATORS)
    torch.library.register_autograd(f"cvrarray::{name}", back, setup_context=keep, lib=_OPERATORS)
    torch.library.register_vmap(f"cvrarray::{name}", mapped, lib=_OPERATORS)
    registered = getattr(torch.ops.cvrarray, name)

    class Function(torch.autograd.Function):  # type: ignore[misc]
        """The same for ``torch.func``, of which what is registered knows nothing."""

        forward, setup_context, backward, jvp, vmap = map(staticmethod, (registered, keep, back, ahead, mapped))

    def call(*inputs: Any) -> torch.Tensor:
        is_for_functions = not torch.compiler.is_compiling() and _are_transformed()
        result: torch.Tensor = Function.apply(*inputs) if is_for_functions else registered(*inputs)
        return result

    return call


def _tangent(*terms: torch.Tensor | None) -> torch.Tensor:
    """The sum of a tangent's terms; None stands for those of operands that have no tangent."""
    if getattr(eager_transforms, "JVP_NESTING", 0) > 1:
        raise NotImplementedError(
            "a forward-mode derivative of a forward-mode derivative would be 0, as PyTorch drops tangents within an"
            " autograd.Function. Use torch.func.jacrev for one of the two, or torch.func.hessian"
        )
    return reduce(torch.add, [term for term in terms if term is not None])


def _each(operator: Callable[..., torch.Tensor], info: Any, dims: Any, *args: Any) -> tuple[torch.Tensor, int]:
    """What maps an operator: a call for each."""
    if not info.batch_size:
        raise ValueError("vmap over values, X or Y needs a batch of 1 or more; got 0. Leave the call out")
    of = (
        operator(*(a if dim is None else a.select(dim, k) for a, dim in zip(args, dims, strict=True)))
        for k in range(info.batch_size)
    )
    return torch.stack(list(of)), 0


def _of_columns(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function` of a stack (..., n, k), as of one matrix with all of its columns."""
    x = x.movedim(-2, 0)
    y = function(x.flatten(1))
    return y.reshape(y.shape[0], *x.shape[1:]).movedim(0, -2)


# ---------------------------------------------------------------------------------------------------- tensors as arrays


_NUMPYS = {
    getattr(torch, name): np.dtype(name)
    for name in "bool int8 int16 int32 int64 uint8 float16 float32 float64 complex64 complex128".split()
}
_TORCHS = {theirs: ours for ours, theirs in _NUMPYS.items()}
_SOLVED = (torch.float32, torch.float64, torch.complex64, torch.complex128)  #: what solves are computed in
_NULL = nullcontext()


def _check_unconverged(unconverged: str) -> None:
    if unconverged not in ("raise", "warn"):
        raise ValueError(f"unconverged must be 'raise' or 'warn'; got {unconverged!r}")


def _did_not_converge(message: str, unconverged: str) -> None:
    """Raise, or warn of, a solve that did not converge."""
    if unconverged == "raise":
        raise torch.linalg.LinAlgError(f"{message}. For a warning pass unconverged='warn'")
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _check(A: Any, x: Any, values: Any, name: str = "x") -> None:
    """TypeError or ValueError unless the operands fit; nothing here waits for a GPU."""
    _check_tensor(A, x, name)
    shape, n = x.shape, A.shape[1]
    if not shape or shape[-2:][0] != n:
        raise ValueError(f"{name} must have shape ({n},), ({n}, k) or (..., {n}, k) for shape {A.shape}; got {tuple(shape)}")
    if values is not None:
        _check_tensor(A, values, "values")
    dtype, of = (_own_dtype(A), "A") if values is None else (values.dtype, "values")
    _check_dtype(dtype, of, x, name)
    if values is not None and values.shape != (A.nnz,):
        raise ValueError(f"values must have shape ({A.nnz},), one for each entry of A.data; got {tuple(values.shape)}")


def _check_dtype(dtype: torch.dtype, of: str, x: torch.Tensor, name: str = "x") -> None:
    """TypeError unless x has the dtype of its product with the values of `of`, which have `dtype`."""
    if dtype == x.dtype or (wanted := torch.promote_types(dtype, x.dtype)) == x.dtype:
        return
    remedy = f"{name}.to({wanted})"
    if x.is_complex() or (x.is_floating_point() and not dtype.is_complex):  # else the values would lose a part
        casts = {"A": f"A.astype('{_NUMPYS[x.dtype]}')", "S": f"a stack of {x.dtype}"}
        remedy += f", or {casts.get(of, f'{of}.to({x.dtype})')}"
    raise TypeError(f"{name} must have a dtype that holds the product with {of}, of dtype {dtype}; got {x.dtype}. Use {remedy}")


def _own_dtype(A: Any) -> torch.dtype:
    """PyTorch's dtype of the array's own values."""
    if A.dtype not in _TORCHS:
        raise TypeError(f"A must have a dtype that PyTorch computes with; got {A.dtype}. Use A.astype('float64')")
    return _TORCHS[A.dtype]


def _check_tensor(A: Any, tensor: Any, name: str) -> None:
    """TypeError unless it is a dense tensor on the array's device, of a dtype that our arrays have."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}. Use torch.as_tensor")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor; got {tensor.layout}. Use {name}.to_dense()")
    if tensor.dtype not in _NUMPYS:
        least = torch.complex64 if tensor.is_complex() else torch.float32
        dtype = torch.promote_types(_TORCHS.get(A.dtype, least), least)  # that of A's product with it
        raise TypeError(f"{name} must be of dtype {', '.join(map(str, _TORCHS))}; got {tensor.dtype}. Use {name}.to({dtype})")
    if not _is_at_home(A._target, tensor.device):
        raise TypeError(f"{name} must be on the array's device, {A.device}; got {tensor.device}. Use A.to_device, or .to()")


@cache
def _is_at_home(target: devices.Device, device: torch.device) -> bool:
    """Whether a tensor on `device` is where an array on `target` is."""
    return target == (devices.CPU if device.type == "cpu" else devices.Device(device.type, device.index or 0))


def _view(tensor: torch.Tensor) -> Any:
    """A tensor's memory as an array of NumPy or CuPy, or a copy where it is not contiguous."""
    if tensor.is_complex() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    index = tensor.get_device()
    if index < 0:
        view = (tensor.detach() if tensor.requires_grad else tensor).numpy()
        return view if view.flags.carray else view.copy()
    cupy = devices._cuda_module()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), tensor.nbytes, tensor, index)
    return cupy.ndarray(tuple(tensor.shape), _NUMPYS[tensor.dtype], cupy.cuda.MemoryPointer(memory, 0))


# A name of PyTorch's own, which may go in any version, is quicker than making an object of a stream.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)


def _on_stream(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """CuPy's current device is the tensor's, and its current stream is PyTorch's."""
    index = tensor.get_device()
    if index < 0:
        return _NULL
    cuda = devices._cuda_module().cuda
    stream = _raw_stream(index)
    if cuda.runtime.getDevice() == index and cuda.get_current_stream().ptr == stream:
        return _NULL
    return _on(index, stream)


@contextmanager
def _on(index: int, stream: int) -> Iterator[None]:
    cuda = devices._cuda_module().cuda
    with cuda.Device(index), _external(cuda, stream, index):
        yield


class _Foreign:
    """A stream of another library, by the CUDA stream protocol."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


def _external(cuda: Any, stream: int, index: int) -> Any:
    """The stream as CuPy's; older versions know no protocol."""
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(_Foreign(stream))
    return cuda.ExternalStream(stream, index)
