"""Inputs in children that may die: what happened to each, what must not, and what least recipe shows it.

The parent makes everything ready once (imports, compiled kernels, bases) and forks; a child takes one input after the
other and says which in memory that both share. So a child that dies, or that says nothing for long, tells which input
it was, and the next begins with the one after.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import random
import re
import resource
import select
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from .edits import Edit
from .judge import Violation

HANG = 10.0  #: seconds
LIMIT = 32 << 20  #: bytes that reading may take, or 100 times the input's size where that is more
SLACK = 96 << 20  #: bytes for what is imported, and for compiled code that is loaded, only then
ADDRESS_SPACE = 1 << 30  #: bytes that a child may ask for
INPUTS_OF_A_CHILD = 20_000
OUTCOMES = ("accepted", "refused", "never made")  #: what may become of an input

_STATE = struct.Struct("qqqqd")  # how many inputs were begun, how many had each outcome, when the last began


class Recipe(NamedTuple):
    """An input: what it is made from, and how that is changed."""

    kind: str
    base: str
    edits: list[Edit]


def recipe(kind: str, module: ModuleType, number: int) -> Recipe:
    """Input `number` of a kind."""
    rng = random.Random(f"{kind} {number}")
    base = rng.choice(module.BASES)
    return Recipe(kind, base, json.loads(json.dumps(module.propose(rng, base))))


def _examined(module: ModuleType, case: Recipe, folder: str, baseline: int) -> str:
    """What became of an input: one of OUTCOMES, or what it did that none may do."""
    try:
        what, size = module.examine(case.base, case.edits, folder)
    except Violation as error:
        return str(error)
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {os.path.basename(place.filename)}, {place.name}: {error}"
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - baseline
    return f"memory: {taken >> 20} MiB for {size} bytes" if taken > max(LIMIT, 100 * size) + SLACK else what


def _serve(module: ModuleType, cases: Iterable[Recipe], shared: mmap.mmap, folder: str, pipe: int) -> None:
    """In a child: take inputs until one fails, which is said into the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    gc.freeze()  # what the parent left is not freed here: that would hide as much of what an input takes
    in_use, resident = (int(n) * resource.getpagesize() for n in Path("/proc/self/statm").read_text().split()[:2])
    resource.setrlimit(resource.RLIMIT_AS, (in_use + ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    counts = dict.fromkeys(OUTCOMES, 0)
    for begun, case in enumerate(cases, 1):
        _STATE.pack_into(shared, 0, begun, *counts.values(), time.monotonic())
        what = _examined(module, case, folder, resident)
        if what not in counts:
            os.write(pipe, what.encode()[: select.PIPE_BUF])
            return
        counts[what] += 1
        _STATE.pack_into(shared, 0, begun, *counts.values(), time.monotonic())


def _in_a_child(module: ModuleType, cases: Iterable[Recipe], hang: float) -> tuple[Counter[str], str]:
    """How many inputs were begun and had each outcome in a child of their own, and what the last did that none may do."""
    shared = mmap.mmap(-1, _STATE.size)
    _STATE.pack_into(shared, 0, 0, 0, 0, 0, time.monotonic())
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where a child that dies leaves nothing on a disk
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory, ignore_cleanup_errors=True) as folder:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: threads may run beside a fork
            process = os.fork()
        if not process:
            try:
                os.close(reader)
                _serve(module, cases, shared, folder, writer)
            finally:
                os._exit(0)
        os.close(writer)
        what = ""
        while not select.select([reader], [], [], min(0.2, hang / 4))[0]:
            if time.monotonic() - _STATE.unpack_from(shared)[-1] > hang:
                what = f"hang: longer than {hang:g} s"
                os.kill(process, signal.SIGKILL)
        said = os.read(reader, 1 << 16).decode(errors="replace").strip()
        os.close(reader)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    counts = Counter(dict(zip(("inputs", *OUTCOMES), _STATE.unpack_from(shared), strict=False)))
    return counts, what or (f"crash: {signal.Signals(-status).name}" if status < 0 else said)


def once(module: ModuleType, case: Recipe, hang: float = HANG) -> str:
    """What becomes of one input in a child of its own."""
    counts, what = _in_a_child(module, [case], hang)
    return what or next(outcome for outcome in OUTCOMES if counts[outcome])


def signature(what: str) -> str:
    """A failure without its numbers and places: of those with the same one the first is kept."""
    return re.sub(r"\[.*?\]|\(.*?\)|-?\d[\d.e+]*|/\S+", "#", what)[:120]


def minimised(module: ModuleType, case: Recipe, what: str, hang: float = HANG) -> Recipe:
    """`case` with as few edits as still fail in the same way."""
    k = 0
    while k < len(case.edits):
        smaller = case._replace(edits=case.edits[:k] + case.edits[k + 1 :])
        if signature(once(module, smaller, hang)) == signature(what):
            case = smaller
        else:
            k += 1
    return case


def run(
    kind: str,
    module: ModuleType,
    first: int,
    *,
    until: float = float("inf"),
    most: int = 1 << 60,
    keep: Callable[[Recipe, str], None] = lambda case, what: None,
    hang: float = HANG,
) -> Counter[str]:
    """Take inputs of a kind, from the number `first` on, until a time or a number: how many there were, by outcome.

    Parameters
    ----------
    until : float
        When to stop, as ``time.monotonic()`` tells it.
    most : int
        The number of the first input that is not taken.
    keep : callable
        Told of a failure of each signature once: its recipe, minimised, and what it did.
    """
    tally: Counter[str] = Counter(inputs=0, failures=0)
    known = set()
    while first + tally["inputs"] < most and time.monotonic() < until:
        start = first + tally["inputs"]
        numbers = range(start, min(most, start + INPUTS_OF_A_CHILD))
        counts, what = _in_a_child(module, (recipe(kind, module, n) for n in numbers if time.monotonic() < until), hang)
        tally.update(counts)
        if not what:
            continue
        case = recipe(kind, module, start + counts["inputs"] - 1)
        what = once(module, case, hang)
        if what in OUTCOMES:  # it does not fail alone: a kernel was compiled then, or memory was not its own
            tally[what] += 1
            continue
        tally["failures"] += 1
        if signature(what) not in known:
            known.add(signature(what))
            keep(minimised(module, case, what, hang), what)
    return tally
