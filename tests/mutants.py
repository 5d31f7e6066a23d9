"""Faults that the tests must find: small changes of kernels and conversions, and whether tests fail for each of them.

``python tests/mutants.py`` changes one operator or number at a time in a copy of the sources, and runs the test files
that are about the changed file until one test fails. A mutant that survives the cases of ``make test`` meets those that
only ``make test-all`` runs (``--cases rest``): one that these kill is a fault which ``make test`` misses. The mutants
are drawn at random, the same for the same seed; what has been tried is kept in ``--results``, so a run that is cut
short goes on from there. Some mutants survive because they change nothing that matters (a larger scratch space, a
prefetch): look at each.

CPU kernels are compiled anew for each mutant, which takes 10 seconds to 5 minutes: ``--jobs 15`` tries so many side by
side, and ``--seconds 150`` begins no more after that time. ``--device gpu`` draws from the CUDA sources instead and
needs a GPU.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("cvrarray", "kernels", "tests", "examples", "docs/decisions", "pyproject.toml", "README.md")
OTHER = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "+", "/": "*", "//": "*",
    "%": "//", "&": "|", "|": "&", "^": "&", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "*=": "+=", "&=": "|=", "|=": "&=",
    "^=": "&=", "<<=": ">>=", ">>=": "<<=", "//=": "*=", "and": "or", "or": "and", "min": "max", "max": "min", "&&": "||",
    "||": "&&",
}  # fmt: skip
PREFIXES = {ast.Invert: "~", ast.Not: "not ", ast.USub: "-"}
CHOICES = ("statistics", "locality", "tiling")  # they decide how fast a product is, not what it is
COMPILED = re.compile("^@(njit|kernel|helper|inlined|intrinsic)", re.M)  #: decorators of what Numba compiles
BYTES = 8 << 30  # of memory: a mutant may ask for any amount
_FORMAT = ("golden", "conversions", "products", "cpu_kernels", "transposed", "matmat", "indexing")
_CHECKS = ("check_values", "forged_tables", "conversions", "io", "hostile_inputs")
#: Test files for a source file, by its name or what this begins with (``cvr_convert.cu``), those first that find most;
#: the last entry is for all others.
TESTS = {
    "check_cvr": _CHECKS,
    "check_bbcsr": _CHECKS,
    "masks": _CHECKS,
    "checksum": ("store", "io", "store_hostile"),
    "cvr": _FORMAT,
    "bbcsr": _FORMAT,
    "csr": ("errors", "inputs", "cpu_kernels", "io", "indexing", "elementwise"),
    "parts": ("cpu_kernels", "transposed"),
    "": ("golden", "conversions", "products", "cpu_kernels", "matmat", "transposed", "float16"),
}


def tests_of(source: str) -> list[str]:
    """The test files about a source file."""
    stem = Path(source).stem
    names = TESTS.get(stem) or TESTS.get(stem.partition("_")[0]) or TESTS[""]
    return [f"tests/test_{name}.py" for name in names]


class Mutant(NamedTuple):
    """In `path` (relative), the characters from `start` to `end` become `new`."""

    path: str
    start: int
    end: int
    new: str
    name: str  # where and what, for people; unique

    def applied(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


def mutants_of(path: Path, root: Path = ROOT) -> list[Mutant]:
    """All mutants of a Python or CUDA file."""
    text = path.read_text()
    edits = _python_edits(text) if path.suffix == ".py" else _cuda_edits(text)
    relative = path.relative_to(root).as_posix()
    found = []
    for start, end, new in sorted(set(edits)):
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        found.append(Mutant(relative, start, end, new, f"{relative}:{line}:{column} {text[start:end]!r} -> {new!r}"))
    return found


def _python_edits(text: str) -> Iterator[tuple[int, int, str]]:
    """Operators, integers, min and max inside functions; not in decorators, annotations, defaults or docstrings."""
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    assert text.isascii(), "offsets are counted in bytes"

    def begin(node):
        return lines[node.lineno - 1] + node.col_offset

    def end(node):
        return lines[node.end_lineno - 1] + node.end_col_offset

    def between(left, right):
        gap = text[end(left) : begin(right)]
        operator = re.search(r"and|or|[<>=!+\-*/%&|^]+", gap)
        if operator and operator[0] in OTHER:
            yield end(left) + operator.start(), end(left) + operator.end(), OTHER[operator[0]]

    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for statement in (statement for function in functions for statement in function.body):
        for node in ast.walk(statement):
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                yield from between(node.left, node.comparators[0])
            elif isinstance(node, ast.BinOp):
                yield from between(node.left, node.right)
            elif isinstance(node, ast.BoolOp):
                yield from between(node.values[0], node.values[1])
            elif isinstance(node, ast.AugAssign):
                yield from between(node.target, node.value)
            elif isinstance(node, ast.UnaryOp) and type(node.op) in PREFIXES:
                yield begin(node), begin(node) + len(PREFIXES[type(node.op)]), ""
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                yield begin(node), end(node), str(node.value + 1)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("min", "max"):
                yield begin(node.func), end(node.func), OTHER[node.func.id]


def _cuda_edits(text: str) -> Iterator[tuple[int, int, str]]:
    """Operators between spaces (so no template's brackets), integers, min and max; not in comments."""
    no_code = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*|\"[^\"\n]*\"", re.S | re.M)
    code = no_code.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in re.finditer(r"(?<= )[<>=!+\-*/%&|^]+(?= )|\b(?:min|max)\b(?=\()", code):
        if match[0] in OTHER and "template" not in code[code.rfind("\n", 0, match.start()) : match.start()]:
            yield match.start(), match.end(), "/" if match[0] == "%" else OTHER[match[0]]
    for match in re.finditer(r"(?<=[ (\[])\d+(?=[;,)\] ])", code):
        yield match.start(), match.end(), str(int(match[0]) + 1)


def sources(device: str, root: Path = ROOT) -> list[Path]:
    if device == "gpu":
        return sorted(path for path in (root / "kernels").rglob("*.cu*"))
    cpu = root / "cvrarray" / "cpu"
    kernels = [path for path in cpu.rglob("*.py") if COMPILED.search(path.read_text())]
    return sorted(path for path in kernels if path.stem not in CHOICES and "runtime" not in path.parts)


def draw(device: str, count: int, seed: int, only: str = "", root: Path = ROOT) -> list[Mutant]:
    """`count` mutants at random, as many of each file as its share of all."""
    every = [mutant for path in sources(device, root) if only in path.as_posix() for mutant in mutants_of(path, root)]
    return random.Random(seed).sample(every, min(count, len(every)))


def try_out(mutant: Mutant | None, source: str, device: str, cases: str, seconds: float) -> str:
    """What the tests about `source` say of a mutant: "passed", the name of a test that fails, "crash" or "timeout"."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (ROOT / name).exists():
                shutil.copy(ROOT / name, copy / name)
        if mutant:
            path = copy / mutant.path
            path.write_text(mutant.applied(path.read_text()))
        options = ["-k", "cuda", "--require-gpu"] if device == "gpu" else []
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--cases", cases]
        command += [*options, *tests_of(source)]
        environment = os.environ | {"CVRARRAY_CACHE_DIR": str(copy / "cache"), "PYTHONPATH": str(copy)}
        try:
            run = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, preexec_fn=_limit
            )
        except subprocess.TimeoutExpired:
            return "timeout"
    if run.returncode == 0:
        return "passed"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.M)
    return failed[1] if failed else f"crash {run.returncode}: {(run.stdout + run.stderr).strip()[-200:]}"


def _limit() -> None:
    import resource

    os.nice(19)
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))


def report(outcomes: dict[str, dict[str, str]]) -> str:
    """Killed and survived, by file; then the survivors and what only the other cases found."""
    counts: Counter[tuple[str, str]] = Counter()
    rows = {"killed by make test": [], "killed by other cases only": [], "survived": []}
    for name, outcome in outcomes.items():
        which = (
            "killed by make test"
            if outcome["covering"] != "passed"
            else "survived" if outcome.get("rest", "passed") == "passed" else "killed by other cases only"
        )  # fmt: skip
        rows[which].append(name)
        counts[name.partition(":")[0], which] += 1
    lines = [f"{file}: {count} {which}" for (file, which), count in sorted(counts.items())]
    lines += [f"{which}: {len(names)} of {len(outcomes)}" for which, names in rows.items()]
    for which in ("killed by other cases only", "survived"):
        lines += [f"{which}: {name}" for name in rows[which]]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the path of the files to change")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl", help="where outcomes are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more mutants after this time")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried side by side")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one mutant: it may never end")
    options = parser.parse_args(arguments)
    chosen = draw(options.device, options.count, options.seed, options.only)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    known = {record["mutant"]: record["outcome"] for record in map(json.loads, lines)}
    until = time.monotonic() + options.seconds

    def judged(mutant: Mutant) -> tuple[Mutant, dict[str, str]]:
        outcome: dict[str, str] = {}
        for cases in ("covering", "rest"):
            if time.monotonic() < until and outcome.get("covering", "passed") == "passed":
                outcome[cases] = try_out(mutant, mutant.path, options.device, cases, options.timeout)
        return mutant, outcome

    with ThreadPoolExecutor(options.jobs) as pool:  # each waits for a process of its own
        tried = [pool.submit(judged, mutant) for mutant in chosen if mutant.name not in known]
        for mutant, outcome in (future.result() for future in as_completed(tried)):
            # no time for it, or not for both: begun anew the next time
            if not outcome or list(outcome.values()) == ["passed"]:
                continue
            known[mutant.name] = outcome
            with options.results.open("a") as file:
                file.write(json.dumps({"mutant": mutant.name, "outcome": outcome}) + "\n")
            print(mutant.name, outcome, flush=True)
    print(report({mutant.name: known[mutant.name] for mutant in chosen if mutant.name in known}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
