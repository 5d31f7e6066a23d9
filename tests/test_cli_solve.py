"""``cvrarray solve``: every method and preconditioner, what it prints, writes and draws, and how it ends."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from cvrarray import cli
from cvrarray.cli import solve

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run(capsys):
    def call(*argv):
        code = cli.main(["solve", *map(str, argv), "--repeats", "1"])
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


@pytest.fixture
def csr():
    line = scipy.sparse.diags_array([-1.0, 2.2, -1.0], offsets=[-1, 0, 1], shape=(15, 15))
    eye = scipy.sparse.eye_array(15)
    return scipy.sparse.csr_array(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))


@pytest.fixture
def mtx(csr, tmp_path):
    path = tmp_path / "matrix.mtx"
    scipy.io.mmwrite(path, csr)
    return path


@pytest.mark.parametrize("method", ["auto", "cg", "minres", "bicgstab", "gmres", "lsmr"])
def test_methods(run, mtx, csr, tmp_path, method, device):
    out = tmp_path / "x.npy"
    found = run(mtx, "--method", method, "--rtol", "1e-7", "--out", out, "--device", device)
    assert found.code == 0, found.err
    assert not found.err
    name = "cg" if method == "auto" else method
    assert f"\n{name}, preconditioner {'none' if method == 'lsmr' else 'jacobi'}, rtol 1e-07\n" in found.out
    assert "cvrarray" in found.out
    assert ("scipy" if device == "cpu" else "cupy") in found.out or method == "bicgstab"
    np.testing.assert_allclose(np.load(out), 1, atol=1e-4)


@pytest.mark.parametrize("name", ["none", "block-jacobi", "chebyshev", "multigrid"])
def test_preconditioners(run, mtx, name):
    found = run(mtx, "--precond", name, "--json", "--device", "cpu")
    assert found.code == 0, found.err
    report = json.loads(found.out)
    assert report["preconditioner"] == name
    assert [case["by"].split()[0].rstrip(",") for case in report["results"]] == ["cvrarray", "scipy", "scipy"]
    assert all(case["converged"] and case["residual"] <= 1.01e-8 for case in report["results"])


def test_the_method_suits_the_matrix(csr):
    assert solve.chosen(csr) == "cg"
    assert solve.chosen(csr - 2.0 * scipy.sparse.eye_array(225).tocsr()) == "cg"
    assert solve.chosen(-csr) == "minres"
    assert solve.chosen(scipy.sparse.csr_array(scipy.sparse.triu(csr))) == "gmres"
    assert solve.chosen(csr[:, :9]) == "lsmr"


@pytest.mark.parametrize("suffix", ["npy", "mtx"])
def test_right_side(run, mtx, csr, tmp_path, suffix):
    b = np.arange(225.0)
    path = tmp_path / f"b.{suffix}"
    if suffix == "npy":
        np.save(path, b)
    else:
        scipy.io.mmwrite(path, scipy.sparse.coo_array(b[:, None]))
    out = tmp_path / "x.npy"
    assert run(mtx, "--rhs", path, "--out", out, "--device", "cpu").code == 0
    np.testing.assert_allclose(csr @ np.load(out), b, atol=1e-4)
    np.save(tmp_path / "short.npy", b[:5])
    found = run(mtx, "--rhs", tmp_path / "short.npy", "--device", "cpu")
    assert found.code == 2
    assert "must hold 225 numbers" in found.err


def test_plot(run, mtx, tmp_path):
    pytest.importorskip("matplotlib")
    for method in ("cg", "lsmr"):
        path = tmp_path / f"{method}.png"
        assert run(mtx, "--method", method, "--plot", path, "--device", "cpu").code == 0
        assert path.read_bytes().startswith(PNG)


def test_what_does_not_converge(run, mtx, tmp_path, csr):
    found = run(mtx, "--maxiter", "3", "--device", "cpu")
    assert found.code == 1
    assert "not solved" in found.out
    assert "did not meet the tolerance: maxiter. Try another --precond" in found.err
    path = tmp_path / "negative.mtx"
    scipy.io.mmwrite(path, -csr)
    found = run(path, "--method", "cg", "--precond", "none", "--device", "cpu")
    assert found.code == 1
    assert "not positive definite" in found.err


def test_ends_of_other_methods_are_words(run, tmp_path):
    """A shift by one: GMRES needs as many steps as there are rows."""
    path, b = tmp_path / "shift.mtx", tmp_path / "b.npy"
    scipy.io.mmwrite(path, scipy.sparse.csr_array(np.roll(np.eye(40), 1, axis=0)))
    np.save(b, np.eye(40)[0])
    found = run(path, "--rhs", b, "--method", "gmres", "--maxiter", "2", "--precond", "none", "--device", "cpu")
    assert found.code == 1
    assert "did not meet the tolerance: stopped at cycle 1. Try" in found.err


def test_others_are_given_up(run, mtx, tmp_path, monkeypatch):
    """A library that takes long is left in the middle, and not timed again; its curve is drawn as far as it came."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(solve, "PATIENCE", 0.0)
    monkeypatch.setattr(solve, "TIMES_OURS", 0)
    found = run(mtx, "--json", "--plot", tmp_path / "out.png", "--device", "cpu")
    assert found.code == 0, found.err
    own, *others = json.loads(found.out)["results"]
    assert own["converged"]
    assert [(other["ends"], other["converged"], other["iterations"]) for other in others] == [("given up", False, 1)] * 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--maxiter", "0"], "--maxiter must be at least 1"),
        (["--precision", "mixed", "--method", "gmres"], "--precision mixed is for --method cg"),
        (["--rtol", "-1"], "rtol must be a real number"),
        (["--plot", "x.xyz"], "--plot must name a file"),
        (["--method", "qmr"], "invalid choice"),
    ],
)
def test_errors(capsys, mtx, argv, message):
    assert cli.main(["solve", str(mtx), "--device", "cpu", *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_rectangle_needs_lsmr(run, tmp_path):
    path = tmp_path / "rectangle.mtx"
    scipy.io.mmwrite(path, scipy.sparse.random_array((30, 9), density=0.4, rng=np.random.default_rng(0)))
    assert run(path, "--device", "cpu").code == 0
    found = run(path, "--method", "cg", "--device", "cpu")
    assert found.code == 2
    assert "needs a square matrix" in found.err


@pytest.mark.parametrize("has_solution", [True, False])
def test_residual_of_lsmr_is_that_which_ended_it(run, tmp_path, has_solution):
    """That of the system if it has a solution, else that of the normal equations; SciPy's is judged alike."""
    S, b = scipy.sparse.random_array((300, 90), density=0.1, rng=np.random.default_rng(0)), tmp_path / "b.npy"
    scipy.io.mmwrite(tmp_path / "S.mtx", S)
    np.save(b, S @ np.ones(90) + (0 if has_solution else np.arange(300.0)))
    report = json.loads(run(tmp_path / "S.mtx", "--rhs", b, "--device", "cpu", "--json").out)
    assert len(report["results"]) == 2
    assert all(found["converged"] and found["residual"] <= 2e-8 for found in report["results"])


@pytest.mark.parametrize("method", ["auto", "cg", "minres"])
@pytest.mark.parametrize("precond", solve.PRECONDITIONERS)
@pytest.mark.parametrize("diagonal", [-2.5, 0.0])
def test_remedies_are_the_commands_own(run, tmp_path, method, precond, diagonal):
    """Neither a function's arguments nor another package's words alone."""
    matrix = scipy.sparse.diags_array([np.ones(8), np.full(9, diagonal), np.ones(8)], offsets=[-1, 0, 1], format="coo")
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix)
    found = run(tmp_path / "a.mtx", "--method", method, "--precond", precond, "--device", "cpu")
    if found.code:
        assert "Try another --precond, such as none" in found.err and found.err.count("\n") == 1
        assert not any(word in found.err for word in (" M ", "x0", "Leave", "bug"))
    if (method, precond) == ("auto", "jacobi"):
        assert found.code == 2 and ("A[0, 0] is 0.0. Try" if diagonal == 0 else "indefinite") in found.err
