"""Pictures of arrays as they lie in memory: :func:`draw`.

CVR, a chunk at a time::

            step 0   1   2 ..
    lane 0  | 1 | 1 | 2 |   a slot: its value, and below it its column; its colour is that of its row
    lane 1  | 8 | 1 |>3 |   a bar at a slot's end: a record; the lane's sum goes to the row (or entry of tail) beside it
    tail                    the row of each entry of ``tail``, beside the lanes

BBCSR, a bin at a time: 32 rows by ``bin_len`` entries; the first entry of a block shows the stored column.

For matrices of at most MOST_CELLS rows and columns, the matrix itself is drawn above, in the same colours.
"""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from asv_bench.record.pages import Drawing
from cvrarray import BBCSRArray, CVRArray
from cvrarray.core import devices
from cvrarray.core.tables import WARP

#: The most chunks or bins that are drawn by default, and the most steps or entries of one of them.
MOST_PARTS, MOST_STEPS = 4, 96

#: The most rows and columns for which the matrix itself is drawn.
MOST_CELLS = 40

#: Rows or blocks cycle through these colours: light ones, so that black text is readable on all, also in grey.
COLOURS = ("#a6cee3", "#fdbf6f", "#b2df8a", "#fb9a99", "#cab2d6", "#ffff99", "#c7e9e4", "#e5c494", "#f4cae4", "#d9d9d9")

#: Text in a cell, which is light; records of entries of tail and cuts, readable on white and on black.
INK, MARK = "#000", "#e0303a"

_CELL, _GAP, _FONT = 30, 24, 12


def draw(A: CVRArray | BBCSRArray, part: int | None = None, *, steps: int | None = None) -> Drawing:
    """Draw how an array lies in memory: the chunks of a CVR array, the bins of a BBCSR array.

    `part` is the chunk or bin to draw; default: all of them, and the matrix if it is small. `steps`: the state of a CVR
    chunk after so many steps of the conversion; default: all. ValueError where there is too much to draw.
    """
    word, count = ("chunk", A.n_chunks) if isinstance(A, CVRArray) else ("bin", A.n_bins)
    if part is None and count > MOST_PARTS:
        raise ValueError(f"draw shows at most {MOST_PARTS} {word}s at once; this array has {count}")
    parts = range(count) if part is None else [part]
    canvas = _Canvas()
    y = _matrix(canvas, A) if part is None and max(A.shape) <= MOST_CELLS and min(A.shape) > 0 else _GAP
    for k in parts:
        y = (_chunk(canvas, A, k, y, steps) if isinstance(A, CVRArray) else _bin(canvas, A, k, y)) + _GAP
    if not parts:
        canvas.text(_GAP, y + _FONT, f"no {word}s: no {'nonzeros' if word == 'chunk' else 'rows'}", anchor="start")
    return Drawing(canvas.svg(f"{type(A).__name__} of shape {A.shape[0]} x {A.shape[1]}"))


# ------------------------------------------------------------------------------------------------ CVR


def _chunk(canvas: _Canvas, A: CVRArray, k: int, y: float, steps: int | None) -> float:
    """Draw chunk `k` from `y` on; returns where it ends."""
    found = A.chunk(k)
    val, col, tail, rec_pos, rec_wb = (devices.move(a, devices.CPU) for a in found[:5])
    n_lanes, n_steps = val.shape
    _require_few(n_steps, "steps", f"chunk {k}")
    done = n_steps if steps is None else steps
    rows = _rows_of_slots(val.shape, tail, rec_pos, rec_wb, found.lr_rec)
    in_tail = rec_pos >= found.lr_rec
    # the last row is fed before the first step that uses it, or, if there are enough lanes, before all steps
    last_fed = 0 if (tail < 0).any() else int(np.argwhere((rows == rows.max()).any(axis=0))[0, 0])
    tail_set = done >= last_fed
    left, width = 90, max(_CELL, _widest(val) * 8 + 6)
    about = "" if done == n_steps else f", after {done} of {n_steps} steps"
    canvas.text(_GAP, y + _FONT, f"chunk {k}{about}: {n_lanes} lanes, lr_rec = {found.lr_rec}", anchor="start", bold=True)
    y += 2 * _FONT + 8
    for step in range(n_steps):
        canvas.text(left + (step + 0.5) * width, y, str(step), size=11)
    canvas.text(left - 8, y, "step", anchor="end", size=11)
    y += 6
    for lane in range(n_lanes):
        top = y + lane * (_CELL + 4)
        canvas.text(left - 8, top + 19, f"lane {lane}", anchor="end")
        for step in range(done):
            row = rows[lane, step]
            at = left + step * width
            canvas.rect(at, top, width, _CELL, COLOURS[row % len(COLOURS)] if row >= 0 else "url(#pad)")
            if row >= 0:
                canvas.text(at + width / 2, top + 14, _number(val[lane, step]), fill=INK)
                canvas.text(at + width / 2, top + 27, str(col[lane, step]), size=10, fill="#333")
        if done < n_steps:
            canvas.rect(left + done * width, top, (n_steps - done) * width, _CELL, "none", dashed=True)
        if tail_set:
            at = left + n_steps * width + 40
            canvas.rect(at, top, _CELL, _CELL, COLOURS[tail[lane] % len(COLOURS)] if tail[lane] >= 0 else "none")
            canvas.text(at + _CELL / 2, top + 19, str(tail[lane]), fill=INK if tail[lane] >= 0 else "currentColor")
    if tail_set:
        canvas.text(left + n_steps * width + 40 + _CELL / 2, y - 6, "tail", size=11)
    for pos, wb, tailed in zip(rec_pos.tolist(), rec_wb.tolist(), in_tail.tolist(), strict=True):
        step, lane = divmod(pos, n_lanes)
        if step < done:
            at, top = left + (step + 1) * width, y + lane * (_CELL + 4)
            canvas.rect(at - 4, top, 4, _CELL, MARK if tailed else INK)
            canvas.title(f"record at slot {pos}: the sum of lane {lane} goes to {'tail entry' if tailed else 'row'} {wb}")
    y += n_lanes * (_CELL + 4) + _FONT
    records = zip(rec_pos.tolist(), rec_wb.tolist(), in_tail.tolist(), strict=True)
    shown = [record for record in records if record[0] < done * n_lanes]
    for line, (name, of) in enumerate((("rec pos", 0), ("wb", 1))):
        canvas.text(left - 8, y + line * 16 + 4, name, anchor="end", size=11)
        for place, record in enumerate(shown):
            colour = MARK if record[2] else "currentColor"
            canvas.text(left + (place + 0.5) * 34, y + line * 16 + 4, str(record[of]), fill=colour)
    return _legend(canvas, left, y + 24, "black bar: record of a row; hatched: padding", "red bar: record of an entry of tail")


def _legend(canvas: _Canvas, left: float, y: float, *lines: str) -> float:
    for line in lines:
        y += _FONT + 4
        canvas.text(left, y, line, anchor="start", size=11)
    return y + 4


def _rows_of_slots(
    shape: tuple[int, int], tail: np.ndarray, rec_pos: np.ndarray, rec_wb: np.ndarray, lr_rec: int
) -> np.ndarray:
    """(n_lanes, n_steps) the row of each slot; -1 for padding."""
    n_lanes, _ = shape
    rows = np.full(shape, -1)
    begin = np.zeros(n_lanes, int)
    for pos, wb in zip(rec_pos.tolist(), rec_wb.tolist(), strict=True):
        step, lane = divmod(pos, n_lanes)
        rows[lane, begin[lane] : step + 1] = wb if pos < lr_rec else tail[wb]
        begin[lane] = step + 1
    return rows


# ------------------------------------------------------------------------------------------------ BBCSR


def _bin(canvas: _Canvas, A: BBCSRArray, k: int, y: float) -> float:
    """Draw bin `k` from `y` on; returns where it ends."""
    size = A.block_size
    first, last = (int(p) for p in A.bin_rowptr[k : k + 2])
    length = (last - first) // WARP
    _require_few(length, "entries", f"bin {k}")
    data = devices.move(A.padded_data[first:last], devices.CPU).reshape(length, WARP).T  # (32 rows, bin_len)
    column = devices.move(A.colptr[first // size : last // size], devices.CPU).reshape(length // size, WARP).T
    stored = _stored_columns(A)
    left, width, height = 90, max(_CELL, _widest(data) * 8 + 16), 22
    n_rows = min(WARP, A.shape[0] - k * WARP)
    about = f"bin {k}: rows {k * WARP} to {k * WARP + n_rows - 1}, bin_len = {length}, data[{first}:{last}]"
    canvas.text(_GAP, y + _FONT, about, anchor="start", bold=True)
    y += 2 * _FONT + 8
    canvas.text(left - 8, y, "entry k", anchor="end", size=11)
    for entry in range(length):
        canvas.text(left + (entry + 0.5) * width, y, str(entry), size=11)
    y += 6
    for lane in range(n_rows):
        row, top = k * WARP + lane, y + lane * height
        canvas.text(left - 8, top + 15, f"row {row}", anchor="end", size=11)
        for entry in range(length):
            base, within, at = int(column[lane, entry // size]), entry % size, left + entry * width
            held = base >= 0 and (row, base + within) in stored
            colour = COLOURS[(row // size + base // size) % len(COLOURS)] if held else "url(#hole)"
            canvas.rect(at, top, width, height, colour if base >= 0 else "url(#pad)")
            if held:
                canvas.text(at + width / 2 + 4 * (within == 0), top + 16, _number(data[lane, entry]), size=11, fill=INK)
            if within == 0 and base >= 0:
                canvas.text(at + 2, top + 9, str(base), anchor="start", size=9, fill="#00c")
    for row in range(-(-k * WARP // size) * size, k * WARP + n_rows + 1, size):
        canvas.line(left, y + (row - k * WARP) * height, left + length * width, y + (row - k * WARP) * height)
    y += n_rows * height
    for block in range(length // size + 1):
        canvas.line(left + block * size * width, y - n_rows * height, left + block * size * width, y)
    if n_rows < WARP:
        canvas.text(left - 8, y + 15, f"{n_rows} to {WARP - 1}", anchor="end", size=11)
        canvas.rect(left, y, length * width, height, "url(#pad)")
        y += height
    return _legend(canvas, left, y, "blue: the column stored for a block and row", "hatched: padding; dotted: a hole")


def _stored_columns(A: BBCSRArray) -> set[tuple[int, int]]:
    """(row, column) of every stored entry."""
    with A._target.use():
        row, col, _ = (devices.move(a, devices.CPU) for a in A._coo())
    return set(zip(row.tolist(), col.tolist(), strict=True))


# ------------------------------------------------------------------------------------------------ the matrix itself


def _matrix(canvas: _Canvas, A: CVRArray | BBCSRArray) -> float:
    """Draw the matrix at the top, coloured as its parts are; returns where it ends."""
    csr = (A.astype("float32") if A.dtype == np.float16 else A).to_scipy()  # SciPy has no float16
    n_rows, n_cols = csr.shape
    left, cell = 90, 22
    values = f"; values: {A._stored_as}" if A._stored_as else ""
    canvas.text(_GAP, _GAP, f"{n_rows} x {n_cols}, {csr.nnz} nonzeros{values}", anchor="start", bold=True)
    top = _GAP + 2 * _FONT
    for j in range(n_cols):
        canvas.text(left + (j + 0.5) * cell, top - 4, str(j), size=10)
    for i in range(n_rows):
        canvas.text(left - 8, top + i * cell + 15, f"row {i}", anchor="end", size=11)
    canvas.rect(left, top, n_cols * cell, n_rows * cell, "none")
    size = A.block_size if isinstance(A, BBCSRArray) else 0
    coo = csr.tocoo()
    for i, j, value in zip(*(c.tolist() for c in coo.coords), coo.data, strict=True):
        colour = COLOURS[(i // size + j // size if size else i) % len(COLOURS)]
        canvas.rect(left + j * cell, top + i * cell, cell, cell, colour, stroke="#fff")
        canvas.text(left + (j + 0.5) * cell, top + i * cell + 15, _number(value), size=10, fill=INK)
    if isinstance(A, BBCSRArray):
        for i in [*range(0, n_rows, size), n_rows]:
            canvas.line(left, top + i * cell, left + n_cols * cell, top + i * cell, "#999")
        for j in [*range(0, n_cols, size), n_cols]:
            canvas.line(left + j * cell, top, left + j * cell, top + n_rows * cell, "#999")
        for i in range(WARP, n_rows, WARP):
            canvas.line(left, top + i * cell, left + n_cols * cell, top + i * cell)
    else:
        _cuts(canvas, A, csr, left, top, cell)
    return float(top + n_rows * cell + _GAP)


def _cuts(canvas: _Canvas, A: CVRArray, csr: Any, left: float, top: float, cell: float) -> None:
    """A stepped line in the matrix where each chunk but the first begins."""
    begin = 0
    for k in range(A.n_chunks - 1):
        found = A.chunk(k)
        tail, rec_pos, rec_wb = (devices.move(a, devices.CPU) for a in (found.tail, found.rec_pos, found.rec_wb))
        rows = _rows_of_slots(found.val.shape, tail, rec_pos, rec_wb, found.lr_rec)
        begin += int((rows >= 0).sum())
        row = int(np.searchsorted(csr.indptr, begin, side="right")) - 1
        y, x = top + row * cell, left + int(csr.indices[begin]) * cell
        right = left + csr.shape[1] * cell
        if begin == csr.indptr[row]:
            canvas.line(left, y, right, y, MARK)
        else:
            canvas.line(left, y + cell, x, y + cell, MARK)
            canvas.line(x, y, x, y + cell, MARK)
            canvas.line(x, y, right, y, MARK)


# ------------------------------------------------------------------------------------------------ SVG


class _Canvas:
    """SVG elements and their extent."""

    def __init__(self) -> None:
        self._elements: list[str] = []
        self._width = self._height = 0.0

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "#666", dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._add(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}"{dash}/>',
            x + width,
            y + height,
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = "currentColor") -> None:
        element = f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" stroke-width="2"/>'
        self._add(element, max(x1, x2), max(y1, y2))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "middle",
        size: int = _FONT,
        fill: str = "currentColor",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        reach = {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor] * 0.62 * size * len(text)
        element = (
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{weight}>{escape(text)}</text>'
        )
        self._add(element, x + reach, y + 4)

    def title(self, text: str) -> None:
        """The tooltip of the last element."""
        self._elements[-1] = self._elements[-1].removesuffix("/>") + f"><title>{escape(text)}</title></rect>"

    def svg(self, title: str) -> str:
        """The whole picture, without a background."""
        width, height = self._width + _GAP, self._height + _GAP
        pattern = '<pattern id="{}" width="6" height="6" patternUnits="userSpaceOnUse">{}</pattern>'
        patterns = pattern.format("pad", '<path d="M0 6L6 0" stroke="#999"/>') + pattern.format(
            "hole", '<path d="M0 0H6V6H0Z" fill="#eee"/><circle cx="3" cy="3" r="1" fill="#999"/>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="sans-serif">'
            f"<title>{escape(title)}</title><defs>{patterns}</defs>"
            f"{''.join(self._elements)}</svg>"
        )

    def _add(self, element: str, right: float, bottom: float) -> None:
        self._elements.append(element)
        self._width, self._height = max(self._width, right), max(self._height, bottom)


def _number(value: Any) -> str:
    """A value with at most three digits, as short as possible."""
    if isinstance(value, (complex, np.complexfloating)):
        return f"{value.real:.3g}{value.imag:+.3g}j"
    return f"{value:.3g}" if isinstance(value, (float, np.floating)) else str(int(value))


def _widest(values: np.ndarray) -> int:
    return max((len(_number(value)) for value in values.ravel()), default=1)


def _require_few(count: int, what: str, where: str) -> None:
    if count > MOST_STEPS:
        raise ValueError(f"draw shows at most {MOST_STEPS} {what}; {where} has {count}. Draw a smaller matrix")
