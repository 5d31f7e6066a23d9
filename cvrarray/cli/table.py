"""Numbers and tables as text."""

from __future__ import annotations

import math
from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces: the first to the left, all others to the right. A line under the header."""
    lines = [header, *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]

    def align(line: Sequence[str]) -> str:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        return "  ".join(cells).rstrip()

    rule = ["-" * width if name else "" for name, width in zip(header, widths, strict=True)]
    return "\n".join([align(header), align(rule), *map(align, rows)])


def significant(value: float | None, digits: int = 3, none: str = "-") -> str:
    """`value` with so many significant digits and no exponent; `none` for None, infinity and nan."""
    if value is None or not math.isfinite(value):
        return none
    if value == 0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"


def size(n_bytes: float) -> str:
    """`n_bytes` in the unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{significant(n_bytes)} {unit}"
        n_bytes /= 1000
    return f"{significant(n_bytes)} TB"


def finite(value: float | None) -> float | None:
    """`value` as JSON has it: None for infinity and nan."""
    return float(value) if value is not None and math.isfinite(value) else None


def in_a_line(error: BaseException) -> str:
    """An error's kind and message: what is said of a peer that is left out."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
