"""The products that a GPU has without us: cuSPARSE through nvmath-python, CuPy's and PyTorch's.

A peer is a function ``prepare(csr, x, y) -> run``. It makes on the device what the library wants of the matrix (its own
format, descriptors, a preprocessing pass: nothing of this is timed) and returns ``run()``, the product alone, which
gives an array that holds ``A @ x``: `y`, or one of its own where the library allocates. Descriptors live as long as
``run``. A peer that does not take part raises :class:`LeftOut` with the reason.

=================  =====================================================================================================
csr alg1, alg2     cusparseSpMV on CSR after cusparseSpMV_preprocess; alg2 is the deterministic one
sell               cusparseSpMV on sliced ELLPACK with slices of 32 rows, built here
bsr 2, 3, 4, 6     cusparseSpMV on BSR, built here, where the block size divides the shape; older libraries: cusparse<t>bsrmv
op alg1, alg2      cusparseSpMVOp, its plan made before; alg2 since CUDA 13.1 Update 1, alg1 and float32 since CUDA 13.3
cupyx, torch       ``csr @ x`` as a user writes it
=================  =====================================================================================================

Of a matrix X (n_cols, k) in C order, with Y likewise, MATRIX_PEERS multiply. An F says that a peer has X and Y in
Fortran order, X copied before.

=================  =====================================================================================================
csr alg1, 2, 3     cusparseSpMM on CSR after cusparseSpMM_preprocess; alg3 is the deterministic one
bsr 2, 3, 4, 6     cusparseSpMM on BSR
ell 2, 4, 16       cusparseSpMM on blocked ELLPACK, blocks of that size
cupyx, torch       ``csr @ X`` as a user writes it
=================  =====================================================================================================
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from cvrarray.cli import peers
from cvrarray.cli.table import in_a_line, significant
from cvrarray.core import devices
from cvrarray.core.clocks import GPUClock, HostClock

from .clocks import quickest

Array = Any  # numpy.ndarray or cupy.ndarray
Run = Callable[[], Array]
Prepare = Callable[[Any, Array, Array], Run]

#: A format that would store this many times the bytes of CSR is not built: it could not win, and might not fit.
MOST_BYTES = 8

#: Rows of a SELL slice: a warp.
SLICE = 32

BLOCK_SIZES = (2, 3, 4, 6)

#: A peer that takes so many times what ours takes is left out.
HOPELESS = 20

#: cuSPARSE has cusparseSpMVOp since this version (it is older, but had no cusparseSpMVOp_bufferSize), and since that
#: one two algorithms, which its functions take as an argument more. As cusparse.h of 12.8.1 has it.
OP_SINCE, OP_ALGORITHMS = (12, 7, 3), (12, 8, 0)

#: cudaDataType of a value.
DATA_TYPE = {np.dtype(np.float32): 0, np.dtype(np.float64): 1}


#: Blocks of blocked ELLPACK.
ELL_SIZES = (2, 4, 16)


class LeftOut(Exception):
    """Why a peer has no figure: what is not installed, not supported, or would be too large."""


class SELL(NamedTuple):
    """Sliced ELLPACK as cuSPARSE has it: entry k of row r of slice s is at ``slice_ptr[s] + 32 k + r % 32``."""

    slice_ptr: Array  # (n_slices + 1,) int32
    col: Array  # (slice_ptr[-1],) int32; padding is -1
    val: Array  # (slice_ptr[-1],) dtype; padding is 0


class BSR(NamedTuple):
    """Block compressed rows; a block's values are in row-major order, and 0 where the matrix has no entry."""

    row_ptr: Array  # (n_rows / block_size + 1,) int32
    col: Array  # (n_blocks,) int32
    val: Array  # (n_blocks, block_size, block_size) dtype


def rows(csr: Any, xp: Any) -> Array:
    """(nnz,) int64, the row of every nonzero."""
    return xp.searchsorted(csr.indptr, xp.arange(csr.nnz, dtype=csr.indptr.dtype), side="right") - 1


def to_sell(csr: Any, xp: Any) -> SELL:
    """`csr` as SELL, on its device.

    Raises
    ------
    LeftOut
        Padding would make it too large.
    """
    n_rows = csr.shape[0]
    n_slices = -(-n_rows // SLICE)
    lengths = xp.zeros(n_slices * SLICE, np.int64)
    lengths[:n_rows] = csr.indptr[1:] - csr.indptr[:-1]
    slice_ptr = xp.zeros(n_slices + 1, np.int64)
    slice_ptr[1:] = xp.cumsum(lengths.reshape(n_slices, SLICE).max(axis=1) * SLICE)
    size = int(slice_ptr[-1])
    _check_size(size * (csr.dtype.itemsize + 4), csr)
    if size >= 2**31:
        raise LeftOut(f"{size:,} slots are more than 32-bit offsets reach")
    row = rows(csr, xp)
    place = slice_ptr[row // SLICE] + (xp.arange(csr.nnz) - csr.indptr[row]) * SLICE + row % SLICE
    col, val = xp.full(size, -1, np.int32), xp.zeros(size, csr.dtype)
    col[place], val[place] = csr.indices, csr.data
    return SELL(slice_ptr.astype(np.int32), col, val)


def to_bsr(csr: Any, block_size: int, xp: Any) -> BSR:
    """`csr` as BSR, on its device.

    Raises
    ------
    LeftOut
        The shape is no multiple of `block_size`, or holes would make it too large.
    """
    n_rows, n_cols = csr.shape
    if n_rows % block_size or n_cols % block_size:
        raise LeftOut(f"{n_rows} x {n_cols} is no multiple of {block_size}")
    row, width = rows(csr, xp), n_cols // block_size
    blocks, block_of = xp.unique(row // block_size * width + csr.indices // block_size, return_inverse=True)
    _check_size(blocks.size * (block_size**2 * csr.dtype.itemsize + 4), csr)
    val = xp.zeros(blocks.size * block_size**2, csr.dtype)
    val[(block_of.ravel() * block_size + row % block_size) * block_size + csr.indices % block_size] = csr.data
    row_ptr = xp.searchsorted(blocks, xp.arange(n_rows // block_size + 1, dtype=np.int64) * width)
    return BSR(row_ptr.astype(np.int32), (blocks % width).astype(np.int32), val.reshape(-1, block_size, block_size))


class ELL(NamedTuple):
    """Blocked ELLPACK: as many blocks in each block row, the last ones of column -1 and value 0."""

    col: Array  # (n_block_rows, width) int32
    val: Array  # (n_rows, width * block_size) dtype: the blocks of a block row side by side


def to_ell(csr: Any, block_size: int, xp: Any) -> ELL:
    """`csr` as blocked ELLPACK, on its device.

    Raises
    ------
    LeftOut
        The shape is no multiple of `block_size`, or padding would make it too large.
    """
    bsr = to_bsr(csr, block_size, xp)
    lengths = bsr.row_ptr[1:] - bsr.row_ptr[:-1]
    width, n_block_rows = int(lengths.max()) if lengths.size else 0, lengths.size
    _check_size(n_block_rows * width * (block_size**2 * csr.dtype.itemsize + 4), csr)
    row = xp.searchsorted(bsr.row_ptr, xp.arange(bsr.col.size, dtype=np.int32), side="right") - 1
    place = xp.arange(bsr.col.size) - bsr.row_ptr[row]
    col = xp.full((n_block_rows, width), -1, np.int32)
    val = xp.zeros((n_block_rows, width, block_size, block_size), csr.dtype)
    col[row, place], val[row, place] = bsr.col, bsr.val
    return ELL(col, xp.ascontiguousarray(val.transpose(0, 2, 1, 3)).reshape(csr.shape[0], width * block_size))


def _check_size(n_bytes: int, csr: Any) -> None:
    times = n_bytes / max(1, csr.nnz * (csr.dtype.itemsize + 4))
    if times > MOST_BYTES:
        raise LeftOut(f"would store {times:.1f} times the bytes of CSR")


@cache
def bindings() -> Any:
    """``nvmath.bindings.cusparse``.

    Raises
    ------
    LeftOut
        nvmath-python is not installed.
    """
    try:
        from nvmath.bindings import cusparse
    except ImportError as error:
        raise LeftOut(f"nvmath-python cannot be imported ({error}): pip install 'cvrarray[bench]'") from error
    return cusparse


@cache
def handle(device: int) -> Any:
    """The library's context on a GPU, host pointers for scalars; it lives as long as the process."""
    return bindings().create()


def version(number: int) -> tuple[int, int, int]:
    """(major, minor, patch) of cuSPARSE's ``1000 major + 100 minor + patch``: 12710 is 12.7.10."""
    return number // 1000, number % 1000 // 100, number % 100


class SpMV:
    """``y = A @ x`` by cusparseSpMV, prepared: descriptors and the workspace around arrays that it keeps alive."""

    def __init__(self, csr: Any, x: Array, y: Array, algorithm: str):
        import cupy

        self.lib, self.y = bindings(), y
        self.kept: list[Any] = [csr, x]
        lib, kind = self.lib, DATA_TYPE[y.dtype]
        context = handle(y.device.id)
        lib.set_stream(context, cupy.cuda.get_current_stream().ptr)
        one, zero = np.ones(1, y.dtype), np.zeros(1, y.dtype)
        matrix = _own(self, self.describe(csr, kind), lib.destroy_sp_mat)
        vectors = [_own(self, lib.create_dn_vec(v.size, v.data.ptr, kind), lib.destroy_dn_vec) for v in (x, y)]
        self.arguments: tuple[Any, ...] = (
            context, int(lib.Operation.NON_TRANSPOSE), one.ctypes.data, matrix, vectors[0], zero.ctypes.data, vectors[1],
            kind, int(lib.SpMVAlg[algorithm]),
        )  # fmt: skip
        workspace = cupy.empty(max(1, lib.sp_mv_buffer_size(*self.arguments)), np.uint8)
        self.kept += [one, zero, workspace]
        self.arguments += (workspace.data.ptr,)
        try:
            lib.sp_mv_preprocess(*self.arguments)
        except lib.cuSPARSEError:
            if algorithm.startswith("CSR"):  # the other formats need not have such a pass
                raise

    def __call__(self) -> Array:
        self.lib.sp_mv(*self.arguments)
        return self.y

    def describe(self, csr: Any, kind: int) -> Any:
        """A descriptor of the matrix in the library's format; what it points into goes to ``kept``."""
        index = int(self.lib.IndexType.INDEX_32I)
        n_rows, n_cols = csr.shape
        parts = (csr.indptr.data.ptr, csr.indices.data.ptr, csr.data.data.ptr)
        return self.lib.create_csr(n_rows, n_cols, csr.nnz, *parts, index, index, int(self.lib.IndexBase.ZERO), kind)


class SpMVSELL(SpMV):
    """The same on sliced ELLPACK."""

    def describe(self, csr: Any, kind: int) -> Any:
        """See :meth:`SpMV.describe`."""
        import cupy

        lib, index = self.lib, int(self.lib.IndexType.INDEX_32I)
        sell = to_sell(csr, cupy)
        self.kept.append(sell)
        pointers = (sell.slice_ptr.data.ptr, sell.col.data.ptr, sell.val.data.ptr)
        return lib.create_sliced_ell(
            *csr.shape, csr.nnz, sell.val.size, SLICE, *pointers, index, index, int(lib.IndexBase.ZERO), kind
        )  # fmt: skip


class SpMVBSR(SpMV):
    """The same on BSR."""

    def __init__(self, bsr: BSR, x: Array, y: Array):
        super().__init__(bsr, x, y, "BSR_ALG1")

    def describe(self, bsr: BSR, kind: int) -> Any:
        """See :meth:`SpMV.describe`."""
        lib, index = self.lib, int(self.lib.IndexType.INDEX_32I)
        size = bsr.val.shape[1]
        n_block_rows, n_block_cols = self.y.shape[0] // size, self.kept[1].shape[0] // size
        pointers = (bsr.row_ptr.data.ptr, bsr.col.data.ptr, bsr.val.data.ptr)
        return lib.create_bsr(
            n_block_rows, n_block_cols, bsr.col.size, size, size, *pointers, index, index, int(lib.IndexBase.ZERO), kind,
            int(lib.Order.ROW),
        )  # fmt: skip


class SpMM(SpMV):
    """``Y = A @ X`` by cusparseSpMM, prepared: X (n_cols, k) and Y (n_rows, k) both in C order or both in Fortran
    order.
    """

    def __init__(self, csr: Any, x: Array, y: Array, algorithm: str, order: str = "C"):
        import cupy

        lib, kind = bindings(), DATA_TYPE[y.dtype]
        if order == "F":
            x, y = cupy.asfortranarray(x), cupy.asfortranarray(y)
        self.lib, self.y, self.kept = lib, y, [csr, x]
        context = handle(y.device.id)
        lib.set_stream(context, cupy.cuda.get_current_stream().ptr)
        one, zero = np.ones(1, y.dtype), np.zeros(1, y.dtype)
        matrix = _own(self, self.describe(csr, kind), lib.destroy_sp_mat)
        in_order = int(lib.Order.ROW if order == "C" else lib.Order.COL)
        dense = [
            _own(self, lib.create_dn_mat(*m.shape, m.shape[order == "C"], m.data.ptr, kind, in_order), lib.destroy_dn_mat)
            for m in (x, y)
        ]
        plain = int(lib.Operation.NON_TRANSPOSE)
        self.arguments: tuple[Any, ...] = (
            context, plain, plain, one.ctypes.data, matrix, dense[0], zero.ctypes.data, dense[1], kind,
            int(lib.SpMMAlg[algorithm]),
        )  # fmt: skip
        workspace = cupy.empty(max(1, lib.sp_mm_buffer_size(*self.arguments)), np.uint8)
        self.kept += [one, zero, workspace]
        self.arguments += (workspace.data.ptr,)
        if algorithm.startswith("CSR"):
            lib.sp_mm_preprocess(*self.arguments)

    def __call__(self) -> Array:
        self.lib.sp_mm(*self.arguments)
        return self.y


class SpMMBSR(SpMM, SpMVBSR):
    """The same on BSR."""


class SpMMELL(SpMM):
    """The same on blocked ELLPACK."""

    def __init__(self, csr: Any, x: Array, y: Array, block_size: int):
        self.block_size = block_size
        super().__init__(csr, x, y, "BLOCKED_ELL_ALG1")

    def describe(self, csr: Any, kind: int) -> Any:
        """See :meth:`SpMV.describe`."""
        import cupy

        lib, index = self.lib, int(self.lib.IndexType.INDEX_32I)
        ell = to_ell(csr, self.block_size, cupy)
        self.kept.append(ell)
        return lib.create_blocked_ell(
            *csr.shape, self.block_size, ell.val.shape[1], ell.col.data.ptr, ell.val.data.ptr, index,
            int(lib.IndexBase.ZERO), kind,
        )  # fmt: skip


class BSRMV:
    """``y = A @ x`` by cusparseSbsrmv or cusparseDbsrmv, which libraries have whose cusparseSpMV takes no BSR."""

    def __init__(self, bsr: BSR, x: Array, y: Array):
        import cupy

        lib, size = bindings(), bsr.val.shape[1]
        context = handle(y.device.id)
        lib.set_stream(context, cupy.cuda.get_current_stream().ptr)
        description = _own(self, lib.create_mat_descr(), lib.destroy_mat_descr)
        one, zero = np.ones(1, y.dtype), np.zeros(1, y.dtype)
        self.multiply, self.y, self.kept = lib.sbsrmv if y.dtype == np.float32 else lib.dbsrmv, y, (bsr, x, one, zero)
        self.arguments = (
            context, int(lib.Direction.ROW), int(lib.Operation.NON_TRANSPOSE), y.size // size, x.size // size, bsr.col.size,
            one.ctypes.data, description, bsr.val.data.ptr, bsr.row_ptr.data.ptr, bsr.col.data.ptr, size, x.data.ptr,
            zero.ctypes.data, y.data.ptr,
        )  # fmt: skip

    def __call__(self) -> Array:
        self.multiply(*self.arguments)
        return self.y


class SpMVOp:
    """``y = A @ x`` by cusparseSpMVOp: a plan with the library's own epilogue, made once."""

    def __init__(self, csr: Any, x: Array, y: Array, algorithm: int):
        import cupy

        lib, kind = bindings(), DATA_TYPE[y.dtype]
        context = handle(y.device.id)
        functions = op_functions(lib.get_version(context), algorithm)
        lib.set_stream(context, cupy.cuda.get_current_stream().ptr)
        index = int(lib.IndexType.INDEX_32I)
        parts = (csr.indptr.data.ptr, csr.indices.data.ptr, csr.data.data.ptr)
        matrix = lib.create_csr(*csr.shape, csr.nnz, *parts, index, index, int(lib.IndexBase.ZERO), kind)
        _own(self, matrix, lib.destroy_sp_mat)
        vec_x, vec_y = (_own(self, lib.create_dn_vec(v.size, v.data.ptr, kind), lib.destroy_dn_vec) for v in (x, y))
        what = (context, int(lib.Operation.NON_TRANSPOSE), matrix, vec_x, vec_y, vec_y, kind)
        workspace = cupy.empty(max(1, functions.buffer_size(*what)), np.uint8)
        description = _own(self, functions.create_descr(*what, workspace.data.ptr), lib.sp_mv_op_destroy_descr)
        plan = _own(self, lib.sp_mv_op_create_plan(context, description, 0, 0), lib.sp_mv_op_destroy_plan)
        one, zero = np.ones(1, y.dtype), np.zeros(1, y.dtype)
        self.multiply, self.y, self.kept = lib.sp_mv_op, y, (csr, x, one, zero, workspace)
        self.arguments = (context, plan, one.ctypes.data, zero.ctypes.data, vec_x, vec_y, vec_y)

    def __call__(self) -> Array:
        self.multiply(*self.arguments)
        return self.y


class OpFunctions(NamedTuple):
    """The two functions of cusparseSpMVOp whose arguments depend on the library's version."""

    buffer_size: Callable[..., int]
    create_descr: Callable[..., int]


def op_functions(number: int, algorithm: int) -> OpFunctions:
    """These functions for one algorithm, 1 or 2, of cuSPARSE with that version number.

    The bindings pass no algorithm, which from OP_ALGORITHMS on is one argument too few and would crash: there the
    library is called directly.

    Raises
    ------
    LeftOut
        This version has none of it.
    """
    found = version(number)
    if found < OP_SINCE:
        raise LeftOut(f"cuSPARSE is {_dotted(found)}; cusparseSpMVOp needs {_dotted(OP_SINCE)}")
    if found < OP_ALGORITHMS:
        if algorithm == 1:
            raise LeftOut(f"cuSPARSE is {_dotted(found)}; algorithm 1 of cusparseSpMVOp needs {_dotted(OP_ALGORITHMS)}")
        return OpFunctions(bindings().sp_mv_op_buffer_size, bindings().sp_mv_op_create_descr)
    from cuda.pathfinder import load_nvidia_dynamic_lib

    library = ctypes.CDLL("cusparse", handle=load_nvidia_dynamic_lib("cusparse")._handle_uint)
    pointer, integer = ctypes.c_void_p, ctypes.c_int

    def buffer_size(*what: int) -> int:
        size = ctypes.c_size_t()
        function = library.cusparseSpMVOp_bufferSize
        function.argtypes = [pointer, integer, *[pointer] * 4, integer, integer, pointer]
        bindings().check_status(function(*what, algorithm, ctypes.byref(size)))
        return size.value

    def create_descr(context: int, *what: int) -> int:
        *before, workspace = what
        description = pointer()
        function = library.cusparseSpMVOp_createDescr
        function.argtypes = [pointer, pointer, integer, *[pointer] * 4, integer, integer, pointer]
        bindings().check_status(function(context, ctypes.byref(description), *before, algorithm, workspace))
        return description.value or 0

    return OpFunctions(buffer_size, create_descr)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _own(owner: Any, descriptor: int, destroy: Callable[[int], Any]) -> int:
    """`descriptor`, destroyed with `owner`; not at the interpreter's end, when the GPU's context may be gone."""
    weakref.finalize(owner, destroy, descriptor).atexit = False
    return descriptor


def bsr(csr: Any, x: Array, y: Array, block_size: int) -> Run:
    """BSR by cusparseSpMV, or by cusparse<t>bsrmv where that has no BSR."""
    import cupy

    tables = to_bsr(csr, block_size, cupy)
    try:
        return SpMVBSR(tables, x, y)
    except bindings().cuSPARSEError:
        return BSRMV(tables, x, y)


def bsr_matrix(csr: Any, x: Array, y: Array, block_size: int) -> Run:
    """BSR by cusparseSpMM."""
    import cupy

    return SpMMBSR(to_bsr(csr, block_size, cupy), x, y, "BSR_ALG1")


def library(name: str, csr: Any, x: Array, y: Array) -> Run:
    """A library as its users call it; it allocates its result."""
    device = devices.of(x)
    found = peers.products(csr, x, device)
    if name not in found:
        raise LeftOut(peers.left_out(device)[name])
    return found[name]


#: The peers that call a library as its users do; all others call cuSPARSE, prepared.
LIBRARIES = ("cupyx", "torch")

#: Every peer by the name that it has in tables and reports, in the order of their columns.
PEERS: dict[str, Prepare] = {
    "csr alg1": partial(SpMV, algorithm="CSR_ALG1"),
    "csr alg2": partial(SpMV, algorithm="CSR_ALG2"),
    "sell": partial(SpMVSELL, algorithm="SELL_ALG1"),
    **{f"bsr {size}": partial(bsr, block_size=size) for size in BLOCK_SIZES},
    **{f"op alg{number}": partial(SpMVOp, algorithm=number) for number in (1, 2)},
    **{name: partial(library, name) for name in LIBRARIES},
}

#: Peers of products with a dense matrix.
MATRIX_PEERS: dict[str, Prepare] = {
    **{f"csr alg{n}": partial(SpMM, algorithm=f"CSR_ALG{n}") for n in (1, 2, 3)},
    **{f"csr alg{n} F": partial(SpMM, algorithm=f"CSR_ALG{n}", order="F") for n in (1, 2, 3)},
    **{f"bsr {size}": partial(bsr_matrix, block_size=size) for size in BLOCK_SIZES},
    **{f"ell {size}": partial(SpMMELL, block_size=size) for size in ELL_SIZES},
    **{name: partial(library, name) for name in LIBRARIES},
}


def prepare(name: str, csr: Any, x: Array, y: Array, registry: dict[str, Prepare] | None = None) -> Run:
    """The peer called `name`, ready to run.

    Raises
    ------
    LeftOut
        It does not take part; also where its library refused or found no memory, with the library's own words.
    """
    if name not in LIBRARIES and y.dtype not in DATA_TYPE:
        raise LeftOut(f"takes float32 and float64, not {y.dtype}")
    try:
        return (PEERS if registry is None else registry)[name](csr, x, y)
    except LeftOut:
        raise
    except Exception as error:
        raise LeftOut(in_a_line(error)) from error


class Tried(NamedTuple):
    """What a first look at a peer found."""

    call: Any  # None: it refused
    error: float  # of its product, over what is allowed; nan: there is none
    why: str | None  # it is left out; None: it takes part


def tried(
    make: Callable[[], Run],
    error_of: Callable[[Array], float],
    ours: float,
    clock: HostClock | GPUClock,
    most: float = HOPELESS,
) -> Tried:
    """The peer that `make` gives, after a look at whether it refuses, is wrong, or is hopeless: it takes more than `most`
    times `ours`, in seconds.

    ``error_of(product)`` is the product's error over what is allowed.
    """
    try:
        call = make()
        error, times = error_of(call()), quickest(clock, call) / ours
    except LeftOut as reason:
        return Tried(None, math.nan, str(reason))
    except Exception as refused:  # some libraries say so only when they are called
        return Tried(None, math.nan, in_a_line(refused))
    why = None
    if not error <= 1:
        why = f"is wrong: {significant(error)} times the error that is allowed; takes {times:.2f} times what ours takes"
    elif times > most:
        why = slower(times)
    return Tried(call, error, why)


def slower(times: float) -> str:
    """Why a contender is left out that takes so many times what ours takes."""
    return f"takes {times:.0f} times what ours takes"


def versions(device: int) -> dict[str, str]:
    """Of the peers' libraries, as far as they are installed."""
    from importlib import metadata

    found = {}
    for name in ("nvmath-python", "torch"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    with suppress(Exception):  # no bindings, or no library that they find: each peer says so
        found["cusparse"] = _dotted(version(bindings().get_version(handle(device))))
    with suppress(Exception):
        from cupy.cuda.device import get_cusparse_handle
        from cupy_backends.cuda.libs import cusparse

        found["cusparse of cupy"] = _dotted(version(cusparse.getVersion(get_cusparse_handle())))
    return found
