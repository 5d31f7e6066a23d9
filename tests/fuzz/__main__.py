"""``python -m fuzz --seconds 60``: inputs of every kind, by turns; the state is kept, so that the next run goes on.

With ``--inputs 1000`` so many of each kind, whatever the time. First, always, the recipes of tests/regressions.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from . import driver, judge

KINDS = ("matrix_market", "npz", "cvra", "store", "spool", "objects")
REGRESSIONS = Path(__file__).parent.parent / "regressions"


def main(arguments: list[str] | None = None) -> int:
    """The number of failures, at most 1, as a program's status."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long, over all kinds")
    parser.add_argument("--inputs", type=int, default=1 << 60, help="of each kind, at most")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--state", type=Path, help="file with what was done so far, to go on with")
    options = parser.parse_args(arguments)
    if options.seconds == float("inf") and options.inputs == 1 << 60:
        parser.error("say how long or how many: --seconds or --inputs")
    os.environ.setdefault("CVRARRAY_MAX_BYTES", str(driver.LIMIT))
    os.environ.setdefault("CVRARRAY_NUM_THREADS", "1")
    judge.compile_kernels()
    modules = {kind: ready(kind) for kind in options.kinds}
    failed = replay(modules)
    state = read_state(options.state)
    before = {kind: tally.inputs for kind, tally in state.items()}
    end = time.monotonic() + options.seconds
    share = options.seconds / len(modules)
    for kind, module in modules.items():
        until = min(end, time.monotonic() + share)
        keep = partial(kept, kind)
        state[kind] = driver.run(kind, module, state.get(kind, driver.Tally()), until=until, most=options.inputs, keep=keep)
    if options.state:
        options.state.write_text(json.dumps({kind: tally._asdict() for kind, tally in state.items()}, indent=1))
    print(table(state))
    fresh = sum(tally.inputs - before.get(kind, 0) for kind, tally in state.items())
    failures = sum(len(state[kind].failures) for kind in modules)
    print(f"\n{fresh} inputs in this run; {failures} kinds of failure; {failed} regressions")
    return int(failures + failed > 0)


def ready(kind: str) -> Any:
    """The module of a kind, after inputs of every base: what they need is imported and compiled."""
    module = importlib.import_module(f"fuzz.kinds.{kind}")
    with tempfile.TemporaryDirectory() as folder:
        for base in module.BASES:
            try:
                module.examine(base, [], folder)
            except Exception as error:  # the run will find it, and the others
                print(f"{kind}, {base} unchanged: {error}", file=sys.stderr)
    return module


def replay(modules: dict[str, Any]) -> int:
    """How many of the recipes in tests/regressions fail again."""
    failed = 0
    for path in sorted(REGRESSIONS.glob("*.json")):
        case = driver.Recipe(**{k: v for k, v in json.loads(path.read_text()).items() if k in driver.Recipe._fields})
        if case.kind in modules:
            what = driver.once(modules[case.kind], case)
            if what not in ("accepted", "refused", "never made"):
                print(f"{path.name} fails again: {what}")
                failed += 1
    return failed


def kept(kind: str, failure: driver.Failure) -> None:
    """Keep the recipe of a failure in tests/regressions, and say so."""
    k = len(list(REGRESSIONS.glob(f"{kind}-*.json")))
    text = json.dumps({**failure.recipe._asdict(), "found": failure.detail[:200]})
    (REGRESSIONS / f"{kind}-{k:02d}.json").write_text(text + "\n")
    print(f"{kind}: {failure.detail[:300]}\n    {text[:400]}", flush=True)


def read_state(path: Path | None) -> dict[str, driver.Tally]:
    """What earlier runs did."""
    if path is None or not path.exists():
        return {}
    return {kind: driver.Tally(**tally) for kind, tally in json.loads(path.read_text()).items()}


def table(state: dict[str, driver.Tally]) -> str:
    """What was done, as a table in Markdown."""
    lines = ["| kind | inputs | taken | refused | never made | most memory, MiB | a second | failures |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for kind, t in state.items():
        rate = t.inputs / t.seconds if t.seconds else 0
        counts = " | ".join(f"{n:,}" for n in (t.inputs, t.accepted, t.refused, t.never_made))
        lines.append(f"| {kind.replace('_', ' ')} | {counts} | {t.most_bytes >> 20} | {rate:.0f} | {len(t.failures)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
