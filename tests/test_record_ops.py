"""The run of ``make bench-ops``: every operation beside SciPy's, on a matrix that is not square; its table, its page."""

import json

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from asv_bench.record import ops


@pytest.fixture
def mtx(tmp_path):
    matrix = scipy.sparse.random_array((60, 50), density=0.08, format="csr", rng=np.random.default_rng(3))
    path = tmp_path / "matrix.mtx"
    scipy.io.mmwrite(path, matrix, symmetry="general")
    return path


def test_all_operations(mtx, tmp_path, capsys):
    code = ops.main([str(mtx), "--seconds", "0", "--report", str(tmp_path / "report")])
    out, err = capsys.readouterr()
    report = json.loads((tmp_path / "report" / "ops.json").read_text())
    page = (tmp_path / "report" / "ops.md").read_text()
    compared = [r for r in report["results"] if "one_speedup" in r]
    assert [r["operation"] for r in compared] == list(ops.OPERATIONS)
    lost = [r for r in compared if min(r["one_speedup"], r["all_speedup"]) < (0.95 if r["operation"] == "A @ B" else 1)]
    assert code == bool(lost)
    assert f"below 1.0x: {len(lost)}" in out
    assert f"## Below 1.0x: {len(lost)} of {len(compared)}" in page
    assert len(err.splitlines()) == len(compared) + 1
    assert all(operation in page for operation in ops.OPERATIONS)
    (made,) = (r for r in report["results"] if "csr_seconds" in r)
    assert 0 < made["ours_seconds"] < made["csr_seconds"]


def test_some_operations(mtx, capsys):
    ops.main([str(mtx), "--seconds", "0", "--only", "diagonal,vstack"])
    out = capsys.readouterr().out
    assert "A.diagonal()" in out
    assert "vstack([A, A])" in out
    assert "A @ x" not in out


def test_bad_usage(tmp_path, capsys):
    assert ops.main([str(tmp_path / "nothing.mtx")]) == 2
    assert "nothing.mtx" in capsys.readouterr().err
