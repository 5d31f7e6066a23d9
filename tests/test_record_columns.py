"""The run of ``make bench-columns``: who is timed, and what its page and plots say. Peers are played on the CPU."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import scipy.sparse

from asv_bench.record import columns_bound, columns_page, gpu, gpu_columns
from cvrarray.cli import gpu_peers
from cvrarray.core import devices


def matrix():
    return scipy.sparse.random_array((120, 80), density=0.1, format="csr", rng=np.random.default_rng(0)) + 0


def wrong(csr, x, y):
    return lambda: (csr @ x) * 1.001


def silent(csr, x, y):
    return lambda: y


def absent(csr, x, y):
    raise gpu_peers.LeftOut("nobody has it")


PEERS = {"scipy": lambda csr, x, y: lambda: csr @ x, "wrong": wrong, "silent": silent, "absent": absent}


@pytest.fixture
def peers(monkeypatch):
    for registry in ("PEERS", "MATRIX_PEERS"):
        monkeypatch.setattr(gpu_peers, registry, PEERS)


@pytest.mark.parametrize("transposed", [False, True])
def test_measures_who_is_right(peers, transposed):
    cases = gpu_columns.measure_case(matrix(), devices.CPU, [1, 3], None, 2, 0, transposed)
    assert [case["columns"] for case in cases] == [1, 3]
    for case in cases:
        assert list(case["peers"]) == ["scipy"]
        assert set(case["left_out"]) == {"wrong", "silent", "absent"}
        assert case["left_out"]["wrong"].startswith("is wrong: ")
        assert case["ours"]["error_over_bound"] <= 1
        assert case["shape"] == [120, 80]
        assert columns_page.speedup(case) == case["peers"]["scipy"] / case["ours"]["seconds"]
        assert case["host_seconds"].keys() >= {"ours", "scipy"}
        assert case["ours"]["same_bits"]
    assert cases[0]["fortran_seconds"] is cases[0]["no_hint_seconds"] is None  # a vector has no order, and 1 is the default
    assert cases[1]["fortran_seconds"] > 0 and cases[1]["no_hint_seconds"] > 0
    json.dumps(cases, allow_nan=False)


def test_peers_by_name(peers):
    (case,) = gpu_columns.measure_case(matrix(), devices.CPU, [2], ["absent"], 2, 0)
    assert (case["peers"], case["left_out"]) == ({}, {"absent": "nobody has it"})
    assert columns_page.speedup(case) is None


def test_matrices_of_the_record_exist():
    """The generated ones; those of files are measured where there are files."""
    generated = [name for name in gpu_columns.MATRICES if name.partition(" (")[0] in gpu.MATRICES]
    assert set(generated) <= set(gpu.all_cases("small", 0, devices.CPU))
    assert len(gpu_columns.MATRICES) - len(generated) == 10


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["--device", "cpu"], "needs a GPU, with CuPy; got --device cpu"), (["--repeats", "0"], "--repeats must be at least 1")],
)
def test_usage(capsys, argv, message):
    assert gpu_columns.main(argv) == 2
    assert message in capsys.readouterr().err


# --- page and plots, from figures that nobody measured ---


def made_up(matrix, k, peer, *, dtype="float32", values="plain", ours=1e-4, fortran=None, left_out=None):
    return {
        "matrix": matrix,
        "shape": [10, 10],
        "nnz": 123456,
        "dtype": dtype,
        "columns": k,
        "ours": {"format": "bbcsr", "block_size": 3, "values": values, "seconds": ours, "same_bits": matrix != "few"},
        "fortran_seconds": fortran,
        "no_hint_seconds": 1.25 * fortran if fortran else None,
        "peers": {"csr alg3": peer, "torch": 2 * peer} if peer else {},
        "host_seconds": {"ours": 1e-5, "csr alg3": 2e-5},
        "left_out": left_out or {},
    }


@pytest.fixture
def report():
    return {
        "date": "2001-02-03T04:05:06+00:00",
        "device": {
            "name": "Made-up GPU",
            "multiprocessors": 10,
            "l2_bytes": 4_000_000,
            "cuda": 12060,
            "driver": 13000,
            "cupy": "14",
        },
        "versions": {"cvrarray": "0", "cusparse": "12.6.3", "torch": "2.0", "system": "none"},
        "repeats": 3,
        "scale": "medium",
        "transposed": False,
        "not_measured": ["late"],
        "results": [
            made_up("one", 1, 1.5e-4),
            made_up("one", 4, 4e-4, fortran=1.2e-4),
            made_up("two", 4, 1e-4, left_out={"bsr 3": "LeftOut: 10 x 10 is no multiple of 3"}),
            made_up("two", 32, 2e-4, left_out={"bsr 3": "takes 7 times what ours takes"}),
            made_up("one", 64, 9e-5),
            made_up("few", 64, 8e-4, values="few"),
            made_up("alone", 64, None, dtype="float64"),
        ],
    }


def cells(page):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


def test_means_over_ranges_of_columns(report):
    rows = columns_page.summary(report)
    assert [(row["dtype"], row["values"], row["columns"], row["cases"]) for row in rows] == [
        ("float32", "plain", "1", 1),
        ("float32", "plain", "2 to 32", 3),
        ("float32", "plain", "64 to 256", 1),
        ("float32", "few", "64 to 256", 1),
    ]
    middle, wide = rows[1], rows[2]
    assert middle["geometric_mean"] == pytest.approx(2.0)  # of 4, 1 and 2
    assert (middle["least"], middle["worst"], middle["below_1"]) == (pytest.approx(1.0), "two, k = 4", [])
    assert wide["below_1"] == ["one, k = 64"]


def test_page(report, tmp_path):
    columns_page.write(report, tmp_path)
    assert json.loads((tmp_path / "gpu-columns.json").read_text()) == report
    page = (tmp_path / "gpu-columns.md").read_text()
    assert "Peers: cuSPARSE 12.6.3, CuPy 14, PyTorch 2.0." in page
    assert "CUDA 12.6 with a driver for 13.0" in page
    assert "No time was left for late." in page
    lines = cells(page)
    assert ["float32", "plain", "2 to 32", "3", "2.00x", "1.00x (two, k = 4)", "0"] in lines
    assert ["one", "float32", "64", "100 bbcsr 3", "90.0 csr alg3", "0.90x"] in lines  # slower
    assert ["one", "123,456", "1.50x", "4.00x", "-", "0.90x"] in lines
    assert [
        "one",
        "100 bbcsr 3",
        "150 csr alg3",
        "100 bbcsr 3",
        "400 csr alg3",
        "-",
        "-",
        "100 bbcsr 3",
        "90.0 csr alg3",
    ] in lines
    assert ["4", "10.0 (10.0)", "20.0 (20.0)", "-", "-", "1.20 (1.20)", "3.33x (3.33)", "1.50 (1.50)"] in lines
    assert "had the bits of the first one in 6 of 7 cases" in page
    assert "* bsr 3: the block size does not divide the shape (1), too slow (1)" in page
    for dtype in ("float32", "float64"):
        assert f"](gpu-columns.{dtype}.svg)" in page
        ElementTree.parse(tmp_path / f"gpu-columns.{dtype}.svg")  # is XML, also without a single peer


def test_plot_has_a_dot_a_matrix(report):
    drawn = str(columns_page.plot(report, "float32"))
    assert drawn.count("<circle") == 5  # few values are apart
    assert "two, 32 columns: 2.00x" in drawn
    assert drawn.count(f'fill="{columns_page.SLOWER}"') == 1


def test_transposed_page_is_another(report, tmp_path):
    columns_page.write(report | {"transposed": True}, tmp_path)
    page = (tmp_path / "gpu-columns-transposed.md").read_text()
    assert "`make bench-columns BENCH_ARGS=--transposed`" in page and "explicit `S.T`" in page
    assert "](gpu-columns-transposed.float32.svg)" in page


def test_unseen_page_is_another(report, tmp_path):
    for seeds, fitted in (("1000", False), ("3,1000", True)):
        columns_page.write(report | {"families": seeds}, tmp_path)
        page = (tmp_path / "gpu-columns-unseen.md").read_text()
        assert page.startswith("# Products with a matrix that nothing was fitted to on a GPU")
        assert f"`make bench-columns BENCH_ARGS='--families {seeds}'`" in page
        assert f"drawn with the seed {seeds}: one of each family" in page
        assert ("they may have been fitted to these too" in page) == fitted
        assert "](gpu-columns-unseen.float32.svg)" in page


# --- on a GPU ---


def test_run_on_the_gpu(gpu, tmp_path):
    argv = ["--scale", "small", "--only", "stencil27,shell6", "--columns", "1,4", "--repeats", "3", "--device", gpu]
    assert gpu_columns.main([*argv, "--report", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu-columns.json").read_text())
    assert len(report["results"]) == 8
    assert all(case["ours"]["error_over_bound"] <= 1 for case in report["results"])
    argv = ["--families", "1000", "--only", "road.1000", "--columns", "8", "--peers", "csr alg3", "--device", gpu]
    assert gpu_columns.main([*argv, "--repeats", "3", "--report", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu-columns-unseen.json").read_text())
    assert [case["matrix"] for case in report["results"]] == ["road.1000"] * 2


def test_what_bounds_products_with_columns(tmp_path, monkeypatch, capsys):
    """Rows of X that neighbouring rows of A share are asked of L2 once, where L1 has room for them; memory gives all once."""
    monkeypatch.setattr(columns_bound, "LAUNCH", 0.0)
    csr = scipy.sparse.csr_array(np.kron(np.eye(500), np.ones((64, 2))))  # 64 rows share 2 rows of X
    groups = columns_bound.needed(csr)
    assert [group.rows for group in groups[:3]] == [1, 2, 4]
    assert groups[0].of_all == 2 * 32_000 and groups[6].of_all == 1000
    fine = columns_bound.seconds(csr, groups, 16, 8)
    assert fine == pytest.approx(max(64_000 * 10 + 33_000 * 128, 64_000 * 10 + 1000 * 128 + 32_000 * 128) / columns_bound.L2)
    far = columns_bound.seconds(csr, groups[:1], 16, 8)  # as if no rows shared any
    assert far == pytest.approx((64_000 * 10 + 64_000 * 128 + 32_000 * 128) / columns_bound.L2)
    case = {
        "matrix": "ours (few values)",
        "dtype": "float64",
        "columns": 16,
        "ours": {"seconds": 2 * fine},
        "peers": {"torch": 4 * fine},
    }
    (found,) = columns_bound.bounds({"results": [case, case | {"columns": 1}]}, {"ours": csr}.get)
    assert found == {"matrix": "ours (few values)", "dtype": "float64", "columns": 16, "now": 2.0, "most": 4.0}
    assert columns_bound.table([found]).splitlines()[-1] == "| float64 | 2 to 32 | 1 | 2.00x | 4.00x | 2.00 |"
    path = tmp_path / "columns.json"
    path.write_text(json.dumps({"scale": "small", "results": [case | {"matrix": "rmat"}]}))
    assert columns_bound.main([str(path)]) == 0
    assert "| float64 | 2 to 32 | 1 | 2.00x |" in capsys.readouterr().out
