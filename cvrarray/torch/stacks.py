"""Stacks and tensors, with gradients: products of :class:`.Stack` and :func:`solve_stack`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..array.stack import Stack
from ..linalg.cg import CG
from . import tensors
from .products import _places, _StackProduct
from .tensors import _SOLVED, _check_dtype, _check_tensor, _check_unconverged, _did_not_converge, _on_stream, _own_dtype, _view


@torch.compiler.disable  # type: ignore[untyped-decorator]
def multiply_stack(S: Stack, x: torch.Tensor) -> torch.Tensor:
    """``S @ x`` with gradients with respect to x, and to the tensor of values that S was made of."""
    _check_tensor(S, x, "x")
    _check_dtype(_own_dtype(S), "S", x)
    of, transposed = S.of_tensor or (None, False)
    V = torch.empty(0) if of is None else of[1]
    product: torch.Tensor = _StackProduct.apply(x, V, None if of is None else of[0], transposed, S)
    return product


@torch.compiler.disable  # type: ignore[untyped-decorator]
def stack(A: Any, V: torch.Tensor) -> Stack:
    """``A.stack(V)`` for a tensor, which products of the stack have gradients with respect to."""
    _check_tensor(A, V, "V")
    try:
        given = _view(V)
    except RuntimeError as error:
        if not tensors._are_transformed():
            raise
        raise TypeError(
            "a stack must be made outside of torch.func's transforms. Within, call cvrarray.torch.matmul(A, x, values)"
        ) from error
    made: Stack = A.stack(given)
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
    unconverged: str = "raise",
) -> torch.Tensor:
    """Solve ``A_i @ x[i] = b[i]`` by conjugate gradients, side by side, with gradients with respect to `b` and `values`.

    A_i has the structure of A and the values ``values[i]``, and is symmetric (Hermitian) and positive definite, as for
    :func:`cvrarray.linalg.cg`. The backward pass solves with the same matrices, tolerance and preconditioner. The gradient with
    respect to values is that of each stored entry by itself, at stored places alone. ``torch.func.vmap`` of :func:`solve` over
    values does the same.

    Parameters
    ----------
    A : array of ours
        The structure; its own values do not count.
    b : (batch, n) tensor on A's device
        float32, float64, complex64 or complex128.
    values : (batch, A.nnz) tensor, in the order of ``A.data``, of b's dtype
    M, rtol, atol, maxiter
        As of :func:`cvrarray.linalg.cg`; M is None, ``"jacobi"`` or ``"block_jacobi"``.
    unconverged : {"raise", "warn"}
        As of :func:`solve`.

    Returns
    -------
    (batch, n) tensor

    Raises
    ------
    torch.linalg.LinAlgError
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
    if isinstance(A, Stack):
        raise TypeError("A must be the array that a Stack was made of, and values those of the Stack; got the Stack")
    for tensor, name in ((b, "b"), (values, "values")):
        _check_tensor(A, tensor, name)
    if b.dtype != values.dtype or b.dtype not in _SOLVED:
        raise TypeError(f"b and values must have one dtype, float32, float64 or complex; got {b.dtype} and {values.dtype}")
    _check_unconverged(unconverged)
    return _solved(b, values, A, False, M, rtol, atol, maxiter, unconverged)


class _StackSolve(torch.autograd.Function):  # type: ignore[misc]
    """``A_i^-1 @ b[i]``."""

    @staticmethod
    def forward(b: torch.Tensor, V: torch.Tensor, A: Any, is_gradient: bool, *options: Any) -> torch.Tensor:
        M, rtol, atol, maxiter, unconverged = options
        with _on_stream(b):
            x = torch.empty_like(b, memory_format=torch.contiguous_format)
            solver = CG(A.stack(_view(V)), M=M, rtol=rtol, atol=atol, maxiter=maxiter)
            found = solver.solve(_view(b), out=_view(x))
        if not found.converged.all():
            failed = np.flatnonzero(~found.converged)
            what = ", ".join(f"{i} ({found.reason[i]})" for i in failed[:5])
            _did_not_converge(
                f"{failed.size} of {len(b)} systems did not converge{' for the gradient' if is_gradient else ''}: {what}."
                " Raise rtol or maxiter, or look at these",
                unconverged,
            )
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, V, ctx.array, _, *ctx.options = inputs
        ctx.save_for_backward(V, output)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """``w = A_i^-1 @ gradient``, and ``-w * conj(x)`` at stored entries."""
        V, x = ctx.saved_tensors
        w = _solved(gradient, V, ctx.array, True, *ctx.options)
        to_V = None
        if ctx.needs_input_grad[1]:
            row, col = _places(ctx.array, x.device)
            to_V = -w[:, row] * x[:, col].conj()
        return w, to_V, *[None] * 7

    @staticmethod
    def vmap(info: Any, dims: Any, b: torch.Tensor, V: torch.Tensor, *rest: Any) -> Any:
        """A stack of stacks is one of all their elements."""
        b, V = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((b, V), dims, strict=False)
        )
        return _solved(b.flatten(0, 1), V.flatten(0, 1), *rest).unflatten(0, (info.batch_size, -1)), 0


def _solved(*inputs: Any) -> torch.Tensor:
    x: torch.Tensor = _StackSolve.apply(*inputs)
    return x
