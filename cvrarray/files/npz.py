"""NumPy's ``.npz``, a zip of arrays: what ``scipy.sparse.save_npz`` and ``sparse.save_npz`` write.

=============  ======  ==========================================================================
member         of      holds
=============  ======  ==========================================================================
format         both    csr, csc, bsr, dia or coo; of pydata/sparse coo or gcxs, or it is missing
shape          both    (2,) rows and columns
data           both    values
indptr ..      both    of csr, csc, bsr and gcxs: indptr, indices; of gcxs also compressed_axes
offsets        SciPy   of dia
row, col       SciPy   of coo
coords         pydata  (2, nnz) of coo: rows and columns
fill_value     pydata  value of what is not stored
=============  ======  ==========================================================================

Refused, with the member's name: Python objects (a pickle could run code), an array that is longer or shorter than its
header says, sizes that the file, its :class:`~cvrarray.input.limits.Limit` or this machine cannot hold, other than 2
dimensions, a fill value that is not 0, indices out of range, and whatever else breaks the rules of the format that the
file names. Members of other names are not read.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import IO, BinaryIO

import numpy as np

from ..core import devices
from ..core.tables import CSR
from ..core.threads import get_num_threads
from ..input import coercion
from ..input.limits import Limit
from .guards import BLOCK, members, naming

_NAMES = ("format", "shape", "data", "indptr", "indices", "offsets", "row", "col", "coords", "compressed_axes", "fill_value")

#: The header of an npy file of plain numbers, a Python dict as text; Python 2 wrote 3L for 3.
_HEADER = re.compile(
    r"""\{(?:\s*+(?:'descr':\s*+'[<>|=][biufcSUVMmO]\d{0,9}(?:\[\w{1,9}\])?'|'fortran_order':\s*+(?:True|False)"""
    r"""|'shape':\s*+\([\dL,\s]*+\))\s*+,?+){3}\s*+\}\s*+"""
)
_MOST_HEADER = 10_000  # bytes, as NumPy has it


def read(archive: zipfile.ZipFile, limit: Limit) -> CSR:
    """Canonical CSR of the matrix in an .npz, for which no more than `limit` is asked for.

    Raises
    ------
    ValueError
        See the module.
    zipfile.BadZipFile
        The zip itself is damaged.
    """
    found = {name.removesuffix(".npy"): member for name, member in members(archive).items()}
    wanted = {name: member for name, member in found.items() if name in _NAMES}
    if not wanted:
        raise ValueError(_unknown("", found))
    limit.require(sum(member.file_size for member in wanted.values()), "the arrays promised need")
    with ExitStack() as opened:
        # before any is read: Python 3.12 and 3.13 open a member where a thread that reads another one has left the file
        # (python/cpython#128258)
        streams = [opened.enter_context(_opened(archive, member)) for member in wanted.values()]
        # inflating and checksums leave the interpreter to others
        pool = opened.enter_context(ThreadPoolExecutor(get_num_threads()))
        return _from_arrays(dict(zip(wanted, pool.map(_array, wanted.values(), streams), strict=True)), limit)


def _opened(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    with naming(f"member {member.filename}"):
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # of others a block may hold any number
            raise ValueError(f"must be stored or deflated, as NumPy does; got compression method {member.compress_type}")
        return archive.open(member)


def read_npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether in Fortran order, and dtype, which is no object's; `stream` then stands at the values."""
    # NumPy parses it as Python, which a crafted one can make run out of stack or memory
    start = stream.read(12)
    if start[:6] != b"\x93NUMPY" or start[6:8] not in (b"\1\0", b"\2\0") or len(start) < 12:
        raise ValueError(f"has no readable npy header; it begins with {start!r}")
    count = {1: 2, 2: 4}[start[6]]  # bytes of the header's length
    n_bytes = int.from_bytes(start[8 : 8 + count], "little")
    text = (start[8 + count :] + stream.read(max(0, min(n_bytes, _MOST_HEADER) + count - 4))).decode("latin-1")
    found = dict(re.findall(r"'(\w+)':\s*('[^']*'|\w+|\([^)]*\))", text)) if _HEADER.fullmatch(text) else {}
    if len(text) != n_bytes or len(found) != 3:
        raise ValueError(f"has no readable npy header of plain numbers; got {text[:80]!r}")
    dtype = np.dtype(found["descr"][1:-1])
    if dtype.hasobject:
        raise ValueError("holds Python objects (a pickle), which are never loaded. Save plain numbers")
    shape = tuple(int(n) for n in re.findall(r"\d+", found["shape"]))
    return shape, found["fortran_order"] == "True", dtype


def _array(member: zipfile.ZipInfo, stream: IO[bytes]) -> np.ndarray:
    """The array in a member. ``numpy.load`` would ask for the memory that its header claims."""
    with naming(f"member {member.filename}"):
        content = devices.CPU.backend("runtime.memory").empty(member.file_size, np.uint8)
        n_read = 0
        while block := stream.read(BLOCK):  # ends with an error where the checksum is wrong
            content[n_read : n_read + len(block)] = np.frombuffer(block, np.uint8)
            n_read += len(block)
        head = io.BytesIO(content[: min(n_read, _MOST_HEADER + 12)].tobytes())
        shape, fortran_order, dtype = read_npy_header(head)
        n_bytes = n_read - head.tell()
        if math.prod(shape) * dtype.itemsize != n_bytes or not dtype.itemsize:  # without bytes, any number would fit
            raise ValueError(f"must hold {dtype} values of shape {shape}; it holds {n_bytes} bytes")
        return np.ndarray(shape, dtype, content, head.tell(), order="F" if fortran_order else "C")


def _from_arrays(arrays: dict[str, np.ndarray], limit: Limit) -> CSR:
    """Canonical CSR from the arrays of a file, by name."""
    format = _format(arrays)
    sizes = _member(arrays, "shape")
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu":
        raise ValueError(f"member shape: must be two integers, the rows and columns of a matrix; got {_shown(sizes)}")
    shape = coercion.check_shape(sizes.tolist())
    fill_value = arrays.get("fill_value", np.zeros(()))
    if fill_value.size != 1 or fill_value.item() != 0:
        raise ValueError(f"must have fill value 0; got {_shown(fill_value)}. Subtract it first")
    data = _member(arrays, "data")
    coercion.check_dtype(data.dtype)
    limit.require_matrix(shape, data.size, "member shape")

    if format == "coo":
        row, col = (_member(arrays, "row"), _member(arrays, "col")) if "row" in arrays else _coords(arrays)
        return coercion.from_triplets(row, col, data, shape)
    if format == "dia":
        return coercion.from_dia(_integers(arrays, "offsets"), data, shape)
    build = {"csr": coercion.from_parts, "csc": coercion.from_csc, "bsr": coercion.from_bsr}[format]
    return build(_integers(arrays, "indptr"), _integers(arrays, "indices"), data, shape)


def _format(arrays: dict[str, np.ndarray]) -> str:
    """``"csr"`` (also for gcxs by rows), ``"csc"`` (by columns), ``"bsr"``, ``"dia"`` or ``"coo"``."""
    missing = "gcxs" if "compressed_axes" in arrays else "coo" if "coords" in arrays else ""  # older pydata/sparse
    stored = arrays.get("format", np.asarray(missing))
    if stored.dtype.kind not in "SU" or stored.size != 1:
        raise ValueError(f"member format: must be one word; got {_shown(stored)}")
    format = stored.astype(str).item()
    if format == "gcxs":
        axes = _member(arrays, "compressed_axes")
        if axes.shape != (1,) or axes.item() not in (0, 1):
            raise ValueError(f"member compressed_axes: must be [0] or [1]; got {_shown(axes)}")
        return ("csr", "csc")[int(axes.item())]
    if format not in ("csr", "csc", "bsr", "dia", "coo"):
        raise ValueError(_unknown(format, arrays))
    return str(format)


def _unknown(format: str, names: Collection[str]) -> str:
    """What is said of a file with the members `names` that is in no `format` that is read here."""
    listed = ", ".join(names) or "(none)"
    return (
        "must be an .npz of scipy.sparse.save_npz or sparse.save_npz, in format csr, csc, bsr, dia, coo or gcxs; "
        f"got {f'format {format[:40]!r}' if format else 'no format'} and members {listed[:400]}"
    )


def _shown(array: np.ndarray) -> str:
    """An array from a file as messages have it, however large it is."""
    return str(array.tolist()) if array.nbytes <= 80 else f"{array.dtype} of shape {array.shape}"


def _member(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    if name not in arrays:
        raise ValueError(f"must have a member {name}; it has {', '.join(arrays)}")
    return arrays[name]


def _integers(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    array = _member(arrays, name)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"member {name}: must be a list of integers; got {array.dtype} of shape {array.shape}")
    return array


def _coords(arrays: dict[str, np.ndarray]) -> np.ndarray:
    coords = _member(arrays, "coords")
    if coords.ndim != 2 or coords.shape[0] != 2:
        raise ValueError(f"member coords: must have shape (2, nnz); got {coords.shape}")
    return coords
