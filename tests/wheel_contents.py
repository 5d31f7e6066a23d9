"""What a wheel holds: all modules and kernels, and nothing else. ``python tests/wheel_contents.py WHEEL``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def expected(root: Path = ROOT) -> set[str]:
    """Paths in a wheel, but for its metadata."""
    modules = {path.relative_to(root).as_posix() for path in (root / "cvrarray").rglob("*.py")}
    kernels = {f"cvrarray/kernels/{path.name}" for path in (root / "kernels").iterdir() if path.is_file()}
    return modules | kernels | {"cvrarray/py.typed"}


def problems(wheel: Path, root: Path = ROOT) -> list[str]:
    """What is missing or needless in `wheel`."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
        dist_info = {name for name in held if name.partition("/")[0].endswith(".dist-info")}
        licences = [name for name in dist_info if name.endswith("LICENSE")]
    held -= dist_info
    return [
        *(f"missing: {name}" for name in sorted(expected(root) - held)),
        *(f"needless: {name}" for name in sorted(held - expected(root))),
        *([] if licences else ["missing: the licence"]),
    ]


def main(argv: list[str]) -> int:
    """1, after a line for every problem, where a wheel has any."""
    found = [f"{path}: {problem}" for path in argv for problem in problems(Path(path))]
    print("\n".join(found) or f"{', '.join(Path(path).name for path in argv)}: complete, and nothing else in it")
    return 1 if found or not argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
