"""``python -m cvrarray`` is the command line, ``cvrarray``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
