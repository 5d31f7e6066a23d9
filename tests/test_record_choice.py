"""The matrices that the choice of a format is measured on, and what is said of recorded figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cvrarray
from asv_bench.record import choice, families, fit
from cvrarray import bbcsr
from cvrarray.choice import model
from cvrarray.core import wide


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


@pytest.fixture
def recorded(tmp_path):
    """What writes a file of recorded figures, of what ``columns_of(statistics)`` gives for each of some matrices."""

    def write(columns_of):
        lines = []
        for seed, n_rows in enumerate((2_000, 3_000, 6_000, 9_000, 20_000, 30_000), start=1):
            matrix = families.kinds.band(n_rows, 60, 17 + seed, np.random.default_rng(seed))
            stats = cvrarray.statistics(matrix, exact=False)
            found = {"matrix": f"band.{seed}", "dtype": "float32", "columns": columns_of(stats)}
            lines.append(json.dumps(found | {"statistics": stats._asdict() | {"dtype": "float32"}}))
        path = tmp_path / "choice.json"
        path.write_text("\n".join(lines))
        return str(path)

    return write


def test_constants_are_fitted_to_recorded_figures(recorded, capsys, monkeypatch):
    """Times by other constants than the package's: the fit chooses by them, prints them, and leaves the package's."""
    own, more_us = bbcsr.VECTOR_COSTS, []

    def columns_of(stats):
        predicted = model.predict(stats, "cuda")
        if not more_us:  # whichever format is chosen, the other one was faster
            more_us.append(3 if predicted["bbcsr1"] < predicted["cvr"] else -3)
        with monkeypatch.context() as patch:
            patch.setattr(bbcsr, "VECTOR_COSTS", (own[0]._replace(own_us=own[0].own_us + more_us[0]), own[1]))
            times = {name: model.predict(stats, "cuda")[name] for name in ("cvr", "bbcsr1")}
        return {"1": {"warm": times, "cold": times}}

    assert fit.main([recorded(columns_of)]) == 0
    said = capsys.readouterr().out.splitlines()
    before, of_halves, after = (float(line.split("%")[-2].split()[-1]) for line in said[:3])
    assert before > 1
    assert after == of_halves == 0
    assert bbcsr.VECTOR_COSTS == own


def test_constants_of_columns_are_fitted_to_recorded_figures(recorded, capsys, monkeypatch):
    """The same of ``A @ X``: of the kernels that are named alone, none below 0 or above the most that it may be; few columns
    keep a vector's times.
    """
    own = dict(wide.COSTS)

    def columns_of(stats):
        columns = {}
        for k in (2, 16, 64):
            with monkeypatch.context() as patch:
                if k > 2:  # by whichever format is chosen, the other one is faster
                    chosen = model.choose(stats, "cuda", k).format
                    names = [name for name in own if ("cvr" in name) == (chosen == "cvr")]
                    slow = {name: own[name]._replace(own_us=own[name].own_us + 20) for name in names}
                    patch.setattr(wide, "COSTS", own | slow)
                times = {name: model._predicted(name, stats, "cuda", k) for name in ("cvr", "bbcsr1")}
            columns[str(k)] = {"warm": times}
        return columns

    path = recorded(columns_of)
    assert fit.main([path, "--columns", "2,16,64"]) == 0
    said = capsys.readouterr().out.splitlines()
    before, _, after = (float(line.split("%")[-2].split()[-1]) for line in said[:3])
    assert before > 5 > 0.1 >= after
    assert len(said) == 3 + len(own)
    assert not any("=-" in line for line in said)
    assert own == wide.COSTS
    assert fit.main([path, "--columns", "16", "--kernels", "rows,cvr"]) == 0
    said = capsys.readouterr().out.splitlines()[3:]
    assert [line.partition("[")[2].partition("]")[0] for line in said] == ["rows", "cvr"]
    with pytest.raises(SystemExit):
        fit.main([path, "--columns", "16", "--kernels", "rows,spokes"])
    assert "got spokes" in capsys.readouterr().err
