"""Sparse objects in memory, of SciPy and of pydata/sparse, whose attributes were changed after they were made."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import scipy.sparse
import sparse

from cvrarray.input import coercion

from .. import edits, judge, meaning

_DENSE = np.array([[1.0, 0, 2, 0], [0, 0, 0, 0], [0, -3, 4, 5], [6, 0, 0, 0], [0, 0, 7, 8], [9, 0, 0, -1]])
_COO = scipy.sparse.coo_array(_DENSE)
_FORMATS = ("csr", "csc", "coo", "dia", "bsr", "bsr 1", "COO", "GCXS 0", "GCXS 1")
_DTYPES = ("f8", "i8", "c16")
BASES = [f"{name} {dtype}" for name in _FORMATS for dtype in _DTYPES]
DTYPES = ("i4", "i8", "u8", "i2", "f8", "f4", "c16", "?", "O", "U3", ">i8", ">f8")


def parts(base: str) -> tuple[str, tuple[int, int], dict[str, np.ndarray]]:
    """Format, shape and arrays of a base."""
    name, dtype = base.rsplit(" ", 1)
    coo = scipy.sparse.coo_array((_COO.data.astype(dtype), _COO.coords), shape=_COO.shape)
    if name in ("coo", "COO"):
        row, col = (index.astype(np.int64) for index in coo.coords)
        return name, coo.shape, {"row": row, "col": col, "data": coo.data}
    if name.startswith("bsr"):
        found = coo.tobsr((3, 2) if name == "bsr" else (2, 1))
    else:
        found = coo.asformat({"GCXS 0": "csr", "GCXS 1": "csc"}.get(name, name))
    fields = ("data", "offsets") if name == "dia" else ("data", "indices", "indptr")
    return name.removesuffix(" 1") if "bsr" in name else name, coo.shape, {field: getattr(found, field) for field in fields}


def propose(rng: random.Random, base: str) -> list[edits.Edit]:
    names = list(parts(base)[2])
    found = [edits.propose_array(rng, names, DTYPES) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    if rng.random() < 0.15:
        found.append(["shape", rng.randrange(2), edits.number(rng)])
    return found


def forged(base: str, recipe: list[edits.Edit]) -> tuple[str, tuple[int, int], dict[str, np.ndarray]]:
    """Format, shape and arrays of a recipe."""
    format, shape, arrays = parts(base)
    for edit in recipe:
        if edit[0] == "shape":
            shape = tuple(edit[2] if axis == edit[1] else n for axis, n in enumerate(shape))
        else:
            edits.apply_array(arrays, edit)
    return format, shape, arrays


def examine(base: str, recipe: list[edits.Edit], folder: str) -> tuple[str, int]:
    """What the package makes of a recipe, and the bytes of the input."""
    format, shape, arrays = forged(base, recipe)
    size = sum(array.nbytes for array in arrays.values())
    try:
        obj = build(format, shape, arrays)
    except Exception:  # NumPy, SciPy or pydata/sparse will not hold it
        return "never made", size
    try:
        csr = coercion.as_csr(obj)
    except Exception as error:
        return judge.refused(error, (TypeError, ValueError)), size
    try:
        if format == "COO":  # holds both in one array, and so in one dtype
            arrays["row"], arrays["col"] = obj.coords
        entries = meaning.of_arrays({"COO": "coo", "GCXS 0": "csr", "GCXS 1": "csc"}.get(format, format), shape, arrays)
    except meaning.Invalid as error:
        raise judge.Violation(f"accepted what breaks its format's rule: {error}") from error
    wide = csr.data if csr.data.dtype != np.float16 else csr.data.astype(np.float32)
    found = scipy.sparse.csr_array((wide, csr.indices, csr.indptr), shape=csr.shape)
    judge.same(found, shape, entries, keeps_zeros=format not in ("dia", "bsr"))
    judge.accepted(judge.converted(found, size // 8), size)
    return "accepted", size


def build(format: str, shape: tuple[int, int], arrays: dict[str, np.ndarray]) -> Any:
    """An object with these attributes, past the checks of its constructor."""
    if format == "COO":
        obj = sparse.COO(np.zeros((2, 0), np.int64), np.zeros(0), shape=(1, 1))
        obj.coords, obj.data, obj.shape = np.stack([arrays["row"], arrays["col"]]), arrays["data"], shape
        obj.fill_value = arrays["data"].dtype.type(0)
        return obj
    if format.startswith("GCXS"):
        obj = sparse.GCXS.from_numpy(np.zeros((1, 1)), compressed_axes=[int(format[-1])])
        obj.data, obj.indices, obj.indptr, obj.shape = (*(arrays[name] for name in ("data", "indices", "indptr")), shape)
        obj.fill_value = arrays["data"].dtype.type(0)
        obj._compressed_axes = (int(format[-1]),)
        return obj
    obj = getattr(scipy.sparse, f"{format}_array")((1, 1) if format != "bsr" else scipy.sparse.csr_array((1, 1)))
    if format == "coo":
        obj.coords = (arrays["row"], arrays["col"])
    for name in arrays.keys() & {"indices", "indptr", "offsets", "data"}:
        setattr(obj, name, arrays[name])
    obj.data, obj._shape = arrays["data"], shape
    return obj
