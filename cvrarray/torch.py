"""PyTorch: ``A @ tensor`` without a copy, and :func:`matmul`, an operator with gradients that ``torch.compile`` takes.

PyTorch is imported with this module, and this module when it is asked for or a tensor meets an array. An operator takes
tensors and numbers alone: an array is its number to it, under which the operator finds it while it lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from .array.format import LIVING
from .array.stack import Stack
from .array.transposed import TransposedArray, with_values
from .array.values import places
from .core import devices
from .core.extensions import optional
from .linalg.cg import CG

with optional("cvrarray.torch", "PyTorch", "torch"):
    import torch


def matmul(A: Any, x: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
    """``A @ x`` with gradients with respect to `x` and to the values of `A`.

    It is the registered operator ``torch.ops.cvrarray.product``: ``torch.compile`` takes it without a break, CUDA
    graphs record it, and its own gradients have gradients. Where no gradient is asked for, the product's kernel is
    called at once.

    Parameters
    ----------
    A : array of ours
        It must live until the gradients are computed, and keep its values where `values` are left out.
    x : (n_cols,), (n_cols, k) or (..., n_cols, k) tensor on the array's device
        Of a dtype that the array's values promote to no other one with. A stack is one product with all of its columns.
    values : (A.nnz,) tensor, optional
        Values that stand for the array's own, in the order of ``A.data``. A gradient with respect to them is computed
        at the array's entries alone. The first call finds where entries lie, and the array keeps it. Products with the
        transpose take the tables that the array keeps of it.

    Returns
    -------
    (n_rows,), (n_rows, k) or (..., n_rows, k) tensor of x's dtype
        The same bits in every call, and so are the gradients.

    Raises
    ------
    TypeError
        `x` or `values` is no tensor, on another device, or of a dtype that does not fit.
    ValueError
        A shape does not fit.
    RuntimeError
        In the backward pass: the array's values were replaced in place since the forward pass. Compiled code raises it
        where its call of :func:`torch.compile` meets a dtype that does not fit.

    Examples
    --------
    >>> import torch
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
    >>> values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    >>> y = cvrarray.torch.matmul(A, torch.ones(3, dtype=torch.float64), values)
    >>> y.sum().backward()
    >>> y.tolist(), values.grad.tolist()
    ([3.0, 3.0], [1.0, 1.0, 1.0])
    """
    if torch.compiler.is_compiling():  # the operator checks its operands
        return _stacked(A, x, values) if x.ndim > 2 else torch.ops.cvrarray.product(x, values, _number(A), A.shape[0], False)
    if values is None and type(x) is torch.Tensor and not (x.requires_grad and torch.is_grad_enabled()):
        launch = A._products.ready.get((x.dtype, x.shape))  # what nearly every call needs
        if launch is not None and x.device == launch.device and not _are_transformed():
            return launch(x)
    _check(A, x, values)
    return _stacked(A, x, values) if x.ndim > 2 else _applied(A, x, values)


def _stacked(A: Any, x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
    """A product for each matrix of a stack (..., n_cols, k), as one with all of their columns."""
    x = x.movedim(-2, 0)
    y = matmul(A, x.flatten(1), values)
    return y.reshape(y.shape[0], *x.shape[1:]).movedim(0, -2)


def multiply(left: Any, right: Any) -> torch.Tensor:
    """``left @ right`` of an array of ours and a tensor: :func:`matmul`, or of a tensor on the left its transpose."""
    if isinstance(right, torch.Tensor):
        return matmul(left, right)
    return matmul(right.T, left) if left.ndim == 1 else matmul(right.T, left.mT).mT


# --------------------------------------------------------------------------------------------------------- the operator


# Names of PyTorch's own, which may go in any version, are quicker than the public ways: to use `_Transformed` always, and
# to make an object of a stream.
_are_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)  # by vmap, torch.func.grad and the like
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)
_PLAIN = {torch.Tensor, torch.nn.Parameter}


def _applied(A: Any, x: torch.Tensor, values: torch.Tensor | None, transposed: bool = False) -> torch.Tensor:
    """``A @ x``, or ``A.T @ x``, by the shortest way.

    PyTorch's dispatcher costs the host more than the product; only tensors that stand for others need it.
    """
    if type(x) not in _PLAIN or (values is not None and type(values) not in _PLAIN):
        return torch.ops.cvrarray.product(x, values, _number(A), A.shape[transposed], transposed)
    wants_gradient = torch.is_grad_enabled() and (x.requires_grad or (values is not None and values.requires_grad))
    if _are_transformed():
        return _Transformed.apply(x, values, A, transposed)
    if wants_gradient:
        return _Product.apply(x, values, A, transposed)
    return _computed(A, x, values, transposed)


def _computed(A: Any, x: torch.Tensor, values: torch.Tensor | None, transposed: bool) -> torch.Tensor:
    """``A @ x``, or ``A.T @ x``, with other values of A perhaps, of tensors that have memory."""
    A = A.T if transposed and values is None else A
    held = A._products.ready
    if values is None:
        launch = held.get((x.dtype, x.shape))
        if launch is not None and x.device == launch.device:
            return launch(x)
    y = x.new_empty((A.shape[transposed and values is not None], *x.shape[1:]))
    if not y.numel() or not x.numel():
        return y.zero_()
    array = A
    with _on_stream(x):
        if values is not None:
            array = _with_values(A, _view(values), x, transposed)
        (array.matvec if x.ndim == 1 else array.matmat)(_view(x), out=_view(y))
    ready = held.get((_NUMPYS[x.dtype], x.shape)) if values is None else None
    if ready is not None:
        held[x.dtype, x.shape] = _Launch(ready, x)
    return y


def _with_values(A: Any, values: Any, x: torch.Tensor, transposed: bool) -> Any:
    """What multiplies x once as A, or its transpose, with other values does; a graph that is captured needs it in replays."""
    columns = None if x.ndim == 1 else x.shape[1]
    with A._target.keeping(A._of_graphs):
        array = with_values(A, values.astype(_NUMPYS[x.dtype], copy=False), transposed, columns)
    if A._target.is_capturing():
        A._of_graphs.append(array)
    return array


class _Launch:
    """A prepared product for operands of one dtype and shape on one device: what remains to be done is to call it."""

    __slots__ = ("device", "one", "run", "y_shape", "zero")

    def __init__(self, ready: Any, x: torch.Tensor) -> None:
        self.run, self.one, self.zero = ready.run, ready.one, ready.zero
        self.y_shape, self.device = ready.y_shape, x.device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(self.y_shape)
        with _on_stream(x):
            self.run(_view(x), _view(y), self.one, self.zero)
        return y


def _product(x: torch.Tensor, values: torch.Tensor | None, number: int, n_rows: int, transposed: bool) -> torch.Tensor:
    """``torch.ops.cvrarray.product``, computed: the array of a number, with other values perhaps, or its transpose,
    times x.
    """
    A = _array(number)
    _check(A.T if transposed else A, x, values)
    return _computed(A, x, values, transposed)


def _sampled(left: torch.Tensor, right: torch.Tensor, number: int, n_entries: int) -> torch.Tensor:
    """``torch.ops.cvrarray.sampled``, computed: ``sum(left[row] * right[col])`` for each entry of the array of a
    number.
    """
    array = _array(number)
    row, col = places(array)
    out = left.new_empty(n_entries, dtype=torch.float32 if left.dtype == torch.float16 else left.dtype)
    operands = [t.to(out.dtype).reshape(t.shape[0], -1) for t in (left, right)]
    if not out.numel() or not operands[0].numel():
        return out.zero_().to(left.dtype)
    with _on_stream(left):
        sampled = array._target.backend("sampled").products
        sampled(row, col, *(_view(t) for t in operands), _view(out))
    return out.to(left.dtype)


def _number(A: Any) -> int:
    """The number under which an operator finds an array while it lives; negative for a transposed view."""
    base: Any = A.base if isinstance(A, TransposedArray) else A
    number: int = base._number
    return number if base is A else -number


def _array(number: int) -> Any:
    """The array of a number, or of a negative one its transposed view."""
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


_OPERATORS = torch.library.Library("cvrarray", "DEF")
_OPERATORS.define("product(Tensor x, Tensor? values, int number, int n_rows, bool transposed) -> Tensor")
_OPERATORS.define("sampled(Tensor left, Tensor right, int number, int n_entries) -> Tensor")
for _kind in ("CPU", "CUDA"):
    _OPERATORS.impl("product", _product, _kind)
    _OPERATORS.impl("sampled", _sampled, _kind)


@torch.library.register_fake("cvrarray::product", lib=_OPERATORS)  # type: ignore[untyped-decorator]
def _shape_of_product(x: Any, values: Any, number: int, n_rows: int, transposed: bool) -> Any:
    A = _array(number)
    _check(A.T if transposed else A, x, values)  # compiled code is checked here, while it is made
    return x.new_empty((n_rows, *x.shape[1:]))


@torch.library.register_fake("cvrarray::sampled", lib=_OPERATORS)  # type: ignore[untyped-decorator]
def _shape_of_sampled(left: Any, right: Any, number: int, n_entries: int) -> Any:
    return left.new_empty(n_entries)


def _keep_product(ctx: Any, inputs: Any, output: Any) -> None:
    x, values, number, _, transposed = inputs
    _Transformed.setup_context(ctx, (x, values, _array(number), transposed), output)


def _back_product(ctx: Any, gradient: Any) -> Any:
    return *_Transformed.backward(ctx, gradient), None


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """The operator without PyTorch's dispatcher, for ``torch.func``."""

    @staticmethod
    def forward(x: torch.Tensor, values: torch.Tensor | None, A: Any, transposed: bool) -> torch.Tensor:
        return _computed(A, x, values, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, values, ctx.array, ctx.transposed = inputs  # the array lives until the gradients are computed
        ctx.save_for_backward(x, values)
        ctx.version = _version(ctx.array)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """``A.H @ gradient``, and ``gradient * conj(x)`` at the array's entries."""
        x, values = ctx.saved_tensors
        A, transposed = ctx.array, ctx.transposed
        to_x = to_values = None
        if ctx.needs_input_grad[0]:
            _check_version(ctx, values)
            to_x = _applied(A, gradient.conj(), values, not transposed).conj()
        if values is not None and ctx.needs_input_grad[1]:
            pair = (x.conj(), gradient) if transposed else (gradient, x.conj())
            if _are_transformed():  # no operator's own gradient is
                terms = [tensor[place] for tensor, place in zip(pair, _places(A, x.device), strict=True)]
                found = torch.einsum("i...,i...->i", *terms)
            else:
                found = torch.ops.cvrarray.sampled(*pair, _number(A), values.shape[0])
            to_values = (found if values.is_complex() else torch.real(found)).to(values.dtype)
        return to_x, to_values, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, x: torch.Tensor, values: torch.Tensor | None, A: Any, transposed: bool) -> Any:
        """A stack of operands is one product with all of their columns, one of values a product with a stack of arrays."""
        if dims[1] is not None:  # a stack of arrays
            x = x if dims[0] is None else x.movedim(dims[0], 0)
            x = x.expand(info.batch_size, *x.shape) if dims[0] is None and x.ndim == 2 else x
            return _StackProduct.apply(x, values.movedim(dims[1], 0), A, transposed, None), 0  # type: ignore[union-attr]
        x = x.movedim(dims[0], 1)
        y = _applied(A, x.reshape(x.shape[0], -1), values, transposed)
        return y.reshape(y.shape[0], *x.shape[1:]), 1


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """:class:`_Transformed` for plain tensors: with a context of its own it would bind its arguments by name in every
    call.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        _Transformed.setup_context(ctx, inputs, None)
        return _Transformed.forward(*inputs)

    backward = _Transformed.backward


def _keep_sampled(ctx: Any, inputs: Any, output: Any) -> None:
    left, right, ctx.number, _ = inputs
    ctx.save_for_backward(left, right)
    ctx.array = LIVING.get(abs(ctx.number))


def _back_sampled(ctx: Any, gradient: Any) -> Any:
    """With the gradient for values: the matrix's product with ``conj(right)``, and its transpose's with ``conj(left)``."""
    left, right = ctx.saved_tensors
    product = torch.ops.cvrarray.product
    to_left = product(right.conj(), gradient, ctx.number, left.shape[0], False) if ctx.needs_input_grad[0] else None
    to_right = product(left.conj(), gradient, ctx.number, right.shape[0], True) if ctx.needs_input_grad[1] else None
    return to_left, to_right, None, None


torch.library.register_autograd("cvrarray::product", _back_product, setup_context=_keep_product, lib=_OPERATORS)
torch.library.register_autograd("cvrarray::sampled", _back_sampled, setup_context=_keep_sampled, lib=_OPERATORS)

# ---------------------------------------------------------------------------------------------------- tensors as arrays


_NUMPYS = {
    getattr(torch, name): np.dtype(name)
    for name in "bool int8 int16 int32 int64 uint8 float16 float32 float64 complex64 complex128".split()
}
_TORCHS = {theirs: ours for ours, theirs in _NUMPYS.items()}
_NULL = nullcontext()


def _check(A: Any, x: Any, values: Any) -> None:
    """TypeError or ValueError unless the operands fit; nothing here waits for a GPU."""
    for tensor, name in ((x, "x"), (values, "values")) if values is not None else ((x, "x"),):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}. Use torch.as_tensor, or A @ {name}")
        if not _is_at_home(A._target, tensor.device):
            raise TypeError(f"{name} must be on the array's device, {A.device}; got {tensor.device}. Use A.to_device, or .to()")
    shape, n = x.shape, A.shape[1]
    if not shape or shape[-2:][0] != n:
        raise ValueError(f"x must have shape ({n},), ({n}, k) or (..., {n}, k) for shape {A.shape}; got {tuple(shape)}")
    dtype = _TORCHS.get(A.dtype) if values is None else values.dtype
    if (dtype != x.dtype and (dtype is None or torch.promote_types(dtype, x.dtype) != x.dtype)) or x.dtype not in _NUMPYS:
        raise TypeError(f"x must have a dtype that holds the product of {dtype} with it; got {x.dtype}. Use x.to(dtype)")
    if values is not None and values.shape != (A.nnz,):
        raise ValueError(f"values must have shape ({A.nnz},), one for each entry of A.data; got {tuple(values.shape)}")


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


# --------------------------------------------------------------------------------------------------------------- stacks


@torch.compiler.disable  # type: ignore[untyped-decorator]
def multiply_stack(S: Stack, x: torch.Tensor) -> torch.Tensor:
    """``S @ x`` with gradients with respect to x, and to the tensor of values that S was made of."""
    _check_home(S, x, "x")
    if torch.promote_types(_TORCHS[S.dtype], x.dtype) != x.dtype:
        raise TypeError(f"x must have a dtype that holds the product of {S.dtype} with it; got {x.dtype}. Use x.to(dtype)")
    of, transposed = S.of_tensor or (None, False)
    V = torch.empty(0) if of is None else of[1]
    product: torch.Tensor = _StackProduct.apply(x, V, None if of is None else of[0], transposed, S)
    return product


@torch.compiler.disable  # type: ignore[untyped-decorator]
def stack(A: Any, V: torch.Tensor) -> Stack:
    """``A.stack(V)`` for a tensor, which products of the stack have gradients with respect to."""
    _check_home(A, V, "V")
    made: Stack = A.stack(_view(V))
    if V.requires_grad:
        made.of_tensor = (A, V), False
    return made


@torch.compiler.disable  # type: ignore[untyped-decorator]
def solve_stack(
    A: Any,
    b: torch.Tensor,
    values: torch.Tensor,
    *,
    M: str | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
) -> torch.Tensor:
    """Solve ``A_i @ x[i] = b[i]`` by conjugate gradients, side by side, with gradients with respect to `b` and `values`.

    A_i has the structure of A and the values ``values[i]``, and is symmetric (Hermitian) and positive definite, as for
    :func:`cvrarray.linalg.cg`. The backward pass solves with the same matrices, tolerance and preconditioner. The gradient with
    respect to values is that of each stored entry by itself, at stored places alone.

    Parameters
    ----------
    A : array of ours
        The structure; its own values do not count.
    b : (batch, n) tensor on A's device
    values : (batch, A.nnz) tensor, in the order of ``A.data``, of b's dtype
    M, rtol, atol, maxiter
        As of :func:`cvrarray.linalg.cg`; M is None, ``"jacobi"`` or ``"block_jacobi"``.

    Returns
    -------
    (batch, n) tensor

    Raises
    ------
    RuntimeError
        A system did not converge, forwards or backwards: the message names the first ones, and why.
    TypeError, ValueError
        A tensor is on another device, or a dtype or shape does not fit.

    Examples
    --------
    >>> import torch
    >>> A = cvrarray.CVRArray([[2.0, 0], [0, 4.0]])
    >>> values = torch.tensor([[2.0, 4.0], [1.0, 5.0]], dtype=torch.float64, requires_grad=True)
    >>> x = cvrarray.torch.solve_stack(A, torch.ones(2, 2, dtype=torch.float64), values)
    >>> x.sum().backward()
    >>> x.detach().numpy().round(9)
    array([[0.5 , 0.25],
           [1.  , 0.2 ]])
    >>> values.grad.numpy().round(9)
    array([[-0.25  , -0.0625],
           [-1.    , -0.04  ]])
    """
    for tensor, name in ((b, "b"), (values, "values")):
        _check_home(A, tensor, name)
    if b.dtype != values.dtype or not (b.is_floating_point() or b.is_complex()):
        raise TypeError(f"b and values must have one dtype, floating-point or complex; got {b.dtype} and {values.dtype}")
    solution: torch.Tensor = _StackSolve.apply(b, values, A, (M, rtol, atol, maxiter))
    return solution


class _StackProduct(torch.autograd.Function):  # type: ignore[misc]
    """``A_i @ x[i]``, or with the transposes; `S` is the stack where there is one, of V and A where these have gradients."""

    @staticmethod
    def forward(x: torch.Tensor, V: torch.Tensor, A: Any, transposed: bool, S: Any) -> torch.Tensor:
        with _on_stream(x):
            if S is None:
                made = A.stack(_view(V.to(x.dtype)))
                S = made.T if transposed else made
            given = _view(x)
            y = x.new_empty((S.shape[0], S.shape[1], *x.shape[2:]))
            product = S.multiply(given)
            _view(y)[...] = product
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, V, ctx.array, ctx.transposed, ctx.stack = inputs
        ctx.save_for_backward(x, V)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """``A_i.H @ gradient[i]``, and ``gradient * conj(x)`` at stored entries."""
        x, V = ctx.saved_tensors
        A, transposed, S = ctx.array, ctx.transposed, ctx.stack
        to_x = to_V = None
        if ctx.needs_input_grad[0]:
            back = None if S is None else S.T
            to_x = _StackProduct.apply(gradient.conj(), V, A, not transposed, back).conj()
            to_x = to_x.sum(0) if x.ndim == 1 else to_x
        if ctx.needs_input_grad[1]:
            row, col = _places(A, x.device)[:: -1 if transposed else 1]
            to_V = gradient[:, row] * (x[col] if x.ndim == 1 else x[:, col]).conj()
            to_V = to_V.sum(-1) if x.ndim == 3 else to_V
            to_V = (to_V if V.is_complex() else torch.real(to_V)).to(V.dtype)
        return to_x, to_V, None, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, x: torch.Tensor, V: torch.Tensor, A: Any, transposed: bool, S: Any) -> Any:
        """A stack of stacks is one of all their elements."""
        if A is None or S is not None:
            raise TypeError("torch.func.vmap maps cvrarray.torch.matmul(A, x, values), not a product with a Stack")
        n = info.batch_size
        V = V.movedim(dims[1], 0) if dims[1] is not None else V.expand(n, *V.shape)
        x = x.movedim(dims[0], 0) if dims[0] is not None else x.expand(n, *x.shape)
        if x.ndim == 2:  # a vector for all elements of each
            x = x[:, None].expand(n, V.shape[1], x.shape[1])
        y = _StackProduct.apply(x.flatten(0, 1), V.flatten(0, 1), A, transposed, None)
        return y.unflatten(0, (n, -1)), 0


class _StackSolve(torch.autograd.Function):  # type: ignore[misc]
    """``A_i^-1 @ b[i]``."""

    @staticmethod
    def forward(b: torch.Tensor, V: torch.Tensor, A: Any, options: Any) -> torch.Tensor:
        M, rtol, atol, maxiter = options
        with _on_stream(b):
            x = torch.empty_like(b, memory_format=torch.contiguous_format)
            solver = CG(A.stack(_view(V)), M=M, rtol=rtol, atol=atol, maxiter=maxiter)
            found = solver.solve(_view(b), out=_view(x))
        if not found.converged.all():
            failed = np.flatnonzero(~found.converged)
            what = ", ".join(f"{i} ({found.reason[i]})" for i in failed[:5])
            raise RuntimeError(
                f"{failed.size} of {len(b)} systems did not converge: {what}. Raise rtol or maxiter, or look at these"
            )
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, V, ctx.array, ctx.options = inputs
        ctx.save_for_backward(V, output)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """``w = A_i^-1 @ gradient``, and ``-w * conj(x)`` at stored entries."""
        V, x = ctx.saved_tensors
        w = _StackSolve.apply(gradient, V, ctx.array, ctx.options)
        to_V = None
        if ctx.needs_input_grad[1]:
            row, col = _places(ctx.array, x.device)
            to_V = -w[:, row] * x[:, col].conj()
        return w, to_V, None, None


def _places(A: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of the entries of A."""
    row, col = (torch.as_tensor(place, device=device).long() for place in places(A))
    return row, col


def _check_home(A: Any, tensor: Any, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}. Use torch.as_tensor")
    if not _is_at_home(A._target, tensor.device):
        raise TypeError(f"{name} must be on the array's device, {A.device}; got {tensor.device}. Use A.to_device, or .to()")
    if tensor.dtype not in _NUMPYS:
        raise TypeError(f"{name} must have a dtype that NumPy has; got {tensor.dtype}. Use .to(torch.float32)")
