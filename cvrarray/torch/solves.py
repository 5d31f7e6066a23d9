"""Solves with gradients: :func:`solve`, and the operator behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import linalg
from ..array.base import SparseArray
from ..array.stack import Stack
from ..array.transposed import with_values
from ..core import devices
from ..linalg import arguments, preconditioners
from ..linalg.operators import check_square
from ..linalg.solution import INFO
from . import stacks
from .products import _applied, _for_values
from .tensors import (
    _NUMPYS,
    _SOLVED,
    _array,
    _check,
    _check_unconverged,
    _check_version,
    _did_not_converge,
    _each,
    _number,
    _of_columns,
    _on_stream,
    _operator,
    _tangent,
    _version,
    _view,
)

_METHODS = {"cg": True, "minres": True, "bicgstab": False, "gmres": False}  #: and whether it is for symmetric A


def solve(
    A: Any,
    b: torch.Tensor,
    values: torch.Tensor | None = None,
    *,
    method: str = "cg",
    M: Any = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    restart: int | None = None,
    unconverged: str = "raise",
) -> torch.Tensor:
    """x with ``A @ x = b``, with gradients with respect to b and to the values of A.

    The backward pass solves with the transpose of A by the same method and preconditioner (with A itself where the method
    is for symmetric matrices), and takes the gradient with respect to the values at A's places alone:
    ``A.H @ g_b = g``, ``g_values[e] = -g_b[row[e]] * conj(x[col[e]])``. So it takes as long as the solve, and memory for
    at most four vectors more and the gradients; for that of the values A keeps 8 bytes for each entry, where it lies,
    and for methods that are not symmetric the tables of its transpose. It is the registered operator
    ``torch.ops.cvrarray.solve``: ``torch.compile`` takes it without a break, and its gradients have gradients, in forward
    mode too.

    Parameters
    ----------
    A : (n, n) array of ours
        It must live until the gradients are computed, and keep its values where `values` are left out.
    b : (n,), (n, k) or (..., n, k) tensor on the array's device
        float32, float64, complex64 or complex128, and no narrower than the values. A stack is one solve with all of its
        columns, and so are the vectors that ``torch.func.vmap`` maps.
    values : (A.nnz,) tensor, optional
        Values that stand for the array's own, in the order of ``A.data``. Symmetric methods need them symmetric, or gradients
        are wrong without an error: make them of parameters that both entries of a pair share. ``torch.func.vmap`` over values
        makes a solve for each; with "cg", M None or a name, and a vector b they go side by side, as :func:`solve_stack` does.
    method : {"cg", "minres", "bicgstab", "gmres"}
        Of :mod:`cvrarray.linalg`: "cg" for symmetric (Hermitian) positive definite A, "minres" for symmetric, the others
        for any.
    M : "jacobi", "block_jacobi", or a preconditioner or array of ours, optional
        Of `values`, where these are given, one by name is made, and a copy of a preconditioner is updated to them. An
        array stays what it is, as the inverse's approximation. A multigrid hierarchy belongs to its matrix: leave `values`
        out.
    rtol, atol, maxiter
        As of the method in :mod:`cvrarray.linalg` (minres has no `atol`), for the solve and for that of the backward pass.
        Errors of gradients are of the size of `rtol` too.
    restart : int, optional
        Of "gmres".
    unconverged : {"raise", "warn"}
        What happens where a column does not converge, in either pass. After a warning it is as good as it got; that of a b
        with nan or inf is 0.

    Returns
    -------
    tensor of b's shape and dtype
        The same bits in every call, and so are the gradients.

    Raises
    ------
    torch.linalg.LinAlgError
        A column did not converge: the error says which, how far it got and what to do. The gradient's solve says that it is
        that.
    TypeError
        A tensor is on another device or of a dtype that does not fit; M is something else.
    ValueError
        A shape does not fit, A is not square, or an argument is out of range.
    RuntimeError
        In the backward pass: the array's values were replaced in place since the forward pass.

    Examples
    --------
    >>> import torch
    >>> A = cvrarray.CVRArray([[4.0, 1, 0], [1, 3, 0], [0, 0, 2]])
    >>> b = torch.tensor([6.0, 7, 4], dtype=torch.float64)
    >>> values = torch.tensor(A.data, requires_grad=True)
    >>> x = cvrarray.torch.solve(A, b, values, M="jacobi", rtol=1e-12)
    >>> x.sum().backward()
    >>> x.detach().numpy().round(9), (11 * values.grad).round().tolist()
    (array([1., 2., 2.]), [-2.0, -4.0, -3.0, -6.0, -11.0])
    """
    if isinstance(A, Stack):
        raise TypeError("A must be one array; got a Stack. Use cvrarray.torch.solve_stack(A, b, values) with the array of it")
    name, number = (M, 0) if isinstance(M, str) else (None, 0 if M is None else _number_of_preconditioner(M))
    of_array = _number(A)
    if not torch.compiler.is_compiling():  # the operator checks its arguments
        _check_system(A, b, values, (method, name, number, rtol, atol, maxiter, restart, unconverged))
        maxiter, restart = (None if n is None else arguments.count(n, "maxiter", 0) for n in (maxiter, restart))
    options = (method, name, number, rtol, atol, maxiter, restart, unconverged)

    def solved(b: torch.Tensor) -> torch.Tensor:
        return _solve(b, values, of_array, False, False, *options)

    return _of_columns(solved, b) if b.ndim > 2 else solved(b)


# --------------------------------------------------------------------------------------------------------- the operator


class _Conjugate:
    """The conjugate of a Hermitian preconditioner: its transpose."""

    def __init__(self, M: Any) -> None:
        self.M, self.shape, self.dtype = M, M.shape, M.dtype

    def apply(self, r: Any, out: Any) -> Any:
        """``out = conj(M @ conj(r))``."""
        self.M.apply(r.conj(), out)
        return np.conjugate(out, out=out)


def _number_of_preconditioner(M: Any) -> int:
    if isinstance(M, SparseArray):
        return _number(M)
    if isinstance(M, preconditioners.Preconditioner):
        number: int = M._number
        return number
    raise TypeError(
        f"M must be 'jacobi', 'block_jacobi', a preconditioner of cvrarray.linalg or an array of ours; got {type(M).__name__}:"
        " its transpose is not known"
    )


def _preconditioner(name: str | None, number: int, A: Any, matrix: Any, values: Any, transposed: bool) -> Any:
    """What M is for `matrix`, A with other values perhaps, or its transpose; None for none."""
    M = _array(number) if number else None
    if isinstance(M, SparseArray):
        return M.T if transposed else M
    source = A
    if values is not None and (name is not None or number):
        source = matrix if type(matrix) is type(A) and not transposed else A.with_values(values)
    if name is not None:  # of the base: only that knows its blocks
        M, transposed = preconditioners.named(name, getattr(source, "base", source)), transposed != hasattr(A, "base")
    elif M is not None and values is not None:
        M = M.frozen()
        M.update(source)
    is_hermitian = not isinstance(M, preconditioners.Jacobi)  # a diagonal, which may be complex, is symmetric
    return _Conjugate(M) if transposed and M is not None and is_hermitian and M.dtype.kind == "c" else M


def _computed(
    b: torch.Tensor, values: torch.Tensor | None, number: int, transposed: bool, is_gradient: bool, *options: Any
) -> torch.Tensor:
    """``torch.ops.cvrarray.solve``, computed: x with ``A @ x = b``, or ``A.T @ x = b``, for the array of a number."""
    A = _array(number)
    _check_system(A, b, values, options)
    method, name, M_number, rtol, atol, maxiter, restart, _ = options
    x = torch.empty_like(b, memory_format=torch.contiguous_format)
    if not b.numel():
        return x
    with _on_stream(b):
        right, matrix, own = _view(b), A.T if transposed else A, None
        if values is not None:
            own = _view(values)
            matrix = with_values(A, own.astype(_NUMPYS[b.dtype], copy=False), transposed, None if b.ndim == 1 else b.shape[1])
        M = _preconditioner(name, M_number, A, matrix, own, transposed)
        limits = {"M": M, "rtol": rtol, "maxiter": maxiter} | ({} if method == "minres" else {"atol": atol})
        limits |= {"restart": restart} if method == "gmres" else {}
        found, info = getattr(linalg, method)(matrix, right, **limits)
        _view(x)[...] = found  # wider than x where NumPy promotes A's own dtype with b's, or M's, to more than PyTorch does
        if info:
            _tell(matrix, right, _view(x), info, is_gradient, options)
    return x


def _tell(matrix: Any, b: Any, x: Any, info: int, is_gradient: bool, options: tuple[Any, ...]) -> None:
    """Raise, or warn of, a solve that ended with SciPy's `info`."""
    method, _, _, rtol, atol, *_, unconverged = options
    xp = matrix._target.xp
    with np.errstate(all="ignore"):
        left, sizes = (xp.linalg.norm(v.reshape(len(b), -1), axis=0) for v in (b - matrix @ x, b))
        columns = np.flatnonzero(devices.move(~(left <= 1.01 * xp.maximum(rtol * sizes, atol)), devices.CPU))
    where = f" in column {columns[0]} ({len(columns)} of {b.shape[1]} columns)" if b.ndim > 1 and columns.size else ""
    why = f"{info} iterations" if info > 0 else next(words for words, number in INFO.items() if number == info)
    column = int(columns[0]) if columns.size else 0
    _did_not_converge(
        f"{method} did not converge{' for the gradient' if is_gradient else ''}{where}: {why}; |b - A x| is"
        f" {float(left[column]):.3g}, |b| is {float(sizes[column]):.3g}, rtol is {rtol:.3g}. Raise maxiter or rtol, pass M, or"
        " take another method",
        unconverged,
    )


def _check_system(A: Any, b: Any, values: Any, options: tuple[Any, ...]) -> None:
    """TypeError or ValueError unless the arguments of a solve fit; nothing here waits for a GPU."""
    method, _, _, rtol, atol, maxiter, restart, unconverged = options
    if method not in _METHODS:
        raise ValueError(f"method must be one of {', '.join(_METHODS)}; got {method!r}")
    _check_unconverged(unconverged)
    if restart is not None and method != "gmres":
        raise ValueError(f"restart is gmres's; got {restart!r} for {method}. Leave it out")
    if atol and method == "minres":
        raise ValueError(f"atol is not minres's; got {atol!r}. Use rtol")
    for value, name in ((rtol, "rtol"), (atol, "atol")):
        arguments.tolerance(value, name)
    for value, name in ((maxiter, "maxiter"), (restart, "restart")):
        arguments.count(value, name, 0)
    check_square(A.shape)
    _check(A, b, values, "b")
    if b.dtype not in _SOLVED:
        raise TypeError(f"b must be of dtype float32, float64, complex64 or complex128; got {b.dtype}. Use b.to(torch.float64)")


def _shape_of_solve(b: Any, values: Any, number: int, transposed: bool, is_gradient: bool, *options: Any) -> Any:
    _check_system(_array(number), b, values, options)
    return torch.empty_like(b, memory_format=torch.contiguous_format)


def _keep_solve(ctx: Any, inputs: Any, output: Any) -> None:
    _, values, ctx.number, ctx.transposed, _, *ctx.options = inputs
    ctx.array, ctx.M = _array(ctx.number), _array(ctx.options[2]) if ctx.options[2] else None  # they live as long
    ctx.save_for_backward(values, output)
    ctx.save_for_forward(values, output)
    ctx.version = _version(ctx.array)


def _back_solve(ctx: Any, gradient: Any) -> Any:
    """``A.H @ to_b = gradient``, and ``-to_b * conj(x)`` at the array's entries."""
    values, x = ctx.saved_tensors
    _check_version(ctx, values)
    transposed = ctx.transposed
    if _METHODS[ctx.options[0]]:
        to_b = _solve(gradient, values, ctx.number, transposed, True, *ctx.options)
    else:
        to_b = _solve(gradient.conj(), values, ctx.number, not transposed, True, *ctx.options).conj()
    to_values = None
    if values is not None and ctx.needs_input_grad[1]:
        to_values = _for_values(-to_b, x, values, ctx.number, transposed)
    return to_b, to_values, *[None] * 11


def _ahead_solve(ctx: Any, of_b: Any, of_values: Any, *_: Any) -> Any:
    """``A @ tangent = of_b - of_A @ x``."""
    values, x = ctx.saved_tensors
    of_A = None if of_values is None else -_applied(ctx.array, x, of_values, ctx.transposed)
    return _solve(_tangent(of_b, of_A), values, ctx.number, ctx.transposed, True, *ctx.options)


def _mapped_solve(info: Any, dims: Any, b: Any, values: Any, *rest: Any) -> Any:
    """Vectors of one matrix are columns; matrices are a stack, where that has the method."""
    if dims[1] is not None:
        number, transposed, is_gradient, method, M, M_number, rtol, atol, maxiter, _, unconverged = rest
        is_vector = b.ndim == 1 + (dims[0] is not None)
        is_alike = method == "cg" and is_vector and not (M_number or transposed)
        if not (is_alike and info.batch_size) or torch.compiler.is_compiling():
            return _each(_solve, info, dims, b, values, *rest)
        b = b.expand(info.batch_size, -1) if dims[0] is None else b.movedim(dims[0], 0)
        values = values.movedim(dims[1], 0).to(b.dtype)
        return stacks._solved(b, values, _array(number), is_gradient, M or None, rtol, atol, maxiter, unconverged), 0
    b = b.movedim(dims[0], -1)
    return _solve(b.flatten(1), values, *rest).reshape(b.shape), b.ndim - 1


_solve: Callable[..., torch.Tensor] = _operator(
    "solve(Tensor b, Tensor? values, int number, bool transposed, bool is_gradient, str method, str? M, int M_number,"
    " float rtol, float atol, int? maxiter, int? restart, str unconverged) -> Tensor",
    *(_computed, _shape_of_solve, _keep_solve, _back_solve, _ahead_solve, _mapped_solve),
)
