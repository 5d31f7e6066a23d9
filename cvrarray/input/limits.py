"""Memory that an input may ask for: a few bytes can declare any number of rows."""

from __future__ import annotations

import os
from typing import Any

from ..core import devices
from . import partition

#: Memory that reading may take whatever the file's size, where neither `max_bytes` nor the environment says otherwise.
MAX_BYTES = 256 << 20
VARIABLE = "CVRARRAY_MAX_BYTES"  #: of the environment: another MAX_BYTES
PROPORTION = 100  #: memory that reading may take for a byte of the file, where that is more

#: Bytes that reading takes at most for a row (offsets), a column (a mark) and an entry (triplets and the CSR of them).
ROW_BYTES, COLUMN_BYTES, ENTRY_BYTES = 16, 1, 48


class Limit:
    """The memory that reading a file may ask for: `max_bytes`, or PROPORTION times the file's size where that is more.

    A file of a few bytes can promise any number of rows, and a compressed one can hold a thousand times its size. What
    it promises is held against this before memory is asked for.

    Parameters
    ----------
    file_size : int
    max_bytes : int or str, optional
        A count or a text such as ``"4 GiB"``. Default: the environment's CVRARRAY_MAX_BYTES, else MAX_BYTES.
    """

    def __init__(self, file_size: int, max_bytes: Any = None):
        least = (_stated() or MAX_BYTES) if max_bytes is None else partition.n_bytes(max_bytes, "max_bytes")
        self.n_bytes = max(least, PROPORTION * file_size)
        self.file_size = file_size

    def require(self, n_bytes: int, what: str) -> None:
        """ValueError where `what`, of `n_bytes`, is more than the limit."""
        if n_bytes > self.n_bytes:
            raise ValueError(
                f"{what} {size(n_bytes)}; the limit for a file of {size(self.file_size)} is {size(self.n_bytes)}. If you trust "
                f"the file, read it with max_bytes={n_bytes} or more, or set the environment's {VARIABLE}"
            )

    def require_matrix(self, shape: tuple[int, int], n_entries: int, at: str) -> None:
        """ValueError where a matrix takes more than the limit, or its rows more than this machine has."""
        rows, columns = ROW_BYTES * shape[0], COLUMN_BYTES * shape[1]
        for n_bytes, what in ((rows, f"{shape[0]} rows"), (columns, f"{shape[1]} columns")):
            self.require(n_bytes, f"{at}: {what} need")
        self.require(rows + columns + ENTRY_BYTES * n_entries, f"{at}: {shape[0]} rows and {n_entries} entries need")
        memory = installed()
        if rows > memory:  # the system might kill us, not refuse
            raise ValueError(f"{at}: {shape[0]} rows need {size(rows)}; this machine has {size(memory)}")


def require_rows(shape: tuple[int, int], n_bytes: int) -> None:
    """Hold the rows of an object in memory, whose arrays take `n_bytes`, against the environment's limit and this
    machine.

    Raises
    ------
    ValueError
        The environment sets CVRARRAY_MAX_BYTES, and the rows need more than that and more than PROPORTION times
        `n_bytes`.
    MemoryError
        They need more than this machine has.
    """
    rows = ROW_BYTES * shape[0]
    if rows <= MAX_BYTES:
        return
    stated, memory = _stated(), installed()
    needed = f"a matrix of {shape[0]} x {shape[1]} needs {size(rows)} for its rows, whatever they hold"
    if stated and rows > max(stated, PROPORTION * n_bytes):
        raise ValueError(f"{needed}; the environment's {VARIABLE} allows {size(stated)}. Set it to more, or drop empty rows")
    if rows > memory:  # the system might kill us, not refuse
        raise MemoryError(f"{needed}; this machine has {size(memory)}. Drop empty rows, or store the transpose")


def named(error: MemoryError, shape: tuple[int, int]) -> MemoryError:
    """`error`, which says only what could not be allocated, for a matrix of `shape`."""
    return MemoryError(f"a matrix of {shape[0]} x {shape[1]} needs more memory than there is: {error}")


def _stated() -> int:
    """The environment's CVRARRAY_MAX_BYTES, or 0."""
    stated = os.environ.get(VARIABLE)
    return partition.n_bytes(stated, f"the environment's {VARIABLE}") if stated else 0


def size(n_bytes: int) -> str:
    """``"3 bytes"``, ``"1.5 GiB"``: rounded up, so that it never looks smaller than what it exceeds."""
    for k, unit in reversed(list(enumerate(("KiB", "MiB", "GiB", "TiB"), 1))):
        if n_bytes >= 1 << 10 * k:
            return f"{-(-10 * n_bytes >> 10 * k) / 10:.15g} {unit}"
    return f"{n_bytes} bytes"


def installed() -> int:
    """Bytes of memory that this machine has, or its container; no bound where the system does not say."""
    return int(devices.CPU.backend("runtime.regions").installed()) if hasattr(os, "sysconf") else 1 << 46
