"""The command line: exit codes, what it prints and writes, that it notices a wrong product, and who it says has won."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import tqdm

import cvrarray
from cvrarray import cli, generate
from cvrarray.choice import model
from cvrarray.cli import bench, info, peers, sources, table, warmup
from cvrarray.core import devices, progress
from cvrarray.cpu.runtime import threads

ROOT = Path(__file__).parent.parent
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run(capsys):
    """Runs the command line: (exit code, stdout, stderr). Nothing but an error is ever written to stderr here."""

    def call(*argv):
        code = cli.main([*map(str, argv)])
        out, err = capsys.readouterr()
        if code:
            assert re.fullmatch(r"(cvrarray: error: .+\n)+", err), err
        else:
            assert err == ""
        return code, out, err

    return call


@pytest.fixture
def matrix():
    """Rows of 0 to 9 nonzeros, some of them explicit zeros."""
    matrix = scipy.sparse.random_array((60, 50), density=0.08, format="csr", rng=np.random.default_rng(3))
    matrix.data[::7] = 0
    return matrix


@pytest.fixture
def mtx(matrix, tmp_path):
    path = tmp_path / "matrix.mtx"
    scipy.io.mmwrite(path, matrix, symmetry="general")
    return path


def assert_same(found, expected):
    assert found.shape == expected.shape
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))


# ---------------------------------------------------------------------------------------------------------- main


def test_version_and_help(run):
    assert run("--version")[:2] == (0, f"cvrarray {cvrarray.__version__}\n")
    for command in cli.COMMANDS:
        assert command in run("--help")[1]
        assert run(command, "--help")[0] == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "COMMAND"),
        (("inform",), "'inform'"),
        (("info",), "FILE"),
        (("bench",), "MATRIX"),
        (("bench", "--repeats", "many", "rmat"), "'many'"),
        (("bench", "--repeats", "0", "rmat", "--scale", "small"), "--repeats must be at least 1; got 0"),
        (("bench", "rmat", "--scale", "tiny"), "'tiny'"),
        (("bench", "rmat", "--scale", "small", "--dtype", "int8"), "'int8'"),
        (("bench", "rmat", "--device", "tpu"), "'tpu'"),
        (("bench", "neither", "--device", "cpu"), "neither is no file and no generated matrix"),
    ],
)
def test_bad_usage(run, argv, message):
    code, out, err = run(*argv)
    assert code == 2
    assert message in err
    assert out == ""


@pytest.mark.parametrize("command", [("info",), ("bench", "--device", "cpu"), ("convert",)])
@pytest.mark.parametrize("kind", ["missing", "broken", "cut", "folder"])
def test_bad_file(run, mtx, tmp_path, command, kind):
    path = tmp_path / f"{kind}.mtx"
    if kind == "broken":
        path.write_text("This is no matrix.\n")
    elif kind == "cut":
        path.write_text(mtx.read_text()[:-40])
    elif kind == "folder":
        path.mkdir()
    code, out, err = run(*command, path, *([tmp_path / "out.cvra"] if command == ("convert",) else []))
    assert code == 2
    assert path.name in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "out.cvra").exists()


@pytest.mark.parametrize("command", [("info",), ("bench", "--device", "cpu"), ("convert",)])
def test_a_store_is_for_python(run, tmp_path, command):
    path = tmp_path / "m.store"
    cvrarray.to_store(np.eye(40), path, device="cpu")
    code, _, err = run(*command, path, *([tmp_path / "out.cvra"] if command == ("convert",) else []))
    assert code == 2
    assert "m.store is a store" in err and "cvrarray.open_store" in err and "cvrarray.to_store" in err


def test_debug_raises(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.mtx is no file and no generated matrix"):
        cli.main(["info", str(tmp_path / "missing.mtx"), "--debug"])


def test_bug_is_told_from_bad_input(run, monkeypatch, mtx):
    def broken(csr):
        raise KeyError("lanes")

    monkeypatch.setattr(info, "describe", broken)
    code, _, err = run("info", mtx)
    assert code == 1
    assert "KeyError: 'lanes'" in err
    assert "--debug" in err


def test_interrupt(run, monkeypatch, mtx):
    def interrupted(csr):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "describe", interrupted)
    assert run("info", mtx)[0] == 130


def test_module_runs_and_survives_a_reader_that_leaves(mtx):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "cvrarray", "info", mtx], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


# ---------------------------------------------------------------------------------------------------------- info


def test_info_json(run, mtx, matrix):
    code, out, _ = run("info", mtx, "--json")
    facts = json.loads(out)
    lengths = np.diff(matrix.indptr)
    assert code == 0
    assert facts["file"] == str(mtx)
    assert facts["shape"] == [60, 50]
    assert facts["nnz"] == matrix.nnz
    assert facts["dtype"] == "float64"
    assert facts["row_lengths"] == {
        "min": lengths.min(),
        "median": np.median(lengths),
        "mean": pytest.approx(lengths.mean()),
        "max": lengths.max(),
        "std": pytest.approx(lengths.std()),
        "empty": (lengths == 0).sum(),
    }
    assert facts["memory_bytes"]["csr"] == matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    assert facts["memory_bytes"]["cvr"] == cvrarray.CVRArray(matrix).nbytes
    assert facts["memory_bytes"]["bbcsr2"] == cvrarray.BBCSRArray(matrix, block_size=2).nbytes


def test_info_predicts_times(run, mtx):
    """The model gives the format chosen the least time of those whose tables are not hopeless, and the text shows it."""
    facts = json.loads(run("info", mtx, "--json")[1])
    seconds = facts["product_seconds_modelled"]
    device = seconds.pop("device")
    assert device in ("cpu", "cuda")
    assert seconds.keys() == facts["memory_bytes"].keys() - {"csr"}
    chosen = seconds[facts["format"] + str(facts["block_size"] or "")]
    n_bytes = facts["memory_bytes_modelled"]
    most = model.HOPELESS * min(n_bytes[name] for name in seconds)
    assert chosen == min(seconds[name] for name in seconds if n_bytes[name] <= most)
    assert "predicted" in run("info", mtx)[1]
    assert table.significant(chosen * 1e6) in run("info", mtx)[1]


@pytest.mark.parametrize("block_size", [2, 3, 4, 6])
def test_info_counts_block_fill(run, tmp_path, block_size):
    n = 12 // block_size
    dense = np.kron(np.eye(n) + np.eye(n, k=1), np.ones((block_size, block_size)))
    dense[0, 0] = 0
    path = tmp_path / "blocks.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(dense))
    facts = json.loads(run("info", path, "--json")[1])
    stored = (2 * n - 1) * block_size**2
    assert facts["block_fill"].keys() == {"2", "3", "4", "6"}
    assert facts["block_fill"][str(block_size)] == pytest.approx(stored / (stored - 1))


def test_info_names_the_format_that_asarray_takes(run, tmp_path):
    makes = {"blocks": lambda: generate.elast3(4), "graph": lambda: generate.rmat(9, 8), "grid": lambda: generate.poisson7(20)}
    for name, make in makes.items():
        path = tmp_path / f"{name}.npz"
        scipy.sparse.save_npz(path, make())
        array = cvrarray.asarray(make())
        facts = json.loads(run("info", path, "--json")[1])
        assert facts["format"] == array.format
        assert facts["block_size"] == getattr(array, "block_size", None)
        shown = run("info", path)[1]
        assert facts["reason"] in shown
        assert ("by a sample of the rows" in shown) == facts["sampled"]


def test_info_takes_the_name_of_a_generated_matrix(run):
    facts = json.loads(run("info", "poisson7", "--json")[1])
    assert facts["file"] == "poisson7"
    assert facts["shape"] == [64_000, 64_000]


def test_info_does_not_build_what_is_far_too_large(run, tmp_path):
    path = tmp_path / "arrow.npz"
    arrow = scipy.sparse.lil_array((3000, 3000))
    arrow[0, :] = 1
    arrow.setdiag(1)
    scipy.sparse.save_npz(path, arrow.tocsr())
    facts = json.loads(run("info", path, "--json")[1])
    assert facts["memory_bytes"]["bbcsr6"] is None
    assert facts["memory_bytes_modelled"]["bbcsr6"] > bench.MOST_BYTES * facts["memory_bytes"]["csr"]
    assert "estimated" in run("info", path)[1]


@pytest.mark.parametrize("shape", [(5, 7), (0, 7), (7, 0), (0, 0)])
def test_nothing_stored(run, tmp_path, shape):
    """Statistics of nothing are no numbers: null in JSON, which knows no nan."""
    path = tmp_path / "nothing.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(shape))
    facts = json.loads(run("info", path, "--json")[1], parse_constant=pytest.fail)
    assert facts["shape"] == list(shape)
    assert facts["row_lengths"]["empty"] == shape[0]
    assert "no nonzeros" in run("info", path)[1]
    code, out, _ = run("bench", path, "--device", "cpu", "--repeats", 1, "--dtype", "float64", "--json", "-")
    assert code == 0
    json.loads(out, parse_constant=pytest.fail)


@pytest.mark.parametrize("shape", [(60, 50), (3, 4000), (0, 7), (7, 0), (0, 0)])
def test_info_plot(run, tmp_path, shape):
    pytest.importorskip("matplotlib")
    path = tmp_path / "shape.npz"
    scipy.sparse.save_npz(path, scipy.sparse.random_array(shape, density=0.1, format="csr", rng=np.random.default_rng(1)))
    picture = tmp_path / "picture.png"
    assert run("info", path, "--plot", picture)[0] == 0
    assert picture.read_bytes().startswith(PNG)
    assert picture.stat().st_size > 10_000


def test_info_plot_needs_a_format_it_knows(run, mtx, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, err = run("info", mtx, "--plot", tmp_path / "picture.xyz")
    assert code == 2
    assert "xyz" in err


def test_info_plot_without_matplotlib(run, monkeypatch, mtx):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = run("info", mtx, "--plot", "picture.png")
    assert code == 2
    assert "cvrarray[plot]" in err


def test_pixels_count_nonzeros(matrix, monkeypatch):
    np.testing.assert_array_equal(info.pixel_counts(scipy.sparse.csr_array(np.eye(4))), np.eye(4))
    monkeypatch.setattr(info, "PIXELS", 10)
    counts = info.pixel_counts(matrix)
    rows, cols = matrix.tocoo().coords
    expected = np.zeros((10, 10))
    np.add.at(expected, (rows // 6, cols // 5), 1)
    np.testing.assert_array_equal(counts, expected)


# ---------------------------------------------------------------------------------------------------------- convert


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz", ".npz"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128, np.int64])
def test_convert_there_and_back(run, tmp_path, matrix, suffix, dtype):
    matrix = scipy.sparse.csr_array(matrix * 1000).astype(dtype)
    first, ours, last = tmp_path / "first.npz", tmp_path / "ours.cvra", tmp_path / f"last{suffix}"
    scipy.sparse.save_npz(first, matrix)
    assert run("convert", first, ours)[0] == 0
    assert run("convert", ours, last)[0] == 0
    found = scipy.sparse.load_npz(last) if suffix == ".npz" else scipy.sparse.csr_array(scipy.io.mmread(last, spmatrix=False))
    found.sort_indices()
    assert_same(found.astype(dtype), matrix)  # text has no float32: it comes back as the double that rounds to it


@pytest.mark.parametrize(
    ("options", "format", "parameters"),
    [
        ((), None, {}),
        (("--format", "bbcsr", "--block-size", "5"), "bbcsr", {"block_size": 5}),
        (("--block-size", "2"), "bbcsr", {"block_size": 2}),
        (
            ("--format", "cvr", "--n-chunks", "7", "--n-lanes", "4", "--split", "nnz"),
            "cvr",
            {"n_chunks": 7, "n_lanes": 4},
        ),
        (("--n-chunks", "3"), "cvr", {"n_chunks": 3}),
    ],
)
def test_convert_options(run, tmp_path, mtx, matrix, options, format, parameters):
    out = tmp_path / "out.cvra"
    code, text, _ = run("convert", mtx, out, *options)
    array = cvrarray.load(out)
    assert code == 0
    assert type(array).__name__ in text
    assert array.format == format or format is None
    assert {name: getattr(array, name) for name in parameters} == parameters
    assert_same(array.to_scipy(), matrix)


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("out.cvra", ("--block-size", "3", "--n-chunks", "2"), "--n-chunks (cvr), --block-size (bbcsr)"),
        ("out.cvra", ("--format", "cvr", "--block-size", "3"), "--format cvr with --block-size (bbcsr)"),
        ("out.cvra", ("--block-size", "33"), "33"),
        ("out.npz", ("--format", "cvr"), ".cvra"),
        ("out.store", (), "written in Python, by cvrarray.to_store(FILE, OUT)"),
    ],
)
def test_convert_rejects(run, tmp_path, mtx, out, options, message):
    before = sorted(tmp_path.iterdir())
    code, _, err = run("convert", mtx, tmp_path / out, *options)
    assert code == 2
    assert message in err
    assert sorted(tmp_path.iterdir()) == before


def test_convert_leaves_the_old_file_when_writing_fails(run, monkeypatch, tmp_path, mtx):
    out = tmp_path / "out.npz"
    out.write_text("what was there")

    def full(file, csr):
        file.write(b"half of it")
        raise OSError(28, "No space left on device", str(out))

    monkeypatch.setattr(scipy.sparse, "save_npz", full)
    code, _, err = run("convert", mtx, out)
    assert code == 2
    assert "No space left" in err
    assert out.read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["matrix.mtx", "out.npz"]


def test_convert_reads_gzip(run, tmp_path, mtx, matrix):
    packed = tmp_path / "packed.mtx.gz"
    packed.write_bytes(gzip.compress(mtx.read_bytes()))
    assert run("convert", packed, tmp_path / "out.npz")[0] == 0
    assert_same(scipy.sparse.load_npz(tmp_path / "out.npz"), matrix)


@pytest.mark.parametrize(
    ("stored", "options", "expected"),
    [
        ({"format": "cvr", "n_lanes": 4, "n_chunks": 5, "split": "nnz"}, (), {"n_lanes": 4, "n_chunks": 5}),
        ({"format": "cvr", "n_lanes": 4, "n_chunks": 5}, ("--format", "cvr"), {"n_lanes": 4, "n_chunks": 5}),
        ({"format": "cvr", "n_lanes": 4, "n_chunks": 5}, ("--n-chunks", 3), {"n_lanes": 4, "n_chunks": 3}),
        ({"format": "cvr", "n_lanes": 4}, ("--format", "bbcsr"), {"block_size": 6}),
        ({"format": "bbcsr", "block_size": 3}, (), {"block_size": 3}),
        ({"format": "bbcsr", "block_size": 3}, ("--block-size", 2), {"block_size": 2}),
        ({"format": "bbcsr", "block_size": 3}, ("--n-lanes", 8), {"n_lanes": 8}),
        ({"format": "bbcsr", "block_size": 31}, ("--format", "auto"), {"plan": True}),
    ],
)
def test_convert_keeps_what_a_file_of_ours_was_made_with(run, tmp_path, matrix, stored, options, expected):
    first, last = tmp_path / "first.cvra", tmp_path / "last.cvra"
    A = cvrarray.asarray(matrix, device="cpu", **stored)
    cvrarray.save(first, A)
    assert run("convert", first, last, *options)[0] == 0
    found = cvrarray.load(last)
    assert {name: getattr(found, name) if name != "plan" else bool(found.plan) for name in expected} == expected
    assert_same(found.to_scipy(), A.to_scipy())


@pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")
@pytest.mark.parametrize("suffix", [".cvra", ".npz", ".mtx"])
def test_convert_keeps_links_and_modes(run, tmp_path, mtx, suffix):
    target, link = tmp_path / f"target{suffix}", tmp_path / f"link{suffix}"
    target.write_text("what was there")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run("convert", mtx, link)[0] == 0
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert target.stat().st_size > 100


@pytest.mark.parametrize("out", ["out.cvra", "out.mtx", "out.npz"])
def test_convert_shows_progress_on_a_terminal(monkeypatch, tmp_path, out):
    """What it reads and writes, and how much of it."""
    bars = []

    class Bar(tqdm.tqdm):
        def close(self):
            bars.append((self.desc.rstrip(": "), self.n, self.total))
            super().close()

    monkeypatch.setattr(progress, "_wanted", lambda: True)
    monkeypatch.setattr(tqdm, "tqdm", Bar)
    path = tmp_path / "large.npz"
    scipy.sparse.save_npz(path, generate.poisson7(30))
    assert cli.main(["convert", str(path), str(tmp_path / out)]) == 0
    size = path.stat().st_size
    assert bars[0] == ("reading large.npz", size, size)
    assert bars[-1][0] == f"writing {out}"
    assert bars[-1][1] >= 0.9 * (tmp_path / out).stat().st_size


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("convert", "MATRIX", "nowhere/out.cvra"), "nowhere"),
        (("convert", "MATRIX", "nowhere/out.mtx"), "nowhere"),
        (("convert", "MATRIX", "out.txt"), "out.txt"),
        (("convert", "MATRIX", "folder.npz"), "folder.npz"),
        (("convert", "MATRIX", "out.cvra", "--device", "tpu"), "tpu"),
        (("bench", "MATRIX", "--json", "nowhere/out.json"), "nowhere"),
        (("bench", "MATRIX", "--json", "folder.npz"), "folder.npz"),
        (("bench", "MATRIX", "--dtype", "float64,int8"), "int8"),
        (("info", "MATRIX", "--plot", "nowhere/out.png"), "nowhere"),
        (("info", "MATRIX", "--plot", "out.xyz"), "xyz"),
        (("info", "MATRIX", "--plot", "png"), "png"),
    ],
)
def test_what_cannot_end_well_is_refused_before_the_work(run, monkeypatch, tmp_path, mtx, argv, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npz").mkdir()
    for name in ("read", "read_as_stored", "load"):
        monkeypatch.setattr(sources, name, lambda *arguments, **keywords: pytest.fail("the matrix was read"))
    code, out, err = run(*(str(mtx) if word == "MATRIX" else word for word in argv))
    assert code == 2
    assert message in err
    assert out == ""


# ---------------------------------------------------------------------------------------------------------- bench


def without_mkl(monkeypatch):
    monkeypatch.setattr(peers, "mkl", lambda: None)


def test_bench_measures(run, monkeypatch, tmp_path, mtx, device):
    """The report is complete, and its figures fit together."""
    without_mkl(monkeypatch)
    out = tmp_path / "out.json"
    argv = ("bench", mtx, "--device", device, "--repeats", 3, "--dtype", "float32,float64", "--json", out)
    code, text, _ = run(*argv)
    report = json.loads(out.read_text())
    assert code == 0
    assert report["device"]["device"] == device
    assert report["versions"]["cvrarray"] == cvrarray.__version__
    assert [case["dtype"] for case in report["results"]] == ["float32", "float64"]
    for case in report["results"]:
        assert case["threads"] == (threads.count() if device == "cpu" else None)
        runs = {entry["name"]: entry for entry in case["runs"]}
        assert runs.keys() - {"cvr", "bbcsr", "torch"} == ({"scipy", "sparse"} if device == "cpu" else {"cupyx"})
        assert runs[case["peer"]]["speedup"] == 1
        assert sum(entry.get("plan") is not None for entry in case["runs"]) == 1
        for entry in case["runs"]:
            assert entry["correct"]
            assert entry["quartiles"][0] <= entry["seconds"] <= entry["quartiles"][1]
            assert entry["speedup"] == pytest.approx(runs[case["peer"]]["seconds"] / entry["seconds"])
            if "conversion_seconds" in entry:
                gain = runs[case["peer"]]["seconds"] - entry["seconds"]
                paid = math.ceil(entry["conversion_seconds"] / gain) if gain > 0 else None
                assert entry["break_even_products"] == paid
        assert f"matrix.mtx, {case['dtype']}:" in text  # who won
        chosen = next(entry for entry in runs.values() if entry.get("plan"))
        assert chosen["plan"] in text
    for word in ("matrix.mtx", "float32", "cvr", case["peer"], "spread", "* chosen by asarray"):
        assert word in text


@pytest.mark.parametrize("format", ["cvr", "bbcsr"])
def test_bench_notices_a_wrong_product(run, monkeypatch, tmp_path, mtx, device, format):
    """One row off by a thousandth is enough."""
    right = cvrarray.CVRArray.__matmul__

    def wrong(self, x):
        y = right(self, x)
        if self.format == format:
            y[30] *= 1.001
        return y

    for cls in (cvrarray.CVRArray, cvrarray.BBCSRArray):
        monkeypatch.setattr(cls, "__matmul__", wrong)
    out = tmp_path / "out.json"
    code, text, err = run("bench", mtx, "--device", device, "--repeats", 1, "--json", out)
    runs = {entry["name"]: entry for entry in json.loads(out.read_text())["results"][0]["runs"]}
    assert code == 1
    assert f"{format} @ x is wrong for {mtx} in float64" in err
    assert "WRONG" in text
    assert not runs[format]["correct"]
    assert runs[format]["error_over_bound"] > 1
    assert "seconds" not in runs[format]  # what is wrong is not timed
    assert all(entry["correct"] for name, entry in runs.items() if name != format)


def test_bench_with_several_columns(run, tmp_path, mtx):
    """Each number of columns is a case of its own."""
    out = tmp_path / "out.json"
    argv = ("bench", mtx, "--device", "cpu", "--repeats", 1, "--columns", "1,3", "--json", out)
    code, text, _ = run(*argv)
    assert code == 0
    one, three = json.loads(out.read_text())["results"]
    assert ("columns" not in one, three["columns"]) == (True, 3)
    for case in (one, three):
        assert {entry["name"] for entry in case["runs"]} >= {"cvr", "bbcsr", "scipy"}
        assert all(entry["correct"] for entry in case["runs"])
    assert re.search(r"matrix +dtype +columns +nonzeros", text)
    assert "float64, 3 columns: " in text
    assert f"scipy {scipy.__version__}" in text.splitlines()[1]


def test_bench_refuses_columns_that_are_no_numbers(run, mtx):
    for columns in ("4,0", "many"):
        code, _, err = run("bench", mtx, "--device", "cpu", "--columns", columns)
        assert code == 2
        assert f"--columns must be numbers from 1, separated by commas; got '{columns}'" in err


def test_bench_gives_mkl_as_many_threads_as_ours(monkeypatch, matrix):
    asked = []
    library = SimpleNamespace(mkl_set_num_threads=asked.append, dot_product_mkl=lambda matrix, x: matrix @ x)
    monkeypatch.setattr(peers, "mkl", lambda: library)
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", "3")
    x = np.ones(50)
    found = peers.products(matrix, x, devices.CPU)
    assert asked == [3]
    np.testing.assert_array_equal(found["mkl"](), matrix @ x)
    assert peers.left_out(devices.CPU) == {}


def test_bench_says_that_mkl_is_missing(run, monkeypatch, mtx):
    without_mkl(monkeypatch)
    code, text, _ = run("bench", mtx, "--device", "cpu", "--repeats", 1)
    assert code == 0
    assert "mkl left out: sparse_dot_mkl is not installed" in text
    assert "cvrarray[bench]" in text


def test_mkl_is_none_where_it_does_not_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "sparse_dot_mkl", None)
    monkeypatch.setenv("KMP_BLOCKTIME", "1")
    monkeypatch.setenv("MKL_RT", "nowhere")
    assert peers.mkl.__wrapped__() is None


@pytest.mark.parametrize(
    ("text", "stored", "expected"),
    [
        (None, "float32", ["float32"]),
        (None, "complex128", ["complex128"]),
        (None, "int32", ["float64"]),
        (None, "float16", ["float64"]),
        ("complex64,float32", "float64", ["complex64", "float32"]),
    ],
)
def test_dtypes(text, stored, expected):
    """Left out, it is the matrix's own, where products have it."""
    assert sources.dtypes(text, np.dtype(stored)) == [np.dtype(name) for name in expected]
    with pytest.raises(ValueError, match="complex64, complex128"):
        sources.dtypes("float64", np.dtype("complex64"))


def test_bench_takes_matrices_with_inf_and_nan(run, tmp_path, matrix, device):
    """In float32 some of these values are beyond the range, which makes them inf."""
    matrix.data[[1, 8, 15]] = np.inf, np.nan, 1e300
    path = tmp_path / "special.npz"
    scipy.sparse.save_npz(path, matrix)
    assert run("bench", path, "--device", device, "--dtype", "float32,float64", "--repeats", 1)[0] == 0


def run_of(name, seconds, peer, plan=None, spread=0.1, block_size=None):
    ours = {} if plan is None else {"plan": plan or None, "break_even_products": 12}
    about = {} if block_size is None else {"block_size": block_size}
    quartiles = [seconds * (1 - spread / 2), seconds * (1 + spread / 2)]
    return {"name": name, "seconds": seconds, "quartiles": quartiles, "speedup": peer / seconds, "correct": True} | ours | about


def case_of(*runs):
    return {"matrix": "m", "dtype": "float64", "peer": "scipy", "runs": [*runs, run_of("scipy", 3.0, 3.0)]}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([("cvr", 1.0, "why")], "cvr wins, 3.00x as fast as scipy; its conversion pays from product 12 on\n  why"),
        ([("cvr", 6.0, "why")], "scipy wins; cvr runs at 0.50x its speed\n  why"),
        ([("cvr", 3.1, "why")], "a draw between cvr and scipy: their quartiles overlap\n  why"),
        ([("cvr", 2.9, "why")], "a draw between cvr and scipy: their quartiles overlap\n  why"),
        (
            [("cvr", 2.0, "why"), ("bbcsr", 1.0, "")],
            "bbcsr 3 wins, 3.00x as fast as scipy; its conversion pays from product 12 on (asarray chose cvr, 1.50x)\n  why",
        ),
        ([], "scipy wins: no product of ours was right"),
    ],
)
def test_verdict(runs, expected):
    """Who wins; nobody, where the quartiles overlap; from how many products on; and why asarray chose what it chose."""
    made = [run_of(name, s, 3.0, plan, block_size=3 if name == "bbcsr" else None) for name, s, plan in runs]
    assert bench.verdict(case_of(*made)) == f"m, float64: {expected}"


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("columns", [1, 3])
def test_worst_error(matrix, dtype, columns):
    matrix = matrix.astype(dtype)
    x = bench.operand(50, columns, np.dtype(dtype), seed=1)
    y = matrix @ x
    assert bench.worst_error(matrix, x, y) <= 1
    row, empty = np.diff(matrix.indptr).argmax(), np.diff(matrix.indptr).argmin()
    allowed = bench.ALLOWED * np.diff(matrix.indptr)[row] * np.finfo(dtype).eps * (abs(matrix) @ abs(x))[row]
    for place, value, wrong in (
        (row, y[row] + 0.5 * allowed, False), (row, y[row] + 2 * allowed, True), (row, np.nan, True), (row, np.inf, True),
        (empty, 1e-30, True),
    ):  # fmt: skip
        off = y.copy()
        off[place] = value
        assert (bench.worst_error(matrix, x, off) > 1) == wrong, (place, value)


def test_a_peer_that_refuses_is_left_out(monkeypatch, matrix):
    def refuses():
        raise RuntimeError("not for this one")

    products = peers.products
    monkeypatch.setattr(peers, "products", lambda *given: products(*given) | {"picky": refuses})
    case = bench.measure_case("m", matrix, devices.CPU, 1, 0)
    assert "picky" not in {run["name"] for run in case["runs"]}
    assert case["left_out"]["picky"] == "RuntimeError: not for this one"
    monkeypatch.setattr(peers, "products", lambda *given: {"picky": refuses})
    with pytest.raises(ValueError, match="no peer is left: picky: RuntimeError: not for this one"):
        bench.measure_case("m", matrix, devices.CPU, 1, 0)


# ---------------------------------------------------------------------------------------------------------- tables


def test_table():
    numbers = {0: "0", None: "-", math.inf: "-", 0.012345: "0.0123", 9.995: "9.99", 12.34: "12.3", 123456.7: "123,457"}
    assert {number: table.significant(number) for number in numbers} == numbers
    assert table.size(999) == "999 B"
    assert table.size(12_345_678) == "12.3 MB"
    assert table.size(5e15) == "5,000 TB"
    assert table.render(["a", "long"], [["one", "2"], ["x", "13"]]) == "a    long\n---  ----\none     2\nx      13"


# ---------------------------------------------------------------------------------------------------------- packaging


def test_readme_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(example.replace("cvrarray.asarray(S)", 'cvrarray.asarray(S, device="cpu")'), names)
    np.testing.assert_allclose(names["y"], 3 * (names["S"] @ names["x"]))


def test_every_package_is_packaged():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("cvrarray/**/__init__.py")}
    assert set(settings["packages"]) == folders | {"cvrarray.kernels"}
    shipped = {path.suffix for path in (ROOT / "kernels").iterdir() if path.suffix not in (".py", "")}
    assert shipped == {pattern.removeprefix("*") for pattern in settings["package-data"]["cvrarray.kernels"]}
    for file in ("cvrarray/py.typed", "kernels/__init__.py", "LICENSE"):
        assert (ROOT / file).is_file()


# warmup

#: Products of another process, and how many functions Numba compiles for them.
PRODUCTS = """
import numpy as np, scipy.sparse as sp, cvrarray
from numba.core import event

class Compiled(event.Listener):
    count = 0
    def on_start(self, event): self.count += 1
    def on_end(self, event): pass

compiled = Compiled()
event.register("numba:compile", compiled)
rng = np.random.default_rng(0)
for shape in ((3000, 3000), (300, 300_000)):
    S = sp.random_array(shape, density=0.002, format="csr", dtype=np.float32, rng=rng)
    A = cvrarray.CVRArray(S, device="cpu")
    assert np.allclose(A @ np.ones(shape[1], np.float32), S @ np.ones(shape[1]), rtol=1e-4)
T = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
A = cvrarray.asarray(sp.kronsum(T, T).astype(np.float32), device="cpu")
assert len(cvrarray.linalg.multigrid(A, max_coarse=50).levels) > 1
print(compiled.count)
"""


@pytest.mark.slow
def test_warmup_leaves_nothing_to_compile(tmp_path):
    environment = os.environ | {"CVRARRAY_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "cvrarray", "warmup", "--formats", "cvr", "--dtypes", "float32", "--device", "cpu"]
    command.append("--multigrid")
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    for word in ("cvr", "float32, conversion", "float32, vector", "multigrid", str(tmp_path)):
        assert word in text
    assert "bbcsr" not in text and "float64" not in text
    done = subprocess.run([sys.executable, "-c", PRODUCTS], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) == 0


def test_warmup_of_every_product(run, device, monkeypatch):
    monkeypatch.setattr(warmup, "COLUMNS", (4,))
    products = ["vector", "transposed", "matrix"]
    code, text, _ = run("warmup", "--formats", "cvr", "--dtypes", "float32", "--products", *products, "--device", device)
    assert code == 0
    assert re.findall(r"float32, (\w+) +\d+\.\d\n", text) == ["conversion", *products]
    assert device in text


def test_warmup_of_multigrid(run, device):
    code, text, _ = run("warmup", "--formats", "cvr", "--dtypes", "complex64", "float64", "--multigrid", "--device", device)
    assert code == 0
    assert re.findall(r"multigrid +(\w+) +\d+\.\d\n", text) == ["float64"]  # levels are real


def test_warmup_of_few_values(run, device, monkeypatch):
    multiplied = []
    monkeypatch.setattr(warmup, "multiply", lambda array, product, device: multiplied.append(array._stored_as))
    code, text, _ = run(
        "warmup", "--formats", "cvr", "--dtypes", "float64", "--values", "plain", "one", "few", "--device", device
    )
    assert code == 0
    assert re.findall(r"float64(.*), vector", text) == ["", ", one", ", few"]
    assert list(dict.fromkeys(stored.partition(" of")[0] for stored in multiplied)) == [
        "", "one value", "8-bit numbers",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--dtypes", "longdouble"], "--dtypes"), (["--formats", "ellpack"], "ellpack"), (["--device", "tpu"], "tpu")],
)
def test_warmup_refuses(run, arguments, message):
    code, _, err = run("warmup", *arguments)
    assert code == 2
    assert message in err


def test_info_describes_the_device(run, device):
    facts = json.loads(run("info", "--device", "--json")[1])
    assert facts["device"] == ("cpu" if devices.default().kind == "cpu" else str(devices.default()))
    assert len(facts) == (2 if facts["device"] == "cpu" else 6)
