"""Stacks and PyTorch: tensors of values, gradients of products and solves, vmap over values."""

from __future__ import annotations

import numpy as np
import pytest
from checks import bbcsr, cvr

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import cvrarray  # noqa: E402
import cvrarray.torch  # noqa: E402

BUILD = pytest.mark.parametrize("build", [cvr(), bbcsr(2)], ids=str)
DTYPE = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
DENSE = np.array([[4.0, 1, 0, 0], [1, 5, 2, 0], [0, 2, 6, 1], [0, 0, 1, 3]])


def random(*shape, dtype, device, wants=False):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator).to(device).requires_grad_(wants)


def places(A):
    return (torch.as_tensor(np.asarray(place)).long() for place in A.to_device("cpu").tocsr().nonzero())


@BUILD
@DTYPE
@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 2)], ids=str)
def test_gradients_of_products(build, dtype, shape, device):
    A = build(DENSE, device)
    V, x = (random(*s, dtype=dtype, device=device, wants=True) for s in ((3, A.nnz), shape))
    for product in (lambda x, V: A.stack(V) @ x, lambda x, V: A.stack(V).T @ x, lambda x, V: A.T.stack(V) @ x):
        assert product(x, V).dtype == dtype
        assert torch.autograd.gradcheck(product, (x, V), fast_mode=True)
        assert torch.autograd.gradgradcheck(product, (x, V), fast_mode=True)
    S = A.stack(V.detach())
    assert torch.autograd.gradcheck(lambda x: S @ x, (x,))
    found = A.stack(V) @ x
    for i in range(3):
        expected = cvrarray.torch.matmul(A, x if x.ndim == 1 else x[i], V[i])
        assert torch.equal(found[i], expected)


@BUILD
def test_vmap_over_values(build, device):
    A, dtype = build(DENSE, device), torch.float64
    V, x = (random(*s, dtype=dtype, device=device) for s in ((3, A.nnz), (3, 4)))
    of = cvrarray.torch.matmul
    vmap, grad = torch.func.vmap, torch.func.grad
    assert torch.equal(vmap(lambda v, x: of(A, x, v))(V, x), A.stack(V) @ x)
    assert torch.equal(vmap(lambda v: of(A, x[0], v))(V), A.stack(V) @ x[0])
    assert torch.equal(vmap(lambda v: of(A, x.T.contiguous(), v))(V)[1], A.stack(V)[1] @ x.T.contiguous())
    assert torch.equal(vmap(lambda v, x: of(A, x, v), in_dims=(1, 1))(V.T, x.T), A.stack(V) @ x)
    twice = vmap(vmap(lambda v: of(A, x[0], v)))(torch.stack([V, 2 * V]))
    assert torch.equal(twice[1], A.stack(2 * V) @ x[0])
    each = vmap(grad(lambda v, x: (of(A, x, v) ** 2).sum()))(V, x)
    together = grad(lambda V: (vmap(lambda v, x: of(A, x, v))(V, x) ** 2).sum())(V)
    one = grad(lambda v: (of(A, x[1], v) ** 2).sum())(V[1])
    torch.testing.assert_close(each, together)
    torch.testing.assert_close(each[1], one)


@BUILD
def test_parts_have_gradients(build, device):
    A = build(DENSE, device)
    V, x = (random(*s, dtype=torch.float64, device=device, wants=True) for s in ((4, A.nnz), (4, 4)))
    for of in (A, A.T):
        whole = of.stack(V)
        for S, rows in ((whole[1:3], slice(1, 3)), (whole[1:][:2], slice(1, 3)), (whole[1:3].T.T, slice(1, 3))):
            (found,), (expected,) = (
                torch.autograd.grad((y * y).sum(), V) for y in (S @ x.detach()[rows], (whole @ x.detach())[rows])
            )
            assert torch.equal(found, expected)
        backwards = torch.autograd.grad((whole[::-1] @ x.detach().flip(0)).sum(), V)[0]
        assert torch.equal(backwards, torch.autograd.grad((whole @ x.detach()).sum(), V)[0])
        assert torch.autograd.gradcheck(lambda V, of=of: of.stack(V).T @ x.detach(), (V,), fast_mode=True)


@BUILD
def test_vmap_over_operands_of_a_stack(build, device):
    A = build(DENSE, device)
    V, x = (random(*s, dtype=torch.float64, device=device) for s in ((3, A.nnz), (5, 3, 4)))
    S = A.stack(V)
    close = torch.testing.assert_close
    close(torch.func.vmap(lambda x: S @ x)(x), torch.stack([S @ one for one in x]))
    close(torch.func.vmap(lambda x: S @ x)(x[:, 0]), torch.stack([S @ one for one in x[:, 0]]))
    close(torch.func.vmap(lambda x: S @ x[..., None])(x)[..., 0], torch.stack([S @ one for one in x]))
    jacobian = torch.func.jacrev(lambda x: S @ x)(x[0, 0])
    close(jacobian, torch.as_tensor(S.todense(), device=device))


@BUILD
@pytest.mark.parametrize("M", [None, "jacobi"])
def test_vmap_of_solves_over_values_is_a_stack(build, M, device):
    A = build(DENSE, device)
    V = torch.as_tensor(A.to_device("cpu").tocsr().data).to(device) * torch.arange(1.0, 4, device=device)[:, None]
    b = random(3, 4, dtype=torch.float64, device=device)
    of, vmap = cvrarray.torch.solve, torch.func.vmap

    def solve(b, v):
        return of(A, b, v, M=M, rtol=1e-12)

    def stacked(b, V):
        return cvrarray.torch.solve_stack(A, b, V, M=M, rtol=1e-12)

    assert torch.equal(vmap(solve)(b, V), stacked(b, V))
    assert torch.equal(vmap(solve, in_dims=(1, 1))(b.T, V.T), stacked(b, V))
    assert torch.equal(vmap(solve, in_dims=(None, 0))(b[0], V), stacked(b[0].expand(3, 4), V))
    assert torch.equal(vmap(solve)(b, V.float()), stacked(b, V.float().double()))
    both = vmap(vmap(solve, in_dims=(0, None)), in_dims=(None, 0))(b, V)  # columns of each
    torch.testing.assert_close(both[1, 2], stacked(b[2:], V[1:2])[0])
    each = vmap(torch.func.grad(lambda v, b: solve(b, v).square().sum()))(V, b)
    torch.testing.assert_close(each, torch.func.grad(lambda V: stacked(b, V).square().sum())(V))
    twice = vmap(stacked)(torch.stack([b, 2 * b]), torch.stack([V, 3 * V]))
    torch.testing.assert_close(twice[1], stacked(2 * b, 3 * V))
    assert torch.func.jacrev(lambda V: stacked(b, V).sum(1))(V).shape == (3, *V.shape)
    with pytest.raises(torch.linalg.LinAlgError, match="for the gradient: 0"):
        grown = torch.func.grad(lambda b: (torch.inf * stacked(b, V)).sum())
        grown(b)


@BUILD
@DTYPE
@pytest.mark.parametrize("M", [None, "jacobi"])
def test_gradients_of_solves(build, dtype, M, device):
    A = build(DENSE, device)
    row, col = places(A)
    number = {pair: k for k, pair in enumerate(zip(row.tolist(), col.tolist(), strict=True))}
    across = torch.tensor([number[c, r] for r, c in number], device=device)
    V = torch.as_tensor(A.to_device("cpu").tocsr().data).to(dtype).to(device) * torch.arange(1, 4, device=device)[:, None]
    b = random(3, 4, dtype=dtype, device=device, wants=True)

    def solve(b, V):
        return cvrarray.torch.solve_stack(A, b, (V + V[:, across].conj()) / 2, rtol=1e-14, M=M)  # stays Hermitian

    V.requires_grad_()
    assert torch.autograd.gradcheck(solve, (b, V), atol=1e-6)
    assert torch.autograd.gradgradcheck(solve, (b, V), atol=1e-5, fast_mode=True)


def test_compiled_code_calls_them(device):
    A = cvrarray.CVRArray(DENSE, device=device)
    V = torch.as_tensor(A.to_device("cpu").tocsr().data).to(device).expand(3, -1).clone().requires_grad_()
    x = random(3, 4, dtype=torch.float64, device=device)

    def work(V, x):
        return (A.stack(V) @ x).sum() + cvrarray.torch.solve_stack(A, x, V).sum()

    (expected,) = torch.autograd.grad(work(V, x), V)
    (found,) = torch.autograd.grad(torch.compile(work, backend="eager")(V, x), V)
    assert torch.equal(found, expected)


def test_values_need_not_be_contiguous(device):
    A = cvrarray.CVRArray(DENSE, device=device)
    V = random(A.nnz, 3, dtype=torch.float32, device=device)
    for given in (V.T, V[:, :1].T.expand(3, -1), V.T.flip(1)):
        assert torch.equal(torch.as_tensor(A.stack(given).data), given)
    x = random(4, 3, dtype=torch.float32, device=device)
    assert torch.equal(A.stack(V.T) @ x.T, A.stack(V.T) @ x.T.contiguous())


def test_bad_input(device):
    A = cvrarray.CVRArray(DENSE, device=device)
    V = random(3, A.nnz, dtype=torch.float64, device=device)
    S, b = A.stack(V), random(3, 4, dtype=torch.float64, device=device)
    with pytest.raises(ValueError, match="V must have shape"):
        A.stack(V[:, 1:])
    with pytest.raises(ValueError, match="a batch of 0"):
        A.stack(V[:0])
    with pytest.raises(TypeError, match="bfloat16"):
        A.stack(V.bfloat16())
    with pytest.raises(TypeError, match="must be on the array's device"):
        A.stack(V.to("meta"))
    with pytest.raises(TypeError, match="must be on the array's device"):
        S @ b.to("meta")
    with pytest.raises(
        TypeError, match=r"with S, of dtype torch\.float64; got torch\.float32\. Use x\.to.*, or a stack of torch\.float32"
    ):
        S @ b.float()
    with pytest.raises(ValueError, match="x must have shape"):
        S @ b[:2]
    with pytest.raises(TypeError, match="one dtype"):
        cvrarray.torch.solve_stack(A, b, V.float())
    with pytest.raises(ValueError, match="b must have shape"):
        cvrarray.torch.solve_stack(A, b[:2], V)
    values = torch.as_tensor(A.to_device("cpu").tocsr().data).to(device).expand(3, -1).clone()
    values[1] = 0
    values[2, 0] = torch.nan
    failed = r"2 of 3 systems did not converge: 1 \(not positive definite\), 2 \(A not finite\)"
    with pytest.raises(torch.linalg.LinAlgError, match=failed):
        cvrarray.torch.solve_stack(A, b, values)
    with pytest.warns(RuntimeWarning, match=failed):
        found = cvrarray.torch.solve_stack(A, b, values, rtol=1e-12, unconverged="warn")
    assert torch.equal(found[0], cvrarray.torch.solve_stack(A, b[:1], values[:1], rtol=1e-12)[0])
    for solve in (cvrarray.torch.solve, cvrarray.torch.solve_stack):
        with pytest.raises(TypeError, match=r"A must be .* Stack"):
            solve(S, b, V)
    with pytest.raises(ValueError, match="unconverged must be"):
        cvrarray.torch.solve_stack(A, b, V, unconverged="ignore")
    with pytest.raises(TypeError, match="one dtype, float32, float64 or complex"):
        cvrarray.torch.solve_stack(A, b.half(), V.half())
    for transform in (torch.func.vmap, torch.func.grad):
        with pytest.raises(TypeError, match="must be made outside"):
            transform(lambda V: (A.stack(V) @ b).sum())(torch.stack([V, V]))
    with pytest.raises(RuntimeError, match="floating"):
        A.stack(V.long().requires_grad_())
    integers = A.stack(V.long())
    assert torch.equal(integers @ b, integers @ b.clone())
