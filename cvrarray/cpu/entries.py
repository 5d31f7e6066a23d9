"""The stored entries of the tables of either format, one by one, for verifying tables: they may contradict one another."""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import NARROW_PADDING, WARP, BBCSRTables, CVRTables

Entries = tuple[np.ndarray, np.ndarray, np.ndarray]


def of_cvr(t: CVRTables) -> Entries:
    """Row, column and value of every stored entry, step by step; pads are dropped."""
    number = _records(t)
    chunk = np.repeat(np.arange(len(t.col_base)), np.diff(t.step_ptr))
    step, lane = np.nonzero(number < t.rec_ptr[chunk + 1][:, None])
    chunk, wb = chunk[step], t.rec_wb[number[step, lane]]
    row = np.where(wb < 0, t.tail[chunk, np.where(wb < 0, ~wb, 0)], wb)
    slot = (step - t.step_ptr[chunk]) * t.n_lanes + lane
    return row, _columns(t, chunk, slot, -1), t.val[step * t.n_lanes + lane]


def per_chunk(t: CVRTables) -> np.ndarray:
    """(n_chunks + 1,) int64: offsets of chunks by their entries."""
    chunk = np.repeat(np.arange(len(t.col_base)), np.diff(t.step_ptr))
    are_entries = _records(t) < t.rec_ptr[chunk + 1][:, None]
    before: np.ndarray = np.concatenate([[0], np.cumsum(are_entries.sum(axis=1))])[t.step_ptr]
    return before


def _records(t: CVRTables) -> np.ndarray:
    """(n_steps, n_lanes) int64: the record with which a slot's lane next ends, of the slot's chunk or of a later one."""
    ends = (t.rec_mask[:, None] >> np.arange(t.n_lanes, dtype=np.uint32) & 1).astype(bool)
    number = np.full(ends.shape, len(t.rec_wb))
    number[ends] = np.arange(len(t.rec_wb))
    return np.minimum.accumulate(number[::-1], axis=0)[::-1]


def of_bbcsr(t: BBCSRTables) -> Entries:
    """Row, column and value of every stored entry, bin by bin; padding and holes are dropped, explicit zeros stay."""
    size, begin = t.block_size, t.bin_rowptr[:-1] // t.block_size
    number = np.repeat(np.arange(len(begin)), np.diff(t.bin_rowptr) // size)  # of a slot's bin
    slot = np.arange(len(number)) - begin[number]
    block = _columns(t, number, slot, NARROW_PADDING)
    stored = np.repeat(block[:, None] >= 0, size, axis=1)
    if t.present is not None:
        stored &= (t.present[:, None] >> np.arange(size, dtype=t.present.dtype) & 1).astype(bool)
    at, j = np.nonzero(stored)
    number, slot, block = number[at], slot[at], block[at].astype(np.int64)
    value = t.data[t.bin_rowptr[number] + (slot // WARP * size + j) * WARP + slot % WARP]
    index = t.col_base.dtype
    return (number * WARP + slot % WARP).astype(index), (block * size + j).astype(index), value


def _columns(t: CVRTables | BBCSRTables, tile: np.ndarray, slot: np.ndarray, narrow_padding: int) -> np.ndarray:
    """Columns of slots, numbered within their tiles (chunks, bins); -1 where there is none."""
    base, at = t.col_base[tile], t.col_ptr[tile] + slot
    narrow = base >= 0
    found = np.empty(len(tile), t.col_base.dtype)
    offset = t.col_narrow[at[narrow]]
    found[narrow] = np.where(offset == narrow_padding, -1, base[narrow] + offset)
    found[~narrow] = t.col_wide[at[~narrow]]
    return found
