"""Real matrices in, products out, and who won.

Assembles a 3-D elasticity system with scikit-fem (3 x 3 blocks) and a Graph500 graph, reads the files named, converts
each to both formats, checks A @ x against double precision, and times it beside what you have without us: SciPy,
pydata/sparse and, where sparse_dot_mkl is installed, MKL on a CPU; CuPy and, where it is installed, PyTorch on a GPU.
'cvrarray bench --help' explains the columns.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from .. import generate
from ..core import devices
from . import bench, sources

#: 4 million nonzeros each: beyond the caches of a laptop, and done in a minute on two cores.
ELASTICITY_REFINEMENTS = 4
RMAT_SCALE, RMAT_EDGE_FACTOR = 18, 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``cvrarray demo``."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="more matrices: .mtx, .mtx.gz, .npz, .cvra")
    parser.add_argument("--dtype", default="float64", help="default: %(default)s")
    bench.add_shared_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge; 1 if a product was wrong."""
    device = bench.check(args)
    files = {path: sources.read(path) for path in args.files}  # first of all: a bad one shows at once
    return bench.measure(
        {
            "elasticity": lambda: sources.place(generate.elasticity(ELASTICITY_REFINEMENTS), device),
            "Graph500": partial(_graph, device, args.seed),
            **{path: partial(sources.place, csr, device) for path, csr in files.items()},
        },
        device,
        args,
    )


def _graph(device: devices.Device, seed: int) -> Any:
    with device.use():
        return generate.rmat(RMAT_SCALE, RMAT_EDGE_FACTOR, xp=device.xp, seed=seed)
