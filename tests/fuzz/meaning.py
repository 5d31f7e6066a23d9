"""What a file or an object says, in plain Python: ``{(row, column): value}``. It shares no code with the package.

:class:`Invalid` is for what says nothing: nobody may take it for a matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Entries = dict[tuple[int, int], Any]


class Invalid(Exception):
    """It breaks the rules of its format."""


def require(holds: bool, rule: str) -> None:
    """Invalid, unless the `rule` holds."""
    if not holds:
        raise Invalid(rule)


def of_arrays(format: str, shape: tuple[int, int], arrays: dict[str, np.ndarray]) -> Entries:
    """Of the arrays of a sparse format: ``csr``, ``csc``, ``bsr``, ``coo`` or ``dia``."""
    data, (n_rows, n_cols) = arrays["data"], shape
    require(data.dtype.kind in "biufc" and data.dtype.itemsize <= 16, "values are numbers")
    if format == "csc":
        return {(i, j): v for (j, i), v in of_arrays("csr", shape[::-1], arrays).items()}
    if format == "coo":
        row, col = integers(arrays["row"]), integers(arrays["col"])
        require(data.ndim == 1 and len(row) == len(col) == data.size, "one length")
        return summed(zip(row, col, strict=True), data, shape)
    if format == "dia":
        return _of_diagonals(shape, data, integers(arrays["offsets"]))
    indptr, indices = integers(arrays["indptr"]), integers(arrays["indices"])
    height, width = data.shape[1:] if format == "bsr" else (1, 1)
    require(data.ndim == (3 if format == "bsr" else 1) and height > 0 and width > 0, "values by block")
    require(n_rows % height == 0 and n_cols % width == 0, "whole blocks")
    require(len(indptr) == n_rows // height + 1, "an offset a row, and the end")
    require(indptr[0] == 0 and indptr[-1] == len(indices) == data.shape[0], "offsets from 0 to the end")
    require(all(a <= b for a, b in zip(indptr, indptr[1:], strict=False)), "offsets never decrease")
    of_row = [i for i in range(len(indptr) - 1) for _ in range(indptr[i], indptr[i + 1])]
    if format == "csr":
        return summed(zip(of_row, indices, strict=True), data, shape)
    places = [
        (i * height + di, j * width + dj)
        for i, j in zip(of_row, indices, strict=True)
        for di in range(height)
        for dj in range(width)
    ]
    return summed(places, data.reshape(-1), shape)


def _of_diagonals(shape: tuple[int, int], data: np.ndarray, offsets: list[int]) -> Entries:
    require(data.ndim == 2 and data.shape[0] == len(offsets), "a diagonal an offset")
    places = [(j - k, j) for k in offsets for j in range(data.shape[1])]
    inside = [0 <= i < shape[0] and j < shape[1] for i, j in places]
    return summed(
        [p for p, is_in in zip(places, inside, strict=True) if is_in], data.reshape(-1)[np.array(inside, bool)], shape
    )


def integers(array: np.ndarray) -> list[int]:
    """The numbers of a list of integers; an empty one may have any dtype."""
    require(array.ndim == 1 and (array.dtype.kind in "iu" or not array.size), "a list of integers")
    return array.tolist()


def summed(places: Any, data: np.ndarray, shape: tuple[int, int]) -> Entries:
    """Entries whose duplicates add up, as their dtype does."""
    entries: Entries = {}
    for (i, j), value in zip(places, data, strict=True):
        require(0 <= i < shape[0] and 0 <= j < shape[1], "indices inside the shape")
        with np.errstate(all="ignore"):
            entries[i, j] = entries[i, j] + value if (i, j) in entries else value
    return entries


def of_text(text: str) -> tuple[tuple[int, int], Entries]:
    """Shape and entries of a Matrix Market text."""
    lines = text.split("\n")
    banner = lines[0].lower().split()
    require(len(banner) == 5 and banner[0].lstrip("%") == "matrixmarket", "a banner of five words")
    _, kind, layout, field, symmetry = banner
    require(kind == "matrix" and layout in ("coordinate", "array"), "a matrix")
    body = [line.split() for line in lines[1:] if line.strip() and not line.lstrip().startswith("%")]
    sizes = [int(word) for word in body[0]]
    shape = sizes[0], sizes[1]
    entries = body[1:]
    if layout == "coordinate":
        require(len(entries) == sizes[2], "as many entries as promised")
        places = [(int(words[0]) - 1, int(words[1]) - 1) for words in entries]
        values = [_value(words[2:], field) for words in entries]
    else:
        words = [word for line in entries for word in line]
        each = 2 if field == "complex" else 1
        first = {"general": lambda j: 0, "skew-symmetric": lambda j: j + 1}.get(symmetry, lambda j: j)
        places = [(i, j) for j in range(shape[1]) for i in range(first(j), shape[0])]
        require(len(words) == each * len(places), "as many numbers as promised")
        values = [_value(words[each * k : each * (k + 1)], field) for k in range(len(places))]
    mirror = {"symmetric": lambda v: v, "skew-symmetric": lambda v: -v, "hermitian": np.conj}.get(symmetry)
    if mirror:
        other = [((j, i), v) for (i, j), v in zip(places, values, strict=True) if i != j]
        places, values = places + [place for place, _ in other], values + [_mirrored(v, mirror) for _, v in other]
    # zeros are not stored
    kept = [(p, v) for p, v in zip(places, values, strict=True) if layout == "coordinate" or v != 0]
    dtype = {"integer": "i8", "unsigned-integer": "u8", "complex": "c16"}.get(field, "f8")
    return shape, summed([p for p, _ in kept], np.array([v for _, v in kept], dtype), shape)


def _mirrored(value: Any, mirror: Any) -> Any:
    require(not (isinstance(value, int) and value == -(2**63) and mirror(1) == -1), "an integer whose negative there is")
    return mirror(value)


def _value(words: list[str], field: str) -> Any:
    require(len(words) == {"pattern": 0, "complex": 2}.get(field, 1), "as many words as the field has")
    if field == "pattern":
        return 1.0
    if field == "complex":
        return np.array([float(words[0]), float(words[1])]).view(np.complex128)[0]
    return int(words[0]) if field in ("integer", "unsigned-integer") else float(words[0])
