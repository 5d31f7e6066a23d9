"""What the commands of recorded runs share: how a run ends, and what is said of a peer that fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from cvrarray.cli import INPUT_ERRORS


def end_of(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """What ``run(args)`` returns; 2 for bad usage, which is printed."""
    try:
        return run(args)
    except INPUT_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def in_a_line(error: BaseException) -> str:
    """An error's kind and message, as pages name it where a peer is left out."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
