"""How many threads rows of different lengths have in ``A @ X``: the plan, without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason="the plan's module holds arrays on a GPU too")

from cvrarray.core.tables import WARP
from cvrarray.gpu import uneven_rows
from cvrarray.gpu.uneven_rows import BLOCK, evened_out

ENOUGH = 100_000


def lengths(kind, rng):
    return {
        "power law": rng.zipf(1.7, 5000) % 20_000,
        "two kinds": np.r_[np.full(200, 700), rng.integers(1, 20, 9000)],
        "hubs": rng.permutation(np.r_[np.full(12, 9000), rng.integers(0, 9, 8000)]),
        "even": np.full(4000, 9),
        "nothing": np.zeros(100, int),
        "no rows": np.zeros(0, int),
        "one long row": np.array([1 << 22]),
    }[kind].astype(np.int64)


@pytest.mark.parametrize("kind", ["power law", "two kinds", "hubs", "even", "nothing", "no rows", "one long row"])
@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_all_groups_have_about_as_much(kind, lanes):
    of = lengths(kind, np.random.default_rng(7))
    for tiles in (1, 5):
        schedule = evened_out(of, lanes, tiles, ENOUGH)
        is_cut = of > schedule.longest
        n_pieces = -(-of[is_cut] // schedule.n_steps)
        share, in_block = schedule.share, BLOCK // lanes
        n_threads = int(n_pieces.sum()) * BLOCK + (of.size * lanes if share is None else share.size * lanes)
        most = max(uneven_rows.ROUNDS[0], int(of.sum()) * lanes * tiles // ENOUGH)
        rounds = schedule.n_steps // in_block
        assert schedule.n_steps % in_block == 0
        assert rounds <= most
        assert n_threads * tiles <= ENOUGH + 2 * BLOCK * tiles or rounds == most
        if share is None:
            assert schedule.longest <= rounds
            continue
        assert share.size % in_block == 0
        assert (np.diff(share["sharers"].astype(int)) <= 0).all()
        used = share[share["row"] >= 0]
        rows, counts = np.unique(used["row"], return_counts=True)
        np.testing.assert_array_equal(rows, np.flatnonzero(~is_cut))
        first = np.flatnonzero(used["part"] == 0)
        np.testing.assert_array_equal(counts[np.searchsorted(rows, used["row"][first])], used["sharers"][first])
        for at, sharers in zip(first, used["sharers"][first].astype(int), strict=True):
            assert at % sharers == 0, "neighbouring lanes of one warp"
            assert sharers * lanes <= WARP
            np.testing.assert_array_equal(used["part"][at : at + sharers], np.arange(sharers))
            assert (used["row"][at : at + sharers] == used["row"][at]).all()
            assert sharers == 1 or of[used["row"][at]] > rounds * sharers // 2
            assert of[used["row"][at]] <= rounds * sharers


def test_many_rows_have_no_table(monkeypatch):
    monkeypatch.setattr(uneven_rows, "MOST_SHARES", 10)
    schedule = evened_out(np.r_[np.full(50, 3), 5000], 4, 1, ENOUGH)
    assert schedule.share is None
    assert schedule.longest < 5000
