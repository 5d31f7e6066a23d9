"""The run of ``make bench-few``: values in few bytes beside plain ones, in one format and with the same bits."""

import itertools
import json

import numpy as np
import pytest

from asv_bench.record import few_values
from cvrarray.cpu import distinct


def test_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(distinct, "most_values", lambda data: 256)
    args = ["poisson7", "rmat", "--scale", "small", "--device", "cpu", "--repeats", "2", "--dtype", "float64"]
    assert few_values.main([*args, "--report", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "few-cpu.json").read_text())
    page = (tmp_path / "few-cpu.md").read_text()
    assert [case["matrix"] for case in report["results"]] == ["poisson7", "rmat"]
    for case in report["results"]:
        assert case["one"]["stored_as"] == "one value"
        assert case["one"]["bytes"]["few"] < case["few"]["bytes"]["few"] < case["few"]["bytes"]["plain"]
        assert case["few"]["same_bits"]
        assert f"{few_values.speedup(case, 'few'):.2f}x" in page
    assert "geometric mean" in capsys.readouterr().out


def test_heisenberg():
    """Four spins on a ring, two of them up: S_i . S_{i+1} over the ring, each bond of the torus of height 1 aside."""
    H = few_values.heisenberg(2, 2, np).toarray()
    assert H.shape == (6, 6)
    assert np.array_equal(H, H.T)
    # a bond of each site to the right and up, so each pair of neighbours twice: 2 (S_1 + S_4).(S_2 + S_3), lowest -2 * 2
    assert np.allclose(np.linalg.eigvalsh(H), np.sort([-4, -2, 0, 0, 0, 2]))


def test_own_values(capsys):
    args = ["heisenberg", "--scale", "small", "--device", "cpu", "--repeats", "1", "--dtype", "float64"]
    assert few_values.main(args) == 0
    assert "heisenberg*" in capsys.readouterr().out


def test_values_that_stay_plain_have_no_speed(capsys):
    args = ["poisson7", "--scale", "small", "--device", "cpu", "--repeats", "1", "--dtype", "float32"]
    assert few_values.main(args) == 0
    assert "bbcsr 1: plain" in capsys.readouterr().out


def test_other_bits_are_told_by_the_exit_code(monkeypatch):
    matmul = few_values.cvrarray.BBCSRArray.__matmul__
    calls = itertools.count()  # as many as a fast machine makes
    monkeypatch.setattr(
        few_values.cvrarray.BBCSRArray, "__matmul__", lambda self, x: matmul(self, x) + np.float64(next(calls) == 0)
    )
    assert few_values.main(["elast3", "--scale", "small", "--device", "cpu", "--repeats", "1", "--dtype", "float64"]) == 1


@pytest.mark.parametrize("argument", ["--dtype=int8", "nothing.mtx"])
def test_bad_usage(argument, capsys):
    assert few_values.main([argument, "--device", "cpu"]) == 2
    assert argument.rpartition("=")[2] in capsys.readouterr().err
