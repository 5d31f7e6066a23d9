"""The map of the package: what each module and kernel file is for, in its own first sentence.

``python docs/file_map.py`` prints it, and the page docs/contributing.md shows it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Folders on the map, in reading order, and what is left out of them.
PLACES = ("cvrarray", "kernels")
LEFT_OUT = ("__main__.py",)


def files() -> list[Path]:
    """Every file on the map: a folder's files before its folders."""
    found = [path for place in PLACES for kind in ("*.py", "*.cu", "*.cuh") for path in (ROOT / place).rglob(kind)]
    kept = [path for path in found if path.name not in LEFT_OUT and (path.name != "__init__.py" or summary(path))]
    return sorted(kept, key=lambda path: (PLACES.index(path.relative_to(ROOT).parts[0]), path.parent, path.name))


def summary(path: Path) -> str:
    """The first line of a module's docstring, the first sentence of a kernel file's comment; "" where there is none."""
    text = path.read_text()
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    comment = re.match(r"(?:// ?.*\n)+", text)
    words = " ".join(re.sub(r"^// ?", "", line) for line in comment[0].splitlines()) if comment else ""
    return re.split(r"(?<=\.) ", words, maxsplit=1)[0]


def page() -> str:
    """The map as Markdown: a heading and a table a folder."""
    parts: list[str] = []
    folder = None
    for path in files():
        if path.parent != folder:
            folder = path.parent
            init = folder / "__init__.py"
            about = f"\n{_markdown(summary(init))}\n" if init.is_file() else ""
            parts.append(f"\n### `{folder.relative_to(ROOT).as_posix()}/`\n{about}\n| file | |\n| --- | --- |")
        if path.name != "__init__.py":
            parts.append(f"| `{path.name}` | {_markdown(summary(path))} |")
    return "\n".join(parts) + "\n"


def _markdown(line: str) -> str:
    """A docstring's line with Sphinx's roles and double backticks as Markdown has them."""
    line = re.sub(r":\w+:`[~.]*([^`]+)`", r"``\1``", line)
    return line.replace("``", "`").replace("|", r"\|")


if __name__ == "__main__":
    print(page())
