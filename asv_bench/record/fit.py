"""Constants of the choice on a GPU, fitted to what :mod:`.choice` has measured.

    python -m asv_bench.record.fit choice.json [more.json ...] [--columns 4,16,64,256] [--kernels walk,rows]

It says how good the choice is by the constants that the package has, and by constants fitted to every other seed on the
seeds between; then it prints those fitted to all. Without ``--columns`` those of products with a vector are fitted, of
which a constant that is 0 stays 0. Those of ``A @ X`` stay 0 or above, and up to MOST; ``--kernels`` says of which kernels
they are fitted, as where only these have changed. It takes seconds, as predicted times are sums.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from scipy import optimize

from cvrarray import bbcsr, cvr, formats
from cvrarray.choice import model
from cvrarray.core import short_rows, wide

from . import choice

Place = tuple[ModuleType, str, Any]  # of constants: a module, a name in it, and a key of that, or None

VECTOR: list[Place] = [(cvr, "VECTOR_COSTS", key) for key in cvr.VECTOR_COSTS]
VECTOR += [(cvr, "VECTOR_COSTS_SHARED", None), (short_rows, "COSTS", None)]
VECTOR += [(bbcsr, "VECTOR_COSTS", key) for key in range(len(bbcsr.VECTOR_COSTS))]
#: Of ``A @ X``: what only larger blocks have, and the most that a constant may be. Memory is not slower for rows of X, but few
#: matrices of a fit are so large.
OF_BLOCKS, MOST = ("narrow", "holes"), {"beyond": 0.5}

#: Errors of ratios of times to the fastest one's are made small, of candidates that take less than NEAR times as long; of
#: times LEVEL of that, of those that take more than HOPELESS times as long FAR of it. Errors of more than SCALE count less.
NEAR, LEVEL, HOPELESS, FAR, SCALE = 1.25, 0.2, 1.4, 0.25, 0.05


class Cases:
    """Every candidate of what was measured, with so many columns."""

    def __init__(self, cases: list[dict[str, Any]], columns: Sequence[int]):
        self.names: list[str] = []
        self.known: list[tuple[str, model.Statistics, int]] = []  # of each candidate
        of_case, times, seeds = [], [], []
        for case in cases:
            stats, seed = choice.known(case), int(case["matrix"].partition(".")[2] or 0)
            for k in columns:
                measured = choice.times_of(case, k)
                if len(measured) < 2:
                    continue
                for name, microseconds in measured.items():
                    self.known.append((name, stats, k))
                    of_case.append(len(self.names))
                    times.append(microseconds)
                    seeds.append(seed)
                self.names.append(f"{case['matrix']} {case['dtype']} {k}")
        self.of_case, self.times, self.seeds = np.array(of_case), np.array(times), np.array(seeds)
        self.fastest = self._first(self.times)[self.of_case]
        self.ratios = self.times / self.times[self.fastest]
        self.near = (self.ratios < NEAR) & (self.fastest != np.arange(self.times.size))

    def predicted(self) -> np.ndarray:
        """Microseconds, by the constants as they are."""
        return np.array([model._predicted(name, stats, "cuda", k) for name, stats, k in self.known])

    def lost(self, predicted: np.ndarray) -> np.ndarray:
        """How many times the fastest candidate's time the one of the least predicted time takes, for each case."""
        return self.ratios[self._first(predicted)]

    def _first(self, times: np.ndarray) -> np.ndarray:
        """The candidate of the least time, for each case."""
        order = np.lexsort((times, self.of_case))
        found: np.ndarray = order[np.diff(self.of_case[order], prepend=-1) > 0]
        return found


def get(place: Place) -> Any:
    """The constants at a place."""
    module, name, key = place
    found = getattr(module, name)
    return found if key is None else found[key]


def put(place: Place, costs: Any) -> None:
    """Put others there."""
    module, name, key = place
    found = getattr(module, name)
    if isinstance(found, dict):
        costs = found | {key: costs}
    elif key is not None:
        costs = tuple(costs if k == key else own for k, own in enumerate(found))
    setattr(module, name, costs)


def errors_of(cases: Cases, counted: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A function of each candidate's logarithm of its predicted time over the measured one, or of their derivatives, along the
    first axis: what is to be small.
    """
    which, pairs = np.flatnonzero(counted), np.flatnonzero(cases.near & counted)
    weights = LEVEL * np.where(cases.ratios < HOPELESS, 1, FAR)[which]

    def errors(of_times: np.ndarray) -> np.ndarray:
        apart = of_times[pairs] - of_times[cases.fastest[pairs]]
        return np.concatenate([(weights * of_times[which].T).T, apart])

    return errors


def fit(cases: Cases, counted: np.ndarray, places: list[Place]) -> None:
    """Put constants in their places that fit the candidates that are `counted`."""
    which = [(place, field) for place in places for field in get(place)._fields if getattr(get(place), field)]
    errors = errors_of(cases, counted)

    def logarithms(constants: np.ndarray) -> np.ndarray:
        for (place, field), value in zip(which, constants, strict=True):
            put(place, get(place)._replace(**{field: float(value)}))
        found: np.ndarray = np.log(np.maximum(cases.predicted(), 0.1) / cases.times)
        return found

    begin = np.array([getattr(get(place), field) for place, field in which])
    found = optimize.least_squares(
        lambda constants: errors(logarithms(constants)),
        begin,
        x_scale=np.abs(begin),
        loss="soft_l1",
        f_scale=SCALE,
        max_nfev=40,
    )
    logarithms(found.x)


class Sums:
    """What each constant of its kernel is multiplied by, of every candidate of products with columns."""

    def __init__(self, cases: Cases):
        matrices = [
            wide.Matrix(stats, stats.table_bytes[name], formats.of_variant(name)[1].get("block_size", 0), k)
            for name, stats, k in cases.known
        ]
        self.cases, self.kernels = cases, list(wide.COSTS)
        self.kernel = np.array([self.kernels.index(wide.kernel(of)) for of in matrices])
        self.counts = np.array([wide.counts(of) for of in matrices])
        self.predicted = cases.predicted()
        #: Of few columns, whose times are a vector's.
        self.others = np.abs(self._sums(np.array(list(wide.COSTS.values()))) / self.predicted - 1) > 1e-9

    def _sums(self, constants: np.ndarray) -> np.ndarray:
        found: np.ndarray = (self.counts * constants[self.kernel]).sum(axis=1)
        return found

    def fit(self, counted: np.ndarray, names: Sequence[str]) -> None:
        """Put constants of these kernels in their places that fit the candidates that are `counted`, from 0 to MOST."""
        begin, cases = np.array(list(wide.COSTS.values())), self.cases
        which = np.zeros(begin.shape, bool)
        for number, name in enumerate(self.kernels):
            if name not in names:
                continue
            which[number] = [field not in OF_BLOCKS or "blocks" in name for field in wide.Costs._fields]
            of_kernel = (self.kernel == number) & counted & ~self.others & (cases.ratios < HOPELESS)
            if np.count_nonzero(of_kernel) > begin.shape[1]:  # half way to what fits its times alone
                alone, _ = optimize.nnls(
                    self.counts[of_kernel] / cases.times[of_kernel, None] * which[number], np.ones(of_kernel.sum())
                )
                begin[number] = (begin[number] + alone) / 2
        place = np.full(begin.shape, -1)
        place[which] = np.arange(np.count_nonzero(which))
        errors = errors_of(cases, counted)

        def predicted(constants: np.ndarray) -> np.ndarray:
            found = begin.copy()
            found[which] = constants
            return np.where(self.others, self.predicted, np.maximum(self._sums(found), 0.1))

        def slopes(constants: np.ndarray) -> np.ndarray:
            times, found = predicted(constants), np.zeros((self.kernel.size, constants.size))
            for field in range(begin.shape[1]):
                at = place[self.kernel, field]
                counts = np.flatnonzero((at >= 0) & ~self.others)
                found[counts, at[counts]] = self.counts[counts, field] / times[counts]
            return errors(found)

        most = np.broadcast_to([MOST.get(field, np.inf) for field in wide.Costs._fields], begin.shape)[which]
        first = np.clip(begin[which], 1e-9, most - 1e-9)
        found = optimize.least_squares(
            lambda constants: errors(np.log(predicted(constants) / cases.times)),
            first,
            jac=slopes,
            bounds=(0, most),
            x_scale=np.maximum(first, 0.01),
            loss="soft_l1",
            f_scale=SCALE,
            max_nfev=60,
        )
        begin[which] = np.where(found.x < 1e-4, 0, found.x)
        for name, costs in zip(self.kernels, begin.tolist(), strict=True):
            wide.COSTS[name] = wide.Costs(*costs)


def said(label: str, lost: np.ndarray) -> str:
    """A line on the choice."""
    above = " ".join(f"{np.count_nonzero(lost > limit):>5} above {100 * limit - 100:.0f}%" for limit in (1.03, 1.1))
    mean = 100 * np.expm1(np.log(lost).mean())
    return f"{label:<36} {lost.size:>5} cases {above} {mean:6.2f}% in the mean, {lost.max():.2f}x at worst"


def main(argv: Sequence[str] | None = None) -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--columns", default="1")
    parser.add_argument("--kernels", help="of A @ X, separated by commas; default: all")
    args = parser.parse_args(argv)
    columns = [int(number) for number in args.columns.split(",")]
    kernels = list(wide.COSTS) if args.kernels is None else args.kernels.split(",")
    if unknown := [name for name in kernels if name not in wide.COSTS]:
        parser.error(f"--kernels must be among {', '.join(wide.COSTS)}; got {', '.join(unknown)}")
    lines = [line for path in args.files for line in path.read_text().splitlines()]
    cases = Cases([json.loads(line) for line in lines], columns)
    fitted: Callable[[np.ndarray], None]  # to the candidates that are counted
    if columns == [1]:
        places, fitted = VECTOR, partial(fit, cases, places=VECTOR)
    else:
        places, fitted = [(wide, "COSTS", kernel) for kernel in kernels], partial(Sums(cases).fit, names=kernels)
    before = {place: get(place) for place in places}

    def restore() -> None:
        for place, costs in before.items():
            put(place, costs)

    predicted = cases.predicted()
    print(said("the package's constants", cases.lost(predicted)))
    seeds = np.unique(cases.seeds)
    for half in (seeds[::2], seeds[1::2]) if seeds.size > 1 else ():
        is_in = np.isin(cases.seeds, half)
        fitted(~is_in)
        predicted[is_in] = cases.predicted()[is_in]
        restore()
    print(said("fitted to the other half of the seeds", cases.lost(predicted)))
    fitted(np.ones(cases.times.size, bool))
    print(said("fitted to all", cases.lost(cases.predicted())))
    for place in places:
        module, name, key = place
        rounded = ", ".join(f"{field}={value:.3g}" for field, value in get(place)._asdict().items())
        print(f"{module.__name__}.{name}{'' if key is None else f'[{key}]'}: {rounded}")
    restore()
    return 0


if __name__ == "__main__":
    sys.exit(main())
