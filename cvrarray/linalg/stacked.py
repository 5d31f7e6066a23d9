"""Systems of a stack: one structure, and for each system values, a right-hand side, a tolerance and an end of its own.

A solver sees them as the columns of one system, in Fortran order: column j of b, of x and of all vectors belongs to element j
of the stack. So checks, scaling, ends and results are those of many right-hand sides (:mod:`.solving`).

On a GPU all systems go through an iteration together, and one that has ended stays as it is. On a CPU they are solved one after
the other by the engine of a single array: with its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..array import encoding, structure
from ..array.stack import Stack
from ..bbcsr import BBCSRArray
from ..core.remembered import Remembered
from . import operators, preconditioners, solution
from .arguments import Arguments
from .operators import Operator
from .preconditioners import BlockJacobi, Jacobi
from .solution import Outcome
from .system import System

#: What M may be.
NAMED = ("jacobi", "block_jacobi")
#: By a stack: the same values in bins, for kernels that solve many systems at the same time.
_IN_BINS = Remembered()
#: Slots that bins may have for each nonzero of such a matrix, unless it has few bins.
MOST_PADDED, FEW_BINS = 2.0, 8
#: Systems, at most, on a GPU: a grid has no more rows of blocks.
MOST = 65_535
#: By a structure: where the blocks on the diagonal lie, for each size.
_PLACES = Remembered()


def in_bins(stack: Stack) -> Stack:
    """The stack of BBCSR that a GPU solves with: itself, or of a CVR with rows of about one length the same matrices."""

    def converted() -> Stack | None:
        csr = stack._like._canonical_csr()
        ones = stack._target.xp.ones(csr.indices.size)
        array = BBCSRArray((ones, csr.indices, csr.indptr), shape=csr.shape, block_size=1, values="plain")
        return array.stack(stack.data) if array.fill_ratio <= MOST_PADDED or array.n_bins <= FEW_BINS else None

    if stack._target.kind == "cpu" or isinstance(stack._like, BBCSRArray) or not stack._like.nnz:
        return stack
    found: Stack | None = _IN_BINS.of(stack, "bins", converted)
    return stack if found is None else found


class Columns(Operator):
    """A stack as the operator on columns (n, batch), each of which has a matrix of its own."""

    def __init__(self, stack: Stack) -> None:
        n = stack.shape[1]
        super().__init__((n, n), stack.dtype, _refused, partial(_multiply_columns, stack))
        self.stack, self.nbytes = stack, stack.nbytes


def _refused(x: Any, out: Any) -> None:
    raise TypeError("a stack multiplies a column for each of its elements")


def _multiply_columns(stack: Stack, x: Any, out: Any) -> None:
    y = out.T
    if y.flags.c_contiguous:
        stack.multiply(x.T, y)
    else:
        out[...] = stack.multiply(x.T).T


def preconditioner(M: Any, stack: Stack) -> Any:
    """That of all elements, for one of the names, or None.

    Raises
    ------
    TypeError, ValueError
        M is something else.
    """
    if M is None:
        return None
    if not isinstance(M, str):
        raise TypeError(f"M must be None, 'jacobi' or 'block_jacobi' for a Stack; got {type(M).__name__}. Solve with each S[i]")
    if M not in NAMED:
        raise ValueError(f"M must be None, 'jacobi' or 'block_jacobi' for a Stack; got {M!r}")
    size = 1 if M == "jacobi" else getattr(stack._like, "block_size", None)
    if size is None:
        raise ValueError("block_jacobi needs a stack of BBCSR arrays, which have a block size; got CVR. Use jacobi")
    return Inverses(stack, size, is_diagonal=M == "jacobi")


class Inverses:
    """Of the diagonals of all elements, or of the blocks on them: nan where there is none, which ends that system alone.

    Attributes
    ----------
    inverse : (batch * n,) array, or (batch * n_blocks, block_size, block_size)
        What kernels take, one element after the other.
    """

    def __init__(self, stack: Stack, block_size: int, is_diagonal: bool) -> None:
        self.block_size, self.is_diagonal = block_size, is_diagonal
        self.shape, self.device = stack.shape[1:], stack._target
        with self.device.use():
            self.inverse = self._diagonals(stack) if is_diagonal else self._blocks(stack)
        self.dtype = self.inverse.dtype

    def _diagonals(self, stack: Stack) -> Any:
        diagonal = diagonal_blocks(stack, 1).reshape(len(stack), -1)[:, : self.shape[0]].reshape(-1)
        wide = diagonal.astype(np.complex128 if diagonal.dtype.kind == "c" else np.float64)
        if wide.dtype.kind == "c" and not bool((wide.imag != 0).any()):
            wide, diagonal = wide.real, diagonal.real
        with np.errstate(all="ignore"):
            inverse = self.device.xp.where(wide == 0, np.nan, 1 / wide)
        return inverse.astype(operators.vector_dtype(diagonal.dtype))

    def _blocks(self, stack: Stack) -> Any:
        xp, size, n = self.device.xp, self.block_size, self.shape[0]
        blocks = diagonal_blocks(stack, size)
        blocks = blocks.astype(np.complex128 if blocks.dtype.kind == "c" else np.float64)
        beyond = blocks.shape[1] * size - n
        if beyond:
            own = xp.arange(size - beyond, size)
            blocks[:, -1, own, own] = 1
        inverse = preconditioners.inverses(blocks.reshape(-1, size, size), xp, raises=False)
        return inverse.astype(operators.vector_dtype(stack.dtype))

    def of(self, i: int) -> Any:
        """That of element i, as :func:`.jacobi` and :func:`.block_jacobi` make it."""
        one: Any = object.__new__(Jacobi if self.is_diagonal else BlockJacobi)
        count = self.shape[0] if self.is_diagonal else -(-self.shape[0] // self.block_size)
        one.__dict__.update(self.__dict__, inverse=self.inverse[i * count : (i + 1) * count].copy(), _kernels={})
        return one


def diagonal_blocks(stack: Stack, size: int) -> Any:
    """(batch, n_blocks, size, size) on the diagonals, on the current device; 0 where nothing is stored."""
    like, xp = stack._like, stack._target.xp
    slots = _PLACES.of(like._structure, size, lambda: structure.block_diagonal_slots(like, size))
    if not like.nnz:
        return xp.zeros((len(stack), *slots.shape), stack.dtype)
    return xp.where(slots >= 0, stack._tables[:, slots], stack.dtype.type(0))


def system(stack: Stack, M: Any, b: Any, x0: Any, out: Any) -> Arguments:
    """The checked systems, as columns: b and x0 are (batch, n).

    Raises
    ------
    TypeError, ValueError
        As :func:`.arguments.system`.
    """
    device = stack._target
    shape = (len(stack), operators.check_square(stack.shape[1:]))
    with device.use():
        matrix = Columns(in_bins(stack))
        b = operators.dense_vector(b, "b", device)
        if device.kind == "cuda" and shape[0] > MOST:
            raise ValueError(f"a GPU solves at most {MOST:,} systems at a time; got {shape[0]:,}. Solve with parts of S")
        if b.shape != shape:
            raise ValueError(f"b must have shape {shape}, a right-hand side for each element of the Stack; got {b.shape}")
        dtype = operators.vector_dtype(stack.dtype, b.dtype)
        b = device.xp.ascontiguousarray(b, dtype)
        if out is not None:
            operators.check_out(out, b, "b", device)
        x = device.xp.empty_like(b) if out is None else out
        if x0 is None:
            x.fill(0)
        else:
            x0 = operators.dense_vector(x0, "x0", device)
            if x0.shape != shape:
                raise ValueError(f"x0 must have b's shape, {shape}; got {x0.shape}")
            if x0.dtype.kind == "c" and dtype.kind != "c":
                raise TypeError(f"x0 is complex ({x0.dtype}), the systems are real ({dtype}). Use x0.real, or make b complex")
            x[...] = x0
    return Arguments(matrix, M, b.T, x.T, device, x0 is not None)


class InTurn:
    """The engine on a CPU: see :mod:`.system`. One array gets the values of each element in turn, so all is prepared once."""

    def __init__(self, system: System) -> None:
        self.system = system

    def update(self, matrix: Any, preconditioner: Any) -> None:
        """Take another stack of the same shape, and the preconditioner for it."""
        self.system = replace(self.system, matrix=matrix, preconditioner=preconditioner)

    def run(self, b: Any, x: Any, tolerance: Any, limit: int, callback: Callable[[Any], Any] | None = None) -> Outcome:
        """Solve; x holds the starts and receives the solutions."""
        from .cpu.cg import Engine

        stack, M, ends = self.system.matrix.stack, self.system.preconditioner, []
        table = encoding.copied(stack._tables[0, : stack._n_slots], stack._target)
        one = stack._like._with_table(table[:])  # a view, of which alone nobody may write to it
        own = None if M is None else M.of(0)
        engine = Engine(replace(self.system, matrix=one, preconditioner=own, columns=None, is_stack=False))
        for i, (own_b, own_x) in enumerate(zip(b.T, x.T, strict=True)):
            table[...] = stack._tables[i, : stack._n_slots]
            one._values_changed()
            if own is not None:
                own.inverse[...] = M.of(i).inverse
                if not np.may_share_memory(own.inverse, engine.inverse) and engine.is_diagonal:  # in other numbers
                    engine.update(one, own)
            limits = None if tolerance is None else tolerance[i : i + 1], limit
            ends.append(engine.run(np.ascontiguousarray(own_b), own_x, *limits))
        iterations, residual = (np.concatenate([end[field] for end in ends]) for field in range(2))
        history = None
        if self.system.history:  # one that has ended keeps its last norm
            steps = max(len(end.history) for end in ends)
            history = np.concatenate([end.history[np.minimum(np.arange(steps), len(end.history) - 1)] for end in ends], axis=1)
        return Outcome(iterations, residual, [reason for end in ends for reason in end.reasons], history)


def infos(found: solution.Solution) -> np.ndarray:
    """(batch,) SciPy's number for the end of each system."""
    pairs = zip(found.reason, found.iterations, strict=True)
    return np.array([solution.info([reason], [iterations]) for reason, iterations in pairs])
