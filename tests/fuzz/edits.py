"""Edits of bytes, texts and arrays, as lists that JSON can hold. Each is valid without the others."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np

Edit = list[Any]

#: Where arithmetic wraps, or an index leaves its array.
_POWERS = (7, 8, 15, 16, 31, 32, 33, 59, 62, 63, 64)


def number(rng: random.Random) -> int:
    """An integer that code may not expect; half of them are small."""
    if rng.random() < 0.5:
        return rng.randint(-3, 40)
    return rng.choice((1, -1)) * (1 << rng.choice(_POWERS)) + rng.randint(-2, 2)


# ------------------------------------------------------------------------------------------------ bytes


def propose_bytes(rng: random.Random, size: int, words: tuple[bytes, ...] = ()) -> Edit:
    """One edit of `size` bytes; `words` are what the format knows."""
    at = rng.randrange(max(1, size))
    kind = rng.choice(("set", "flip", "cut", "drop", "double", "insert", "append"))
    if kind in ("insert", "append"):
        text = rng.choice(words) if words and rng.random() < 0.7 else bytes(rng.choices(range(256), k=rng.randint(1, 8)))
        return [kind, at, text.decode("latin-1")]
    return [kind, at, {"set": rng.randrange(256), "flip": rng.randrange(8)}.get(kind, rng.randint(1, 32))]


def apply_bytes(content: bytes, edit: Edit) -> bytes:
    """`content` after one edit of :func:`propose_bytes`."""
    kind, at, what = edit
    at %= max(1, len(content))
    if kind == "set":
        return content[:at] + bytes([what]) + content[at + 1 :]
    if kind == "flip":
        return content[:at] + bytes(byte ^ (1 << what) for byte in content[at : at + 1]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "drop":
        return content[:at] + content[at + what :]
    if kind == "double":
        return content[: at + what] + content[at:]
    text = what.encode("latin-1")
    return content + text if kind == "append" else content[:at] + text + content[at:]


# ------------------------------------------------------------------------------------------------ arrays


def propose_array(rng: random.Random, names: list[str], dtypes: tuple[str, ...]) -> Edit:
    """One edit of one of the arrays `names`."""
    name = rng.choice(names)
    kind = rng.choices(("item", "ramp", "all", "resize", "dtype", "reshape"), (12, 4, 1, 2, 1, 1))[0]
    if kind == "item":
        return [kind, name, rng.randrange(64), number(rng)]
    if kind == "ramp":  # differences that wrap: entry j grows by j times a multiple of a power of two
        return [kind, name, rng.choice((59, 60, 61, 62, 63)), rng.randint(1, 15)]
    if kind == "dtype":
        return [kind, name, rng.choice(dtypes)]
    if kind == "reshape":
        return [kind, name, rng.choice(([-1], [-1, 1], [1, -1], [2, -1], [1, -1, 1], [0], []))]
    return [kind, name, number(rng) if kind == "all" else rng.randint(0, 40)]


def apply_array(arrays: dict[str, np.ndarray], edit: Edit) -> None:
    """Put the edited array in the place of the one that `edit` names; nothing where it does not fit."""
    kind, name, *what = edit
    if name not in arrays:
        return
    array = arrays[name]
    if kind in ("item", "all"):
        array, flat = _copy(array)
        if flat.size:
            flat[slice(None) if kind == "all" else what[0] % flat.size] = _as(what[-1], array.dtype)
    elif kind == "ramp":
        array, flat = _copy(array)
        if array.dtype.kind in "iu" and flat.size:
            wrap = 1 << 8 * array.dtype.itemsize
            for j in range(1, flat.size - 1):
                flat[j] = _as((int(flat[j]) + j * what[1] * (1 << what[0])) % wrap, array.dtype)
    elif kind == "dtype":
        with np.errstate(all="ignore"), suppress(ValueError, TypeError):
            array = array.astype(what[0])
    elif kind == "resize":
        array = np.resize(array, (what[0], *array.shape[1:])) if array.ndim else array
    elif kind == "reshape":
        with suppress(ValueError):
            array = array.reshape(what[0])
    arrays[name] = array


def _copy(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    array = array.copy()
    return array, array.reshape(-1)


def _as(value: int, dtype: np.dtype) -> Any:
    """`value` as `dtype` holds it, wrapped."""
    if dtype.kind in "iu":
        return np.array([value % (1 << 8 * dtype.itemsize)], f"u{dtype.itemsize}").view(f"{dtype.kind}{dtype.itemsize}")[0]
    if dtype.kind in "fcb":
        with np.errstate(all="ignore"):
            return np.float64(value).astype(dtype)
    return str(value)
