"""Stacks and tensors, with gradients: products of :class:`.Stack` and :func:`solve_stack`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..array.stack import Stack
from ..array.values import places
from ..linalg.cg import CG
from .tensors import _NUMPYS, _TORCHS, _check_tensor, _on_stream, _view


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
    _check_tensor(A, tensor, name)
    if tensor.dtype not in _NUMPYS:
        raise TypeError(f"{name} must have a dtype that NumPy has; got {tensor.dtype}. Use .to(torch.float32)")
