"""Values in few bytes: what an array's tables stand for, whatever they store.

See ``distinct`` in :mod:`cvrarray.core.tables`. All that is no product takes the tables as those of a matrix of
numbers, and looks the values up at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import devices
from ..core import distinct as kinds
from ..core.tables import ValueSample


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


def plain(array: Any) -> Any:
    """The value table as it is where values are stored as they are: itself, or a new one."""
    tables, distinct = array._tables, table(array._tables)
    stored = array._values(tables)
    if distinct is None:
        return stored
    values = array._empty_values(distinct.dtype)
    if kinds.pads_with_zero(distinct):
        values[...] = looked_up(tables, stored)
        return values
    slots = array._slots()
    values[...] = 0  # pads and holes
    values[slots] = array._values_at(slots)
    return values


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
