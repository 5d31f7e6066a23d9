"""Products with dense vectors and matrices: operands are checked and coerced here, and the device's kernels called.

An array offers prepared kernels through ``array._kernel(kind, dtype)``: ``"product"`` and ``"product_transposed"`` take
a vector, ``"product_matrix"`` a matrix in C order. Each is ``run(x, y, alpha, beta)``, as the device modules define it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..core import devices
from ..core.arrays import Run
from ..core.distinct import NARROWER
from ..input import coercion

#: dtypes of float32 -> the same of float64
WIDER = {narrow: wide for wide, narrow in NARROWER.items()}

_MOST = 1e38  # below what any float can hold that products are computed in

_EVERYDAY = int, float  # types of scalars


def matvec(array: Any, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
    """``alpha * (array @ x) + beta * out``: see :meth:`cvrarray.array.base.SparseArray.matvec`."""
    if type(x) is array._dense_type and x.ndim == 1:
        y = at_once(array, x, out, alpha, beta)
        if y is not None:
            return y
    x = operand(array, x, "x")
    if x.ndim == 2 and x.shape[1] == 1:  # a column, as linear operators take it
        return matmat(array, x, out, alpha, beta)
    if x.ndim != 1:
        raise TypeError(f"x must be a vector (1-D), or a matrix of one column; got shape {x.shape}. Use A @ x")
    return _multiply(array, x, out, alpha, beta)


def at_once(array: Any, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
    """The product with an array of the device's module by what is prepared for its dtype and shape: what nearly every call is.
    None, where nothing is done yet: every other call, and every error, takes the long way.
    """
    dtype = x.dtype
    ready = array._products.ready.get((dtype, x.shape))
    if ready is None or not ready.fits(x):
        return None
    # of everyday numbers alone: others may be arrays, of which == is one, or numbers that `scalar` refuses
    is_plain = type(alpha) in _EVERYDAY and type(beta) in _EVERYDAY and alpha == 1 and beta == 0
    if out is None:
        if is_plain:
            y = ready.empty(ready.y_shape, dtype)
            ready.run(x, y, ready.one, ready.zero)
            return y
    elif (
        type(out) is type(x)
        and out.dtype == dtype
        and out.shape == ready.y_shape
        and ready.fits(out)
        and not ready.may_share_memory(x, out)
    ):
        if is_plain:
            ready.run(x, out, ready.one, ready.zero)
        else:
            ready.run(x, out, scalar(alpha, "alpha", dtype), scalar(beta, "beta", dtype))
        return out
    return None


class Few(dict[Any, Any]):
    """At most :attr:`most` results by a key: the oldest are forgotten. It may be used from many threads.

    Examples
    --------
    >>> from cvrarray.array.products import Few
    >>> found = Few()
    >>> for k in range(100):
    ...     found[k] = k
    >>> len(found), min(found)
    (32, 68)
    """

    __slots__ = ()
    most = 32

    def __setitem__(self, key: Any, value: Any) -> None:
        for oldest in list(self)[: max(0, len(self) + 1 - self.most)]:
            self.pop(oldest, None)  # another thread may have forgotten it
        super().__setitem__(key, value)


class PreparedProduct:
    """A prepared product for operands of one shape that are in the product's dtype already, and all that a call of it needs."""

    __slots__ = ("empty", "fits", "may_share_memory", "one", "run", "y_shape", "zero")

    def __init__(self, target: Any, y_shape: tuple[int, ...], dtype: np.dtype, run: Run) -> None:
        self.run, self.y_shape = run, y_shape
        self.fits, self.may_share_memory, self.empty = _fits(target), target.may_share_memory, target.xp.ndarray
        self.one, self.zero = dtype.type(1), dtype.type(0)


def _fits(target: Any) -> Callable[[Any], bool]:
    """Whether the kernels may have an array of the device's module as it is: contiguous, on the (current) device."""
    if target.kind == "cpu":
        return operator.attrgetter("flags.carray")  # aligned and writeable too
    index, current = target.index, target.xp.cuda.runtime.getDevice
    # aligned for every dtype: others take the long way, on which that is asked
    return lambda array: (
        array.flags.c_contiguous and not array.data.ptr % 16 and array.data.device_id == index and current() == index
    )


def matmat(array: Any, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
    """``alpha * (array @ X) + beta * out``: see :meth:`cvrarray.array.base.SparseArray.matmat`."""
    if type(x) is array._dense_type and x.ndim == 2:
        y = at_once(array, x, out, alpha, beta)
        if y is not None:
            return y
    x = operand(array, x, "x")
    if x.ndim != 2:
        raise TypeError(f"x must be a matrix (2-D); got shape {x.shape}. Use A @ x for a vector")
    return _multiply(array, x, out, alpha, beta)


def multiply(array: Any, x: Any, out: Any = None) -> Any:
    """``array @ x`` for a vector or a matrix."""
    if type(x) is array._dense_type:
        y = at_once(array, x, out)
        if y is not None:
            return y
    x = operand(array, x, "x")
    if x.ndim > 2:
        return _stacked(array, x, out)
    if x.ndim == 0:
        raise TypeError("x must be a vector (1-D) or a matrix (2-D); got a scalar. Use A * x")
    return _multiply(array, x, out, 1, 0)


def _stacked(array: Any, x: Any, out: Any) -> Any:
    """``array @ x`` for a stack of matrices (..., n_cols, k): one product with all of their columns."""
    if out is not None:
        raise TypeError(f"out must be left out of a product with a stack of matrices; got x of shape {x.shape}")
    if x.shape[-2] != array.shape[1]:
        raise ValueError(f"x must have {array.shape[1]} rows in its last two axes for shape {array.shape}; got {x.shape}")
    last = x.ndim - 1
    columns = x.transpose([last - 1, *range(last - 1), last])
    product = _multiply(array, columns.reshape(array.shape[1], math.prod(columns.shape[1:])), None, 1, 0)
    return product.reshape(array.shape[0], *columns.shape[1:]).transpose([*range(1, last), 0, last])


def multiply_left(x: Any, array: Any, out: Any = None) -> Any:
    """``x @ array`` for a vector or a matrix: ``(array.T @ x.T).T``."""
    x = operand(array, x, "x")
    if x.ndim == 1:
        return multiply(array.T, x, out)
    if x.ndim == 0:
        raise TypeError("x must be a vector (1-D) or a matrix (2-D); got a scalar. Use x * A")
    if x.ndim > 2 and out is None and x.shape[-1] == array.shape[0]:
        rows = multiply_left(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), array)
        return rows.reshape(*x.shape[:-1], array.shape[1])
    if x.ndim != 2 or x.shape[1] != array.shape[0]:
        raise ValueError(f"x must have {array.shape[0]} columns for an array of shape {array.shape}; got shape {x.shape}")
    if out is None:
        return multiply(array.T, x.T).T
    out = operand(array, out, "out")
    multiply(array.T, x.T, out.T)
    return out


def multiply_sparse(left: Any, right: Any, format: str | None = None) -> Any:
    """``left @ right``, one of which is ours and the other any sparse matrix on the same device, through CSR.

    Parameters
    ----------
    format : {None, "csr"}
        None: the format and parameters of the left array, if it is ours, else of the right one. "csr": what
        :meth:`cvrarray.array.base.SparseArray.tocsr` gives, without another conversion.

    Raises
    ------
    TypeError
        The operands live on two devices, or on a GPU the product would hold integers, which CuPy does not multiply.
    ValueError
        The shapes do not fit, or `format` is unknown.
    """
    if format not in (None, "csr"):
        raise ValueError(f"format must be None or 'csr'; got {format!r}. Use A.dot(B, format='csr') and convert that")
    ours = left if coercion.is_ours(left) else right
    if len(left.shape) != 2 or len(right.shape) != 2:
        raise TypeError(f"a product needs two matrices; got shapes {left.shape} and {right.shape}. Use .todense() on a vector")
    if left.shape[1] != right.shape[0]:
        raise ValueError(f"a product needs shapes (m, k) and (k, n); got {tuple(left.shape)} and {tuple(right.shape)}")
    a, b = coercion.as_csr(left), coercion.as_csr(right)
    device = coercion.same_device(left=a.data, right=b.data)
    dtype = product_dtype(a.data.dtype, b.data.dtype)[0]
    work = coercion.wide(dtype)
    if work != dtype and format == "csr":
        raise TypeError(f"SciPy and CuPy hold no {dtype} matrices. Leave out format, or use astype('float32') on an operand")
    with device.use():
        if device.kind == "cpu":
            product = device.backend("taking").combined(operator.matmul, a, b, work)
        elif dtype.kind in "fc":
            product = device.backend("sparse_product").multiply(a, b, work)
        else:
            raise TypeError(f"CuPy multiplies no sparse matrices of {dtype}. Use astype('float64'), or to_device('cpu')")
        product.sort_indices()
        if format == "csr":
            return product
        csr = coercion.as_csr(product)
        return ours._like(csr._replace(data=coercion.narrowed(csr.data, dtype)))


def adjoint(product: Callable[[Any, Any], Any], array: Any, x: Any) -> Any:
    """``array.H @ x`` by :func:`matvec` or :func:`matmat`; conjugates are taken of x, never of the matrix."""
    if array.dtype.kind != "c":
        return product(array.T, x)
    return product(array.T, operand(array, x, "x").conj()).conj()


def _multiply(array: Any, x: Any, out: Any, alpha: Any, beta: Any) -> Any:
    """The product with a checked operand of one or two dimensions."""
    n_rows, n_cols = array._shape
    if x.shape[0] != n_cols:
        found = x.size if x.ndim == 1 else f"shape {x.shape}"
        raise ValueError(f"x must have length {n_cols} for an array of shape {array._shape}; got {found}")
    dtype, work = product_dtype(array._dtype, x.dtype)
    shape = (n_rows, *x.shape[1:])
    given = None if out is None else checked_out(array, out, shape, dtype)
    alpha, beta = scalar(alpha, "alpha", work), scalar(beta, "beta", work)
    if beta != 0 and given is None:
        raise ValueError(f"beta = {beta} needs an array to scale: pass out=")
    with array._target.use():
        if given is not None:
            _into(array, x, given, alpha, beta, dtype, work)
            return out
        if work == dtype and _is_ready(x, work):
            return _run(array, x, array._target.xp.empty(shape, work), alpha, beta, dtype)
        with array._target.keeping(array._of_graphs):  # what is not the result
            y = _run(array, cast(array._target, x, work), array._target.xp.empty(shape, work), alpha, beta, dtype)
            return y if work == dtype else coercion.narrowed(y, dtype)


def _into(array: Any, x: Any, out: Any, alpha: Any, beta: Any, dtype: np.dtype, work: np.dtype) -> None:
    """The product into a checked array: at once where kernels may write there while they read x, else by another array."""
    if beta != 0 and out.dtype != dtype:
        raise TypeError(f"out must have the product's dtype, {dtype}, where beta is not 0; got {out.dtype}")
    target, is_ready = array._target, _is_ready(x, work)
    is_direct = _is_ready(out, work) and not (is_ready and target.may_share_memory(x, out))
    if is_ready and is_direct:
        _run(array, x, out, alpha, beta, dtype)
        return
    with target.keeping(array._of_graphs):
        x = x if is_ready else cast(target, x, work)
        if is_direct:
            _run(array, x, out, alpha, beta, dtype)
            return
        y = target.xp.empty(out.shape, work)
        if beta != 0:
            y[...] = out
        y = cast(target, coercion.narrowed(_run(array, x, y, alpha, beta, dtype), dtype), out.dtype)
        if out.ndim == 2 and out.flags.f_contiguous and not out.flags.c_contiguous:
            target.backend("order").c_order(y.T, out.T)
        else:
            out[...] = y


def _is_ready(a: Any, work: np.dtype) -> bool:
    """Whether kernels that compute in a dtype may have an operand as it is."""
    return a.dtype == work and bool(a.flags.c_contiguous)


def cast(target: Any, x: Any, dtype: np.dtype) -> Any:
    """`x` in C order and `dtype`. CuPy makes 0 of a denormal float32 that becomes a float64."""
    if x.ndim == 2 and x.shape[1] > 1 and x.strides[0] == x.itemsize and not x.flags.c_contiguous:  # as in Fortran order
        x = target.backend("order").c_order(x)
    wider = WIDER.get(x.dtype) if target.kind == "cuda" and dtype in NARROWER else None
    if wider is not None:
        x = target.backend("distinct").widened(x, wider)
    return target.xp.ascontiguousarray(x, dtype=dtype)


def _run(array: Any, x: Any, y: Any, alpha: Any, beta: Any, dtype: np.dtype) -> Any:
    """``y = alpha * array @ x + beta * y``, which is returned, for operands that are ready; `dtype` is the product's."""
    if not y.size:
        return y
    ready, version = array._products.ready, array._version
    if x.shape[1:] == (1,):  # a column, as linear operators take it
        product = array._kernel("product", y.dtype)

        def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
            product(x.reshape(-1), y.reshape(-1), alpha, beta)

    else:
        run = array._kernel("product" if x.ndim == 1 else "product_matrix", y.dtype)
    run(x, y, alpha, beta)
    if y.dtype == dtype and (dtype, x.shape) not in ready and version is not None and version == array._version:
        ready[dtype, x.shape] = PreparedProduct(array._target, y.shape, dtype, run)
    return y


def by_columns(product: Run) -> Run:
    """The product with a matrix, column by column, by that with a vector."""

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        xp = devices.of(y).xp
        for column in range(x.shape[1]):
            sums = xp.ascontiguousarray(y[:, column])
            product(xp.ascontiguousarray(x[:, column]), sums, alpha, beta)
            y[:, column] = sums

    return run


def checked_out(array: Any, out: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """`out` as an array of the device's module, once it can take a product of this shape and dtype."""
    out = operand(array, out, "out")
    if out.ndim != len(shape):
        raise TypeError(f"out must be {len(shape)}-D, as x is; got shape {out.shape}")
    if out.shape != shape:
        wanted, found = (f"length {shape[0]}", out.size) if len(shape) == 1 else (f"shape {shape}", out.shape)
        raise ValueError(f"out must have {wanted}; got {found}")
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise TypeError(f"out must have a dtype that {dtype} casts to; got {out.dtype}")
    if not getattr(out.flags, "writeable", True):
        raise ValueError("out must be writeable; it is read-only. Pass a copy")
    if out.size and _overlaps(out):
        raise ValueError(f"out must have memory for each number; got strides {out.strides} for shape {out.shape}. Pass a copy")
    return out


def _overlaps(a: Any) -> bool:
    """Whether two numbers of `a`, a vector or a matrix, have the same address: that of one is so many strides of the first axis
    and of the second from that of the other.
    """
    strides = [abs(stride) for stride, n in zip(a.strides, a.shape, strict=True) if n > 1]
    if len(strides) < 2 or not all(strides):
        return not all(strides)
    apart = math.lcm(*strides)
    return all(apart // stride < n for stride, n in zip(strides, a.shape, strict=True))


@cache
def product_dtype(matrix: np.dtype, x: np.dtype) -> tuple[np.dtype, np.dtype]:
    """The dtype of a product, as NumPy has it, and the one that it is computed in."""
    dtype = np.result_type(matrix, x)
    if dtype.kind not in "biufc" or dtype.itemsize not in (1, 2, 4, 8, 16) or dtype == np.longdouble:
        raise TypeError(f"a product must have a dtype the array can compute in; {matrix} with {x} gives {dtype}")
    # bool @ bool is counted in int64: an entry is true where the count is not 0; float16 is rounded once, at the end
    return dtype, np.dtype(np.int64) if dtype == np.bool_ else coercion.wide(dtype)


def operand(array: Any, x: Any, name: str) -> Any:
    """`x` as a numeric array on `array`'s device, or a TypeError that names the remedy."""
    target = array._target
    if type(x) is not target.xp.ndarray:
        x = _coerced(array, x, name)
    if target.kind == "cuda" and x.data.device_id != target.index:
        raise TypeError(
            f"{name} must be on the array's device, {target}; got cuda:{x.data.device_id}. Use A.to_device or cupy.asarray"
        )
    if x.dtype.kind not in "biufc":
        raise TypeError(f"{name} must be numeric; got dtype {x.dtype}")
    devices.check_aligned(x, name)
    return x


def _coerced(array: Any, x: Any, name: str) -> Any:
    """What is not an array of the device's module as one, where that copies nothing to or from a GPU."""
    target = array._target
    package = coercion.package(x)
    if name != "out" and coercion.is_tensor(x) and x.requires_grad:
        raise TypeError(
            f"{name} must not require a gradient, as the result is no tensor; got requires_grad=True. For gradients use A @ t,"
            f" or cvrarray.torch.matmul(A, x, values); without them {name}.detach()"
        )
    if package in coercion.SPARSE_PACKAGES:
        raise TypeError(f"{name} must be dense; got {type(x).__name__}. Use A @ {name}, or {name}.todense()")
    if target.kind == "cuda":
        raise TypeError(
            f"{name} must be a cupy.ndarray on the array's device, {target}; got {type(x).__module__}.{type(x).__qualname__}. "
            f"Use cupy.asarray({name}), or A.to_device('cpu')"
        )
    if package == "cupy":
        raise TypeError(
            f"{name} must be on the array's device, cpu; got a CuPy array. Use {name}.get(), or A.to_device('cuda')"
        )
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} must hold all its values; got a masked array. Use {name}.filled(0)")
    if name == "out" and not isinstance(x, np.ndarray):
        raise TypeError(f"out must be a NumPy array; got {type(x).__name__}")
    return np.asarray(x)


def scalar(value: Any, name: str, dtype: np.dtype) -> Any:
    """`value` as a scalar of `dtype`; TypeError where that would lose its imaginary part, its fraction or its size."""
    if type(value) in _EVERYDAY and (value in (0, 1) or (dtype.kind in "fc" and -_MOST < value < _MOST)):
        return dtype.type(value)  # what nearly every call passes
    is_on_host = isinstance(value, (bool, int, float, complex, np.generic, np.ndarray))  # else it would be waited for
    if is_on_host and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biufc":
        try:
            with np.errstate(over="ignore"):
                converted = dtype.type(value) if dtype.kind == "c" or not np.iscomplexobj(value) else None
        except (OverflowError, ValueError):
            converted = None
        if converted is not None:
            kept_size = np.isfinite(converted) or not np.isfinite(value)
            if kept_size if dtype.kind in "fc" else converted == value:
                return converted
    raise TypeError(f"{name} must be a scalar that the product's dtype, {dtype}, can hold; got {value!r}")
