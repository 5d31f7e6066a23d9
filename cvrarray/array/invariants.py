"""Checks that the formats' pages share: of their tables' invariants and of their parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core import devices
from ..core.distinct import MOST, NARROWER, is_zero_first, may_stand_first
from ..core.tables import WARP, mask_dtype
from ..input import coercion

#: Tables that an array may lack.
OPTIONAL = ("present", "distinct")

#: dtypes that values may have
VALUES = [np.dtype(name) for name in "? b h i q B H I Q e f d F D".split()]


def are_tables(tables: Any, stored: dict[str, tuple[str, int]], value_table: str) -> Iterator[tuple[str, bool]]:
    """Invariants of both formats: what tables in a host's memory are made of. `stored` is as ``FormatArray._stored``."""
    fields = tables._asdict()
    shape = fields.pop("shape")
    is_shape = type(shape) is tuple and len(shape) == 2 and all(_is_count(n) for n in shape)
    yield "0: shape is two counts", is_shape
    yield "0: nnz is a count", _is_count(fields.pop("nnz"))
    distinct = fields.get("distinct")
    value = getattr(fields[value_table] if distinct is None else distinct, "dtype", None)
    yield "0: values are numbers of a dtype that arrays may have", value in VALUES
    if distinct is not None:
        yield (
            f"0: distinct has at most {MOST} values, and at least 1 where none is exact in fewer bytes",
            (distinct.size <= MOST and (distinct.size > 0 or value in NARROWER)),
        )
        stored = stored | {value_table: (NARROWER[value].str if not distinct.size else "|u1", 1)}
    kinds = {"index": coercion.index_dtype(shape), "value": value, "mask": mask_dtype(fields.get("block_size", 1))}
    for name, table in fields.items():
        if name not in stored:
            yield f"0: {name} is an integer from 1 to {WARP}", _is_count(table) and 1 <= table <= WARP
        elif table is not None or name not in OPTIONAL:
            kind, ndim = stored[name]
            dtype = np.dtype(kinds.get(kind, kind)).newbyteorder("=")
            is_array = type(table) is np.ndarray and table.dtype == dtype and table.dtype.isnative and table.ndim == ndim
            yield (
                f"0: {name} is a {ndim}-dimensional array of {dtype}, aligned and in C order",
                (is_array and table.flags.c_contiguous and table.flags.aligned),
            )
    if distinct is not None and distinct.size:
        numbers = fields[value_table]
        yield f"0: {value_table} is empty where distinct has one value", distinct.size > 1 or not numbers.size
        yield f"0: {value_table} has numbers below {distinct.size}, the size of distinct", in_range(numbers, 0, distinct.size)
        yield (
            "0: distinct begins with 0, or with a finite value without a sign bit",
            is_zero_first(distinct) or may_stand_first(distinct[0]),
        )


def is_offsets(ptr: Any, n: int, total: int, least: int) -> bool:
    """Whether `ptr` holds n + 1 offsets from 0 to `total` that never decrease and, where `least` is 1, increase."""
    if ptr.size != n + 1 or int(ptr[0]) != 0 or int(ptr[-1]) != total:
        return False
    return bool((ptr[:-1] < ptr[1:] if least else ptr[:-1] <= ptr[1:]).all())  # differences of any two numbers may wrap


def in_range(values: Any, low: int, high: int) -> bool:
    """Whether all `values` lie in [low, high)."""
    return values.size == 0 or (int(values.min()) >= low and int(values.max()) < high)


def packs(col_ptr: Any, col_base: Any, slots: Any, n_narrow: int, n_wide: int) -> bool:
    """Whether the columns of narrow tiles, and those of others, stand one after the other and fill their tables.

    `slots` of the tiles are not negative and their sum does not wrap.
    """
    for of_kind, size in ((col_base >= 0, n_narrow), (col_base < 0, n_wide)):
        ends = slots[of_kind].cumsum()
        if not bool((col_ptr[of_kind] == ends - slots[of_kind]).all()) or size != (int(ends[-1]) if ends.size else 0):
            return False
    return True


def are_converted(tables: Any, module: Any) -> Iterator[tuple[str, bool]]:
    """Invariants of both formats: that the conversion makes these tables of the entries that they store.

    `module` is the format's on the CPU. Its ``to_csr`` must read and write inside its arrays alone.
    """
    csr = module.to_csr(tables, 0, tables.shape[0])
    yield "of nnz: it counts the stored entries", csr.nnz == tables.nnz
    ascend, _ = devices.CPU.backend("csr").look(csr.indptr, csr.indices, tables.shape[1])
    yield "of columns: they ascend in every row, from 0 to n_cols", ascend
    made = module.convert_anew(csr, tables)
    for name, table in sorted(tables._asdict().items(), key=lambda item: item[0] in ("val", "data")):  # these follow the others
        difference = _difference(name, table, getattr(made, name))
        yield f"of {name}: it is what the conversion makes of the entries; {difference}", difference is None


def _difference(name: str, found: Any, expected: Any) -> str | None:
    """What tells two tables apart, in words."""
    if found is None or expected is None:
        return None if found is expected else f"{name} is {'missing' if found is None else 'not needed'}"
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return f"its shape is {found.shape} instead of {expected.shape}"
    differs = found != expected
    if found.dtype.kind in "fc":  # NaN is NaN
        differs &= (found == found) | (expected == expected)
    if not differs.any():
        return None
    at = np.unravel_index(np.argmax(differs), differs.shape)
    return f"{name}[{', '.join(map(str, at))}] is {found[at]} instead of {expected[at]}"


def _is_count(value: Any) -> bool:
    """Whether `value` is an integer (and no bool) from 0 to the largest size of an array."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(0 <= value <= coercion.LARGEST)


def integer(value: Any, name: str, low: int, high: int | None = None) -> int:
    """`value` as an int in [low, high], or a ValueError that says so. A bool is no number."""
    bounds = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be {bounds}; got {value!r}") from None
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be {bounds}; got {number}")
    return number
