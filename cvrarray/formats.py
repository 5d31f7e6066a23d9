"""The formats that come with the package, made known by importing this module, in the order of their comparison.

A format of another package is known once its class is defined: see :class:`cvrarray.array.format.FormatArray`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .array.format import FORMATS as FORMATS
from .array.format import FormatArray
from .bbcsr import BBCSRArray as BBCSRArray
from .cvr import CVRArray as CVRArray

for _cls in (CVRArray, BBCSRArray):  # in this order, whichever page was imported first
    FORMATS[_cls.format] = FORMATS.pop(_cls.format)


def named(format: str) -> type[FormatArray]:
    """The class of a format.

    Raises
    ------
    ValueError
        There is no such format; the message lists those that there are.

    Examples
    --------
    >>> from cvrarray.formats import named
    >>> named("cvr").__name__
    'CVRArray'
    """
    check(format)
    return FORMATS[format]


def check(format: str, *, auto: bool = False) -> None:
    """ValueError unless `format` is the name of a format or, where `auto` allows it, ``"auto"``."""
    names = [*(["auto"] if auto else []), *FORMATS]
    if not isinstance(format, str) or format not in names:
        *first, last = map(repr, names)
        raise ValueError(f"format must be {', '.join(first)}{' or ' if first else ''}{last}; got {format!r}")


def of_variant(name: str) -> tuple[type[FormatArray], dict[str, Any]]:
    """The class of a variant and the keywords that its constructor makes the variant with.

    Examples
    --------
    >>> from cvrarray.formats import of_variant
    >>> of_variant("bbcsr3")[1]
    {'block_size': 3}
    """
    return _of_variant(name, tuple(FORMATS.values()))


@lru_cache(256)  # a choice asks for each of few names a dozen times
def _of_variant(name: str, known: tuple[type[FormatArray], ...]) -> tuple[type[FormatArray], dict[str, Any]]:
    """:func:`of_variant` of the formats that are `known`."""
    cls = max((cls for cls in known if name.startswith(cls.format)), key=lambda cls: len(cls.format))
    number = name.removeprefix(cls.format)
    return cls, {cls._tuned: int(number)} if number else {}
