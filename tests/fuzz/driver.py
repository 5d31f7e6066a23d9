"""Inputs in children that may die: what happened to each, what must not, and what least recipe shows it.

The parent makes everything ready once (imports, compiled kernels, bases) and forks; a child takes one input after the
other and says which in memory that both share. So a child that dies, or that says nothing for long, tells which input
it was, and the next begins with the one after.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from .edits import Edit
from .judge import Violation

HANG = 10.0  #: seconds
LIMIT = 32 << 20  #: bytes that reading may take, or 100 times the input's size where that is more
SLACK = 96 << 20  #: bytes for what is imported, and for compiled code that is loaded, only then
ADDRESS_SPACE = 1 << 30  #: bytes that a child may ask for
INPUTS_OF_A_CHILD = 20_000

_STATE = struct.Struct("qqqqqd")  # number of the input, taken, refused, never made, most bytes, when it began


class Recipe(NamedTuple):
    """An input: what it is made from, and how that is changed."""

    kind: str
    base: str
    edits: list[Edit]


class Failure(NamedTuple):
    """What an input did that none may do."""

    recipe: Recipe
    what: str
    detail: str = ""


class Tally(NamedTuple):
    """What happened to the inputs of a kind."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    never_made: int = 0
    most_bytes: int = 0
    seconds: float = 0.0
    failures: dict[str, Any] = {}  # noqa: RUF012  (never written to)


def recipe(kind: str, module: ModuleType, number: int) -> Recipe:
    """Input `number` of a kind."""
    rng = random.Random(f"{kind} {number}")
    base = rng.choice(module.BASES)
    return Recipe(kind, base, json.loads(json.dumps(module.propose(rng, base))))


# ------------------------------------------------------------------------------------------------ in a child


def _fork(work: Callable[[], None]) -> tuple[int, int]:
    """A child that does `work`, its process, and a pipe from which to read what it says."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: threads may run beside a fork
        process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    try:
        os.close(reader)
        os.dup2(writer, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        warnings.simplefilter("ignore")
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + ADDRESS_SPACE,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
    finally:
        os._exit(0)


def _examined(module: ModuleType, case: Recipe, folder: str, baseline: int) -> tuple[str, int]:
    """What became of an input: ``"accepted"``, ``"refused"``, ``"never made"`` or a violation; and the memory it took."""
    size = 0
    try:
        what, size = module.examine(case.base, case.edits, folder)
    except Violation as error:
        return str(error), 0
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {os.path.basename(place.filename)}, {place.name}: {error}", 0
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - baseline
    if taken > max(LIMIT, 100 * size) + SLACK:
        return f"memory: {taken >> 20} MiB for {size} bytes", taken
    return what, taken


def _say(text: str) -> None:
    """Into the pipe: what Python calls its output may be another file."""
    os.write(1, text.encode()[: select.PIPE_BUF])


def _baseline() -> int:
    """Bytes in memory now; a child's own peak begins with them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _serve(kind: str, module: ModuleType, numbers: Iterator[int], shared: mmap.mmap, folder: str) -> None:
    """Take inputs until one fails, which is said."""
    baseline = _baseline()
    counts = {"accepted": 0, "refused": 0, "never made": 0}
    most = 0
    for number in numbers:
        _STATE.pack_into(shared, 0, number, *counts.values(), most, time.monotonic())
        what, taken = _examined(module, recipe(kind, module, number), folder, baseline)
        most = max(most, taken)
        if what not in counts:
            _say(what)
            break
        counts[what] += 1
    else:
        number += 1
    _STATE.pack_into(shared, 0, number, *counts.values(), most, time.monotonic())


@contextmanager
def _folder() -> Iterator[str]:
    """A folder in memory, where there is one; a child that dies would leave its own."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory, ignore_cleanup_errors=True) as folder:
        yield folder


# ------------------------------------------------------------------------------------------------ in the parent


def once(module: ModuleType, case: Recipe, hang: float = HANG) -> str:
    """What becomes of one input in a child of its own."""
    with _folder() as folder:

        def work() -> None:
            _say(_examined(module, case, folder, _baseline())[0])

        process, pipe = _fork(work)
        try:
            ready, _, _ = select.select([pipe], [], [], hang)
            said = os.read(pipe, 1 << 16).decode(errors="replace").strip() if ready else ""
        finally:
            os.close(pipe)
        if not ready:
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if not ready:
            return f"hang: longer than {hang:g} s"
        return f"crash: {signal.Signals(-status).name}" if status < 0 else said


def signature(what: str) -> str:
    """A failure without its numbers and places: those with the same one are counted, not kept."""
    return re.sub(r"\[.*?\]|\(.*?\)|-?\d[\d.e+]*|/\S+", "#", what)[:120]


def minimised(module: ModuleType, case: Recipe, what: str, hang: float = HANG) -> Recipe:
    """`case` with as few edits as still fail in the same way."""
    wanted, k = signature(what), 0
    while k < len(case.edits):
        smaller = case._replace(edits=case.edits[:k] + case.edits[k + 1 :])
        if signature(once(module, smaller, hang)) == wanted:
            case = smaller
        else:
            k += 1
    return case


def run(
    kind: str,
    module: ModuleType,
    tally: Tally,
    *,
    until: float = float("inf"),
    most: int = 1 << 60,
    keep: Callable[[Failure], None] = lambda failure: None,
    hang: float = HANG,
) -> Tally:
    """Take inputs of a kind, from the number ``tally.inputs`` on, until a time or a number; the new tally.

    Parameters
    ----------
    until : float
        When to stop, as ``time.monotonic()`` tells it.
    most : int
        The number of the first input that is not taken.
    keep : callable
        Told of a failure of each signature once, its recipe minimised.
    """
    shared = mmap.mmap(-1, _STATE.size)
    failures = dict(tally.failures)
    while tally.inputs < most and time.monotonic() < until:
        start = time.monotonic()
        end = min(most, tally.inputs + INPUTS_OF_A_CHILD)
        _STATE.pack_into(shared, 0, tally.inputs, 0, 0, 0, 0, start)

        def numbers(first: int = tally.inputs, end: int = end) -> Iterator[int]:
            for number in range(first, end):
                if time.monotonic() >= until:
                    return
                yield number

        with _folder() as folder:
            process, pipe = _fork(partial(_serve, kind, module, numbers(), shared, folder))
            what = _watched(process, pipe, shared, hang)
        number, accepted, refused, never_made, peak, _ = _STATE.unpack_from(shared)
        if what:
            what = _failed(kind, module, number, what, failures, keep, hang)
            number += 1
            refused += not what  # it did not fail alone: a kernel was compiled then, or memory was not its own
        tally = Tally(
            number,
            tally.accepted + accepted,
            tally.refused + refused,
            tally.never_made + never_made,
            max(tally.most_bytes, peak),
            tally.seconds + time.monotonic() - start,
            failures,
        )
    return tally


def _watched(process: int, pipe: int, shared: mmap.mmap, hang: float) -> str:
    """Wait for a child's end; what went wrong, or nothing."""
    what = ""
    while not select.select([pipe], [], [], min(0.2, hang / 4))[0]:
        if time.monotonic() - _STATE.unpack_from(shared)[-1] > hang:
            what = "hang"
            os.kill(process, signal.SIGKILL)
    said = os.read(pipe, 1 << 16).decode(errors="replace").strip()
    os.close(pipe)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return what or (f"crash: {signal.Signals(-status).name}" if status < 0 else said)


def _failed(
    kind: str,
    module: ModuleType,
    number: int,
    what: str,
    failures: dict[str, Any],
    keep: Callable[[Failure], None],
    hang: float,
) -> str:
    """Take note of a failure, if the input fails again alone; how it fails."""
    case = recipe(kind, module, number)
    what = once(module, case, hang)
    if what in ("accepted", "refused", "never made"):
        return ""
    name = signature(what)
    if name in failures:
        failures[name]["times"] += 1
        return what
    case = minimised(module, case, what, hang)
    failures[name] = {"times": 1, "first": number, "inputs": number + 1, "what": what, "recipe": case._asdict()}
    keep(Failure(case, name, what))
    return what
