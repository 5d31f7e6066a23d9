"""Figures of the site and of README: they follow the colours of the page, light or dark, and are legible on a phone."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from asv_bench.record.pages import Drawing

OURS, THEIRS, SLOWER = "#2f6fbd", "#9aa4af", "#c9853d"

#: Units of a chart: narrow, so that its text is legible where it is 340 pixels wide. Longer names are cut.
WIDTH, ROW, FONT, MOST_LETTERS = 420, 20, 13, 24


class Bar(NamedTuple):
    """A row of :func:`bars`."""

    name: str
    length: float
    label: str
    colour: str = OURS


def bars(title: str, rows: Sequence[Bar | None], mark: float | None = None, note: str = "") -> Drawing:
    """Horizontal bars with their names and labels; None is a gap. A line stands at the length `mark`."""
    longest = max(row.length for row in rows if row)
    names = {row.name: row.name if len(row.name) <= MOST_LETTERS else f"{row.name[: MOST_LETTERS - 1]}…" for row in rows if row}
    left = 12 + 7 * max(map(len, names.values()))  # where bars begin
    unit = (WIDTH - left - 60) / longest
    parts = [f"<title>{escape(title)}</title>", _text(0, FONT + 1, title, bold=True)]
    y = 2.0 * ROW
    top = y
    for row in rows:
        if row is None:
            y += ROW / 3
            continue
        width = max(1.0, row.length * unit)
        parts.append(_text(left - 8, y + FONT, names[row.name], anchor="end"))
        parts.append(f'<rect x="{left}" y="{y:g}" width="{width:.1f}" height="{ROW - 4}" fill="{row.colour}"/>')
        parts.append(_text(left + width + 6, y + FONT, row.label))
        y += ROW
    if mark is not None:
        x = left + mark * unit
        parts.append(f'<path d="M{x:.1f} {top - 4:g}V{y:g}" stroke="currentColor" stroke-width="1.5"/>')
    if note:
        y += ROW
        parts.append(_text(0, y, note, size=FONT - 1))
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 8:g}" viewBox="-8 0 {WIDTH} {y + 8:g}" '
        f'role="img" font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = FONT, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.4g}" y="{y:.4g}" text-anchor="{anchor}" font-size="{size}" fill="currentColor"{weight}>'
        f"{escape(text)}</text>"
    )


def side_by_side(*pictures: Drawing) -> Any:
    """Pictures beside one another, below one another where there is no room, as something that a page shows."""
    from IPython.display import HTML

    cells = "".join(f'<div class="side">{picture._repr_html_()}</div>' for picture in pictures)
    return HTML(f'<div class="sides">{cells}</div>')


def plot(alt: str, draw: Callable[..., None], size: tuple[float, float] = (7, 3.6), **layout: Any) -> Any:
    """What `draw` draws on axes (as many as ``nrows`` and ``ncols`` of `layout` ask for), for light pages and for dark
    ones.
    """
    import matplotlib
    from IPython.display import HTML
    from matplotlib.figure import Figure  # a Figure of its own: no pyplot, no window system

    images = []
    for only, colour in (("only-light", "#1f2328"), ("only-dark", "#e6edf3")):
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        with matplotlib.rc_context(dict.fromkeys(names, colour) | {"legend.framealpha": 0}), io.BytesIO() as file:
            figure = Figure(figsize=size, layout="constrained")
            axes = figure.subplots(**layout)
            for axis in figure.axes:
                axis.set_facecolor("none")
            draw(axes)
            figure.savefig(file, format="png", dpi=150, transparent=True)
            data = base64.b64encode(file.getvalue()).decode()
        images.append(f'<img class="{only} plot" alt="{escape(alt)}" src="data:image/png;base64,{data}"/>')
    return HTML("".join(images))


def both(alt: str, save: Callable[[str], None]) -> Any:
    """What `save` writes to the path of a PNG by matplotlib with a background of its own, for light and for dark pages."""
    import tempfile

    import matplotlib.style
    from IPython.display import HTML

    images = []
    with tempfile.TemporaryDirectory() as folder:
        for only, style in (("only-light", "default"), ("only-dark", "dark_background")):
            path = Path(folder) / f"{only}.png"
            with matplotlib.style.context(style):
                save(str(path))
            data = base64.b64encode(path.read_bytes()).decode()
            images.append(f'<img class="{only} plot" alt="{escape(alt)}" src="data:image/png;base64,{data}"/>')
    return HTML("".join(images))
