"""Faults that the tests must find: small changes of kernels and conversions, and whether tests fail for each of them.

``python tests/mutants.py`` changes one operator or number at a time in a copy of the sources, and runs the test files
that are about the changed file until one test fails: first the few cases of ``make quick``, then those of ``make test``,
then those that only ``make test-all`` runs (``--cases rest``). A mutant that only the last kill is a fault which
``make test`` misses. The mutants are drawn at random, the same for the same seed. What has been tried is kept in
``--results``, so a run that is cut short goes on from there. ``--report`` tries none. Some mutants survive
because they change nothing that matters (a larger scratch space, a prefetch): look at each.

CPU kernels are compiled anew for each mutant, but for those of files that do not import the changed one: ``--jobs 8``
tries so many side by side, and ``--seconds 150`` begins no more after that time. ``--device gpu`` draws from the CUDA
sources instead and needs a GPU.

Killed by ``make quick`` counts as killed by ``make test`` where that has the test that failed, which ``--recheck`` looks
up: a mutant whose test ``make test`` no longer has is tried again.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
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
STAGES = {"quick": 300, "covering": 1200, "rest": 2400}  #: cases, and CPU seconds for them: a mutant may never end
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
    "assembly": ("assembly", "values"),
    "decoding": ("decoding", "conversions", "indexing"),
    "distinct": ("few_values", "values"),
    "rebinning": ("indexing", "joining"),
    "sampled": ("values", "torch"),
    "sparse_product": ("decoding", "protocol"),
    "text": ("io", "hostile_inputs"),
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


def closure(source: Path, root: Path = ROOT) -> set[Path]:
    """The files of ``cvrarray/cpu`` that a file imports, and those that they import: what its kernels are compiled from."""
    cpu = root / "cvrarray" / "cpu"
    found, left = set(), [source]
    while left:
        path = left.pop()
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("cvrarray.cpu")):
                base = path.parents[node.level - 1] if node.level else root
                base = base.joinpath(*(node.module or "").split("."))
                parts = [base, *(base / name.name for name in node.names)]
                named = [file for part in parts for file in (part.with_suffix(".py"), part / "__init__.py")]
                left += [other for other in named if other.is_file() and other.is_relative_to(cpu) and other not in found]
    return found


def run_tests() -> int:
    """pytest, its arguments those of this program, where compiled kernels are kept for each closure, not for all sources."""
    import pytest

    from cvrarray.cpu.runtime import caching

    @cache
    def stamp(source: str) -> str:
        root = Path(caching.__file__).resolve().parents[3]
        digest = hashlib.sha256()
        for path in sorted({*closure(Path(source).resolve(), root), root / "cvrarray" / "core" / "tables.py"}):
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()

    caching._stamp_for = lambda function: stamp(function.__code__.co_filename)
    return pytest.main(sys.argv[1:])


def try_out(mutant: Mutant | None, source: str, device: str, cases: str, kept: Path) -> str:
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
        command = [
            sys.executable,
            "-c",
            "import sys; sys.path.insert(0, 'tests'); import mutants; sys.exit(mutants.run_tests())",
        ]
        command += ["-x", "-q", "-p", "no:cacheprovider", "--cases", cases]
        command += [*options, *tests_of(source)]
        environment = {"CVRARRAY_NUM_THREADS": "2"} | os.environ
        environment |= {"CVRARRAY_CACHE_DIR": str(kept), "PYTHONPATH": str(copy)}
        try:
            run = subprocess.run(
                command,
                cwd=copy,
                env=environment,
                capture_output=True,
                text=True,
                timeout=2 * STAGES[cases],
                preexec_fn=lambda: _limit(STAGES[cases]),
            )
        except subprocess.TimeoutExpired:
            return "timeout"
    if run.returncode in (0, 5):  # 5: there are no such cases
        return "passed"
    if run.returncode == -signal.SIGXCPU:
        return "timeout"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.M)
    return failed[1] if failed else f"crash {run.returncode}: {(run.stdout + run.stderr).strip()[-200:]}"


def _limit(seconds: int) -> None:
    import resource

    os.nice(19)
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def killer(outcome: dict[str, str]) -> tuple[str, str] | None:
    """The stage that killed a mutant, and how; None for one that is alive."""
    return next(((stage, how) for stage, how in outcome.items() if how != "passed"), None)


def recheck(outcomes: dict[str, dict[str, str]]) -> None:
    """Forget kills of ``make quick`` and ``make test`` by tests that ``make test`` does not have now."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "tests"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    collected = set(run.stdout.splitlines())
    for outcome in outcomes.values():
        stage, how = killer(outcome) or ("", "")
        if stage in ("quick", "covering") and how.startswith("tests/") and how not in collected:
            del outcome[stage]


def report(outcomes: dict[str, dict[str, str]]) -> str:
    """Killed and survived, by file; then the survivors and what only the other cases found."""
    counts: Counter[tuple[str, str]] = Counter()
    rows = {"killed by make test": [], "killed by other cases only": [], "survived": []}
    for name, outcome in outcomes.items():
        stage, _ = killer(outcome) or ("", "")
        which = {"rest": "killed by other cases only", "": "survived"}.get(stage, "killed by make test")
        rows[which].append(name)
        counts[name.partition(":")[0], which] += 1
    lines = [f"{file}: {count} {which}" for (file, which), count in sorted(counts.items())]
    lines += [f"{which}: {len(names)} of {len(outcomes)}" for which, names in rows.items()]
    for which in ("killed by other cases only", "survived"):
        lines += [f"{which}: {name} {'' if set(outcomes[name]) >= set(STAGES) else '(not by all)'}" for name in rows[which]]
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the path of the files to change")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl", help="where outcomes are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more mutants after this time")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried side by side")
    parser.add_argument("--recheck", action="store_true", help="try those again whose test make test no longer has")
    parser.add_argument("--report", action="store_true", help="try none, say what came of those that were tried")
    options = parser.parse_args(arguments)
    chosen = draw(options.device, options.count, options.seed, options.only)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, dict[str, str]] = defaultdict(dict)
    for line in options.results.read_text().splitlines() if options.results.exists() else []:
        record = json.loads(line)
        known[record["mutant"]][record["stage"]] = record["outcome"]
    if options.recheck:
        recheck(known)
    until = time.monotonic() + (0 if options.report else options.seconds)

    def tried(task: tuple[Mutant | None, str], stage: str, kept: Path) -> str | None:
        return try_out(*task, options.device, stage, kept) if time.monotonic() < until else None

    with tempfile.TemporaryDirectory() as kept, ThreadPoolExecutor(options.jobs) as pool:  # each waits for a process
        for stage in STAGES:
            # sources as they are come first: tests that fail for these say nothing
            tasks = {f"none of {Path(mutant.path).name}": (None, mutant.path) for mutant in chosen}
            tasks |= {mutant.name: (mutant, mutant.path) for mutant in chosen}
            left = [name for name in tasks if not killer(known[name]) and stage not in known[name]]
            running = {pool.submit(tried, tasks[name], stage, Path(kept)): name for name in left}
            for future in as_completed(running):
                if (outcome := future.result()) is None:  # no time for it
                    continue
                name = running[future]
                known[name][stage] = outcome
                with options.results.open("a") as file:
                    file.write(json.dumps({"mutant": name, "stage": stage, "outcome": outcome}) + "\n")
                print(name, stage, outcome, flush=True)
    wrong = {name: killer(outcome) for name, outcome in known.items() if name.startswith("none of ") and killer(outcome)}
    print(report({mutant.name: known[mutant.name] for mutant in chosen if known[mutant.name]}))
    if wrong:
        print(f"These tests fail without a change, so what they kill counts for nothing: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
