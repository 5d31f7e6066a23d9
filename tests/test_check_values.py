"""check() reads values only where slots hold no entry: of any dtype, and in any lane, they must be zeros there."""

from __future__ import annotations

import numpy as np
import pytest

import cvrarray

DTYPES = [np.bool_, np.float16, np.float32, np.complex128]


def with_values(A, name, place, value):
    values = getattr(A._tables, name).copy()
    values[place] = value
    return type(A)._from_tables(A._tables._replace(**{name: values}))


def padded(dtype):
    """One chunk of 32 lanes; the last 3 slots are pads."""
    return cvrarray.CVRArray(np.ones((31, 31), dtype)[:, :31] * (np.arange(961) < 957).reshape(31, 31), n_chunks=1, n_lanes=32)


def with_holes(dtype):
    """Blocks of 6 with an entry each: the others are holes."""
    return cvrarray.BBCSRArray(np.eye(70, dtype=dtype), block_size=6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("build", "name"), [(padded, "val"), (with_holes, "data")])
def test_any_value_where_no_entry_is_stored_is_refused(build, name, dtype):
    A = build(dtype)
    A.check()
    empty = np.flatnonzero(getattr(A._tables, name) == 0)
    assert empty.size >= 3
    for place in empty[[0, 1, empty.size // 2, -1]]:
        with pytest.raises(ValueError, match=rf"breaks invariant of {name}: .*; {name}\[{place}\] is .* instead of (0|False)"):
            with_values(A, name, place, 1j if np.dtype(dtype).kind == "c" else 1).check()
        if np.dtype(dtype).kind in "fc":
            with_values(A, name, place, -np.zeros(1, dtype)[0]).check()  # a zero too
            with pytest.raises(ValueError, match=rf"{name}\[{place}\] is .*nan.* instead of 0"):
                with_values(A, name, place, np.nan).check()
