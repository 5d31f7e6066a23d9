"""PyTorch: products with tensors, gradients against finite differences and dense torch, compiled and captured."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import DEFAULTS, bbcsr, cvr, in_pairs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import cvrarray  # noqa: E402
import cvrarray.torch  # noqa: E402  registers the operators
from cvrarray.array.format import FormatArray  # noqa: E402

BUILD = pytest.mark.parametrize("build", DEFAULTS, ids=str)
VIEW = pytest.mark.parametrize("view", [False, True], ids=["plain", "transposed"])


def made(build, device, view=False, dtype=np.float64, shape=(37, 23)):
    """An array of ours and the same matrix as a dense tensor."""
    rng = np.random.default_rng(5)
    dense = rng.integers(1, 9, shape) * (rng.random(shape) < 0.2)
    dense = (dense * (1 + 2j) if np.dtype(dtype).kind == "c" else dense).astype(dtype)
    A = build(np.ascontiguousarray(dense.T), device).T if view else build(dense, device)
    return A, torch.tensor(dense, device=device)


def values_of(A):
    """The array's values as a tensor that wants a gradient."""
    return torch.tensor(np.asarray(A.to_scipy().data), device=A.device, requires_grad=True)


def random(*shape, like):
    torch.manual_seed(3)
    return torch.randn(*shape, dtype=like.dtype, device=like.device)


@BUILD
@VIEW
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_operators_take_tensors(build, view, dtype, device):
    A, dense = made(build, device, view, dtype)
    x, X, y, Y = (random(*s, like=dense) for s in ((23,), (23, 3), (37,), (2, 37)))
    for found, expected in ((A @ x, dense @ x), (A @ X, dense @ X), (y @ A, y @ dense), (Y @ A, Y @ dense)):
        assert isinstance(found, torch.Tensor)
        assert found.device == expected.device
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(A @ X.T.contiguous().T, dense @ X)  # strides of any kind
    torch.testing.assert_close(np.matmul(A, X), dense @ X)
    with pytest.raises(TypeError, match="out must be left out"):
        np.matmul(A, x, out=np.empty(37, dtype))
    if dtype == "complex128":
        torch.testing.assert_close(A @ x.conj(), dense @ x.conj())


@BUILD
@VIEW
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("columns", [(), (3,)], ids=["vector", "matrix"])
def test_gradients_are_finite_differences(build, view, dtype, columns, device):
    A, dense = made(build, device, view, dtype, shape=(7, 5))
    x, values = random(5, *columns, like=dense).requires_grad_(), values_of(A)

    def product(x, values):
        return cvrarray.torch.matmul(A, x, values)

    assert torch.autograd.gradcheck(product, (x, values), nondet_tol=0)
    assert torch.autograd.gradgradcheck(product, (x, values), nondet_tol=0)


@BUILD
def test_gradients_have_the_same_bits_every_time(build, device):
    A, dense = made(build, device, dtype=np.float32)
    found = []
    for _ in range(3):
        x, values = random(23, 9, like=dense).requires_grad_(), values_of(A)
        cvrarray.torch.matmul(A, x, values).square().sum().backward()
        found.append((x.grad, values.grad))
    assert all(torch.equal(a, b) for pair in found[1:] for a, b in zip(found[0], pair, strict=True))


@BUILD
@VIEW
@pytest.mark.parametrize("columns", [(), (3,)], ids=["vector", "matrix"])
def test_gradients_convert_once(build, view, columns, device, monkeypatch):
    """Values that are replaced in every pass are written to tables that are there."""
    A, dense = made(build, device, view)
    conversions, original = [], FormatArray._convert.__func__

    def counted(cls, *args, **keywords):
        conversions.append(cls)
        return original(cls, *args, **keywords)

    monkeypatch.setattr(FormatArray, "_convert", classmethod(counted))
    x, values = random(23, *columns, like=dense).requires_grad_(), values_of(A)
    for k in (1, 2, 3):
        found = torch.autograd.grad(cvrarray.torch.matmul(A, x, k * values).sum(), (x, values))
        torch.testing.assert_close(found[0], (k * dense.sum(0)).reshape(-1, *[1] * len(columns)).expand(23, *columns))
        assert found[1].shape == values.shape
    assert len(conversions) <= 1


@BUILD
def test_values_stand_for_the_arrays_own(build, device):
    A, dense = made(build, device)
    x, values = random(23, like=dense), values_of(A).detach() * 3
    torch.testing.assert_close(cvrarray.torch.matmul(A, x, values), dense @ x * 3)
    torch.testing.assert_close(cvrarray.torch.matmul(A, x), dense @ x)
    x = x.requires_grad_()
    cvrarray.torch.matmul(A, x).sum().backward()
    torch.testing.assert_close(x.grad, dense.sum(0))


@pytest.mark.filterwarnings("ignore")  # of torch.library's own
def test_the_operators_pass_torchs_own_check(device):
    A, dense = made(DEFAULTS[0], device)
    x, values = random(23, 2, like=dense).requires_grad_(), values_of(A)
    torch.library.opcheck(torch.ops.cvrarray.product, (x, values, cvrarray.torch.tensors._number(A), 37, False))
    torch.library.opcheck(torch.ops.cvrarray.sampled, (random(37, 2, like=dense), x, cvrarray.torch.tensors._number(A), A.nnz))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
def test_compiled_without_a_break(device):
    A, dense = made(DEFAULTS[0], device)
    x, values = random(23, like=dense).requires_grad_(), values_of(A)

    def layer(x, values):
        return torch.tanh(cvrarray.torch.matmul(A, 2 * x, values)).sum()

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, values), (x, values))
    for ours, theirs in zip(found, torch.autograd.grad(layer(x, values), (x, values)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
def test_compiled_code_tells_arrays_apart(device):
    arrays = [made(build, device, view) for build in DEFAULTS for view in (False, True)]
    x = random(23, like=arrays[0][1])
    torch._dynamo.reset()
    compiled = torch.compile(cvrarray.torch.matmul, fullgraph=True, backend="aot_eager")
    for k in (1, 2):  # compiled code is the first to meet each array
        for A, dense in arrays:
            torch.testing.assert_close(compiled(A, k * x), k * (dense @ x))


@BUILD
def test_vectors_with_strides(build, device):
    A, dense = made(build, device)
    x = random(46, like=dense)
    for _ in range(2):  # the second time the product is prepared
        torch.testing.assert_close(A @ x[::2], dense @ x[::2])
        torch.testing.assert_close(A @ x[:23], dense @ x[:23])
        torch.testing.assert_close(A @ x[:1].expand(23), dense @ x[:1].expand(23))


def test_pytorch_without_its_own_test_of_transforms(device, monkeypatch):
    monkeypatch.setattr(cvrarray.torch.tensors, "_are_transformed", lambda: True)
    A, dense = made(DEFAULTS[0], device)
    x = random(23, like=dense).requires_grad_()
    torch.testing.assert_close(A @ x, dense @ x)
    assert torch.autograd.gradcheck(lambda x: A @ x, x)


@BUILD
def test_function_transforms(build, device):
    A, dense = made(build, device)
    x = random(23, like=dense)
    A @ x  # the product is prepared
    found = torch.func.grad(lambda x: cvrarray.torch.matmul(A, x).square().sum())(x)
    torch.testing.assert_close(found, torch.func.grad(lambda x: (dense @ x).square().sum())(x))
    torch.testing.assert_close(torch.func.jacrev(lambda x: A @ x)(x), dense)
    X, values = random(4, 23, like=dense), values_of(A).detach()
    torch.testing.assert_close(torch.func.vmap(lambda x: A @ x)(X), X @ dense.T)
    torch.testing.assert_close(
        torch.func.vmap(lambda X: A @ X, in_dims=2, out_dims=2)(torch.stack([X.T, X.T], 2))[..., 1], dense @ X.T
    )
    found = torch.func.vmap(lambda v: cvrarray.torch.matmul(A, x, v))(torch.stack([values, values]))
    torch.testing.assert_close(found[1], dense @ x)


def wide(dtype=np.float32):
    """A matrix of uneven rows, some of which chunks cut."""
    return zoo.floats("power_law", dtype)


GRAPHS = [*DEFAULTS, cvr(8, 50, "nnz"), bbcsr(3)]


@in_pairs("build, dtype, columns", GRAPHS, ["float32", "float64", "complex64", "float16"], [((),), ((16,),)])
def test_captured_in_a_graph(build, columns, dtype, gpu):
    """As PyTorch's documents say: after a product on another stream, in the global mode. CuPy's pool is empty then."""
    import cupy

    csr = wide("float32" if dtype == "float16" else dtype)
    A = build(csr, gpu).astype(dtype)
    x, z = (torch.rand(400, *columns, dtype=getattr(torch, dtype), device=gpu) for _ in range(2))
    expected = A @ x, A.T @ z, A @ z, A.T @ x
    cupy.cuda.Device().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, back = A @ x, A.T @ z
    others = [cupy.full(1 << k, np.nan) for k in range(4, 20)]
    for values in ((x, z), (z, x)):
        x_and_z = [v.clone() for v in values]
        x.copy_(x_and_z[0])
        z.copy_(x_and_z[1])
        y.zero_()
        back.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, expected[0])
        assert torch.equal(back, expected[1])
        expected = expected[2:]
    assert all(bool(cupy.isnan(other).all()) for other in others)


@pytest.mark.parametrize("build", GRAPHS, ids=str)
@pytest.mark.parametrize("columns", [(), (5,)], ids=["vector", "matrix"])
@pytest.mark.parametrize("values", ["any", "few"])
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # PyTorch's own
def test_values_and_gradients_in_a_graph(build, columns, values, gpu, monkeypatch):
    """Values that a graph is given count in its replays, and so do those gradients."""
    csr = wide("float64")
    if values == "few":
        monkeypatch.setattr("cvrarray.gpu.distinct.LEAST_BYTES", 1)
        csr.data[:] = np.resize([1.5, -2.0], csr.nnz)
    A, dense = build(csr, gpu), torch.tensor(csr.toarray(), device=gpu)
    row, col = (torch.as_tensor(index.astype(np.int64), device=gpu) for index in csr.tocoo().coords)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.values = torch.nn.Parameter(torch.tensor(csr.data, device=gpu))

        def forward(self, x):
            return torch.tanh(cvrarray.torch.matmul(A, x, self.values))

    layer = Layer()
    x = random(400, *columns, like=dense).requires_grad_()
    graphed = torch.cuda.make_graphed_callables(layer, (x.detach().clone().requires_grad_(),))
    for factor in (1.0, 0.5):
        with torch.no_grad():
            layer.values.copy_(factor * torch.tensor(csr.data, device=gpu))
            dense[row, col] = layer.values
        expected_dense = dense.clone().requires_grad_()
        found = torch.autograd.grad(graphed(x).square().sum(), (x, layer.values))
        expected = torch.autograd.grad(torch.tanh(expected_dense @ x).square().sum(), (x, expected_dense))
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1], expected[1][row, col])


def test_empty_arrays(device):
    A = cvrarray.CVRArray(np.zeros((3, 0)), device=device)
    x = torch.zeros(0, dtype=torch.float64, device=device, requires_grad=True)
    y = cvrarray.torch.matmul(A, x)
    assert y.tolist() == [0, 0, 0]
    y.sum().backward()
    assert x.grad.shape == (0,)


def test_what_does_not_fit_says_why(device):
    A, dense = made(DEFAULTS[0], device)
    x, values = random(23, like=dense), values_of(A)
    for arguments, error, match in (
        ((A, np.ones(23)), TypeError, r"x must be a torch\.Tensor.*torch\.as_tensor"),
        ((A, x[1:]), ValueError, r"x must have shape \(23,\)"),
        (
            (A, x.float()),
            TypeError,
            r"A, of dtype torch\.float64; got torch\.float32\. Use x\.to\(torch\.float64\), or A\.astype\('float32'\)$",
        ),
        ((A, x.int()), TypeError, r"A, of dtype torch\.float64; got torch\.int32\. Use x\.to\(torch\.float64\)$"),
        ((A, x.float(), values), TypeError, r"values, of dtype torch\.float64; got.*, or values\.to\(torch\.float32\)$"),
        ((A, x, values + 0j), TypeError, r"values, of dtype torch\.complex128; got.*Use x\.to\(torch\.complex128\)$"),
        ((A, x.to(torch.bfloat16)), TypeError, r"got torch\.bfloat16\. Use x\.to\(torch\.float64\)$"),
        ((A.astype("int8"), x.to(torch.bfloat16)), TypeError, r"Use x\.to\(torch\.float32\)$"),
        ((A, x, values[1:]), ValueError, r"values must have shape"),
        ((A, x.to("meta")), TypeError, r"on the array's device"),
    ):
        with pytest.raises(error, match=match):
            cvrarray.torch.matmul(*arguments)
    for method, tensor in ((A.matvec, x.requires_grad_()), (A.with_values, torch.nn.Parameter(values))):
        with pytest.raises(TypeError, match=r"requires_grad=True.* A @ t, or cvrarray\.torch\.matmul\(A, x, values\)"):
            method(tensor)


@BUILD
@VIEW
@pytest.mark.parametrize("with_values", [False, True], ids=["own", "values"])
def test_stacks(build, view, with_values, device):
    A, dense = made(build, device, view)
    x, y = random(2, 4, 23, 3, like=dense).requires_grad_(), random(2, 5, 37, like=dense).requires_grad_()
    found = cvrarray.torch.matmul(A, x, values_of(A)) if with_values else A @ x
    torch.testing.assert_close(found, dense @ x)
    torch.testing.assert_close(y @ A, y @ dense)
    pairs = (found, dense @ x, x), (y @ A, y @ dense, y)
    for ours, theirs, operand in pairs:
        gradients = (torch.autograd.grad(product.square().sum(), operand)[0] for product in (ours, theirs))
        torch.testing.assert_close(*gradients)
    assert (A @ x[:0]).shape == (0, 4, 37, 3)
    with pytest.raises(ValueError, match=r"\(\.\.\., 23, k\).*got \(2, 4, 22, 3\)"):
        A @ x[..., 1:, :]


class Tagged(torch.Tensor):
    """A class of the user's own."""


@BUILD
def test_tensors_of_the_users_own_class(build, device):
    A, dense = made(build, device)
    x, X, y = (random(*shape, like=dense) for shape in ((23,), (2, 23, 3), (37,)))
    for found, expected in ((A @ x.as_subclass(Tagged), dense @ x), (A @ X.as_subclass(Tagged), dense @ X)):
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)
    torch.testing.assert_close((y.as_subclass(Tagged) @ A).as_subclass(torch.Tensor), y @ dense)
    leaf = x.clone().as_subclass(Tagged).requires_grad_()
    (A @ leaf).sum().backward()
    torch.testing.assert_close(leaf.grad.as_subclass(torch.Tensor), dense.sum(0))


@BUILD
@VIEW
@pytest.mark.parametrize("tensor", [torch.Tensor, Tagged], ids=["plain", "own class"])
def test_values_replaced_between_forward_and_backward(build, view, tensor, device):
    A, dense = made(build, device, view)
    base = A.base if view else A
    x, values = random(23, like=dense).as_subclass(tensor).requires_grad_(), values_of(A)
    own, given = A @ x, cvrarray.torch.matmul(A, x, values)
    base.with_values(base.data * 10, out=base)
    with pytest.raises(RuntimeError, match="modified in place"):
        own.sum().backward()
    torch.testing.assert_close(torch.autograd.grad(given.sum(), x)[0].as_subclass(torch.Tensor), dense.sum(0))
    (A @ x).sum().backward()
    torch.testing.assert_close(x.grad.as_subclass(torch.Tensor), 10 * dense.sum(0))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
def test_compiled_code_checks_dtypes(device):
    A, dense = made(DEFAULTS[0], device)
    torch._dynamo.reset()
    compiled = torch.compile(cvrarray.torch.matmul, fullgraph=True, backend="aot_eager")
    x = random(2, 23, 3, like=dense)
    torch.testing.assert_close(compiled(A, x), dense @ x)
    with pytest.raises(Exception, match=r"holds the product with A.*float64.*float32.*x\.to"):
        compiled(A, x.float())
    with pytest.raises(TypeError, match="holds the product"):
        torch.ops.cvrarray.product(x[0].float(), None, cvrarray.torch.tensors._number(A), 37, False)


def test_an_array_must_outlive_its_operator(device):
    A, dense = made(DEFAULTS[0], device)
    cvrarray.torch.matmul(A, random(23, like=dense))  # registers the operators
    number = cvrarray.torch.tensors._number(A)
    del A
    with pytest.raises(RuntimeError, match="is gone"):
        torch.ops.cvrarray.product(random(23, like=dense), None, number, 37, False)
