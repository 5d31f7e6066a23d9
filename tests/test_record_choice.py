"""The matrices that the choice of a format is measured on, and what is said of recorded figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cvrarray
from asv_bench.record import choice, families


@pytest.mark.parametrize("name", ["band.1", "holed.1", "arrow.3", "block_tridiagonal.2", "covering.3"])
def test_a_family_draws_the_same_matrix_in_every_run(name):
    assert name in families.drawn(int(name[-1]))
    found, again = families.build(name), families.build(name)
    assert (found != again).nnz == 0
    assert found.has_sorted_indices
    assert found.dtype == np.float32
    assert families.LEAST / 3 < found.nnz < 2 * families.MOST
    assert families.build(name[:-1] + "9").shape != found.shape


def test_the_score_of_recorded_figures(tmp_path, capsys):
    """Ratios to the fastest: with the hint by its own chunks, without by those of a vector."""
    stats = cvrarray.statistics(np.eye(64), exact=False)._asdict() | {"dtype": "float64"}
    names = list(stats["table_bytes"])
    slow = dict.fromkeys(names, 20.0) | {"cvr": 10.0}
    columns = {"1": {"warm": slow, "cold": slow}, "4": {"warm": slow | {"cvr+": 8.0}}}
    path = tmp_path / "choice.json"
    path.write_text(json.dumps({"matrix": "eye", "dtype": "float64", "columns": columns, "statistics": stats}))
    assert choice.main(["--score", str(path)]) == 0
    table = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    of = {line[0].strip(): float(line[-1].strip().rstrip("x")) for line in table}
    assert set(of) == {"1", "4 columns=", "4 no hint"}
    assert of["1"] in (1, 2)
    assert of["4 columns="] in (1, 2.5)
    assert of["4 no hint"] in (1.25, 2.5)
