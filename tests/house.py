"""Figures of the house beside its goals: lines, words, methods, names and imports. ``make house`` prints them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import test_architecture as architecture

import cvrarray

ROOT = Path(__file__).resolve().parent.parent


def sources(folder: str, *suffixes: str) -> list[Path]:
    """Files of a folder, by suffix."""
    return [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes]


def lines(paths: Iterable[Path]) -> int:
    """Lines of all files together."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def code_lines(path: Path) -> int:
    """Lines of a module that are not blank, a comment or part of a docstring."""
    text = path.read_text()
    docstrings = {
        row
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for row in range(node.lineno, node.end_lineno + 1)
    }
    rows = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and row not in docstrings for row, line in rows)


def methods(module: str, name: str) -> int:
    """Functions that a class's body defines."""
    classes = [node for node in architecture.source(module).body if isinstance(node, ast.ClassDef) and node.name == name]
    return sum(isinstance(node, ast.FunctionDef) for node in classes[0].body)


#: Modules that choose a kernel, its layout or a format on a GPU.
CHOICE = (
    *("bbcsr", "cvr", "choice.model", "core.few_columns", "core.lanes", "core.matmat_kernels", "core.sharing"),
    *("core.short_rows", "core.wide", "gpu.bbcsr", "gpu.bbcsr_matmat", "gpu.cut_rows", "gpu.cvr", "gpu.cvr_matmat"),
    *("gpu.cvr_tables", "gpu.distinct", "gpu.left_in_l2", "gpu.plan", "gpu.row_lanes", "gpu.segments", "gpu.shared_memory"),
    *("gpu.uneven_rows", "linalg.gpu.cg", "linalg.gpu.partition", "linalg.gpu.persistent"),
)
#: Constants that say what a kernel is, and not when it is taken.
OF_KERNELS = {"BLOCK", "COUNTED", "INDICES", "SIZES", "THREADS", "UNROLL"}


def numbers(module: str) -> int:
    """Numbers but 0 in constants of a module."""
    found = 0
    for node in architecture.source(module).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        value = getattr(node, "value", None)
        is_kernel = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Kernel"
        if value is not None and not is_kernel and names and all(map(str.isupper, names)) and not names & OF_KERNELS:
            parts = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
            found += sum(isinstance(part, (int, float)) and not isinstance(part, bool) and part != 0 for part in parts)
    return found


def words() -> int:
    """Words of the pages that say how it is built and what was tried."""
    pages = [ROOT / "docs" / "architecture.md", *sources("docs/measurements", ".md")]
    return sum(len(page.read_text().split()) for page in pages)


def figures() -> list[tuple[str, int, int]]:
    """What is counted, its figure, and its goal: at most so many."""
    package = sources("cvrarray", ".py")
    array = cvrarray.CVRArray([[1.0]], device="cpu")
    return [
        ("cvrarray, lines", lines(package), 31_000),
        ("cvrarray, lines of code", sum(map(code_lines, package)), 19_500),
        ("longest module of cvrarray, lines", max(lines([path]) for path in package), 700),
        ("kernels, lines", lines(sources("kernels", ".cu", ".cuh")), 7_700),
        ("tests, lines", lines(sources("tests", ".py")), 25_000),
        ("docs/architecture.md and docs/measurements, words", words(), 25_000),
        ("numbers that choose on a GPU", sum(numbers(f"cvrarray.{module}") for module in CHOICE), 120),
        ("methods of FormatArray", methods("cvrarray.array.format", "FormatArray"), 35),
        ("public names of a CVRArray", sum(not name.startswith("_") for name in dir(array)), 70),
        ("imports of a higher layer", len(architecture.upward_imports()), 2),
        ("modules in a circle of imports", len(architecture.circle()), 0),
    ]


if __name__ == "__main__":
    for what, figure, goal in figures():
        print(f"{what:50} {figure:7,} of {goal:7,}{'' if figure <= goal else '   above'}")
