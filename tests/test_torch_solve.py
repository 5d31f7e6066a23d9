"""PyTorch: solves with gradients, against finite differences and dense torch; products of tensors at stored places."""

from __future__ import annotations

import gc
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from checks import DEFAULTS, bbcsr, cvr, in_pairs, in_turn

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import cvrarray  # noqa: E402
import cvrarray.torch  # noqa: E402  registers the operators
from cvrarray import linalg  # noqa: E402
from cvrarray.torch import sddmm, solve  # noqa: E402
from cvrarray.torch.tensors import _number  # noqa: E402

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
VIEW = pytest.mark.parametrize("view", [False, True], ids=["plain", "transposed"])
METHODS = ["cg", "minres", "bicgstab", "gmres"]
NONSYMMETRIC = ["bicgstab", "gmres"]
PYTORCHS_OWN = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def matrix(method, n=10, dtype=np.float64, seed=0):
    """A dense matrix that the method is for, well conditioned, with entries that are 0."""
    rng = np.random.default_rng(seed)
    some = rng.standard_normal((n, n)) * (rng.random((n, n)) < 2.5 / n)
    if np.dtype(dtype).kind == "c":
        some = some * (1 + 0.5j)
    if method in NONSYMMETRIC:
        return (some + 4 * np.eye(n)).astype(dtype)
    shift = np.where(np.arange(n) % 3, 7, -7) if method == "minres" else 7
    return (some + some.conj().T + shift * np.eye(n)).astype(dtype)


def made(method, build, device, view=False, **of):
    """An array of ours, the same as a dense tensor, and its values as a tensor that wants a gradient."""
    dense = matrix(method, **of)
    A = build(np.ascontiguousarray(dense.T), device).T if view else build(dense, device)
    values = torch.tensor(np.asarray(A.to_scipy().data), device=device, requires_grad=True)
    return A, torch.tensor(dense, device=device), values


def random(*shape, like):
    torch.manual_seed(3)
    return torch.randn(*shape, dtype=like.dtype, device=like.device)


def gradients(x, *of):
    return torch.autograd.grad((x * x.conj()).real.sum() + x.real.sum(), of)


def dense_gradients(dense, b):
    """Those of :func:`gradients` by dense torch; with respect to b and all entries."""
    dense, b = dense.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
    return gradients(torch.linalg.solve(dense, b), b, dense)


def entries(A, dense):
    """The entries of a dense tensor at the array's places."""
    return dense[tuple(torch.tensor(index.astype(np.int64), device=dense.device) for index in A.to_scipy().tocoo().coords)]


# ----------------------------------------------------------------------------------------------------------------- solve


@VIEW
@in_pairs("build, method, columns, M", [*DEFAULTS, bbcsr(3)], METHODS, [((),), ((2,),)], [None, "jacobi"])
def test_gradients_are_finite_differences(build, view, method, columns, M, device):
    A, dense, values = made(method, build, device, view, n=6)
    b = random(6, *columns, like=dense).requires_grad_()

    def solved(b, values):
        return solve(A, b, values, method=method, M=None if method == "minres" else M, rtol=1e-13)

    assert torch.autograd.gradcheck(solved, (b, values), nondet_tol=0)
    assert torch.autograd.gradgradcheck(solved, (b, values), nondet_tol=0)


@pytest.mark.parametrize("method", NONSYMMETRIC)
def test_complex_gradients_are_finite_differences(method, device):
    A, dense, values = made(method, cvr(), device, n=5, dtype=np.complex128)
    b = random(5, like=dense).requires_grad_()

    def solved(b, values):
        return solve(A, b, values, method=method, M="jacobi", rtol=1e-13)

    assert torch.autograd.gradcheck(solved, (b, values))
    assert torch.autograd.gradgradcheck(solved, (b, values))


@VIEW
@in_pairs("build, method, dtype", [*DEFAULTS, bbcsr(2)], METHODS, ["float64", "complex128", "float32", "complex64"])
@pytest.mark.parametrize("own", [False, True], ids=["values", "own"])
def test_solutions_and_gradients_are_those_of_dense_torch(build, view, method, dtype, own, device):
    A, dense, values = made(method, build, device, view, n=30, dtype=dtype)
    rtol = 1e-12 if dtype in ("float64", "complex128") else 1e-5
    b = random(30, 3, like=dense).requires_grad_()
    x = solve(A, b, None if own else values, method=method, rtol=rtol)
    expected = dense_gradients(dense, b)
    close = {"rtol": 1e3 * rtol, "atol": 1e3 * rtol}
    torch.testing.assert_close(x, torch.linalg.solve(dense, b), **close)
    found = gradients(x, *([b] if own else [b, values]))
    torch.testing.assert_close(found[0], expected[0], **close)
    if not own:
        torch.testing.assert_close(found[1], entries(A, expected[1]), **close)


@VIEW
@in_pairs(
    "method, M, build",
    METHODS,
    ["jacobi", "block_jacobi", "object", "block object", "chebyshev", "array"],
    [bbcsr(2), bbcsr(3)],
)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_preconditioners_follow_the_values_and_are_transposed(method, M, build, view, dtype, device):
    """The array's own values are far from those that count: their preconditioner would do nothing."""
    dense = matrix("cg", 12, dtype)  # what all methods, and blocks, are for
    scale = np.logspace(0, 3, 12)
    A = build((scale[:, None] * dense * scale).T.copy() if view else scale[:, None] * dense * scale, device)
    A = A.T if view else A
    values = torch.tensor((build(dense.T.copy(), device).T if view else build(dense, device)).to_scipy().data, device=device)
    given = {
        "object": lambda: linalg.jacobi(A),
        "block object": lambda: linalg.block_jacobi(A, 2),
        "chebyshev": lambda: linalg.chebyshev(A),
        "array": lambda: build(np.diag(1 / np.diag(dense)), device),
    }.get(M, lambda: M)()
    b = random(12, like=torch.tensor(dense, device=device)).requires_grad_()
    values.requires_grad_()
    before = pickle.dumps(given)
    x = solve(A, b, values, method=method, M=given, rtol=1e-11)
    expected = dense_gradients(torch.tensor(dense, device=device), b)
    found = gradients(x, b, values)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found[1], entries(A, expected[1]), rtol=1e-8, atol=1e-8)
    assert pickle.dumps(given) == before  # the user's own stays as it is


def test_a_preconditioner_of_the_values_saves_iterations(device):
    rng = np.random.default_rng(0)
    n = 200
    scale = np.exp(3 * rng.standard_normal(n))
    dense = np.diag(np.full(n, 4.0)) - np.diag(np.ones(n - 1), 1) - np.diag(np.ones(n - 1), -1)
    A = cvrarray.CVRArray(dense, device=device)
    values = torch.tensor(cvrarray.CVRArray(scale[:, None] * dense * scale, device="cpu").data, device=device)
    b = torch.ones(n, dtype=torch.float64, device=device)
    for M in ("jacobi", linalg.jacobi(A)):
        solve(A, b, values, M=M, rtol=1e-8, maxiter=60)
    for M in (None, cvrarray.CVRArray(np.eye(n) / 4, device=device)):
        with pytest.raises(torch.linalg.LinAlgError, match="cg did not converge"):
            solve(A, b, values, M=M, rtol=1e-8, maxiter=60)


@BUILD
@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_every_time(build, method, device):
    A, dense, values = made(method, build, device, n=30)
    b = random(30, 2, like=dense).requires_grad_()
    found = []
    for _ in range(3):
        x = solve(A, b, values, method=method)
        found.append((x, *gradients(x, b, values)))
    assert all(torch.equal(a, c) for other in found[1:] for a, c in zip(found[0], other, strict=True))


@PYTORCHS_OWN
@pytest.mark.parametrize("method", METHODS)
def test_compiled_without_a_break(method, device):
    A, dense, values = made(method, bbcsr(2), device)
    b = random(10, like=dense).requires_grad_()
    for M in (None, "jacobi", linalg.jacobi(A)) if method != "minres" else (None,):

        def layer(b, values, M=M):
            return torch.tanh(solve(A, 2 * b, 1.5 * values, method=method, M=M, rtol=1e-12))

        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for ours, theirs in zip(gradients(compiled(b, values), b, values), gradients(layer(b, values), b, values), strict=True):
            torch.testing.assert_close(ours, theirs)


@PYTORCHS_OWN
def test_compiled_code_checks_its_arguments(device):
    A, dense, _ = made("cg", cvr(), device)
    torch._dynamo.reset()
    compiled = torch.compile(solve, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="b must have a dtype"):
        compiled(A, random(10, like=dense).float())


@BUILD
@pytest.mark.parametrize("method", METHODS)
def test_function_transforms(build, method, device):
    A, dense, values = made(method, build, device)
    b, values = random(10, like=dense), values.detach()
    B = random(4, 10, like=dense)

    def solved(b, values=None):
        return solve(A, b, values, method=method, rtol=1e-13)

    def replaced(values):
        full = torch.zeros_like(dense)
        row, col = (torch.tensor(index.astype(np.int64), device=device) for index in A.to_scipy().tocoo().coords)
        return full.index_put((row, col), values)

    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(torch.func.vmap(solved)(B), torch.linalg.solve(dense, B.T).T, **close)
    many = torch.stack([B.T, 2 * B.T], 1)  # (10, 2, 4), mapped over the second
    found = torch.func.vmap(solved, in_dims=1, out_dims=1)(many)
    torch.testing.assert_close(found[:, 1], torch.linalg.solve(dense, 2 * B.T), **close)
    of_values = torch.func.vmap(solved)(B[:2], torch.stack([values, 2 * values]))
    torch.testing.assert_close(of_values[1], torch.linalg.solve(2 * dense, B[1]), **close)
    torch.testing.assert_close(torch.func.jacrev(solved)(b), torch.linalg.inv(dense), **close)
    squares = torch.func.vmap(torch.func.grad(lambda b: solved(b).square().sum()))(B)
    inverse = torch.linalg.inv(dense)
    torch.testing.assert_close(squares, 2 * (B @ inverse.T) @ inverse, **close)
    if method in NONSYMMETRIC:  # entries by themselves: a symmetric method's second derivative is that of symmetric ones
        ours, theirs = (
            torch.func.jacrev(torch.func.jacrev(of))(values)
            for of in (lambda v: solved(b, v).sum(), lambda v: torch.linalg.solve(replaced(v), b).sum())
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@PYTORCHS_OWN
@in_turn("build, method, columns, view", DEFAULTS, NONSYMMETRIC, [((),), ((2,),)], [False, True])
def test_forward_mode(build, method, columns, view, device):
    """Tangents of each operator, by themselves and with gradients of gradients; not 0, as PyTorch has it by default."""
    A, dense, values = made(method, build, device, view, n=4)
    x, y = random(4, *columns, like=dense).requires_grad_(), random(4, *columns, like=dense).mul(2).requires_grad_()
    functions = {
        lambda b, v: solve(A, b, v, method=method, M="jacobi", rtol=1e-13): (x, values),
        lambda b: solve(A, b, method=method, rtol=1e-13): (x,),
        lambda x, v: cvrarray.torch.matmul(A, x, v): (x, values),
        lambda x, y, v: sddmm(A, x, y, v): (x, y, values),
    }
    for function, of in functions.items():
        assert torch.autograd.gradcheck(function, of, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, of, check_fwd_over_rev=True)
        of = tuple(each.detach() for each in of)
        every = tuple(range(len(of)))
        found, expected = (jacobian(function, every)(*of) for jacobian in (torch.func.jacfwd, torch.func.jacrev))
        torch.testing.assert_close(found, expected)


@PYTORCHS_OWN
@pytest.mark.filterwarnings("ignore:Attempted to insert:UserWarning")
def test_forward_mode_that_pytorch_would_drop(device):
    A, dense, values = made("gmres", cvr(), device)
    b, values = random(10, like=dense), values.detach()

    def tangent(function):
        return lambda v: torch.func.jvp(function, (v,), (v,))[1]

    def solved(v):
        return solve(A, b, v, method="gmres", rtol=1e-12)

    with pytest.raises(NotImplementedError, match="forward-mode derivative of a forward-mode derivative"):
        tangent(tangent(solved))(values)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="would drop the tangents of solve"):
        torch.compile(tangent(solved), fullgraph=True, backend="aot_eager")(values)
    _, linear = torch.func.linearize(solved, values)  # traced
    torch.testing.assert_close(linear(values), tangent(solved)(values))


@BUILD
def test_second_derivatives_of_symmetric_parameters(build, device):
    """What two entries of a pair share: the Hessian is that of dense torch, for symmetric methods too."""
    A, dense, values = made("cg", build, device)
    row, col = (torch.tensor(index.astype(np.int64), device=device) for index in A.to_scipy().tocoo().coords)
    pair = torch.minimum(row, col) * 10 + torch.maximum(row, col)
    _, of = torch.unique(pair, return_inverse=True)
    parameters = torch.zeros(int(of.max()) + 1, dtype=dense.dtype, device=device).index_put((of,), values.detach())
    b = random(10, like=dense)

    def ours(parameters):
        return solve(A, b, parameters[of], rtol=1e-13).square().sum()

    def theirs(parameters):
        return torch.linalg.solve(torch.zeros_like(dense).index_put((row, col), parameters[of]), b).square().sum()

    found, expected = (torch.autograd.functional.hessian(function, parameters) for function in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@BUILD
def test_stacks_strides_and_expanded_tensors(build, device):
    A, dense, values = made("bicgstab", build, device)
    b = random(2, 3, 10, 2, like=dense)
    found = solve(A, b, method="bicgstab", rtol=1e-12)
    torch.testing.assert_close(found, torch.linalg.solve(dense, b))
    one = torch.ones(1, dtype=dense.dtype, device=device, requires_grad=True)
    every = torch.stack([values, values], 1)[:, 1]
    x = solve(A, one.expand(10), every, method="bicgstab", rtol=1e-12)
    torch.testing.assert_close(x, torch.linalg.solve(dense, torch.ones_like(b[0, 0, :, 0])))
    expected = dense_gradients(dense, one.expand(10))
    found = gradients(x, one, values)
    torch.testing.assert_close(found[0], expected[0].sum().reshape(1))
    torch.testing.assert_close(found[1], entries(A, expected[1]))
    torch.testing.assert_close(
        solve(A, b[0, 0].T.contiguous().T, method="bicgstab", rtol=1e-12), torch.linalg.solve(dense, b[0, 0])
    )


@BUILD
def test_nothing_to_solve(build, device):
    A, dense, values = made("cg", build, device)
    b = torch.zeros(10, 0, dtype=dense.dtype, device=device, requires_grad=True)
    x = solve(A, b, values)
    assert x.shape == (10, 0)
    assert [g.abs().sum().item() for g in gradients(x, b, values)] == [0, 0]
    empty = build(np.zeros((0, 0)), device)
    assert solve(empty, torch.zeros(0, dtype=dense.dtype, device=device)).shape == (0,)
    zero = torch.zeros(10, dtype=dense.dtype, device=device, requires_grad=True)
    x = solve(A, zero, values)
    assert not x.any()
    torch.testing.assert_close(gradients(x, zero)[0], torch.linalg.solve(dense, torch.ones_like(zero)), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------- what does not converge


def test_what_does_not_converge_raises_in_either_pass(device):
    A, dense, values = made("gmres", cvr(), device)
    b = random(10, 3, like=dense)
    b[:, 1] = 0
    b.requires_grad_()
    with pytest.raises(torch.linalg.LinAlgError, match=r"gmres did not converge in column 0 \(2 of 3 columns\): 1 iterations"):
        solve(A, b, values, method="gmres", rtol=1e-12, maxiter=1, restart=2)
    x = solve(A, b, values, method="gmres")
    wrong = torch.full_like(x, torch.nan)
    with pytest.raises(torch.linalg.LinAlgError, match=r"for the gradient.*b not finite.*unconverged='warn'$"):
        x.backward(wrong)


def test_what_does_not_converge_warns_where_asked(device):
    A, dense, values = made("gmres", cvr(), device)
    b = random(10, like=dense).requires_grad_()
    with pytest.warns(RuntimeWarning, match=r"gmres did not converge: 1 iterations; .*or take another method$"):
        x = solve(A, b, values, method="gmres", rtol=1e-12, maxiter=1, restart=2, unconverged="warn")
    assert (dense @ x - b).norm() < b.norm()
    with pytest.warns(RuntimeWarning, match="for the gradient"):
        gradients(x, b)


@pytest.mark.parametrize("method", METHODS)
def test_nan_in_one_column(method, device):
    A, dense, values = made(method, bbcsr(2), device)
    b = random(10, 3, like=dense)
    b[4, 1] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError, match=r"in column 1 \(1 of 3 columns\): b not finite"):
        solve(A, b, values, method=method)
    with pytest.warns(RuntimeWarning, match="b not finite"):
        x = solve(A, b, values, method=method, rtol=1e-12, unconverged="warn")
    assert not x[:, 1].any()
    torch.testing.assert_close(x[:, ::2], torch.linalg.solve(dense, b[:, ::2]))


@pytest.mark.parametrize("method", METHODS)
def test_nan_in_values(method, device):
    A, dense, values = made(method, cvr(), device)
    bad = values.detach().clone()
    bad[1] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError, match="A not finite"):
        solve(A, random(10, like=dense), bad, method=method)


def test_a_singular_matrix_says_so(device):
    A = cvrarray.CVRArray(np.diag([1.0, 2, 0]) + 0 * np.tri(3), device=device)
    b = torch.ones(3, dtype=torch.float64, device=device)
    with pytest.raises(torch.linalg.LinAlgError, match="did not converge"):
        solve(A, b, method="gmres")
    with pytest.raises(ValueError, match=r"jacobi needs a diagonal.*A\[2, 2\] is 0"):
        solve(A, b, M="jacobi")


def test_values_replaced_between_forward_and_backward(device):
    A, dense, values = made("cg", cvr(), device)
    b = random(10, like=dense).requires_grad_()
    own, given = solve(A, b), solve(A, b, values)
    A.with_values(2 * A.data, out=A)
    with pytest.raises(RuntimeError, match="modified in place"):
        own.sum().backward()
    given.sum().backward()
    with torch.no_grad():
        values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        solve_then_change(A, b, values).sum().backward()


def solve_then_change(A, b, values):
    x = solve(A, b, values * 1)
    changed = values * 1
    y = solve(A, b, changed)
    changed.mul_(3)
    return x + y


def test_what_gradients_need_lives_as_long(device):
    A, dense, values = made("cg", cvr(), device)
    b = random(10, like=dense).requires_grad_()
    x = solve(A, b, values, M=linalg.jacobi(A))
    del A
    gc.collect()
    gradients(x, b, values)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda b, v: {"b": b.numpy(force=True)}, TypeError, r"b must be a torch\.Tensor"),
        (lambda b, v: {"b": b[1:]}, ValueError, r"b must have shape \(10,\)"),
        (
            lambda b, v: {"b": b.float()},
            TypeError,
            r"b must have a dtype that holds the product with values, of dtype torch\.float64",
        ),
        (lambda b, v: {"b": b.to(torch.bfloat16)}, TypeError, "bfloat16"),
        (lambda b, v: {"b": b.half(), "values": v.half()}, TypeError, "b must be of dtype float32.*float16"),
        (lambda b, v: {"b": b.long(), "values": v.long()}, TypeError, r"b must be of dtype.*int64.*b\.to"),
        (lambda b, v: {"b": b.to("meta")}, TypeError, "b must be on the array's device"),
        (lambda b, v: {"b": b[:, None].to_sparse()}, TypeError, r"b must be a dense tensor; got torch\.sparse_coo.*to_dense"),
        (lambda b, v: {"values": v.to(torch.bfloat16)}, TypeError, r"values must be of dtype bool,.*got torch\.bfloat16"),
        (lambda b, v: {"A": matrix("cg")}, TypeError, "A must be an array of ours; got ndarray"),
        (lambda b, v: {"M": ""}, ValueError, "M must be 'jacobi' or 'block_jacobi'.*''"),
        (lambda b, v: {"values": v[1:]}, ValueError, "values must have shape"),
        (lambda b, v: {"values": v[None]}, ValueError, "values must have shape"),
        (lambda b, v: {"values": v.numpy(force=True)}, TypeError, r"values must be a torch\.Tensor"),
        (lambda b, v: {"values": v.to(torch.complex128)}, TypeError, "b must have a dtype"),
        (lambda b, v: {"values": v.to("meta")}, TypeError, "values must be on the array's device"),
        (lambda b, v: {"method": "qr"}, ValueError, "method must be one of cg, minres.*'qr'"),
        (lambda b, v: {"unconverged": "ignore"}, ValueError, "unconverged must be 'raise' or 'warn'"),
        (lambda b, v: {"restart": 3}, ValueError, "restart is gmres's"),
        (lambda b, v: {"method": "minres", "atol": 1.0}, ValueError, "atol is not minres's"),
        (lambda b, v: {"M": "ilu"}, ValueError, "M must be 'jacobi' or 'block_jacobi'.*'ilu'"),
        (lambda b, v: {"M": lambda r: r}, TypeError, "M must be 'jacobi'.*function"),
        (lambda b, v: {"rtol": -1.0}, ValueError, "rtol must be a real number from 0"),
        (lambda b, v: {"atol": "0"}, ValueError, "atol must be a real number from 0"),
        (lambda b, v: {"maxiter": 2.5}, ValueError, "maxiter must be a whole number from 0; got 2.5"),
        (lambda b, v: {"method": "gmres", "restart": -1}, ValueError, "restart must be a whole number"),
    ],
)
def test_what_does_not_fit_says_why(change, error, match, device):
    A, dense, values = made("cg", cvr(), device)
    given = {"A": A, "b": random(10, like=dense), "values": values} | change(random(10, like=dense), values.detach())
    with pytest.raises(error, match=match):
        solve(**given)


def test_whole_numbers_of_any_type_and_size(device):
    A, dense, _ = made("gmres", cvr(), device)
    b = random(10, like=dense)
    expected = solve(A, b, method="gmres", maxiter=100, restart=20)
    for maxiter in (100.0, np.int64(100), 2**70):
        assert torch.equal(solve(A, b, method="gmres", maxiter=maxiter, restart=20.0), expected)


def test_a_batch_of_no_values(device):
    A, dense, values = made("cg", cvr(), device)
    with pytest.raises(ValueError, match="needs a batch of 1 or more"):
        torch.func.vmap(lambda v: solve(A, dense[0], v))(values.detach()[None][:0])


def test_a_matrix_that_is_not_square(device):
    A = cvrarray.CVRArray(np.tri(3, 4), device=device)
    with pytest.raises(ValueError, match=r"A must be square; got shape \(3, 4\)"):
        solve(A, torch.ones(4, dtype=torch.float64, device=device))


def test_narrower_values_are_those_of_b(device):
    """Integers and single precision count in b's dtype, and float gradients come back in theirs."""
    A = cvrarray.CVRArray(np.diag([2, 4, 5]), device=device)
    b = torch.ones(3, dtype=torch.float64, device=device)
    torch.testing.assert_close(solve(A, b).tolist(), [0.5, 0.25, 0.2])
    torch.testing.assert_close(solve(A, b, torch.tensor([1, 2, 4], device=device)).tolist(), [1.0, 0.5, 0.25])
    for of_values in ("int32", "bool", "float16", "float32"):  # with which NumPy computes in double precision, or M does
        narrow = A.astype(of_values)
        for method in METHODS:
            for M in (None, "jacobi", linalg.jacobi(narrow.astype("float64"))):
                x = solve(narrow, b.float(), method=method, M=M)
                assert x.dtype == torch.float32
                torch.testing.assert_close(x.tolist(), [1.0] * 3 if of_values == "bool" else [0.5, 0.25, 0.2])
    with pytest.raises(TypeError, match=r"A must have a dtype that PyTorch computes with; got uint16.*astype"):
        solve(A.astype("uint16"), b)
    values = torch.tensor([1.0, 2, 4], device=device, requires_grad=True)
    (found,) = torch.autograd.grad(solve(A, b, values).sum(), values)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.tolist(), [-1.0, -0.25, -0.0625])


# ----------------------------------------------------------------------------------------------------------------- sddmm


@VIEW
@BUILD
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("columns", [(), (3,)], ids=["vectors", "matrices"])
@pytest.mark.parametrize("values", [True, False, "given"])
def test_gradients_of_sddmm_are_finite_differences(view, build, dtype, columns, values, device):
    A, dense, given = made("gmres", build, device, view, n=5, dtype=dtype)
    X, Y = random(5, *columns, like=dense).requires_grad_(), random(5, *columns, like=dense).mul(2).requires_grad_()
    factor = given if values == "given" else given.detach() if values else 1
    X2, Y2 = (x.reshape(5, -1) for x in (X, Y))
    by = given if values == "given" else values
    torch.testing.assert_close(sddmm(A, X, Y, by), entries(A, X2 @ Y2.T) * factor)
    torch.testing.assert_close(cvrarray.sddmm(A, X, Y, values=by), sddmm(A, X, Y, by))
    assert torch.autograd.gradcheck(lambda X, Y, v: sddmm(A, X, Y, v if values == "given" else values), (X, Y, given))
    assert torch.autograd.gradgradcheck(lambda X, Y, v: sddmm(A, X, Y, v if values == "given" else values), (X, Y, given))


@PYTORCHS_OWN
@pytest.mark.parametrize("values", [True, False, "given"])
def test_attention_compiled_and_mapped(values, device):
    """Scores at the edges of a graph, and their product with features: the order of one is that of the other."""
    A, dense, given = made("gmres", cvr(), device, n=8)
    by = given.detach() if values == "given" else values
    X = random(8, 4, like=dense).requires_grad_()

    def layer(X):
        return cvrarray.torch.matmul(A, X, torch.tanh(sddmm(A, X, 2 * X, by)))

    mask = dense if values else (dense != 0).to(dense.dtype)
    expected = (torch.tanh(X @ (2 * X).T * mask) * (dense != 0)) @ X
    torch.testing.assert_close(layer(X), expected)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(X).sum(), X), torch.autograd.grad(expected.sum(), X))
    many = torch.stack([X.detach(), 3 * X.detach()])
    torch.testing.assert_close(torch.func.vmap(layer)(many)[1], layer(3 * X.detach()))
    torch.testing.assert_close(torch.func.grad(lambda X: layer(X).sum())(X.detach()), torch.autograd.grad(layer(X).sum(), X)[0])


def test_dtypes_of_sddmm(device):
    A = cvrarray.CVRArray([[1, 0, 2], [0, 3, 0]], device=device)
    X, Y = torch.tensor([[1, 2], [3, 4]], device=device), torch.tensor([[1, 1], [2, 0], [0, 5]], device=device)
    for dtype in (torch.int64, torch.int8, torch.float16, torch.float32, torch.float64, torch.complex64):
        found = sddmm(A, X.to(dtype), Y.to(dtype))
        assert found.dtype == torch.promote_types(dtype, torch.int64)
        assert found.real.tolist() == [3, 20, 18]
    assert sddmm(A, X.bool(), Y.bool(), False).tolist() == [True, True, True]
    assert sddmm(A, X.float(), Y.double(), False).dtype == torch.float64
    assert sddmm(A, X[:, :0].float(), Y[:, :0].float(), False).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda X, Y: (X, Y.numpy(force=True)), TypeError, r"Y must be a torch\.Tensor"),
        (lambda X, Y: (X[1:], Y), ValueError, r"X must have shape \(2,\) or \(2, k\)"),
        (lambda X, Y: (X[:, :1], Y), ValueError, "as many columns"),
        (lambda X, Y: (X.to("meta"), Y), TypeError, "X must be on the array's device"),
        (lambda X, Y: (X, Y, X[0]), ValueError, r"values must have shape \(3,\)"),
        (lambda X, Y: (X, Y, None), TypeError, "values must be a torch.Tensor, True or False"),
        (lambda X, Y: (X.bfloat16(), Y), TypeError, "bfloat16"),
        (lambda X, Y: (X.to_sparse(), Y), TypeError, r"X must be a dense tensor; got torch\.sparse_coo"),
    ],
)
def test_what_does_not_fit_sddmm_says_why(change, error, match, device):
    A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]], device=device)
    X, Y = (torch.ones(n, 2, dtype=torch.float64, device=device) for n in A.shape)
    with pytest.raises(error, match=match):
        sddmm(A, *change(X, Y))
    with pytest.raises(TypeError, match="out must be left out"):
        cvrarray.sddmm(A, X, Y, A)
    with pytest.raises(TypeError, match="A must be an array of ours; got ndarray"):
        sddmm(np.tri(2, 3), X, Y)
    with pytest.raises(TypeError, match=r"A must have a dtype.*got uint16"):
        sddmm(A.astype("uint16"), X, Y)


@pytest.mark.filterwarnings("ignore")  # of torch.library's own
def test_the_operators_pass_torchs_own_check(device):
    A, dense, values = made("cg", cvr(), device)
    b, X = random(10, 2, like=dense).requires_grad_(), random(10, 2, like=dense)
    options = ("cg", "jacobi", 0, 1e-12, 0.0, None, None, "raise")
    torch.library.opcheck(torch.ops.cvrarray.solve, (b, values, _number(A), False, False, *options))
    torch.library.opcheck(torch.ops.cvrarray.own_values, (X, _number(A), A.nnz))
    with pytest.raises(ValueError, match="X must have shape"):
        torch.ops.cvrarray.sampled(b[1:], b, _number(A), A.nnz)


def test_copies_of_preconditioners_are_others(device):
    """An operator of PyTorch finds a preconditioner by its number."""
    A, _, _ = made("cg", cvr(), device)
    M = linalg.jacobi(A)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        others = [M.astype("float32"), M.frozen()] + ([pickle.loads(pickle.dumps(M))] if device == "cpu" else [])
    assert len({M._number, *(other._number for other in others)}) == 1 + len(others)


def test_the_gallery_prints_what_it_records(capsys):
    """The site is built without PyTorch: this runs the page's code, and compares with the numbers on it."""
    page = (Path(__file__).parent.parent / "docs" / "gallery" / "stiffness.md").read_text()
    names: dict[str, object] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), names)
    (recorded,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    numbers = [np.array([float(n) for n in re.findall(r"\d+\.\d*", text)]) for text in (recorded, capsys.readouterr().out)]
    np.testing.assert_allclose(*numbers, atol=0.011)
    (drawn,) = re.findall(r"found = \[(.*?)\]", page, re.DOTALL)
    np.testing.assert_array_equal([float(n) for n in re.findall(r"\d+\.\d*", drawn)], numbers[0])
