"""What a GPU loses whose profile is wrong: products by what asarray and tune choose then, over the fastest that was found.

    python -m asv_bench.record.foreign [--families 1000] [--columns 1,16] [--within SECONDS] [--report FOLDER]

Models know a GPU by its profile (:mod:`cvrarray.core.profile`). Constants of models were fitted on one GPU, so a run with
profiles that this GPU does not have shows what they do on another one. Candidates of each product are measured, as the
package does when a product has been called often. float32 and float64 take turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import cvrarray
from cvrarray.choice import construct, tuning
from cvrarray.core import clocks, devices
from cvrarray.core.profile import Profile

from . import command, families, pages

#: By name: what a GPU's profile is made.
PROFILES: dict[str, Any] = {
    "its own": lambda own: own,
    "memory / 4": lambda own: own._replace(memory=own.memory / 4),
    "memory * 4": lambda own: own._replace(memory=own.memory * 4),
    "gathers / 4": lambda own: own._replace(gathers=own.gathers / 4),
    "gathers * 4": lambda own: own._replace(gathers=own.gathers * 4),
    "40 processors, 6 MB of L2": lambda own: own._replace(processors=40, l2_bytes=6 << 20),
}
#: Samples of a product, by turns with the others.
SAMPLES = 9


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_drawn(parser, "foreign", columns="1,16")
    parser.add_argument("--budget", type=float, default=0.5, metavar="SECONDS", help="of tune; default: %(default)s")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 2 for bad usage."""
    return command.end_of(run, parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""

    def of(number: int, name: str, device: devices.Device) -> Iterator[dict[str, Any]]:
        csr = families.build(name).astype(("float32", "float64")[number % 2])
        for k in map(int, args.columns.split(",")):
            yield from measured(name, csr, k, args.budget, device)

    return command.run_drawn(args, "foreign", of, page)


def measured(name: str, csr: Any, k: int, budget: float, device: devices.Device) -> Iterator[dict[str, Any]]:
    """A case for each profile: how the arrays were chosen, and the time of their products over that of the fastest."""
    properties, clock = device.backend("properties"), clocks.of(device)
    own = properties.profile()
    placed = construct.placed(csr, device)
    x = device.xp.random.default_rng(0).random(csr.shape[1:] if k == 1 else (csr.shape[1], k), csr.dtype)
    arrays: dict[tuple[str, str], Any] = {}
    for title, changed in PROFILES.items():
        profile: Profile = changed(own)
        with mock.patch.object(properties, "profile", lambda profile=profile: profile):
            for way in ("asarray", "tune"):
                array = (
                    cvrarray.asarray(placed, columns=k) if way == "asarray" else tuning.fastest(placed, x, device, budget)[0]
                )
                with device.comparing():
                    array @ x
                arrays[title, way] = array
    found = clocks.times(clock, {key: partial(array.__matmul__, x) for key, array in arrays.items()}, SAMPLES)
    fastest = min(timing.median for timing in found.values())
    for (title, way), timing in found.items():
        yield {
            "matrix": name,
            "dtype": str(csr.dtype),
            "columns": k,
            "profile": title,
            "way": way,
            "format": arrays[title, way].format,
            "over_fastest": timing.median / fastest,
        }


def page(report: dict[str, Any]) -> str:
    """The figures as a Markdown page."""
    cases = report["results"]
    lines = [
        "# What a GPU with another profile loses",
        f"{report['device']['name']}; `python -m asv_bench.record.foreign`. " + families.about(report["families"]),
        "Time of a product, its candidates measured, over the fastest of all that the profiles led to. *mean*: geometric. "
        "*3%*: products within 3% of the fastest.",
    ]
    for way in ("asarray", "tune"):
        rows = []
        for title in PROFILES:
            found = [case["over_fastest"] for case in cases if (case["profile"], case["way"]) == (title, way)]
            within = sum(one <= 1.03 for one in found) / max(1, len(found))
            rows.append(
                [
                    title,
                    str(len(found)),
                    f"{pages.geometric_mean(found) or 1:.3f}",
                    f"{within:.0%}",
                    f"{max(found, default=1):.2f}",
                ]
            )
        lines += [f"## {way}", pages.markdown(["profile", "products", "mean", "3%", "most"], rows)]
    return "\n\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
