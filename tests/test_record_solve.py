"""The run of ``make bench-solve``: what it measures, its page, and that the matrices are positive definite."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse

from asv_bench.record import solve
from cvrarray import generate


def test_generated_matrices_are_made_definite():
    for csr in (generate.poisson7(5), generate.elast3(3), generate.rmat(7, 4), generate.uniform(90, 3)):
        found = solve.definite(csr)
        assert abs(found - found.T).max() <= 1e-15
        assert np.linalg.eigvalsh(found.toarray()).min() > 0


def test_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    csr = scipy.sparse.eye_array(80, format="csr") * 3 + scipy.sparse.eye_array(80, k=1) + scipy.sparse.eye_array(80, k=-1)
    path = tmp_path / "small.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(csr))
    monkeypatch.setattr(solve, "ITERATIONS", {"cpu": (1, 2, 2)})
    report = tmp_path / "report"
    assert solve.main([str(path), "--device", "cpu", "--turns", "2", "--report", str(report)]) == 0
    out = capsys.readouterr().out
    assert out.count("small") == 3  # two dtypes, and a whole solve
    page = (report / "solve-cpu.md").read_text()
    assert "| small | float64 | 80 | 238 |" in page
    figures = json.loads((report / "solve-cpu.json").read_text())
    assert set(figures["results"][0]["microseconds"]) >= {"ours", "ours, 16 columns", "scipy", "scipy, our array", "product"}
    whole = figures["results"][0]["to_1e-10"]
    assert whole["mixed"]["reason"] == whole["float64"]["reason"] == "converged"
    assert page.count("| small | 80 |") == 1
    assert (report / "solve-cpu.svg").read_text().startswith("<?xml")
    assert str(tmp_path) not in page + json.dumps(figures)


def test_a_peer_that_fails_is_left_out(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    path = tmp_path / "small.npz"
    scipy.sparse.save_npz(
        path, scipy.sparse.csr_array(scipy.sparse.diags_array([1.0, 3.0, 1.0], offsets=[-1, 0, 1], shape=(80, 80)))
    )
    monkeypatch.setattr(solve, "ITERATIONS", {"cpu": (1, 2, 2)})
    peers = solve.scipy_peers

    def with_another(csr, A, b):
        def fails(count):
            raise RuntimeError("no graph\ntoday")

        return peers(csr, A, b) | ({"another": fails} if csr.dtype == np.float32 else {})

    monkeypatch.setattr(solve, "scipy_peers", with_another)
    assert solve.main([str(path), "--device", "cpu", "--turns", "1", "--report", str(tmp_path)]) == 0
    assert "* another, small in float32: RuntimeError: no graph today" in (tmp_path / "solve-cpu.md").read_text()
    monkeypatch.setattr(solve, "ours", lambda A, b, is_brief: {"ours": peers})  # which fails for want of arguments
    with pytest.raises(TypeError):
        solve.main([str(path), "--device", "cpu", "--turns", "1"])


def test_errors(capsys):
    assert solve.main(["nothing", "--device", "cpu"]) == 2
    assert "is no file and no generated matrix" in capsys.readouterr().err
    assert solve.main(["poisson7", "--device", "cpu", "--turns", "0"]) == 2
    assert solve.main(["poisson7", "--device", "cpu", "--scale", "small,tiny"]) == 2
    assert "scale must be of full, medium, small; got 'tiny'" in capsys.readouterr().err


def test_speedup_is_over_the_fastest_peer():
    times = {"ours": 2.0, "ours, block-Jacobi": 1.0, "scipy": 8.0, "scipy, our array": 4.0, "product": 1.0}
    assert solve.speedup(times) == 2.0
    assert solve.speedup(times, ["scipy"]) == 4.0
