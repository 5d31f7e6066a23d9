"""Preconditioners: approximations of a matrix's inverse that cost little to make and to apply.

Each has ``apply(r, out)``, ``out = M @ r`` for contiguous vectors (n,) or (n, k); ``matvec`` for everybody else;
``update(A)`` for new values in the same structure; ``astype(dtype)``. Several solvers, threads and streams may use one
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Self

import numpy as np

from ..array import encoding, structure
from ..array.base import SparseArray
from ..array.format import FormatArray, entered
from ..core import devices
from ..core.remembered import Remembered
from . import operators
from .system import Lanes

#: The fewest steps of the Lanczos iteration that bounds the largest eigenvalue.
LANCZOS_STEPS = 6


class Preconditioner:
    """What all have in common: shape, dtype, device, and how the others are expressed by :meth:`apply`."""

    shape: tuple[int, int]
    dtype: np.dtype
    device: devices.Device
    capturable = False  #: whether an application takes no memory, once it has been made: then a CUDA graph may hold it
    version: Any = None  #: another object after each update
    _number: int  # of this one alone, as arrays have one

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        self = super().__new__(cls)
        self._number = entered(self)
        return self

    def apply(self, r: Any, out: Any) -> Any:
        """``out = M @ r``; r and out are contiguous, of one dtype, on the preconditioner's device."""
        raise NotImplementedError

    def matvec(self, x: Any, out: Any = None) -> Any:
        """``M @ x`` for a vector or a matrix, all of which is checked: kernels read and write where they are told to."""
        xp, n = self.device.xp, self.shape[0]
        x = operators.dense_vector(x, "x", self.device)
        if x.ndim not in (1, 2) or len(x) != n:
            raise ValueError(f"x must have shape ({n},) or ({n}, k) for this preconditioner; got {x.shape}")
        x = xp.ascontiguousarray(x, np.result_type(self.dtype, operators.vector_dtype(x.dtype)))
        if out is None:
            out = xp.empty_like(x)
        else:
            operators.check_out(out, x, "x", self.device)
        return self.frozen().apply(x, out)

    matmat = matvec

    def update(self, A: Any) -> None:
        """Take new values of a matrix of the same structure. Solves that run go on with the old ones."""
        raise NotImplementedError

    def frozen(self) -> Any:
        """The same as it is now, which no update of this one changes: a solve has one from its beginning to its end."""
        frozen = object.__new__(type(self))
        frozen.__dict__ = self.__dict__.copy()
        frozen._number = entered(frozen)
        return frozen

    def _swap(self, **new: Any) -> None:
        """Take new attributes, all or none: other threads may copy them at any time, and Ctrl-C come between two lines."""
        with self.device.use():
            self.device.wait()  # other streams will read them
        old = self.__dict__.copy()  # nothing is freed, which may run any code, until all are there
        self.__dict__.update(new, version=object())
        del old

    def require_shape(self, A: Any) -> None:
        """ValueError unless A has the shape of the matrix before."""
        if tuple(A.shape) != self.shape:
            raise ValueError(f"A must have shape {self.shape}, as before; got {tuple(A.shape)}. Make a new preconditioner")

    def __getstate__(self) -> dict[str, Any]:
        """Without what is compiled for it: a copy makes its own."""
        state = {name: {} if name == "_kernels" else value for name, value in self.__dict__.copy().items()}
        state.pop("_number", None)
        return state

    def astype(self, dtype: Any) -> Any:
        """The same in another precision."""
        raise NotImplementedError


class Workspace:
    """Vectors that an application needs, for each shape and dtype: one set for each thread and stream.

    A CUDA graph that is being captured has a set of its own, for it will run on any stream, beside others: the vector
    that it writes to tells whose it is.
    """

    def __init__(self, device: devices.Device, make: Callable[[tuple[int, ...], np.dtype], Any]) -> None:
        self._device, self._make, self._sets = device, make, Lanes()

    def __call__(self, out: Any) -> Any:
        """The set for an application that writes to `out`."""
        if self._device.is_capturing():
            return self._sets.captured((out.shape, out.dtype, out.data.ptr), lambda: self._make(out.shape, out.dtype))
        key = (out.shape, out.dtype, *self._device.lane())
        found = self._sets.get(key)
        return self._sets.put(key, self._make(out.shape, out.dtype)) if found is None else found


class Inverse(Preconditioner):
    """What multiplies by ``inverse``, numbers that a subclass makes from A."""

    inverse: Any

    def __init__(self, A: Any) -> None:
        self.device = A._target if isinstance(A, SparseArray) or operators.is_on_disk(A) else devices.of(A)
        self.shape = (operators.check_square(A.shape),) * 2
        self.inverse = self._inverted(A)
        self.dtype = self.inverse.dtype

    def _inverted(self, A: Any) -> Any:
        raise NotImplementedError

    def update(self, A: Any) -> None:
        self.require_shape(A)
        inverse = self._inverted(A)
        self._swap(inverse=inverse, dtype=inverse.dtype)

    def astype(self, dtype: Any) -> Any:
        cast = self.frozen()
        cast.inverse = cast.inverse.astype(precision(dtype, cast.dtype))
        cast.dtype = cast.inverse.dtype
        return cast


class Jacobi(Inverse):
    """The inverse of the diagonal: see :func:`jacobi`.

    Attributes
    ----------
    inverse : (n,) array, real where A's diagonal is
    """

    def _inverted(self, A: Any) -> Any:
        xp = self.device.xp
        with self.device.use():
            diagonal = A.diagonal() if operators.is_on_disk(A) else diagonal_blocks(A, 1).reshape(-1)[: self.shape[0]]
            bad = xp.flatnonzero((diagonal == 0) | ~xp.isfinite(diagonal))
            if bad.size:
                row = int(bad[0])
                raise ValueError(
                    f"jacobi needs a diagonal that is finite and not 0; A[{row}, {row}] is {diagonal[row]}. "
                    "Leave M out, or use minres or gmres"
                )
            if diagonal.dtype.kind == "c" and not bool((diagonal.imag != 0).any()):
                diagonal = diagonal.real
            wide = np.complex128 if diagonal.dtype.kind == "c" else np.float64
            return (1 / diagonal.astype(wide)).astype(operators.vector_dtype(diagonal.dtype))

    def apply(self, r: Any, out: Any) -> Any:
        inverse = self.inverse if r.ndim == 1 else self.inverse[:, None]
        self.device.xp.multiply(inverse, r, out=out)
        return out


class BlockJacobi(Inverse):
    """The inverses of the blocks on the diagonal: see :func:`block_jacobi`.

    Attributes
    ----------
    inverse : (n_blocks, block_size, block_size) array
    block_size : int
    """

    capturable = True

    def __init__(self, A: Any, block_size: int) -> None:
        self.block_size = block_size
        super().__init__(A)
        self._kernels: dict[Any, Any] = {}  # frozen ones have the same

    def _inverted(self, A: Any) -> Any:
        xp, size, n = self.device.xp, self.block_size, self.shape[0]
        with self.device.use():
            blocks = diagonal_blocks(A, size)
            blocks = blocks.astype(np.complex128 if blocks.dtype.kind == "c" else np.float64)
            beyond = len(blocks) * size - n
            if beyond:
                own = xp.arange(size - beyond, size)
                blocks[-1, own, own] = 1
            return inverses(blocks, xp).astype(operators.vector_dtype(A.dtype))

    def work(self, r: Any, out: Any) -> Any:
        """:meth:`apply` as calls of kernels, for loops in compiled code on a CPU; None where it consists of none."""
        if self.device.kind != "cpu" or r.ndim != 1 or r.dtype != self.dtype:
            return None
        from .cpu.vectors import work_of_blocks

        return [work_of_blocks(self.inverse, r, out)]

    def apply(self, r: Any, out: Any) -> Any:
        inverse = self.inverse
        if self.device.kind == "cuda":
            from .gpu.vectors import times_blocks

            times_blocks(inverse, r, out)
            return out
        if r.ndim == 1 and r.dtype == inverse.dtype:
            if r.dtype not in self._kernels:
                from .cpu.vectors import block_product

                self._kernels[r.dtype] = block_product(inverse)
            self._kernels[r.dtype](inverse, r, out)
            return out
        whole, n = r, self.shape[0]
        if len(inverse) * self.block_size != n:
            whole = np.zeros((len(inverse) * self.block_size, *r.shape[1:]), r.dtype)
            whole[:n] = r
        product = np.matmul(inverse.astype(r.dtype, copy=False), whole.reshape(len(inverse), self.block_size, -1))
        out[...] = product.reshape(whole.shape)[:n]
        return out


def precision(dtype: Any, like: np.dtype) -> np.dtype:
    """`dtype`, or its real one where `like` is real."""
    wanted: np.dtype = np.dtype(dtype).newbyteorder("=")
    if wanted.char not in "fdFD":
        raise TypeError(f"a preconditioner has numbers of float32 or float64, or complex ones of these; got {wanted}")
    return wanted if like.kind == "c" else np.dtype(wanted.type(0).real.dtype)


#: By a structure: where the blocks on the diagonal lie, for each size. No more numbers than the blocks' own.
_PLACES = Remembered()


def diagonal_blocks(A: Any, size: int) -> Any:
    """(n_blocks, size, size) on the diagonal of any matrix that has entries, 0 where nothing is stored. Where they lie is found
    once for each structure.
    """
    if not isinstance(A, FormatArray):
        return structure.block_diagonal(A if isinstance(A, SparseArray) else operators.diagonal_source(A), size)
    xp = A._target.xp
    slots = _PLACES.of(A._structure, size, lambda: structure.block_diagonal_slots(A, size))
    if not A.nnz:
        return xp.zeros(slots.shape, A.dtype)
    return xp.where(slots >= 0, encoding.at(A, slots), A.dtype.type(0))


def inverses(blocks: Any, xp: Any, raises: bool = True) -> Any:
    """The inverses of Hermitian positive definite blocks (n_blocks, size, size), by Cholesky; one column of all at a
    time.

    Raises
    ------
    ValueError
        A block is not positive definite, or singular in double precision; the message names the first. Unless it `raises`: then
        its inverse is nan.
    """
    size = blocks.shape[1]
    lower = xp.zeros_like(blocks)
    smallest = xp.full(len(blocks), xp.inf)  # pivot over the diagonal, of each block
    with np.errstate(all="ignore"):
        for j in range(size):
            row = lower[:, j, :j]
            own = blocks[:, j, j].real
            pivot = own - (row.real**2 + row.imag**2).sum(axis=1)
            smallest = xp.minimum(smallest, xp.where(own > 0, pivot / xp.where(own > 0, own, 1.0), -1.0))
            root = xp.sqrt(xp.where(pivot > 0, pivot, 1.0))
            lower[:, j, j] = root
            if j + 1 < size:
                below = blocks[:, j + 1 :, j] - (lower[:, j + 1 :, :j] * row.conj()[:, None, :]).sum(axis=2)
                lower[:, j + 1 :, j] = below / root[:, None]
        is_bad = ~(smallest > size * np.finfo(np.float64).eps) | ~xp.isfinite(lower).all(axis=(1, 2))
        bad = xp.flatnonzero(is_bad & raises)
        if bad.size:
            k = int(bad[0])
            raise ValueError(
                f"block_jacobi needs positive definite blocks; block {k}, of the rows {k * size} to {(k + 1) * size - 1}, has "
                f"a Cholesky pivot of {float(smallest[k]):.3g} times its diagonal. Add to A's diagonal, or use jacobi"
            )
        inverse = xp.zeros_like(blocks)
        for i in range(size):
            root = lower[:, i, i]
            inverse[:, i, :i] = -(lower[:, i, :i, None] * inverse[:, :i, :i]).sum(axis=1) / root[:, None]
            inverse[:, i, i] = 1 / root
        inverse = xp.matmul(inverse.conj().transpose(0, 2, 1), inverse)
        return inverse if raises else xp.where(is_bad[:, None, None], inverse.dtype.type(np.nan), inverse)


class Chebyshev(Preconditioner):
    """A polynomial in A and the inverse of its diagonal: see :func:`chebyshev`."""

    capturable = True

    def __init__(self, A: Any, degree: int, ratio: float, largest: float | None = None, inverse: Any = None) -> None:
        self.device = A._target if isinstance(A, SparseArray) else devices.of(A)
        self.shape, self.dtype = (operators.check_square(A.shape),) * 2, operators.vector_dtype(A.dtype)
        self.matrix, self.degree, self.ratio = A, degree, ratio
        self.inverse_diagonal = _real(Jacobi(A).inverse) if inverse is None else inverse
        self.largest = spectrum(A, self.inverse_diagonal, self.device)[1] if largest is None else largest
        self._workspace = Workspace(self.device, self._vectors)
        self._kernels: dict[Any, Any] = {}

    def _vectors(self, shape: tuple[int, ...], dtype: np.dtype) -> list[Any]:
        return [self.device.xp.empty(shape, dtype) for _ in range(2)]

    def apply(self, r: Any, out: Any) -> Any:
        return self.frozen().smooth(r, out, is_zero=True)

    def smooth(self, b: Any, x: Any, is_zero: bool = False) -> Any:
        """Steps for ``A @ x = b`` from the x that is there, or from 0: Saad, "Iterative Methods", algorithm 12.1."""
        center, half = self.largest * (1 + 1 / self.ratio) / 2, self.largest * (1 - 1 / self.ratio) / 2
        d, product = self._workspace(x)
        turn = self._turn(b)
        sigma = center / half if half > 0 else np.inf
        rho = 1 / sigma
        for step in range(self.degree):
            is_first = step == 0 and is_zero
            if not is_first:
                operators.multiply(self.matrix, x, product)
            if step == 0:
                old, new = 0.0, 1 / center
            else:
                before, rho = rho, 1 / (2 * sigma - rho)
                old, new = rho * before, 2 * rho / half
            turn(old, new, is_first, b, product, d, x)
        return x

    def _turn(self, b: Any) -> Callable[..., None]:
        """``d = old d + new D^-1 (b - product); x += d``, in one kernel, which takes no memory."""
        key = (b.shape[1:], b.dtype)
        if key not in self._kernels:
            self._kernels[key] = vectors_of(self.device).chebyshev_turn(self.inverse_diagonal, b)
        found: Callable[..., None] = self._kernels[key]
        return found

    def update(self, A: Any) -> None:
        self.require_shape(A)
        inverse = _real(Jacobi(A).inverse)
        self._swap(matrix=A, inverse_diagonal=inverse, largest=spectrum(A, inverse, self.device)[1], _kernels={})

    def astype(self, dtype: Any) -> Chebyshev:
        now = self.frozen()
        matrix = now.matrix.astype(precision(dtype, now.matrix.dtype))
        return type(self)(
            matrix, now.degree, now.ratio, now.largest, now.inverse_diagonal.astype(precision(dtype, np.dtype(np.float64)))
        )


def _real(inverse: Any) -> Any:
    """The inverse of a Hermitian matrix's diagonal."""
    if inverse.dtype.kind == "c":
        raise ValueError("chebyshev needs a Hermitian A; its diagonal is complex. Use jacobi")
    return inverse


def spectrum(A: Any, inverse: Any, device: devices.Device) -> tuple[float, float]:
    """Of the largest eigenvalue of ``D^-1 A`` an estimate, from below, and an upper bound, but for rounding, from a few
    Lanczos steps. It waits for the device once, at the end.

    Where few rows have eigenvalues above all others, a random start has about 1 / sqrt(n) of them: steps grow with log n, as
    the error's bound of J. Kuczynski and H. Wozniakowski, SIAM J. Matrix Anal. Appl. 13, 1992, asks for. The bound is the
    estimate plus what the last step left: Y. Zhou, Y. Saad, M. L. Tiago, J. R. Chelikowsky,
    "Parallel self-consistent-field calculations via Chebyshev-filtered subspace acceleration", Phys. Rev. E 74, 066704,
    2006.
    """
    xp, n = device.xp, A.shape[0]
    if n == 0:
        return 1.0, 1.0
    vectors, dtype = vectors_of(device), operators.vector_dtype(A.dtype)
    steps = min(max(LANCZOS_STEPS, -(-n.bit_length() // 2)), n)
    x = vectors.scattered(n).astype(dtype)
    with np.errstate(all="ignore"):  # nan is told below
        root = xp.sqrt(abs(inverse)).astype(dtype.type(0).real.dtype)
        alphas, betas = vectors.lanczos(lambda x, out: operators.multiply(A, x, out), root, x, steps).T
    ends = np.flatnonzero(~(betas > np.finfo(dtype).eps * abs(alphas)))
    n = int(ends[0]) + 1 if ends.size else alphas.size
    if not np.isfinite([alphas[:n], betas[:n]]).all():
        raise ValueError("A must be finite; a product with it gave nan or inf")
    tridiagonal = np.diag(alphas[:n]) + np.diag(betas[: n - 1], 1) + np.diag(betas[: n - 1], -1)
    largest = float(np.linalg.eigvalsh(tridiagonal)[-1])
    return largest, largest + float(betas[n - 1])


def vectors_of(device: devices.Device) -> ModuleType:
    """The arithmetic of vectors on a device."""
    if device.kind == "cpu":
        from .cpu import vectors

        return vectors
    from .gpu import vectors as on_gpu

    return on_gpu


def jacobi(A: Any) -> Jacobi:
    """The diagonal preconditioner: ``M = inv(diag(A))``. The solvers apply it inside their updates of vectors.

    Parameters
    ----------
    A : (n, n) array of ours, :class:`cvrarray.Stored`, or sparse or dense matrix

    Returns
    -------
    Jacobi
        With ``apply(r, out)``, ``matvec(x)``, ``update(A)`` for new values, and ``inverse``, (n,).

    Raises
    ------
    ValueError
        An entry of the diagonal is 0, nan or inf; it is named. Or A is not square.
    TypeError
        A has no entries that can be read.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[2.0, 1], [1, 4]])
    >>> cvrarray.linalg.jacobi(A).matvec(np.ones(2))
    array([0.5 , 0.25])
    """
    return Jacobi(A if operators.is_on_disk(A) else operators.diagonal_source(A, "jacobi"))


def block_jacobi(A: Any, block_size: int | None = None) -> BlockJacobi:
    """The inverses of A's diagonal blocks, computed in double precision by Cholesky.

    Parameters
    ----------
    A : (n, n) array of ours, or sparse or dense matrix
        Hermitian; the blocks are positive definite.
    block_size : int, optional
        Default: BBCSR's own; an array without blocks needs it.

    Returns
    -------
    BlockJacobi
        With ``apply(r, out)``, ``matvec(x)``, ``update(A)`` for new values, ``inverse`` and ``block_size``.

    Raises
    ------
    ValueError
        A block is not positive definite; it is named. Or A is not square, or has no blocks and `block_size` is left
        out.
    TypeError
        A has no entries that can be read.

    Examples
    --------
    >>> A = cvrarray.BBCSRArray([[2.0, 1, 0, 0], [1, 2, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4]], block_size=2)
    >>> cvrarray.linalg.block_jacobi(A).matvec(np.ones(4)).round(6)
    array([0.333333, 0.333333, 0.25    , 0.25    ])
    """
    A = operators.diagonal_source(A, "block_jacobi")
    size = getattr(A, "block_size", None) if block_size is None else block_size
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 1 <= size <= 64:
        raise ValueError(
            f"block_size must be a whole number from 1 to 64; got {size!r}. Only BBCSR arrays have one of their own"
        )
    return BlockJacobi(A, int(size))


def chebyshev(A: Any, degree: int = 3, *, ratio: float = 30.0) -> Chebyshev:
    """A polynomial of a matrix that is small on the upper part of its spectrum: products, and no inner products.

    Chebyshev's iteration for ``D^-1 A``, D the diagonal, from 0: Y. Saad, "Iterative Methods for Sparse Linear
    Systems", 2nd ed., SIAM 2003, section 12.3.2. The spectrum's upper end is bounded by a few Lanczos steps.

    Parameters
    ----------
    A : (n, n) array of ours, or sparse or dense matrix
        Symmetric (Hermitian) positive definite.
    degree : int
        Steps; each but the first costs a product.
    ratio : float
        The polynomial is small between the largest eigenvalue and this part of it.

    Returns
    -------
    Chebyshev
        With ``apply(r, out)``, ``matvec(x)``, ``update(A)`` for new values.

    Raises
    ------
    ValueError
        The diagonal has an entry that is 0, nan or inf; A is not square; `degree` or `ratio` is out of range.
    TypeError
        A has no entries that can be read.

    Examples
    --------
    >>> A = cvrarray.asarray(np.diag([1.0, 2, 4]), device="cpu")
    >>> M = cvrarray.linalg.chebyshev(A, 4)
    >>> x, info = cvrarray.linalg.cg(A, np.ones(3), M=M)
    >>> x.round(4), info
    (array([1.  , 0.5 , 0.25]), 0)
    """
    if isinstance(degree, bool) or int(degree) != degree or degree < 1:
        raise ValueError(f"degree must be a whole number from 1; got {degree!r}")
    if not ratio > 1:
        raise ValueError(f"ratio must be above 1; got {ratio!r}")
    return Chebyshev(operators.diagonal_source(A, "chebyshev"), int(degree), float(ratio))


NAMED: dict[str, Callable[[Any], Any]] = {"jacobi": jacobi, "block_jacobi": block_jacobi}


def named(name: str, A: Any) -> Any:
    """The preconditioner that is called so."""
    if name not in NAMED:
        raise ValueError(
            f"M must be {' or '.join(map(repr, NAMED))}, an operator, or a preconditioner such as linalg.multigrid(A) or"
            f" linalg.chebyshev(A); got {name!r}"
        )
    return NAMED[name](A)
