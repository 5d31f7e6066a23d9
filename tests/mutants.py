"""Faults that the tests must find: small changes of kernels and conversions, and whether tests fail for each of them.

``python tests/mutants.py`` changes one operator or number at a time, and runs tests until one fails: first the few cases
of ``make quick`` in the test files that are about the changed file, then the cases of ``make test`` in these and in all
others that call kernels, then those that only ``make test-all`` runs (``--cases rest``). A mutant that only the last
kill is a fault which ``make test`` misses. The mutants are drawn at random, the same for the same seed. What has been
tried is kept in ``--results``, so a run that is cut short goes on from there. ``--report`` tries none. Some mutants
survive because they change nothing that matters (a larger scratch space, a prefetch): look at each.

The tests are collected once. For each mutant they run in a fork of that process, in which the one function is changed
and only the kernels that call it are compiled anew. ``--jobs 8`` tries so many side by side, and ``--seconds 150``
begins no more after that time. ``--device gpu`` draws from the CUDA sources instead, changes them in a copy of the
sources, and needs a GPU.

Killed by ``make quick`` counts as killed by ``make test`` where that has the test that failed, which ``--recheck`` looks
up: a mutant whose test ``make test`` no longer has is tried again.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
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
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import NamedTuple

import pytest

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
OURS = ("cvrarray", "test_")  #: modules of functions that kernels call
BROKEN = "broken: "  #: what a trial says that came to no outcome
COMPILED = re.compile("^@(njit|kernel|helper|inlined|intrinsic)", re.M)  #: decorators of what Numba compiles
BYTES = 8 << 30  # of memory: a mutant may ask for any amount
STAGES = {"quick": 60, "covering": 400, "rest": 1200}  #: cases, and CPU seconds for them: a mutant may never end
_FORMAT = ("golden", "conversions", "products", "cpu_kernels", "transposed", "matmat", "indexing", "few_values", "elementwise")
#: Test files for a source file, by its name or what this begins with (``cvr_convert.cu``), those first that find most;
#: the last entry is for all others.
TESTS = {
    "masks": ("conversions", "inputs", "io", "hostile_inputs"),
    "checksum": ("forged_tables", "store", "io", "store_hostile"),
    "crc32": ("text", "io", "store", "store_hostile"),
    "cvr": _FORMAT,
    "bbcsr": _FORMAT,
    "csr": ("errors", "inputs", "cpu_kernels", "io", "indexing", "elementwise"),
    "parts": ("cpu_kernels", "transposed", "transposed_sums", "matmat"),
    "adding": ("elementwise", "transposed_sums", "pending"),
    "assembly": ("assembly", "values"),
    "decoding": ("decoding", "conversions", "indexing"),
    "distinct": ("few_values", "values"),
    "merging": ("elementwise", "transposed_sums"),
    "rebinning": ("indexing", "joining"),
    "sampled": ("values", "torch"),
    "sparse_product": ("decoding", "protocol"),
    "symmetry": ("io",),
    "text": ("text", "io", "hostile_inputs"),
    "words": ("text", "io", "store"),
    "": ("golden", "conversions", "products", "cpu_kernels", "matmat", "transposed", "float16"),
}
#: Test files that call kernels in many ways.
OTHERS = (
    "cpu_kernels", "products", "transposed", "matmat", "conversions", "decoding", "indexing", "elementwise", "reductions",
    "protocol", "joining", "values", "inputs", "io", "few_values", "linalg", "transposed_sums", "ranges", "assembly",
    "statistics", "kept_transposes", "determinism", "random", "float16", "store", "large_offsets", "team",
)  # fmt: skip


def tests_of(source: str, cases: str = "quick") -> list[str]:
    """The test files about a source file; for more than the quick cases, all others that call kernels come after these."""
    stem = Path(source).stem
    names = TESTS.get(stem) or TESTS.get(stem.partition("_")[0]) or TESTS[""]
    more = () if cases == "quick" else OTHERS
    return [f"tests/test_{name}.py" for name in dict.fromkeys((*names, *more))]


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


class Trials:
    """A pytest plugin that runs the tests once for each mutant, each time in a fork of the process that collected them.

    A fork changes the one function, and compiles anew only the kernels that call it: all others come from the disk.
    """

    def __init__(
        self, mutants: list[Mutant], cases: str, options: argparse.Namespace, tell: Callable[[str, str], None]
    ) -> None:
        self.left, self.cases, self.tell = mutants[::-1], cases, tell
        self.jobs, self.until, self.trusted = options.jobs, time.monotonic() + options.seconds, options.trust
        self.running: dict[int, tuple[str, int]] = {}  # by process: a mutant's name, and the pipe that its outcome comes from
        self.wrong: set[str] = set()  # tests that fail without a change: what they kill counts for nothing
        self.found: Counter[str] = Counter()  # faults by test

    @pytest.hookimpl
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """The sources as they are come first: that also compiles what the forks load."""
        import_kernels()
        if not self.trusted:
            self._begin(session, None)
            self._end_of_one()
        while self.left or self.running:
            while self.left and len(self.running) < self.jobs and time.monotonic() < self.until:
                self._begin(session, self.left.pop())
            if not self.running:
                break
            self._end_of_one()
        return True

    def _begin(self, session: pytest.Session, mutant: Mutant | None) -> None:
        files = (
            tests_of(mutant.path, self.cases)
            if mutant
            else sorted({str(item.path.relative_to(ROOT)) for item in session.items})
        )
        place = {str(ROOT / file): number for number, file in enumerate(files)}
        items = [item for item in session.items if str(item.path) in place and item.nodeid not in self.wrong]
        items.sort(key=lambda item: (-self.found[_function(item.nodeid)], place[str(item.path)]))  # what finds most is first
        reading, writing = os.pipe()
        if process := os.fork():
            os.close(writing)
            self.running[process] = mutant.name if mutant else "", reading
            return
        try:
            self._child(session.config, items, mutant, writing)
        except BaseException:  # of this program
            os.write(writing, f"{BROKEN}{traceback.format_exc()}".encode())
        finally:
            os._exit(0)

    def _child(self, config: pytest.Config, items: list[pytest.Item], mutant: Mutant | None, out: int) -> None:
        _limit(STAGES[self.cases] if mutant else STAGES["rest"] * 4)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1), os.dup2(nothing, 2)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp()  # of its own: pytest numbers folders, and removes old ones
        if mutant:
            change(mutant)
        failed: list[str] = []

        class Outcome:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    failed.append(report.nodeid)

        config.pluginmanager.register(Outcome())
        for item, following in zip(items, [*items[1:], None], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failed and mutant:
                break
        os.write(out, "\n".join(failed or ["passed"]).encode())

    def _end_of_one(self) -> None:
        process, status = os.wait()
        name, reading = self.running.pop(process)
        with open(reading) as file:
            said = file.read().splitlines()
        if said and said[0].startswith(BROKEN):
            raise RuntimeError("\n".join(said))
        if not name:
            if not said:
                raise RuntimeError(f"the tests end with status {status} though nothing is changed")
            self.wrong = set(said) - {"passed"}
            self.tell("none of the sources", ", ".join(said))
            return
        signal_ = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        outcome = said[0] if said else "timeout" if signal_ == signal.SIGXCPU else f"crash {-signal_}"
        self.found[_function(outcome)] += 1
        self.tell(name, outcome)


def _files(items: list[pytest.Item]) -> list[str]:
    return sorted({str(item.path.relative_to(ROOT)) for item in items})


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def change(mutant: Mutant) -> None:
    """Make the mutant's change in this process; kernels that call the function are compiled anew, and not kept."""
    from numba.core.caching import NullCache
    from numba.core.dispatcher import Dispatcher
    from numba.core.typing.templates import _IntrinsicTemplate

    from cvrarray.cpu.runtime import compiler, native, pipeline

    path = ROOT / mutant.path
    import_kernels()
    whole = compile(mutant.applied(path.read_text()), str(path), "exec", dont_inherit=True)
    new = {(code.co_qualname, code.co_firstlineno): code for code in _within(whole)}
    gc.unfreeze()  # conftest.py hides what collection made
    every = gc.get_objects()
    functions = [thing for thing in every if type(thing) is FunctionType and thing.__code__.co_filename == str(path)]
    changed = set()
    for function in functions:
        code = new.get((function.__code__.co_qualname, function.__code__.co_firstlineno), function.__code__)
        if code != function.__code__:
            function.__code__ = code
            changed.add(function)
    for kernel in [thing for thing in every if issubclass(type(thing), Dispatcher)]:
        if called_by(kernel.py_func) & changed:
            kernel._reset_overloads()
            kernel._cache = NullCache()
    for thing in every:  # what is remembered of the time before
        if type(thing) is _lru_cache_wrapper and (thing.__module__ or "").startswith("cvrarray."):
            thing.cache_clear()
    for template in _IntrinsicTemplate.__subclasses__():
        template._impl_cache.clear()
        template._overload_cache.clear()
    compiler._versions.clear()
    pipeline.KNOWN.clear()
    native._addresses.clear()


def import_kernels() -> None:
    """Import all modules with kernels: a call that imports one later would have it unchanged, or as it is on the disk."""
    for path in sorted((ROOT / "cvrarray").rglob("*.py")):
        if COMPILED.search(path.read_text()):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def called_by(function: FunctionType) -> set[FunctionType]:
    """A function, those of ours that it names, those that they name, and so on."""
    found: set[FunctionType] = set()
    left = [function]
    while left:
        one = left.pop()
        if type(one) is not FunctionType or one in found or not (one.__module__ or "").startswith(OURS):
            continue
        found.add(one)
        names = {name for code in _within(one.__code__) for name in code.co_names}
        named = [one.__globals__[name] for name in names if name in one.__globals__]
        named += [cell.cell_contents for cell in one.__closure__ or () if cell != CellType()]
        modules = [thing for thing in named if type(thing) is ModuleType and thing.__name__.startswith(OURS)]
        named += [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
        left += [getattr(thing, "py_func", getattr(thing, "_defn", thing)) for thing in named if callable(thing)]
    return found


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


def try_out(mutant: Mutant | None, source: str, cases: str) -> str:
    """What the tests about a CUDA file say of a mutant: "passed", the name of a test that fails, "crash" or "timeout"."""
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
        options = ["-x", "-q", "-p", "no:cacheprovider", "--cases", cases, "-k", "cuda", "--require-gpu"]
        try:
            run = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests_of(source)],
                cwd=copy,
                env=os.environ | {"PYTHONPATH": str(copy)},
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

    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))  # at the first SIGXCPU, at the second SIGKILL


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


def _on_cpu(left: list[Mutant], stage: str, options: argparse.Namespace, tell: Callable[[str, str], None]) -> None:
    os.environ.setdefault("CVRARRAY_NUM_THREADS", "2")
    files = sorted({file for mutant in left for file in tests_of(mutant.path, stage)})
    given = ["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "--cases", stage]
    pytest.main([*given, *(str(ROOT / file) for file in files)], plugins=[Trials(left, stage, options, tell)])


def _on_gpu(left: list[Mutant], stage: str, options: argparse.Namespace, tell: Callable[[str, str], None]) -> None:
    # sources as they are come first: tests that fail for these say nothing
    tasks = {f"none of {Path(mutant.path).name}": (None, mutant.path) for mutant in left}
    tasks |= {mutant.name: (mutant, mutant.path) for mutant in left}

    until = time.monotonic() + options.seconds

    def tried(task: tuple[Mutant | None, str]) -> str | None:
        return try_out(*task, stage) if time.monotonic() < until else None

    with ThreadPoolExecutor(options.jobs) as pool:  # each waits for a process
        running = {pool.submit(tried, task): name for name, task in tasks.items()}
        for future in as_completed(running):
            if outcome := future.result():
                tell(running[future], outcome)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the path of the files to change")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl", help="where outcomes are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more mutants after this time")
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=list(STAGES), help="cases to try")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried side by side")
    parser.add_argument("--trust", action="store_true", help="do not run the tests on the sources as they are")
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
    begin = time.monotonic()
    for stage in options.stages:

        def tell(name: str, outcome: str, stage: str = stage) -> None:
            known[name][stage] = outcome
            with options.results.open("a") as file:
                file.write(json.dumps({"mutant": name, "stage": stage, "outcome": outcome}) + "\n")
            print(name, stage, outcome, flush=True)

        left = [mutant for mutant in chosen if not killer(known[mutant.name]) and stage not in known[mutant.name]]
        if left and not options.report and time.monotonic() < begin + options.seconds:
            (_on_gpu if options.device == "gpu" else _on_cpu)(left, stage, options, tell)
    wrong = {name: killer(outcome) for name, outcome in known.items() if name.startswith("none of ") and killer(outcome)}
    print(report({mutant.name: known[mutant.name] for mutant in chosen if known[mutant.name]}))
    if wrong:
        print(f"These tests fail without a change, so what they kill counts for nothing: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
