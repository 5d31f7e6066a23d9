"""The formats' definitions as slow, plain Python. Nothing of the package is used here.

Variables carry the definition's names: ``valID``, ``rowID`` and ``count`` are the trackers of a CVR lane.
"""

from __future__ import annotations

import numpy as np

BIN = 32  # rows of a BBCSR bin


def cuts(indptr, n_chunks, n_lanes, split):
    """Where the chunks of a CVR matrix begin and end, as offsets into the nonzeros: (n_chunks + 1,) list."""
    nnz = int(indptr[-1])
    ptr = sorted({int(p) for p in indptr})  # offsets of the non-empty rows, then nnz
    n_rows = len(ptr) - 1
    n_chunks = min(n_chunks, nnz)
    if n_chunks == 0:
        return [0]
    of_row = int(split == "even" and nnz >= 4 * n_chunks)
    q, r = divmod(nnz + of_row * n_rows, n_chunks)
    most = q / 2 if split == "rows" else min(q / 4, 16 * n_lanes)
    ends = [0]
    for k in range(1, n_chunks):
        ideal = k * q + min(k, r)
        if split != "nnz":
            i = next(i for i in range(n_rows) if ptr[i] + of_row * i <= ideal < ptr[i + 1] + of_row * (i + 1))
            ideal = min(max(ptr[i], ideal - of_row * i), ptr[i + 1])
            group = i - i % n_lanes
            groups = [(group, min(group + n_lanes, n_rows))] if split == "rows" else []
            for low, high in (*groups, (i, i + 1)):
                nearer = ptr[low] if ideal - ptr[low] <= ptr[high] - ideal else ptr[high]
                if abs(nearer - ideal) < most:
                    ideal = nearer
                    break
        ends.append(ideal)
    return [*ends, nnz]


def cvr_chunks(indptr, indices, data, n_rows, n_lanes, cuts):
    """Every chunk's tables as the seeds draw them, step by step: a list of dicts.

    Keys: ``val`` and ``col_idx`` (n_lanes, n_steps), ``tail`` (n_lanes,), ``rec_pos``, ``rec_wb``, ``lr_rec``, and
    ``real`` (n_lanes, n_steps), False at a pad, whose value is 0 and whose column is the chunk's smallest.
    """
    row_of = np.repeat(np.arange(n_rows), np.diff(indptr))
    return [_cvr_chunk(row_of, indices, data, n_lanes, a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]


def _cvr_chunk(row_of, indices, data, n_lanes, start, stop):
    n_steps = -(-(stop - start) // n_lanes)
    inside = row_of[start:stop].tolist()
    rows = [(row, start + inside.index(row), inside.count(row)) for row in sorted(set(inside))]
    val = np.zeros((n_lanes, n_steps), data.dtype)
    col_idx = np.full((n_lanes, n_steps), indices[start:stop].min())
    real = np.zeros((n_lanes, n_steps), bool)
    valID, rowID, count = [-1] * n_lanes, [-1] * n_lanes, [0] * n_lanes
    tail, rec_pos, rec_wb, lr_rec = [-1] * n_lanes, [], [], None
    for i in range(n_steps + 1):
        for lane in range(n_lanes):
            if count[lane]:
                continue
            if i and real[lane, i - 1]:
                rec_pos.append((i - 1) * n_lanes + lane)
                rec_wb.append(rowID[lane])
            if rows:
                rowID[lane], valID[lane], count[lane] = rows.pop(0)
                if not rows:
                    tail, rowID = rowID, list(range(n_lanes))
                continue
            if lr_rec is None:
                lr_rec = (i - 1) * n_lanes + lane if i else 0
            average = -(-sum(count) // n_lanes)
            victim = next((v for v in range(n_lanes) if count[v] > average), None)
            if victim is not None:
                valID[lane], rowID[lane], count[lane] = valID[victim], rowID[victim], average
                valID[victim] += average
                count[victim] -= average
        for lane in range(n_lanes):
            if i < n_steps and count[lane]:
                val[lane, i], col_idx[lane, i], real[lane, i] = data[valID[lane]], indices[valID[lane]], True
                valID[lane] += 1
                count[lane] -= 1
    tables = {"val": val, "col_idx": col_idx, "real": real, "tail": tail}
    return tables | {"rec_pos": rec_pos, "rec_wb": rec_wb, "lr_rec": lr_rec}


def bbcsr(indptr, indices, data, shape, block_size):
    """The BBCSR arrays of the definition: ``data``, ``colptr``, ``rowptr``, ``bin_rowptr``.

    ``colptr`` is -1 for padding. A row carries every block of its block row, in ascending order.
    """
    n_rows = shape[0]
    n_bins = -(-n_rows // BIN)
    blocks = [[] for _ in range(-(-n_rows // block_size))]
    for br in range(len(blocks)):
        row_end = min((br + 1) * block_size, n_rows)
        blocks[br] = sorted({int(c) // block_size for c in indices[indptr[br * block_size] : indptr[row_end]]})
    bin_rowptr = [0]
    for i in range(n_bins):
        touching = {row // block_size for row in range(i * BIN, min((i + 1) * BIN, n_rows))}
        bin_rowptr.append(bin_rowptr[-1] + BIN * block_size * max(len(blocks[br]) for br in touching))
    rowptr = [bin_rowptr[r // BIN] + r % BIN for r in range(BIN * (n_bins + 1))]
    out = np.zeros(bin_rowptr[-1], data.dtype)
    colptr = np.full(bin_rowptr[-1] // block_size, -1, np.int64)
    for row in range(n_rows):
        entries = slice(indptr[row], indptr[row + 1])
        dense = dict(zip(indices[entries].tolist(), data[entries], strict=True))
        for b, column in enumerate(blocks[row // block_size]):
            colptr[(rowptr[row] - row % BIN) // block_size + row % BIN + BIN * b] = column * block_size
            for j in range(block_size):
                out[rowptr[row] + BIN * (block_size * b + j)] = dense.get(column * block_size + j, 0)
    return {"data": out, "colptr": colptr, "rowptr": rowptr, "bin_rowptr": bin_rowptr}
