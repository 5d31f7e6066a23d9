"""Values in few bytes: what an array's tables stand for, whatever they store.

See ``distinct`` in :mod:`cvrarray.core.tables`. All that is no product takes the tables as those of a matrix of
numbers, and looks the values up at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..core import devices
from ..core import distinct as kinds
from ..core.tables import CSR, ValueSample


def checked(choice: Any) -> bool:
    """Whether the constructors' keyword `values` lets values be stored in few bytes; ValueError where it is another
    word.
    """
    if choice not in kinds.CHOICES:
        raise ValueError(f"values must be {' or '.join(map(repr, kinds.CHOICES))}; got {choice!r}")
    return bool(choice == "auto")


def encode(data: Any, target: devices.Device, sample: ValueSample | None = None) -> tuple[Any, Any]:
    """What to convert for the values `data` (nnz,) on the current device, and what that stands for; None: as it is.

    `sample` is a first look at values, which counts where these are `data`.
    """
    stored, distinct = target.backend("distinct").encode(data, sample)
    return stored, distinct


def encode_for(array_class: Any, tables: Any, data: Any, target: devices.Device) -> tuple[Any, Any]:
    """As :func:`encode`, for values in the structure of `tables`, where that may say that numbers do not pay."""
    stored, distinct = encode(data, target)
    return (stored, distinct) if pays(array_class, tables, distinct, target) else (data, None)


def pays(array_class: Any, tables: Any, distinct: Any, target: devices.Device) -> bool:
    """Whether products with `tables` gain by numbers of these values. A format's module may have
    ``numbers_pay(tables)``.
    """
    says = getattr(array_class._module(target), "numbers_pay", None)
    return says is None or distinct is None or distinct.size < 2 or bool(says(tables))


def described(data: Any, target: devices.Device) -> str:
    """What a conversion stores the values `data` as, in a few words."""
    with target.use():
        return kinds.described(encode(data, target)[1])


def encoded(array: Any) -> Any:
    """`array`, whose values are stored as they are, or one of the same structure whose values take fewer bytes."""
    if table(array._tables) is not None or "distinct" not in array._stored:
        return array
    with array._target.use():
        stored, distinct = encode_for(type(array), array._tables, array._values(array._tables), array._target)
        if distinct is None:
            return array
        made = array._with_table(stored, distinct)
    made._plan = array._plan
    return made


def table(tables: Any) -> Any:
    """What the stored numbers stand for; None where values are stored as they are, as they always are in some formats."""
    return getattr(tables, "distinct", None)


def with_values(array_class: Any, tables: Any, stored: Any, distinct: Any) -> Any:
    """`tables` with this value table, whose numbers stand for values of `distinct` where that is not None."""
    if table(tables) is None and distinct is None:
        return tables._replace(**{array_class._value_table: stored})
    if distinct is not None and distinct.size == 1:
        stored = stored[:0]
    return tables._replace(**{array_class._value_table: stored, "distinct": distinct})


def numbered(array_class: Any, tables: Any) -> Any:
    """The tables of the matrix of what is stored: of numbers, where these stand for the values."""
    distinct = table(tables)
    if distinct is None:
        return tables
    stored = array_class._values(tables)
    if distinct.size == 1:
        stored = devices.of(distinct).xp.zeros(array_class._n_slots(tables), np.uint8)
    return tables._replace(**{array_class._value_table: stored, "distinct": None})


def looked_up(tables: Any, stored: Any) -> Any:
    """The values that entries of :func:`numbered` tables stand for."""
    distinct = table(tables)
    if distinct is None:
        return stored
    if distinct.size == 1:
        return devices.of(distinct).xp.full(stored.shape, distinct[0], distinct.dtype)
    return distinct[stored] if distinct.size else devices.of(stored).backend("distinct").widened(stored, distinct.dtype)


def decoded(array: Any) -> CSR:
    """The canonical CSR of `array`, of new arrays, from its tables."""
    return rows(array, array._tables, 0, array.shape[0])


def rows(array: Any, tables: Any, first: int, last: int) -> CSR:
    """The canonical CSR of the rows [first, last) of `tables`, which are those of `array` or a part of them."""
    csr: CSR = array._module(array._target).to_csr(numbered(type(array), tables), first, last)
    return csr._replace(data=looked_up(array._tables, csr.data))


def slots(array: Any) -> Any:
    """(nnz,) where each entry of the canonical CSR lies in the value table; found once for a structure, by converting
    the slots' numbers.
    """
    structure = array._structure
    if structure.slots is None:
        structure.slots = slot_numbers(array)._canonical_csr().data
    return structure.slots


def slot_numbers(array: Any) -> Any:
    """The array of the same structure with each slot's number for its value."""
    size = array._n_slots(array._tables)
    with array._target.use():
        return array._with_table(array._target.xp.arange(size, dtype=np.int32 if size < 2**31 else np.int64))


def at(array: Any, slots: Any) -> Any:
    """The values in these slots of the value table, on the current device."""
    return looked_up(array._tables, array._values(numbered(type(array), array._tables))[slots])


def empty(array: Any, dtype: np.dtype) -> Any:
    """An uninitialised value table of the array's structure, which stores values as they are."""
    return uninitialised(array._n_slots(array._tables), dtype, array._target)


def uninitialised(size: int, dtype: np.dtype, target: devices.Device) -> Any:
    """1-D array; on the CPU it begins at a cache line, as the kernels want it."""
    return target.backend("runtime.memory").empty(size, dtype) if target.kind == "cpu" else target.xp.empty(size, dtype)


def copied(a: Any, target: devices.Device) -> Any:
    """A copy of a table on a device, where on the CPU the kernels want it."""
    if target.kind == "cuda":
        with target.use():
            return target.xp.array(a)
    own = uninitialised(a.size, a.dtype, target).reshape(a.shape)
    if not isinstance(a, np.ndarray):
        return a.get(out=own)
    own[...] = a
    return own


def copies(tables: Any, target: devices.Device) -> Any:
    """`tables` with arrays of their own on a device."""
    own = {name: copied(a, target) for name, a in tables._asdict().items() if hasattr(a, "nbytes")}
    return tables._replace(**own)


def protect(tables: Iterable[Any]) -> None:
    """Make tables in host memory immutable; and one kind of array for Numba, whether converted or mapped from a file."""
    for a in tables:
        if isinstance(a, np.ndarray):
            a.setflags(False)  # type: ignore[call-arg]  # by position: half the time, and there are many tables


def plain(array: Any) -> Any:
    """(n_slots,) the values as they lie in the value table where it stores them as they are: itself, or a new one."""
    tables, distinct = array._tables, table(array._tables)
    stored = array._values(tables)
    if distinct is None:
        return stored
    values = empty(array, distinct.dtype)
    if kinds.pads_with_zero(distinct):
        values[...] = looked_up(tables, stored)
        return values
    places = slots(array)
    values[...] = 0  # pads and holes
    values[places] = at(array, places)
    return values


def decompressed(array: Any) -> Any:
    """`array` with its values stored as they are; itself where they are."""
    if table(array._tables) is None:
        return array
    with array._target.use():
        made = array._with_table(plain(array))
    made._plan = array._plan
    return made


def mapped(distinct: Any, function: Callable[[Any], Any]) -> Any:
    """``function(distinct)``, where it stands for the results; None where pads and holes would not be what they are to
    be.
    """
    if distinct is None or not distinct.size or not (distinct.size == 1 or kinds.is_zero_first(distinct)):
        return None
    results = devices.of(distinct).xp.ascontiguousarray(function(distinct))
    if distinct.size == 1 and not kinds.may_stand_first(devices.move(results, devices.CPU)[0]):
        return None
    return results


def dtype_of(array_class: Any, tables: Any) -> np.dtype:
    """The dtype of the values."""
    distinct = table(tables)
    dtype: np.dtype = (array_class._values(tables) if distinct is None else distinct).dtype
    return dtype
