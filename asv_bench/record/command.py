"""How the commands of recorded runs end."""

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
