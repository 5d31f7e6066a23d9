"""Products of arrays and tensors with gradients: :func:`matmul` and :func:`sddmm`, and the operators behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..array.sampled import at_places
from ..array.transposed import with_values
from ..array.values import entries_of, places
from . import tensors
from .tensors import (
    _NUMPYS,
    _OPERATORS,
    _array,
    _check,
    _check_tensor,
    _check_version,
    _each,
    _number,
    _of_columns,
    _on_stream,
    _operator,
    _own_dtype,
    _tangent,
    _version,
    _view,
)


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
        if launch is not None and x.device == launch.device and not tensors._are_transformed():
            return launch(x)
    _check(A, x, values)
    return _stacked(A, x, values) if x.ndim > 2 else _applied(A, x, values)


def _stacked(A: Any, x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
    """A product for each matrix of a stack (..., n_cols, k), as one with all of their columns."""
    return _of_columns(lambda columns: matmul(A, columns, values), x)


def sddmm(A: Any, X: torch.Tensor, Y: torch.Tensor, values: torch.Tensor | bool = True) -> torch.Tensor:
    """``X @ Y.T`` at the stored places of A alone, times its values, with gradients: no dense matrix is made.

    It is the registered operator ``torch.ops.cvrarray.sampled``: ``torch.compile`` takes it without a break, and its own
    gradients have gradients.

    Parameters
    ----------
    A : array of ours
        It must live until the gradients are computed.
    X, Y : (n_rows, k) and (n_cols, k), or (n_rows,) and (n_cols,) tensors on the array's device
        Nothing is conjugated.
    values : (A.nnz,) tensor, or bool
        By what the products are multiplied: a tensor in the order of ``A.data``, which may want a gradient; True for the
        array's own values, which are constants; False for nothing.

    Returns
    -------
    (A.nnz,) tensor
        In the order of ``A.data``, as `values` of :func:`matmul` and :func:`solve` are, of the operands' common dtype.

    Raises
    ------
    TypeError, ValueError
        A tensor is on another device, or a shape or dtype does not fit.

    Examples
    --------
    >>> import torch
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
    >>> X = torch.tensor([[1.0, 1], [2, 0]], dtype=torch.float64, requires_grad=True)
    >>> Y = torch.tensor([[1.0, 2], [3, 4], [5, 6]], dtype=torch.float64)
    >>> scores = cvrarray.torch.sddmm(A, X, Y)
    >>> scores.sum().backward()
    >>> scores.tolist(), X.grad.tolist()
    ([3.0, 22.0, 18.0], [[11.0, 14.0], [9.0, 12.0]])
    """
    number = _number(A)
    if not torch.compiler.is_compiling():  # the operator checks its operands
        _check_factors(A, X, Y)
        if isinstance(values, torch.Tensor):
            _check_tensor(A, values, "values")
        elif not isinstance(values, bool):
            raise TypeError(f"values must be a torch.Tensor, True or False; got {type(values).__name__}. Use torch.as_tensor")
    if isinstance(values, torch.Tensor) and values.shape != (A.nnz,):
        raise ValueError(f"values must have shape ({A.nnz},), one for each entry of A.data; got {tuple(values.shape)}")
    if values is True:
        values = torch.ops.cvrarray.own_values(X.detach(), number, A.nnz)
    dtype = torch.promote_types(X.dtype, Y.dtype)
    dtype = torch.promote_types(dtype, values.dtype) if isinstance(values, torch.Tensor) else dtype
    found = _sampled(X.to(dtype), Y.to(dtype), number, A.nnz)
    return found * values if isinstance(values, torch.Tensor) else found


def _check_factors(A: Any, X: Any, Y: Any) -> None:
    """TypeError or ValueError unless X and Y are factors of a product at A's places."""
    for tensor, name, n in ((X, "X", A.shape[0]), (Y, "Y", A.shape[1])):
        _check_tensor(A, tensor, name)
        if tensor.ndim not in (1, 2) or tensor.shape[0] != n:
            raise ValueError(f"{name} must have shape ({n},) or ({n}, k) for shape {A.shape}; got {tuple(tensor.shape)}")
    if X.shape[1:] != Y.shape[1:]:
        raise ValueError(f"X and Y must have as many columns; got shapes {tuple(X.shape)} and {tuple(Y.shape)}")


def multiply(left: Any, right: Any) -> torch.Tensor:
    """``left @ right`` of an array of ours and a tensor: :func:`matmul`, or of a tensor on the left its transpose."""
    if isinstance(right, torch.Tensor):
        return matmul(left, right)
    return matmul(right.T, left) if left.ndim == 1 else matmul(right.T, left.mT).mT


# --------------------------------------------------------------------------------------------------------- the operator


_PLAIN = {torch.Tensor, torch.nn.Parameter}
_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)  # by `is_grads_batched`


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory of its own, and stands for no others."""
    return type(tensor) in _PLAIN and not _is_batched(tensor)


def _applied(A: Any, x: torch.Tensor, values: torch.Tensor | None, transposed: bool = False) -> torch.Tensor:
    """``A @ x``, or ``A.T @ x``, by the shortest way.

    PyTorch's dispatcher costs the host more than the product; only tensors that stand for others need it.
    """
    if not _is_plain(x) or (values is not None and not _is_plain(values)):
        return torch.ops.cvrarray.product(x, values, _number(A), A.shape[transposed], transposed)
    wants_gradient = torch.is_grad_enabled() and (x.requires_grad or (values is not None and values.requires_grad))
    if tensors._are_transformed():
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


def _shape_of_product(x: Any, values: Any, number: int, n_rows: int, transposed: bool) -> Any:
    A = _array(number)
    _check(A.T if transposed else A, x, values)  # compiled code is checked here, while it is made
    return x.new_empty((n_rows, *x.shape[1:]))


def _keep_product(ctx: Any, inputs: Any, output: Any) -> None:
    x, values, number, _, transposed = inputs
    _Transformed.setup_context(ctx, (x, values, _array(number), transposed), output)


def _back_product(ctx: Any, gradient: Any) -> Any:
    return *_Transformed.backward(ctx, gradient), None


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """The operator for ``torch.func``, of which what is registered knows nothing."""

    @staticmethod
    def forward(x: torch.Tensor, values: torch.Tensor | None, A: Any, transposed: bool) -> torch.Tensor:
        return torch.ops.cvrarray.product(x, values, _number(A), A.shape[transposed], transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, values, ctx.array, ctx.transposed = inputs  # the array lives until the gradients are computed
        ctx.save_for_backward(x, values)
        ctx.save_for_forward(x, values)
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
            to_values = _for_values(gradient, x, values, _number(A), transposed)
        return to_x, to_values, None, None

    @staticmethod
    def jvp(ctx: Any, of_x: torch.Tensor | None, of_values: torch.Tensor | None, *_: Any) -> torch.Tensor:
        """The tangent of a product that is linear in both."""
        x, values = ctx.saved_tensors
        return _tangent(
            None if of_x is None else _applied(ctx.array, of_x, values, ctx.transposed),
            None if of_values is None else _applied(ctx.array, x, of_values, ctx.transposed),
        )

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
        x, values, A, transposed = inputs
        return _computed(A, x, values, transposed)

    backward = _Transformed.backward


def _ahead_product(ctx: Any, of_x: Any, of_values: Any, *_: Any) -> Any:
    return _Transformed.jvp(ctx, of_x, of_values)


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
            if x.ndim == 3:  # nothing of the size of all entries with all columns
                pairs = zip(x.conj(), gradient, strict=True) if transposed else zip(gradient, x.conj(), strict=True)
                to_V = torch.stack([_sampled(*pair, _number(A), V.shape[1]) for pair in pairs])
            else:
                row, col = _places(A, x.device)[:: -1 if transposed else 1]
                to_V = gradient[:, row] * x[..., col].conj()
            to_V = (to_V if V.is_complex() else torch.real(to_V)).to(V.dtype)
        return to_x, to_V, None, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, x: torch.Tensor, V: torch.Tensor, A: Any, transposed: bool, S: Any) -> Any:
        """A stack of stacks is one of all their elements; operands of one stack are columns."""
        if dims[1] is None:
            x = x.movedim(dims[0], -1)
            x = x if x.ndim > 2 else x.expand((V if S is None else S).shape[0], *x.shape)
            y = _StackProduct.apply(x.flatten(2), V, A, transposed, S)
            return y.unflatten(-1, x.shape[2:]), x.ndim - 1
        n = info.batch_size
        V = V.movedim(dims[1], 0)
        x = x.movedim(dims[0], 0) if dims[0] is not None else x.expand(n, *x.shape)
        if x.ndim == 2:  # a vector for all elements of each
            x = x[:, None].expand(n, V.shape[1], x.shape[1])
        y = _StackProduct.apply(x.flatten(0, 1), V.flatten(0, 1), A, transposed, None)
        return y.unflatten(0, (n, -1)), 0


def _places(A: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of the entries of A."""
    row, col = (torch.as_tensor(place, device=device).long() for place in places(A))
    return row, col


def _mapped_product(info: Any, dims: Any, x: Any, values: Any, number: int, n_rows: int, transposed: bool) -> Any:
    return _Transformed.vmap(info, dims, x, values, _array(number), transposed)


_operator(
    "product(Tensor x, Tensor? values, int number, int n_rows, bool transposed) -> Tensor",
    *(_product, _shape_of_product, _keep_product, _back_product, _ahead_product, _mapped_product),
)

# --------------------------------------------------------------------------------------------- products at stored places


def _for_values(gradient: torch.Tensor, x: torch.Tensor, values: torch.Tensor, number: int, transposed: bool) -> torch.Tensor:
    """The gradient for values of a product with x: ``gradient * conj(x)`` at the array's entries."""
    pair = (x.conj(), gradient) if transposed else (gradient, x.conj())
    found = _sampled(*pair, number, values.shape[0])
    return (found if values.is_complex() else torch.real(found)).to(values.dtype)


def _at_places(left: torch.Tensor, right: torch.Tensor, number: int, n_entries: int) -> torch.Tensor:
    """``torch.ops.cvrarray.sampled``, computed: ``sum(left[row] * right[col])`` for each entry of the array of a
    number.
    """
    array, out = _array(number), left.new_empty(n_entries)
    _check_factors(array, left, right)
    if not out.numel() or not left.numel():
        return out.zero_()
    with _on_stream(left), np.errstate(all="ignore"):
        a, b = (_view(t if t.ndim > 1 else t[:, None]) for t in (left, right))
        at_places(array, a, b, _NUMPYS[left.dtype], _view(out))
    return out


def _own_values(like: torch.Tensor, number: int, n_entries: int) -> torch.Tensor:
    """``torch.ops.cvrarray.own_values``, computed: the values of the array of a number."""
    A = _array(number)
    out = like.new_empty(n_entries, dtype=_own_dtype(A))
    if n_entries:
        with _on_stream(like):
            _view(out)[...] = entries_of(A)
    return out


def _shape_of_sampled(left: Any, right: Any, number: int, n_entries: int) -> Any:
    _check_factors(_array(number), left, right)
    return left.new_empty(n_entries)


def _keep_sampled(ctx: Any, inputs: Any, output: Any) -> None:
    left, right, number, n_entries = inputs
    ctx.save_for_backward(left, right)
    ctx.save_for_forward(left, right)
    ctx.n_entries = n_entries
    ctx.array = _array(number)


def _back_sampled(ctx: Any, gradient: Any) -> Any:
    """With the gradient for values: the matrix's product with ``conj(right)``, and its transpose's with ``conj(left)``."""
    left, right = ctx.saved_tensors
    to_left = _applied(ctx.array, right.conj(), gradient) if ctx.needs_input_grad[0] else None
    to_right = _applied(ctx.array, left.conj(), gradient, True) if ctx.needs_input_grad[1] else None
    return to_left, to_right, None, None


def _ahead_sampled(ctx: Any, of_left: Any, of_right: Any, *_: Any) -> Any:
    left, right = ctx.saved_tensors
    of = _number(ctx.array), ctx.n_entries
    return _tangent(
        None if of_left is None else _sampled(of_left, right, *of),
        None if of_right is None else _sampled(left, of_right, *of),
    )


def _mapped_sampled(info: Any, dims: Any, *inputs: Any) -> Any:
    return _each(_sampled, info, dims, *inputs)


_sampled: Callable[..., torch.Tensor] = _operator(
    "sampled(Tensor left, Tensor right, int number, int n_entries) -> Tensor",
    *(_at_places, _shape_of_sampled, _keep_sampled, _back_sampled, _ahead_sampled, _mapped_sampled),
)

_OPERATORS.define("own_values(Tensor like, int number, int n_entries) -> Tensor")
for _kind in ("CPU", "CUDA"):
    _OPERATORS.impl("own_values", _own_values, _kind)


@torch.library.register_fake("cvrarray::own_values", lib=_OPERATORS)  # type: ignore[untyped-decorator]
def _shape_of_own_values(like: Any, number: int, n_entries: int) -> Any:
    return like.new_empty(n_entries, dtype=_own_dtype(_array(number)))
