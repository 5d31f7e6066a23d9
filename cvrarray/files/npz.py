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
header says, sizes that the file or this machine cannot hold, other than 2 dimensions, a fill value that is not 0,
indices out of range, and whatever else breaks the rules of the format that the file names.
"""

from __future__ import annotations

import io
import math
import zipfile
from typing import BinaryIO

import numpy as np

from ..core.tables import CSR
from ..input import coercion
from .guards import MOST_INFLATION, naming, require_memory


def read(file: BinaryIO) -> CSR:
    """Canonical CSR of the matrix in an .npz.

    Raises
    ------
    ValueError
        See the module.
    zipfile.BadZipFile
        The zip itself is damaged.
    """
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for name, member in members(archive).items():
            with naming(f"member {name}"):
                arrays[name.removesuffix(".npy")] = _read_array(archive, member)
    return _from_arrays(arrays)


def members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """A zip's members by name; none stands there twice, or before the file's beginning."""
    by_name = {member.filename: member for member in archive.infolist()}
    if len(by_name) != len(archive.infolist()) or any(member.header_offset < 0 for member in by_name.values()):
        raise ValueError("has a zip directory that cannot be right. The file is damaged")
    return by_name


def read_npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether in Fortran order, and dtype, which is no object's; `stream` then stands at the values."""
    try:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran_order, dtype = readers[version](stream)
    except Exception as error:  # a damaged header is Python source: tokenizer, parser and warnings have their say
        raise ValueError("has no readable npy header") from error
    if dtype.hasobject:
        raise ValueError("holds Python objects (a pickle), which are never loaded. Save plain numbers")
    return shape, fortran_order, dtype


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """A member's array. (``numpy.load`` would ask for the memory that its header claims.)"""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"must be stored or deflated, as NumPy does; got compression method {member.compress_type}")
    if member.file_size > MOST_INFLATION * (member.compress_size + 1):
        raise ValueError(f"promises {member.file_size} bytes, more than its {member.compress_size} can hold")
    content = archive.read(member)
    stream = io.BytesIO(content)
    shape, fortran_order, dtype = read_npy_header(stream)
    n_bytes = len(content) - stream.tell()
    if math.prod(shape) * dtype.itemsize != n_bytes:
        raise ValueError(f"must hold {dtype} values of shape {shape}; it holds {n_bytes} bytes")
    return np.ndarray(shape, dtype, content, stream.tell(), order="F" if fortran_order else "C")


def _from_arrays(arrays: dict[str, np.ndarray]) -> CSR:
    """Canonical CSR from the arrays of a file, by name."""
    from scipy.sparse import bsr_array, csc_array, dia_array

    format = _format(arrays)
    sizes = _member(arrays, "shape")
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu":
        raise ValueError(f"member shape: must be two integers, the rows and columns of a matrix; got {sizes.tolist()}")
    shape = coercion.check_shape(sizes.tolist())
    require_memory(shape[0], "member shape")
    fill_value = arrays.get("fill_value", np.zeros(()))
    if fill_value.size != 1 or fill_value.item() != 0:
        raise ValueError(f"must have fill value 0; got {fill_value.tolist()}. Subtract it first")
    data = _member(arrays, "data")
    coercion.check_dtype(data.dtype)

    if format == "coo":
        row, col = (_member(arrays, "row"), _member(arrays, "col")) if "row" in arrays else _coords(arrays)
        return coercion.from_triplets(row, col, data, shape)
    if format == "dia":
        return coercion.as_csr(dia_array((data, _integers(arrays, "offsets")), shape=shape))
    indptr, indices = _integers(arrays, "indptr"), _integers(arrays, "indices")
    if format == "csr":
        return coercion.from_parts(indptr, indices, data, shape)
    if format == "csc":  # checked as the CSR of its transpose: SciPy would read outside the arrays of a damaged one
        transposed = coercion.from_parts(indptr, indices, data, shape[::-1])
        return coercion.as_csr(csc_array((transposed.data, transposed.indices, transposed.indptr), shape=shape))
    matrix = bsr_array((data, indices, indptr), shape=shape)
    matrix.check_format(full_check=True)
    return coercion.as_csr(matrix)


def _format(arrays: dict[str, np.ndarray]) -> str:
    """``"csr"`` (also for gcxs by rows), ``"csc"`` (by columns), ``"bsr"``, ``"dia"`` or ``"coo"``."""
    missing = "gcxs" if "compressed_axes" in arrays else "coo" if "coords" in arrays else ""  # older pydata/sparse
    stored = arrays.get("format", np.asarray(missing))
    if stored.dtype.kind not in "SU" or stored.size != 1:
        raise ValueError(f"member format: must be one word; got {stored.tolist()}")
    format = stored.astype(str).item()
    if format == "gcxs":
        axes = _member(arrays, "compressed_axes").tolist()
        if axes not in ([0], [1]):
            raise ValueError(f"member compressed_axes: must be [0] or [1]; got {axes}")
        return ("csr", "csc")[axes[0]]
    if format not in ("csr", "csc", "bsr", "dia", "coo"):
        raise ValueError(
            "must be an .npz of scipy.sparse.save_npz or sparse.save_npz, in format csr, csc, bsr, dia, coo or gcxs; "
            f"got format {format!r} and members {', '.join(arrays) or '(none)'}"
        )
    return format


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
