"""New values in an old structure: :meth:`cvrarray.array.base.SparseArray.with_values`.

Where each value goes is found once for a structure and kept for all arrays that share it, in their :class:`Structure`.
It depends on the order in which values come:

* in the order of ``A.tocsr().data``: the format says where its slots begin in that order (``_order``, ``fill`` of the
  device's module), a few bytes a row;
* in any other order: each slot has the number of its value (:class:`cvrarray.core.tables.Sources`), 4 bytes a slot. A
  matrix's order is known again by the contents of its index arrays.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from ..core import devices
from ..core.tables import Blocks, Sources
from ..input import coercion
from ..input.entries import Entries, block_coordinates, coordinates, entries
from . import encoding, products
from .blocks import number_dtype, sources_of
from .kept import forget


def entries_of(array: Any) -> Any:
    """(nnz,) new array of the values of the canonical CSR."""
    slots = array._structure.slots if hasattr(array, "_structure") else None
    if slots is None:
        return array._own_csr().data
    with array._target.use():
        return encoding.at(array, slots)


def places(array: Any) -> tuple[Any, Any]:
    """(nnz,) the row and the column of each entry of the canonical CSR; kept with the structure, as those of its transpose."""
    base = base_of(array)
    known, is_view = base._structure.places, base is not array
    found: tuple[Any, Any] | None = known.get(is_view)
    if found is None:
        with array._target.use(), array._target.aside():
            csr = array._own_csr()
            found = known[is_view] = coercion.rows(csr), csr.indices
    return found


def with_values(array: Any, data: Any, out: Any = None) -> Any:
    """`array` with other values: see :meth:`cvrarray.array.base.SparseArray.with_values`."""
    base = base_of(array)
    is_view = base is not array
    target = base._target
    with target.use():
        if coercion.package(data) in coercion.SPARSE_PACKAGES:
            found = _of_device(entries(data), target)
            sources, values = _sources_of(base, _transposed(found) if is_view else found), found.data.reshape(-1)
        else:
            values = products.operand(array, data, "data")
            if values.shape != (array.nnz,):
                raise ValueError(
                    f"data must have shape {(array.nnz,)}, a value for each stored entry; got {values.shape}. A sparse matrix "
                    "of the same structure is taken too"
                )
            sources = sources_of_view(base) if is_view else None
        if out is None:
            made = write(base, sources, values)
            return type(array)(made) if is_view else made
        write(base, sources, values, checked_out(array, out))
        return out


def base_of(array: Any) -> Any:
    """The array of a format: `array`, or what it is a transposed view of."""
    return array if "_structure" in array.__dict__ else array.base


def write(base: Any, sources: Sources | None, values: Any, out: Any = None) -> Any:
    """`values`, in the order that `sources` tell of, in the structure of `base`: a new array, or `out`, once checked."""
    with base._target.keeping((base if out is None else out)._of_graphs):
        return _written(base, sources, values, out)


def _written(base: Any, sources: Sources | None, values: Any, out: Any) -> Any:
    target = base._target
    if out is None:
        values = target.xp.ascontiguousarray(values, dtype=coercion.check_dtype(values.dtype))
        distinct = None
        # numbers are no terms, and values are not looked at while a graph is captured
        may_be_few = (sources is None or sources.first is None) and not target.is_capturing()
        if may_be_few and encoding.table(base._tables) is not None:
            values, distinct = encoding.encode_for(type(base), base._tables, values, target)
            if distinct is not None and distinct.size == 1:  # no value has a place
                return base._with_table(values[:0], distinct)
        table = encoding.empty(base, values.dtype)
        fill(base, sources, values, table)
        return base._with_table(table, distinct)
    if not np.can_cast(values.dtype, out.dtype, "same_kind"):
        raise TypeError(f"data must have a dtype that out's, {out.dtype}, can hold; got {values.dtype}. Cast one of them first")
    has_own_table = encoding.table(out._tables) is None and (target.kind != "cpu" or _may_write(out._values(out._tables)))
    if not has_own_table and target.is_capturing():
        raise RuntimeError(
            f"out is a {type(out).__name__} of few values: others need a table of their own the first time, which cannot be"
            " captured in a CUDA graph. Replace them once before the capture, or make the array with values='plain'"
        )
    table = out._values(out._tables) if has_own_table else encoding.empty(out, out.dtype)
    values = target.xp.ascontiguousarray(values, dtype=out.dtype)
    if target.may_share_memory(values, table):
        values = values.copy()
    try:
        forget(out, None)
        fill(base, sources, values, table)
        if not has_own_table:
            out._tables = encoding.with_values(type(out), out._tables, table, None)
            encoding.protect([table])
            out._products.drop()
        out._values_changed()
    except BaseException:  # Ctrl-C above all
        out._values_changed(is_whole=False)
        raise
    return out


def checked_out(array: Any, out: Any) -> Any:
    """The array that holds the tables of `out`, once its values may be replaced by others of `array`'s structure.

    Raises
    ------
    TypeError, ValueError
        It is no array of this format, on another device, or of another structure.
    """
    if type(out) is not type(array):
        raise TypeError(f"out must be a {type(array).__name__}; got {type(out).__name__}")
    base, out = base_of(array), base_of(out)
    if out._target != base._target:
        raise TypeError(f"out must be on the array's device, {base._target}; got {out._target}. Use out.to_device")
    if out._structure is not base._structure:
        if type(out) is not type(base) or not is_one_structure(base, out):
            raise ValueError(
                f"out must have the structure of the array, in every table but the values'; got {out!r}. Make it by with_values"
            )
        out._structure = base._structure
    return out


def renew_transpose(base: Any, transpose: Any) -> None:
    """Write the values of `base` into `transpose`, an array of the transposed matrix, whose structure is that which it had when
    it was made, as is base's.
    """
    with base._target.use():
        write(transpose, sources_of_transpose(base, transpose), base._values(base._tables), transpose)


def sources_of_transpose(base: Any, transpose: Any) -> Sources:
    """Where the value table of `base` goes in that of `transpose`, on the current device: kept, 4 bytes a slot."""
    known: Sources | None = transpose._structure.sources.get("transposed")
    if known is None:
        with base._target.aside():
            slots = base._target.backend("csr").transpose(encoding.slot_numbers(base)._canonical_csr()).data
            number = (slots + 1).astype(number_dtype(base._values(base._tables).size + 1))
            known = Sources(_numbered(transpose, number), None, None, 1)
            transpose._structure.sources["transposed"] = known
    return known


def is_one_structure(one: Any, other: Any) -> bool:
    """Whether the tables of two arrays of one format on one device, but for the values, are the same."""
    if one._structure is other._structure:
        return True
    with one._target.use():
        return same_tables(one._tables, other._tables, one._value_table)


def same_tables(tables: Any, others: Any, value_table: str) -> bool:
    """Whether the tables of two arrays of one format differ at most in their values."""
    for name, table in tables._asdict().items():
        theirs = getattr(others, name)
        if name in (value_table, "distinct") or table is theirs:
            continue
        if not hasattr(table, "nbytes") or not hasattr(theirs, "nbytes"):
            if table is None or theirs is None or table != theirs:
                return False
        elif table.dtype != theirs.dtype or table.shape != theirs.shape or not bool((table == theirs).all()):
            return False
    return True


def _may_write(table: np.ndarray) -> bool:
    """Whether a table lies in memory of NumPy's own or ours: tables are marked as read-only, what they lie in is not."""
    if not table.size:
        return True
    is_table = True
    while isinstance(table.base, np.ndarray):
        table, is_table = table.base, False
    is_own: bool = devices.CPU.backend("runtime.regions").is_own(table)
    return is_own and (is_table or bool(table.flags.writeable))


def fill(base: Any, sources: Sources | None, values: Any, table: Any) -> None:
    """Write a value table from values in the order that `sources` tell of; None: that of the canonical CSR."""
    module = base._module(base._target)
    if sources is None and hasattr(module, "fill"):
        structure = base._structure
        if structure.order is None:
            with base._target.aside():
                structure.order = base._order(encoding.slot_numbers(base)._canonical_csr())
        if table.size:
            module.fill(base._tables, structure.order, values, table)
        return
    if sources is None:  # of a format without kernels for it
        sources = base._structure.sources.get("slots")
        if sources is None:
            source = base._target.xp.zeros(table.size, number_dtype(table.size))
            source[encoding.slots(base)] = base._target.xp.arange(1, base.nnz + 1)
            sources = base._structure.sources["slots"] = Sources(source, None, None, 1)
    if table.size:
        base._target.backend("assembly").place(sources, values, table)


# ------------------------------------------------------------------------------------------------- the order of values


def sources_of_view(base: Any) -> Sources | None:
    """The order of ``base.T.tocsr().data``."""
    structure = base._structure
    found: Sources | None = structure.sources.get("view")
    if found is None:
        with base._target.aside():
            csr = encoding.slot_numbers(base)._canonical_csr()
            order, _ = _backend(base).sort(csr.indices, coercion.rows(csr), base.shape[::-1])
            number = base._target.xp.empty(base.nnz, number_dtype(base.nnz + 1))
            number[order] = base._target.xp.arange(1, base.nnz + 1)
            found = Sources(_numbered(base, number), None, None, 1)
            structure.sources["view"] = found
    return found


def _sources_of(base: Any, found: Entries) -> Sources | None:
    """The order of a sparse matrix's values, whose structure must be that of `base`."""
    if found.shape != base.shape:
        raise ValueError(f"data must have the array's shape, {base.shape}; got {found.shape}")
    structure = base._structure
    key = _key(base, found)
    missing: Any = structure  # what no order has
    sources: Any = structure.sources.get(key, missing)
    if sources is missing:
        sources = _new_sources(base, found)
        structure.sources[key] = sources
    return cast(Sources | None, sources)


def _key(base: Any, found: Entries) -> Any:
    """What tells orders apart: the contents of the index arrays."""
    contents = _backend(base).fingerprint(*found.indices)
    return found.kind, found.data.shape, *((index.dtype.str, index.shape) for index in found.indices), contents


def _new_sources(base: Any, found: Entries) -> Sources | None:
    if found.kind == "bsr" and hasattr(base, "_of_blocks") and found.data.shape[1:] == (base.block_size,) * 2:
        sources = _sources_of_blocks(base, found)
        if sources is not None:
            return sources
    row, col = coordinates(found)
    order, first = _backend(base).sort(row, col, base.shape)
    row, col = row[order[first[:-1]]], col[order[first[:-1]]]
    check_structure(base, row, col)
    xp, dtype = base._target.xp, number_dtype(order.size + 1)
    if row.size == order.size and bool((order == xp.arange(order.size)).all()):
        return None
    source = _numbered(base, xp.arange(1, row.size + 1, dtype=dtype))
    return sources_of(source, 1, (order, first), 1)


def _sources_of_blocks(base: Any, found: Entries) -> Sources | None:
    """:func:`_new_sources` of blocks of the array's own size, by whole blocks; None where the structure is another."""
    size, xp = base.block_size, base._target.xp
    row, col = block_coordinates(found)
    order, first = _backend(base).sort(row, col, tuple(-(-n // size) for n in base.shape))
    places = order[first[:-1]]
    indptr = xp.searchsorted(row[places], xp.arange(-(-base.shape[0] // size) + 1))
    blocks = Blocks(indptr, col[places].astype(coercion.index_dtype(base.shape)), size, base.shape)
    tables, source = base._of_blocks(blocks, base._target)
    return sources_of(source, size, (order, first), size) if same_tables(tables, base._tables, base._value_table) else None


def check_structure(base: Any, row: Any, col: Any) -> None:
    """ValueError unless the places (row, col), which ascend and differ, are those that `base` stores."""
    xp = base._target.xp
    csr = base._canonical_csr()
    own = coercion.rows(csr), csr.indices
    n = min(row.size, csr.indices.size)
    differ = (row[:n] != own[0][:n]) | (col[:n] != own[1][:n])
    if row.size == csr.indices.size and not bool(differ.any()):
        return
    at = int(xp.argmax(differ)) if bool(differ.any()) else n
    places = [(int(r[at]), int(c[at])) if at < r.size else None for r, c in ((row, col), own)]
    theirs, ours = places
    if ours is None or (theirs is not None and theirs < ours):
        raise ValueError(
            f"data must have the structure of the array; it stores an entry at {theirs}, where the array stores none. "
            "Convert the matrix anew"
        )
    raise ValueError(
        f"data must have the structure of the array; it stores no entry at {ours}, where the array stores one. "
        "Store a zero there, which SciPy's +, - and * drop, or convert the matrix anew"
    )


def _numbered(base: Any, number: Any) -> Any:
    """The value table of `base` with these numbers, in the order of the canonical CSR, for its values."""
    table = encoding.empty(base, number.dtype)
    fill(base, None, number, table)
    return table


def _backend(base: Any) -> Any:
    return base._target.backend("assembly")


def _of_device(found: Entries, target: devices.Device) -> Entries:
    """`found` with arrays of `target`'s module, or a TypeError."""
    home = coercion.same_device(indices=found.indices[1], data=found.data)
    if home != target:
        remedy = f"{'cupyx.scipy.sparse' if target.kind == 'cuda' else 'its get()'}, or A.to_device({str(home)!r})"
        raise TypeError(f"data must be on the array's device, {target}; got a matrix on {home}. Use {remedy}")
    if home == devices.CPU:
        found = found._replace(indices=(np.asarray(found.indices[0]), np.asarray(found.indices[1])))
    return found


def _transposed(found: Entries) -> Entries:
    """The same values as the entries of the transpose."""
    kind, shape, (first, second), data = found
    if kind == "bsr":
        row, col = coordinates(found)
        return Entries("coo", shape[::-1], (col, row), data.reshape(-1))
    kind = {"csr": "csc", "csc": "csr", "coo": "coo"}[kind]
    return Entries(kind, shape[::-1], (second, first) if kind == "coo" else (first, second), data)
