"""``asarray``: any matrix as an array of ours, in a format chosen by its statistics, on the requested device."""

from __future__ import annotations

from typing import Any, Literal, overload

from .. import formats
from ..array import encoding
from ..array.format import FormatArray
from ..array.invariants import integer
from ..bbcsr import DEFAULT_BLOCK_SIZE, BBCSRArray
from ..core import devices
from ..core.tables import CSR, WARP
from ..cvr import CVRArray
from ..input import coercion
from ..input.entries import block_coordinates, entries
from .assembly import Assembly
from .model import choose, looked_at, wanted_of


@overload
def asarray(
    obj: Any,
    format: Literal["auto"] = "auto",
    device: Any = None,
    *,
    dtype: Any = None,
    copy: bool | None = None,
    columns: int = 1,
    values: str = "auto",
) -> FormatArray: ...
@overload
def asarray(obj: Any, format: Literal["cvr"], device: Any = None, **keywords: Any) -> CVRArray: ...
@overload
def asarray(obj: Any, format: Literal["bbcsr"], device: Any = None, **keywords: Any) -> BBCSRArray: ...
@overload
def asarray(obj: Any, format: str, device: Any = None, **keywords: Any) -> FormatArray: ...
def asarray(
    obj: Any,
    format: str = "auto",
    device: Any = None,
    *,
    dtype: Any = None,
    copy: bool | None = None,
    columns: int = 1,
    values: str = "auto",
    **parameters: Any,
) -> FormatArray:
    """The matrix as one of our arrays, on a GPU where there is one.

    Parameters
    ----------
    obj : sparse or dense 2-D array
        scipy.sparse, cupyx.scipy.sparse, pydata/sparse, NumPy, CuPy or an array of ours.
    format : {"auto", "cvr", "bbcsr"}
        ``"auto"`` decides from the matrix's statistics; ``plan`` and ``repr`` of the result say why.
        :func:`cvrarray.tune` measures instead.
    device : str, optional
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: the GPU that `obj` lives on, else the current GPU, else the CPU.
    dtype : data type, optional
        To which values are cast. Default: theirs.
    copy : ignored; NumPy has it. The tables are new ones always.
    columns : int
        A hint: how many columns the dense arrays have that the result will be multiplied by. 1 stands for vectors. Any
        array multiplies by any number of columns; the fastest format for 64 may be another one than for a vector, or on
        a GPU have longer chunks. A format that is named has them too, unless parameters are given.
    values : {"auto", "plain"}
        ``"auto"`` stores values in fewer bytes where that pays: one value once, at most 256 different ones as 8-bit
        numbers, float64 that is exactly float32 as such. Every result has the same bits as with ``"plain"``. ``plan``
        and ``repr`` say which of them it is.
    **parameters
        Keywords of the format's class; with ``format="auto"`` none.

    Returns
    -------
    CVRArray or BBCSRArray, or the class of another format that is known

    Raises
    ------
    TypeError, ValueError
        `obj` is not a matrix, or a name or parameter is unknown.

    Examples
    --------
    >>> import cvrarray, scipy.sparse
    >>> S = scipy.sparse.eye_array(1000, format="csr")
    >>> A = cvrarray.asarray(S, device="cpu")
    >>> A.nnz, A.format in ("cvr", "bbcsr"), A.plan is None
    (1000, True, False)
    >>> cvrarray.asarray(S, format="bbcsr", block_size=2, device="cpu").block_size
    2
    >>> (cvrarray.asarray(S, columns=64, device="cpu") @ np.ones((1000, 64))).shape
    (1000, 64)
    """
    formats.check(format, auto=True)
    columns = integer(columns, "columns", 1)
    if format == "auto" and parameters:
        raise ValueError(
            f"format='auto' chooses parameters itself; got {', '.join(parameters)}. Name a format, or leave them out"
        )
    encodes = encoding.checked(values)
    array = _of_blocks(obj, format, device, parameters) if dtype is None and columns == 1 else None
    if array is not None:
        array = encoding.encoded(array) if encodes else array
        return _explained(array, array.plan)
    given = {} if encodes else {"values": values}  # a format of another package need not know the keyword
    if format != "auto":
        cls = formats.named(format)
        csr = placed(obj, device, dtype, cls._wants(**parameters))
        return cls(csr, **given, **(parameters or cls._for_columns(csr, columns)))
    csr = placed(obj, device, dtype, wanted_of)
    stats, csr = looked_at(csr, exact=False)
    plan = choose(stats, devices.of(csr.data).kind, columns)
    cls = formats.named(plan.format)
    return _explained(cls(csr, **given, **plan.keywords, **cls._for_columns(csr, columns)), plan.reason)


def _explained(array: FormatArray, reason: str | None) -> FormatArray:
    """`array`, whose plan is `reason` and what its values are stored as, where that is not what they are."""
    if reason is not None:
        array._plan = reason + (f"; values: {array._stored_as}" if array._stored_as else "")
    return array


def _of_blocks(obj: Any, format: str, device: Any, parameters: dict[str, Any]) -> FormatArray | None:
    """SciPy's BSR from its blocks, where these are square and `format` leaves them whole or is to be chosen; else None."""
    if coercion.package(obj) != "scipy" or getattr(obj, "format", None) != "bsr":
        return None
    height, width = obj.blocksize
    is_wanted = format == "auto" or (format == "bbcsr" and parameters.get("block_size", DEFAULT_BLOCK_SIZE) == height)
    if not is_wanted or height != width or not 1 < height <= WARP:
        return None
    found = entries(obj)
    rows, cols = block_coordinates(found)
    target = devices.default() if device is None else devices.parse(device)
    plan = Assembly(rows, cols, shape=found.shape, block_size=height, format=format, device=target)
    return plan(devices.move(found.data, target))


def placed(obj: Any, device: Any = None, dtype: Any = None, wants: coercion.Wants | None = None) -> CSR:
    """Any matrix that :func:`asarray` takes, as canonical CSR on a device.

    That is the named device, else the GPU that `obj` lives on, else the current GPU, else the CPU. `wants` is what
    the caller will want to know of it.
    """
    target = None if device is None else devices.parse(device)
    csr = coercion.from_arguments(obj, dtype=dtype, wants=wants, target=target or devices.default())
    if target is None:
        home = devices.of(csr.data)
        target = home if home.kind == "cuda" else devices.default()
    return coercion.looked_at(coercion.move(csr, target), wants)
