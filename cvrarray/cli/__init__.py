"""The command line, ``cvrarray``: one file a subcommand, each with ``add_arguments(parser)`` and ``run(args)``.

Exit codes: 0 all is well, 1 a product was wrong or the program broke, 2 bad usage or bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import bench, convert, info, solve, warmup

COMMANDS = {"info": info, "bench": bench, "solve": solve, "convert": convert, "warmup": warmup}

#: What a user can cause and mend: the message is enough. Anything else is a bug of ours.
INPUT_ERRORS = (OSError, ValueError, ModuleNotFoundError, MemoryError)


class _Parser(argparse.ArgumentParser):
    """Reports bad usage as every other error is reported: one line, by :func:`main`."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. See {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``cvrarray`` with `argv` (default: the process's own arguments) and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parser().parse_args(argv)
        return int(COMMANDS[args.command].run(args))
    except SystemExit as done:  # argparse, after --help and --version
        return int(done.code or 0)
    except KeyboardInterrupt:
        return _report("interrupted", 130)
    except BrokenPipeError:
        # The reader (head, less) has enough. Point stdout elsewhere, or Python complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "--debug" in argv:
            raise
        message = _message(error)
        if isinstance(error, INPUT_ERRORS):
            return _report(message or type(error).__name__, 2)
        return _report(f"{type(error).__name__}: {message}. This is a bug: --debug shows where", 1)


def _message(error: Exception) -> str:
    """What an error says, on one line; of the system's, the file and what is wrong with it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _report(message: str, code: int) -> int:
    print(f"cvrarray: error: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    from .. import __version__

    common = _Parser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser = _Parser(prog="cvrarray", description="Sparse arrays in the CVR and BBCSR formats.")
    parser.add_argument("--version", action="version", version=f"cvrarray {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, module in COMMANDS.items():
        summary, _, rest = (module.__doc__ or "").partition("\n")
        command = commands.add_parser(
            name,
            help=summary.rstrip("."),
            description=f"{summary}\n{rest}",
            parents=[common],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser
