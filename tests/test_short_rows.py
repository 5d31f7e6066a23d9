"""``A @ x`` with as many slots for every row: small matrices of short, even rows."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from checks import (
    assert_few_values_keep_bits,
    assert_graph_multiplies_again,
    assert_new_values_count,
    assert_one_layout_a_structure,
    assert_product,
    assert_products,
    put,
)
from scipy.sparse import csr_array

from cvrarray import BBCSRArray, CVRArray
from cvrarray.array import encoding

FORMATS = pytest.mark.parametrize(
    "build", [CVRArray, lambda csr, **of: BBCSRArray(csr, block_size=1, **of)], ids=["cvr", "bbcsr"]
)


def rows_of(lengths, dtype="float64", n_cols: int = 90_001) -> csr_array:
    """Rows of so many columns anywhere."""
    rng, lengths = np.random.default_rng(6), np.asarray(lengths)
    row = np.repeat(np.arange(lengths.size), lengths)
    col = np.concatenate([np.sort(rng.choice(n_cols, n, replace=False)) for n in lengths])
    return csr_array((rng.standard_normal(row.size).astype(dtype), (row, col)), shape=(lengths.size, n_cols))


def even(dtype="float64", longest: int = 7, n_rows: int = 1003) -> csr_array:
    """Rows of up to `longest`, most of them as long as that, and one that is empty."""
    lengths = np.random.default_rng(2).integers(max(1, longest - 2), longest + 1, n_rows)
    lengths[5] = 0
    return rows_of(lengths, dtype)


@pytest.fixture
def taken(monkeypatch):
    """The layouts that are made from here on."""
    from cvrarray.gpu import row_lanes

    found, layout = [], row_lanes.Layout
    monkeypatch.setattr(row_lanes, "Layout", lambda *of: found.append(layout(*of)) or found[-1])
    return found


@pytest.mark.small
@FORMATS
@pytest.mark.parametrize("longest", [6, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32", "bool", "int8"])
def test_products(dtype, longest, build, taken, gpu):
    """Products with scales, empty rows and infinities in x that no row meets; the same bits each time."""
    csr = even(dtype, longest)
    product = np.result_type(dtype, np.float32) if dtype == "bool" else np.dtype(dtype)
    assert_products(build(csr, device=gpu), csr, product)
    assert taken and all(layout.is_even for layout in taken)


@pytest.mark.small
@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([4] * 33, True),
        ([16] * 100, True),
        ([4] * 99 + [17], False),
        ([2] * 1000 + [4] * 1000, True),
        ([2] * 1000 + [5] * 100, False),  # more than half of the slots would be empty
        ([16] + [1] * 20, True),  # in one bin anyway
        ([17] * 50, False),
        ([3] * 400_000, False),  # many slots
        ([3] * 140_000 + [5] * 10, False),  # many empty ones
    ],
)
def test_which_matrices(lengths, expected, taken, gpu):
    csr = rows_of(lengths, n_cols=500) if len(lengths) < 5000 else of_diagonals(lengths)
    A, x = BBCSRArray(csr, block_size=1, device=gpu), np.random.default_rng(1).standard_normal(csr.shape[1])
    assert_product(A @ put(x, gpu), csr, x)
    assert bool(taken) == expected


def of_diagonals(lengths) -> csr_array:
    """The same, quickly: columns side by side."""
    lengths = np.asarray(lengths)
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    row = np.repeat(np.arange(lengths.size), lengths)
    return csr_array((np.ones(row.size), row + np.arange(row.size) - ptr[row], ptr), shape=(lengths.size, lengths.size + 20))


@pytest.mark.small
@FORMATS
def test_layout(build, gpu):
    """Slot e of row r is at (r // 32 * width + e) * 32 + r % 32: each says where its value is, and its column."""
    from cvrarray.gpu import bbcsr, cvr, row_lanes

    csr = even()
    A = build(csr, device=gpu)
    by_rows = (cvr if isinstance(A, CVRArray) else bbcsr).slots_by_rows(A._tables)
    layout = row_lanes.Layout(by_rows, 7, None)
    source, col = (table.get().reshape(-1, 7, 32).transpose(0, 2, 1).reshape(-1, 7) for table in (layout.source, layout.col))
    values = encoding.plain(A).get()
    for row, length in enumerate([*np.diff(csr.indptr), *[0] * (source.shape[0] - csr.shape[0])]):
        at = slice(csr.indptr[row], csr.indptr[row] + length) if length else slice(0)
        np.testing.assert_array_equal(col[row], [*csr.indices[at], *[-1] * (7 - length)])
        np.testing.assert_array_equal(values[source[row, :length] - 1], csr.data[at])
        assert (source[row, length:] == 0).all()


@pytest.mark.small
@pytest.mark.parametrize("name", zoo.ZOO)
def test_bins_and_lanes_multiply_too(name, monkeypatch, gpu):
    """What larger arrays do."""
    from cvrarray.core import short_rows

    monkeypatch.setattr(short_rows, "may_suit", lambda *of: False)
    csr = zoo.floats(name, np.float32)
    x = zoo.float_vector(csr.shape[1], np.float32)
    for A in (CVRArray(csr, device=gpu), BBCSRArray(csr, block_size=1, device=gpu)):
        assert_product(A @ put(x, gpu), csr, x)


def test_few_values(gpu):
    assert_few_values_keep_bits(even(), gpu)


@FORMATS
def test_new_values(build, gpu):
    csr = even()
    assert_new_values_count(build(csr, device=gpu), csr)


@FORMATS
def test_in_a_graph(build, gpu):
    """Values that are replaced in place count too."""
    csr = even("float32")
    A = build(csr, device=gpu)
    A = A.with_values(put(csr.data, gpu))
    assert_graph_multiplies_again(A, lambda: A.with_values(put(3 * csr.data, gpu), out=A))


@FORMATS
def test_arrays_of_one_structure_share_a_layout(build, monkeypatch, gpu):
    from cvrarray.gpu import row_lanes

    assert_one_layout_a_structure(build(even("float32"), device=gpu), monkeypatch, row_lanes, 1)
