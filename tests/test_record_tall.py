"""The record of tall matrices: who is timed gives the right numbers, and all parts print."""

from __future__ import annotations

import numpy as np
import pytest

from asv_bench.record import tall


def test_all_parts_print(capsys, monkeypatch, tmp_path):
    pytest.importorskip("sklearn", reason="a peer")
    for name, value in {"TRIPLETS": 3, "COLUMNS": 60, "DENSITY": 0.2, "MOST_ITERATIONS": 4}.items():
        monkeypatch.setattr(tall, name, value)
    tall.main([*"--device cpu --rows 400 --repeat 1 --gigabytes 1e-4 --folder".split(), str(tmp_path)])
    printed = capsys.readouterr().out
    for words in (
        "Gram 100 x 150, ",
        "Gram 400 x 60, ",
        "svds 400 x 60, topics, float32",
        "uniform, float64",
        "SciPy's svds",
        "GB/s",
    ):
        assert words in printed
    residuals = [float(line.split()[-1]) for line in printed.splitlines() if line.startswith("  svds  ") and "residual" in line]
    assert len(residuals) == 4
    assert max(residuals[0::2]) < 2e-5 and max(residuals[1::2]) < 1e-10
    assert "Error" not in printed


def test_matrices_are_as_they_are_said_to_be():
    for kind in (tall.topics, tall.uniform):
        S = kind(500, 100, 0.1)
        S.check_format()
        assert S.has_canonical_format
        assert 0.07 < S.nnz / 50_000 < 0.11
    decaying, flat = (np.linalg.svd(kind(500, 100, 0.1).toarray(), compute_uv=False) for kind in (tall.topics, tall.uniform))
    assert decaying[10] < 0.5 * decaying[0]
    assert flat[10] > 0.8 * flat[0]
