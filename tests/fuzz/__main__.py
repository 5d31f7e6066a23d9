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
from collections import Counter
from pathlib import Path
from typing import Any

from . import driver, judge

KINDS = ("matrix_market", "npz", "h5ad", "cvra", "store", "objects")
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
    failed = sum(map(replayed, modules.items()))
    state = json.loads(options.state.read_text()) if options.state and options.state.exists() else {}
    end, fresh = time.monotonic() + options.seconds, Counter[str]()
    for kind, module in modules.items():
        before, until = Counter(state.get(kind, {})), min(end, time.monotonic() + options.seconds / len(modules))
        found = driver.run(kind, module, before["inputs"], until=until, most=options.inputs, keep=keep)
        state[kind] = before + found
        fresh += found
    if options.state:
        options.state.write_text(json.dumps(state, indent=1))
    for kind, tally in state.items():
        print(f"{kind}: {', '.join(f'{n:,} {what}' for what, n in tally.items())}")
    print(f"\n{fresh['inputs']} inputs in this run; {fresh['failures']} failures; {failed} regressions")
    return int(fresh["failures"] + failed > 0)


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


def replayed(of: tuple[str, Any]) -> int:
    """How many of a kind's recipes in tests/regressions fail again."""
    kind, module = of
    failed = 0
    for path in sorted(REGRESSIONS.glob(f"{kind}-*.json")):
        recipe = json.loads(path.read_text())
        what = driver.once(module, driver.Recipe(*(recipe[field] for field in driver.Recipe._fields)))
        if what not in driver.OUTCOMES:
            print(f"{path.name} fails again: {what}")
            failed += 1
    return failed


def keep(case: driver.Recipe, what: str) -> None:
    """Put a recipe that fails among the regressions."""
    k = len(list(REGRESSIONS.glob(f"{case.kind}-*.json")))
    text = json.dumps({**case._asdict(), "found": what[:200]})
    (REGRESSIONS / f"{case.kind}-{k:02d}.json").write_text(text + "\n")
    print(f"{case.kind}: {what[:300]}\n    {text[:400]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
