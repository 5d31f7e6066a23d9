"""The recorded runs of ``asv_bench.record``: who is timed was checked, figures fit together, pages and files are written."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from asv_bench.record import (
    ablate,
    columns_page,
    few_values,
    foreign,
    gpu_columns,
    gpu_page,
    gpu_peers,
    machine,
    products,
    solve,
)  # fmt: skip
from asv_bench.record import gpu as gpu_run
from cvrarray import generate
from cvrarray.core import devices
from cvrarray.cpu import distinct

RECORDED = Path(__file__).parent.parent / "docs" / "benchmarks"


@pytest.fixture
def quick(monkeypatch):
    """Spares a test the measuring of what memory can do."""
    monkeypatch.setattr(machine, "rates", lambda device: {"read": 2e10, "copy": 1e10})


def from_sell(slice_ptr, col, val, shape, slice_size):
    """Sliced ELLPACK as the definition reads it, entry by entry."""
    dense = np.zeros(shape, val.dtype)
    for part in range(slice_ptr.size - 1):
        start, end = slice_ptr[part], slice_ptr[part + 1]
        for place in range(start, end):
            row = part * slice_size + (place - start) % slice_size
            if col[place] >= 0:
                dense[row, col[place]] += val[place]
            else:
                assert val[place] == 0
    return scipy.sparse.csr_array(dense)


def matrix(shape=(72, 48), density=0.1, dtype=np.float64):
    rng = np.random.default_rng(4)
    return scipy.sparse.random_array(shape, density=density, format="csr", rng=rng, dtype=dtype)


@pytest.mark.parametrize("shape", [(1, 1), (31, 40), (32, 40), (33, 40), (200, 7)])
def test_to_sell(shape):
    csr = matrix(shape, 0.3)
    sell = gpu_peers.to_sell(csr, np)
    assert sell.slice_ptr.size == -(-shape[0] // 32) + 1
    assert (sell.slice_ptr.dtype, sell.col.dtype, sell.val.dtype) == (np.int32, np.int32, csr.dtype)
    np.testing.assert_array_equal(from_sell(*sell, shape, 32).toarray(), csr.toarray())


@pytest.mark.parametrize("size", gpu_peers.BLOCK_SIZES)
def test_to_bsr(size):
    csr = matrix((12 * 5, 12 * 3))
    bsr = gpu_peers.to_bsr(csr, size, np)
    again = scipy.sparse.bsr_array((bsr.val, bsr.col, bsr.row_ptr), shape=csr.shape)
    np.testing.assert_array_equal(again.toarray(), csr.toarray())
    assert again.has_canonical_format
    with pytest.raises(gpu_peers.LeftOut, match=f"61 x 36 is no multiple of {size}"):
        gpu_peers.to_bsr(matrix((61, 36)), size, np)


def off_by_one(csr, x, y):
    def run():
        product = csr @ x
        product[-1] *= 1 + 1e-3
        return product

    return run


def absent(csr, x, y):
    raise gpu_peers.LeftOut("nobody has it")


def refuses_later(csr, x, y):
    def run():
        raise RuntimeError("not for this one")

    return run


REGISTRY = {
    "scipy": lambda csr, x, y: lambda: csr @ x,
    "wrong": off_by_one,
    "silent": lambda csr, x, y: lambda: y,
    "absent": absent,
    "late": refuses_later,
}


def measured(cases, dtypes=("float32", "float64")):
    kinds = [np.dtype(name) for name in dtypes]
    return gpu_run.measure_all(cases.items(), devices.CPU, kinds, repeats=2, seed=1, registry=REGISTRY)


def test_measures_who_is_right(quick):
    report = measured({"fem3": lambda: generate.tetrahedra(6, 3), "other": lambda: matrix((300, 200))})
    assert [(case["matrix"], case["dtype"]) for case in report["results"]] == [
        (name, dtype) for name in ("fem3", "other") for dtype in ("float32", "float64")
    ]
    assert [case["generated"] for case in report["results"]] == [True, True, False, False]
    for case in report["results"]:
        runs = {run["name"]: run for run in case["runs"]}
        assert set(runs) == {"cvr", "bbcsr", "scipy", "wrong", "silent"}
        for name, run in runs.items():
            assert run["correct"] == (name not in ("wrong", "silent")), name
            assert ("seconds" in run) == run["correct"]
        assert case["left_out"] == {"absent": "nobody has it", "late": "RuntimeError: not for this one"}
        assert gpu_page.best_peer(case)["name"] == "scipy"
        assert gpu_page.speedup(case) == runs["scipy"]["seconds"] / gpu_page.chosen(case)["seconds"]
        assert case["floor_seconds"] == pytest.approx(
            (case["nnz"] * (4 + int(case["dtype"][5:]) // 8) + 4 * (case["shape"][0] + 1)
             + int(case["dtype"][5:]) // 8 * sum(case["shape"])) / 2e10
        )  # fmt: skip
        assert not case["cold"]
    assert gpu_run.exit_code(report) == 0
    json.dumps(report, allow_nan=False)


def test_run_on_the_gpu(gpu, tmp_path, capsys):
    """All of it, small: who is there is right."""
    assert gpu_run.main(["--scale", "small", "--repeats", "3", "--report", str(tmp_path), "--device", gpu]) == 0
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {case["matrix"] for case in report["results"]} >= set(gpu_run.MATRICES)
    for case in report["results"]:
        assert case["cold"] or not case["generated"]
        assert all(run["correct"] for run in case["runs"]), case["matrix"]
    assert "geometric mean" in capsys.readouterr().out


@pytest.mark.parametrize("transposed", [False, True])
def test_measures_products_with_columns(monkeypatch, transposed):
    for registry in ("PEERS", "MATRIX_PEERS"):
        monkeypatch.setattr(gpu_peers, registry, REGISTRY)
    cases = gpu_columns.measure_case(matrix((120, 80)), devices.CPU, [1, 3], None, 2, 0, transposed)
    assert [case["columns"] for case in cases] == [1, 3]
    for case in cases:
        assert list(case["peers"]) == ["scipy"]
        assert set(case["left_out"]) == {"wrong", "silent", "absent", "late"}
        assert case["left_out"]["wrong"].startswith("is wrong: ")
        assert case["ours"]["error_over_bound"] <= 1
        assert case["shape"] == [120, 80]
        assert columns_page.speedup(case) == case["peers"]["scipy"] / case["ours"]["seconds"]
        assert case["host_seconds"].keys() >= {"ours", "scipy"}
        assert case["ours"]["same_bits"]
    assert cases[0]["fortran_seconds"] is cases[0]["no_hint_seconds"] is None  # a vector has no order, and 1 is the default
    assert cases[1]["fortran_seconds"] > 0 and cases[1]["no_hint_seconds"] > 0
    json.dumps(cases, allow_nan=False)


def test_columns_on_the_gpu(gpu, tmp_path):
    argv = ["--scale", "small", "--only", "stencil27,shell6", "--columns", "1,4", "--repeats", "3", "--device", gpu]
    assert gpu_columns.main([*argv, "--report", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu-columns.json").read_text())
    assert len(report["results"]) == 8
    assert all(case["ours"]["error_over_bound"] <= 1 for case in report["results"])
    argv = ["--families", "1000", "--only", "road.1000", "--columns", "8", "--peers", "csr alg3", "--device", gpu]
    assert gpu_columns.main([*argv, "--repeats", "3", "--report", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu-columns-unseen.json").read_text())
    assert [case["matrix"] for case in report["results"]] == ["road.1000"] * 2


def test_medians_of_reports():
    """None, which stands for never, is above all numbers; a product that is wrong in one round is wrong."""
    found = [{"a": 3, "b": None, "c": True, "d": [1.0, 5.0], "e": "x", "f": None} for _ in range(3)]
    found[1] = {"a": 9, "b": 7.0, "c": False, "d": [2.0, 9.0], "e": "x", "f": 1}
    found[2]["b"] = 5.0
    assert products.medians(found) == {"a": 3, "b": 7.0, "c": False, "d": [1.0, 5.0], "e": "x", "f": None}


@pytest.mark.parametrize("path", [path.name for path in RECORDED.glob("gpu*.json")])
def test_pages_of_what_was_recorded(path, tmp_path):
    """Every matrix has its rows; plots need Matplotlib alone for ``gpu``."""
    report = json.loads((RECORDED / path).read_text())
    if path.startswith("gpu-columns"):
        columns_page.write(report, tmp_path)
    else:
        pytest.importorskip("matplotlib")
        assert gpu_page.write(report, tmp_path) == []
    page = (tmp_path / path).with_suffix(".md").read_text()
    assert all(f"| {case['matrix']} " in page for case in report["results"])
    assert sorted(found.name for found in tmp_path.glob("*.svg")) == sorted(
        found.name for found in RECORDED.glob(f"{Path(path).stem}.*.svg")
    )


def test_products(quick, monkeypatch, tmp_path, device):
    """Figures fit together, with each number of threads and in rounds; the page names every matrix, and no folder."""
    csr = matrix((60, 50), 0.08)
    scipy.sparse.save_npz(tmp_path / "small.npz", csr)
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", "3")
    out, options = tmp_path / "out.json", []
    if device == "cpu":
        options = ["--threads", "1,2", "--report", str(tmp_path / "report")]
    argv = [str(tmp_path / "small.npz"), "--device", device, "--repeats", "2", "--rounds", "2", "--json", str(out), *options]
    assert products.main(argv) == 0
    assert os.environ["CVRARRAY_NUM_THREADS"] == "3"
    report = json.loads(out.read_text())
    threads = [1, 2] if device == "cpu" else [None]
    expected = [(dtype, count) for dtype in ("float32", "float64") for count in threads]
    assert [(case["dtype"], case["threads"]) for case in report["results"]] == expected
    for case in report["results"]:
        seconds = {run["name"]: run["seconds"] for run in case["runs"]}
        peers = seconds.keys() - {"cvr", "bbcsr"}
        assert case["peer"] == min(peers, key=seconds.__getitem__)
    if device == "cpu":
        page, figures = ((tmp_path / "report" / name).read_text() for name in ("cpu.md", "cpu.json"))
        assert page.count("| small | ") == 4
        assert str(tmp_path) not in page + figures


def test_solve(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    csr = scipy.sparse.eye_array(80, format="csr") * 3 + scipy.sparse.eye_array(80, k=1) + scipy.sparse.eye_array(80, k=-1)
    path = tmp_path / "small.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(csr))
    monkeypatch.setattr(solve, "ITERATIONS", {"cpu": (1, 2, 2)})
    report = tmp_path / "report"
    assert solve.main([str(path), "--device", "cpu", "--turns", "2", "--report", str(report)]) == 0
    out = capsys.readouterr().out
    assert out.count("small") == 2  # two dtypes
    page = (report / "solve-cpu.md").read_text()
    assert "| small | float64 | 80 | 238 |" in page
    assert f"scipy {scipy.__version__}" in page
    figures = json.loads((report / "solve-cpu.json").read_text())
    assert set(figures["results"][0]["microseconds"]) >= {"ours", "ours, 16 columns", "scipy", "scipy, our array", "product"}
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


def test_few_values(tmp_path, capsys, monkeypatch):
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


def test_gradients(tmp_path, capsys, device):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from asv_bench.record import gradients

    limits = [
        "--scale",
        "small",
        "--matrices",
        "elast3",
        "--columns",
        "4",
        "--dtype",
        "float32",
        "--side",
        "6",
        "--repeats",
        "1",
    ]
    assert gradients.main([*limits, "--device", device, "--report", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown in (tmp_path / f"gradients-{'cpu' if device == 'cpu' else 'gpu'}.md").read_text()
    assert all(float(off) < 1e-9 for off in re.findall(r"off by (\S+)", shown))
    assert gradients.main(["--repeats", "0"]) == 2


def test_heisenberg():
    """Four spins on a ring, two of them up: S_i . S_{i+1} over the ring, each bond of the torus of height 1 aside."""
    H = few_values.heisenberg(2, 2, np).toarray()
    assert H.shape == (6, 6)
    assert np.array_equal(H, H.T)
    # a bond of each site to the right and up, so each pair of neighbours twice: 2 (S_1 + S_4).(S_2 + S_3), lowest -2 * 2
    assert np.allclose(np.linalg.eigvalsh(H), np.sort([-4, -2, 0, 0, 0, 2]))


def test_other_bits_are_told_by_the_exit_code(monkeypatch):
    matmul = few_values.cvrarray.BBCSRArray.__matmul__
    calls = itertools.count()  # as many as a fast machine makes
    monkeypatch.setattr(
        few_values.cvrarray.BBCSRArray, "__matmul__", lambda self, x: matmul(self, x) + np.float64(next(calls) == 0)
    )
    assert few_values.main(["elast3", "--scale", "small", "--device", "cpu", "--repeats", "1", "--dtype", "float64"]) == 1


def test_what_a_foreign_profile_costs():
    """Means and shares of the products of a profile; one that was not run has no product."""
    case = {"profile": "memory / 4", "way": "tune"}
    report = {
        "device": {"name": "a GPU"},
        "families": "1000",
        "results": [case | {"over_fastest": x} for x in (1.0, 1.02, 2.0)],
    }
    page = foreign.page(report)
    assert "| memory / 4 | 3 | 1.268 | 67% | 2.00 |" in page
    assert "| its own | 0 | 1.000 | 0% | 1.00 |" in page


def test_what_a_candidate_buys():
    """By the fastest other one, where it is the fastest; products without a choice count as 1."""
    case = {"matrix": "band.1000", "format": "BBCSR", "dtype": "float32", "columns": 16}
    times = [{"walk": 1.0, "turns": 2.0}, {"walk": 3.0, "turns": 2.0, "rows 4x2": 1.0}, {}]
    report = {"device": {"name": "a GPU"}, "families": "1000", "results": [case | {"milliseconds": one} for one in times]}
    page = ablate.page(report)
    assert "| walk | 2 | 2 | 1 | 1.260 | 2.00 | band.1000, float32, 16 |" in page
    assert "| turns | 2 | 0 | 0 | 1.000 | 1.00 |  |" in page
    assert "3 products; 2 have several candidates. There the first one takes 1.732 of the fastest one's time" in page
