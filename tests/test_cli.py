"""The command line: exit codes, what it prints and writes, and that it notices a wrong product."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import cvrarray
from cvrarray import cli, generate
from cvrarray.cli import bench, demo, info, measure, report, sources, table
from cvrarray.core import devices
from cvrarray.cpu.runtime import threads

ROOT = Path(__file__).parent.parent
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run(capsys):
    """Runs the command line: (exit code, stdout, stderr). Nothing but an error is ever written to stderr here."""

    def call(*argv):
        code = cli.main([str(arg) for arg in argv])
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


@pytest.fixture
def known_rates(monkeypatch):
    """Spares a test the measuring of what memory can do."""
    for meter in (measure.HostMeter, measure.GPUMeter):
        monkeypatch.setattr(meter, "rates", lambda self: {"read": 2e10, "copy": 1e10})


class FakeMKL:
    """What ``bench`` uses of sparse_dot_mkl, by SciPy; notes how many threads were asked for at each product."""

    __version__ = "0.9"

    def __init__(self):
        self.threads, self.seen = threads.count(), []

    def mkl_set_num_threads(self, count):
        self.threads = count

    def dot_product_mkl(self, matrix, x):
        self.seen.append((self.threads, threads.count()))
        return matrix @ x

    def get_version_string(self):
        return "Intel(R) oneAPI Math Kernel Library Version 2026.2-Product Build 1 for Intel(R) 64 architecture applications"


@pytest.fixture
def mkl(monkeypatch):
    library = FakeMKL()
    monkeypatch.setattr(measure, "mkl", lambda: library)
    return library


@pytest.fixture
def no_mkl(monkeypatch):
    monkeypatch.setattr(measure, "mkl", lambda: None)


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
        (("bench", "--repeats", "many", "rmat"), "'many'"),
        (("bench", "--repeats", "0", "rmat", "--scale", "small"), "--repeats must be at least 1; got 0"),
        (("bench", "--rounds", "0", "rmat", "--scale", "small"), "--rounds must be at least 1; got 0"),
        (("bench", "rmat", "--scale", "tiny"), "'tiny'"),
        (("bench", "rmat", "--formats", "csr"), "'csr'"),
        (("bench", "rmat", "--scale", "small", "--dtype", "int8"), "'int8'"),
        (("bench", "rmat", "--device", "tpu"), "'tpu'"),
        (("bench", "neither", "--device", "cpu"), "neither is no file and no generated matrix"),
        (("bench", "rmat", "--device", "cpu", "--threads", "1,0"), "'0'"),
        (("bench", "rmat", "--device", "cpu", "--threads", "most"), "'most'"),
        (("demo", "rmat"), "rmat: No such file"),
    ],
)
def test_bad_usage(run, known_rates, argv, message):
    code, out, err = run(*argv)
    assert code == 2
    assert message in err
    assert out == ""


@pytest.mark.parametrize("command", [("info",), ("bench", "--device", "cpu"), ("demo", "--device", "cpu"), ("convert",)])
@pytest.mark.parametrize("kind", ["missing", "broken", "cut", "folder"])
def test_bad_file(run, known_rates, mtx, tmp_path, command, kind):
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


def test_debug_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
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
    """The format chosen is the one that the model gives the least time, and the text shows it."""
    facts = json.loads(run("info", mtx, "--json")[1])
    seconds = facts["product_seconds_modelled"]
    assert seconds.pop("device") in ("cpu", "cuda")
    assert seconds.keys() == facts["memory_bytes"].keys() - {"csr"}
    best = min(seconds, key=seconds.__getitem__)
    assert best == facts["format"] + str(facts["block_size"] or "")
    assert "predicted" in run("info", mtx)[1]
    assert table.significant(seconds[best] * 1e6) in run("info", mtx)[1]


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
    for name, make in {"blocks": lambda: generate.elast3(4), "graph": lambda: generate.rmat(9, 8)}.items():
        path = tmp_path / f"{name}.npz"
        scipy.sparse.save_npz(path, make())
        array = cvrarray.asarray(make())
        facts = json.loads(run("info", path, "--json")[1])
        assert facts["format"] == array.format
        assert facts["block_size"] == getattr(array, "block_size", None)
        assert facts["reason"] in run("info", path)[1]


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
def test_nothing_stored(run, known_rates, tmp_path, shape):
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
        ("out.txt", (), "out.txt"),
        ("nowhere/out.mtx", (), "nowhere"),
        ("nowhere/out.cvra", (), "nowhere"),
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
def test_convert_shows_progress_on_a_terminal(monkeypatch, capsys, tmp_path, out):
    """What it is at: reading, converting, writing."""
    import tqdm

    shown = []

    class Bar(tqdm.tqdm):
        def __init__(self, *arguments, **keywords):
            shown.append(keywords["desc"])
            super().__init__(*arguments, **(keywords | {"disable": False, "delay": 0, "mininterval": 0}))

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    path = tmp_path / "large.npz"
    scipy.sparse.save_npz(path, generate.poisson7(30))
    assert cli.main(["convert", str(path), str(tmp_path / out)]) == 0
    err = capsys.readouterr().err
    converting = ["converting 183,600 nonzeros"] if out.endswith("cvra") else []
    assert shown == ["large.npz", *converting, f"writing {out}"]
    assert all(words in err for words in shown)
    assert re.search(rf"writing {out}:.* [1-9][0-9.]*[kM]", err)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("convert", "MATRIX", "nowhere/out.cvra"), "nowhere"),
        (("convert", "MATRIX", "out.txt"), "out.txt"),
        (("convert", "MATRIX", "folder.npz"), "folder.npz"),
        (("convert", "MATRIX", "out.cvra", "--device", "tpu"), "tpu"),
        (("bench", "MATRIX", "--json", "nowhere/out.json"), "nowhere"),
        (("bench", "MATRIX", "--json", "folder.npz"), "folder.npz"),
        (("bench", "MATRIX", "--dtype", "float64,int8"), "int8"),
        (("demo", "MATRIX", "--json", "nowhere/out.json"), "nowhere"),
        (("demo", "MATRIX", "--dtype", "float16"), "float16"),
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


def test_bench_measures(run, no_mkl, tmp_path, mtx, matrix, device):
    """The report is complete, and its figures fit together."""
    out = tmp_path / "out.json"
    argv = ("bench", mtx, "--device", device, "--repeats", 3, "--dtype", "float32,float64", "--json", out)
    code, text, _ = run(*argv)
    report = json.loads(out.read_text())
    assert code == 0
    assert report["device"]["device"] == device
    assert report["versions"]["cvrarray"] == cvrarray.__version__
    assert [case["dtype"] for case in report["results"]] == ["float32", "float64"]
    for case in report["results"]:
        value = np.dtype(case["dtype"]).itemsize
        assert case["floor_bytes"] == matrix.nnz * (value + 4) + 4 * 61 + value * (60 + 50)
        assert case["floor_seconds"] == case["floor_bytes"] / report["bytes_per_second"]["read"]
        runs = {entry["name"]: entry for entry in case["runs"]}
        assert runs.keys() - {"cvr", "bbcsr"} == ({"scipy", "sparse"} if device == "cpu" else {"cupyx"})
        assert runs[case["peer"]]["speedup"] == 1
        assert sum(entry.get("plan") is not None for entry in case["runs"]) == 1
        for entry in case["runs"]:
            assert entry["correct"]
            assert entry["quartiles"][0] <= entry["seconds"] <= entry["quartiles"][1]
            assert entry["host_seconds"] > 0
            assert entry["bytes_per_second"] == pytest.approx(case["floor_bytes"] / entry["seconds"])
            assert entry["share_of_floor"] == pytest.approx(case["floor_seconds"] / entry["seconds"])
            assert entry["speedup"] == pytest.approx(runs[case["peer"]]["seconds"] / entry["seconds"])
        check_conversions(case, runs, device)
    for word in ("matrix.mtx", "float32", "cvr", case["peer"], "never" if runs["cvr"]["speedup"] < 1 else "x"):
        assert word in text


def check_conversions(case, runs, device):
    for name in ("cvr", "bbcsr"):
        if name in case["left_out"]:
            continue
        entry, peer = runs[name], runs[case["peer"]]["seconds"]
        assert 0 <= entry["error_over_bound"] <= 1
        if device == "cpu":  # timed in turn with the conversion, not beside our products
            assert entry["conversion_in_peer_products"] > 0
        else:
            assert entry["conversion_in_peer_products"] == pytest.approx(entry["conversion_seconds"] / peer)
        if entry["seconds"] < peer:
            products = entry["break_even_products"]
            assert products * (peer - entry["seconds"]) >= entry["conversion_seconds"]
            assert (products - 1) * (peer - entry["seconds"]) < entry["conversion_seconds"]
        else:
            assert entry["break_even_products"] is None
        assert (entry["peak_memory_over_csr_and_result"] is None) == (device == "cpu")
        assert device == "cpu" or entry["peak_memory_over_csr_and_result"] >= 1


@pytest.mark.parametrize("format", ["cvr", "bbcsr"])
def test_bench_notices_a_wrong_product(run, known_rates, monkeypatch, tmp_path, mtx, device, format):
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
    code, text, err = run(
        "bench", mtx, "--device", device, "--repeats", 1, "--dtype", "float64", "--formats", "cvr,bbcsr", "--json", out
    )
    runs = {entry["name"]: entry for entry in json.loads(out.read_text())["results"][0]["runs"]}
    assert code == 1
    assert f"{format} @ x is wrong for {mtx} in float64" in err
    assert "WRONG" in text
    assert not runs[format]["correct"]
    assert runs[format]["error_over_bound"] > 1
    assert "seconds" not in runs[format]  # what is wrong is not timed
    assert all(entry["correct"] for name, entry in runs.items() if name != format)


def test_bench_generated_and_json_on_stdout(run, known_rates, monkeypatch):
    monkeypatch.setitem(generate.MATRICES, "poisson7", generate.Recipe(generate.poisson7, (160,), (143,), (6,)))
    argv = (
        "bench",
        "poisson7",
        "--scale",
        "small",
        "--device",
        "cpu",
        "--repeats",
        1,
        "--dtype",
        "complex64",
        "--json",
        "-",
    )
    code, out, _ = run(*argv)
    (case,) = json.loads(out)["results"]
    assert code == 0
    assert case["matrix"] == "poisson7"
    assert case["shape"] == [216, 216]
    assert case["dtype"] == "complex64"


def test_bench_beside_mkl_with_one_thread_and_more(run, known_rates, mkl, monkeypatch, tmp_path, mtx):
    """Ours and MKL are timed with each number of threads, SciPy and pydata/sparse once; all is set back at the end."""
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", "3")
    mkl.mkl_set_num_threads(3)
    out = tmp_path / "out.json"
    argv = ("bench", mtx, "--device", "cpu", "--repeats", 2, "--dtype", "float64", "--threads", "all,1", "--json", out)
    code, text, _ = run(*argv)
    assert code == 0
    assert set(mkl.seen) == {(1, 1), (3, 3)}
    assert (mkl.threads, os.environ["CVRARRAY_NUM_THREADS"]) == (3, "3")
    found = json.loads(out.read_text())
    assert found["versions"]["mkl"] == "2026.2-Product Build 1"
    assert found["peers_left_out"] == {}
    one, three = found["results"]
    assert (one["threads"], three["threads"]) == (1, 3)
    first, second = ({entry["name"]: entry for entry in case["runs"]} for case in (one, three))
    for name in ("scipy", "sparse"):
        assert first[name]["seconds"] == second[name]["seconds"]
    for name in ("cvr", "mkl"):
        assert first[name]["quartiles"] != second[name]["quartiles"]
    for runs in (first, second):
        assert runs["cvr"]["speedup_over"] == {
            peer: pytest.approx(runs[peer]["seconds"] / runs["cvr"]["seconds"]) for peer in ("scipy", "sparse", "mkl")
        }
        assert min(runs["cvr"]["speedup_over"].values()) == pytest.approx(runs["cvr"]["speedup"])
    assert re.search(r"dtype +threads +nonzeros +by", text)
    assert "left out" not in text
    assert {(row["dtype"], row["threads"]) for row in found["summary"]} == {("float64", 1), ("float64", 3)}


def test_bench_says_that_mkl_is_missing(run, known_rates, no_mkl, monkeypatch, mtx):
    monkeypatch.delenv("CVRARRAY_NUM_THREADS", raising=False)
    code, text, _ = run("bench", mtx, "--device", "cpu", "--repeats", 1, "--dtype", "float64", "--threads", "1")
    assert code == 0
    assert "mkl left out: sparse_dot_mkl is not installed" in text
    assert "cvrarray[bench]" in text
    assert "CVRARRAY_NUM_THREADS" not in os.environ


def test_bench_with_the_real_mkl(run, known_rates, tmp_path, mtx, matrix):
    library = measure.mkl()
    if library is None:
        pytest.skip("sparse_dot_mkl is not installed, or finds no MKL")
    np.testing.assert_allclose(library.dot_product_mkl(matrix, np.ones(50)), matrix @ np.ones(50))
    with measure.using_threads(1):
        assert library.mkl_get_max_threads() == 1
    assert library.mkl_get_max_threads() == threads.count()
    out = tmp_path / "out.json"
    assert run("bench", mtx, "--device", "cpu", "--repeats", 1, "--dtype", "complex64", "--json", out)[0] == 0
    assert "mkl" in {entry["name"] for entry in json.loads(out.read_text())["results"][0]["runs"]}


def test_mkl_is_none_where_it_does_not_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "sparse_dot_mkl", None)
    monkeypatch.setenv("KMP_BLOCKTIME", "1")
    monkeypatch.setenv("MKL_RT", "nowhere")
    assert measure.mkl.__wrapped__() is None


def test_bench_report(run, known_rates, mkl, monkeypatch, tmp_path, mtx, matrix):
    """The pages name every matrix, and no folder; the JSON is the one that --json has, but for its last digits."""
    stored, pages, out = tmp_path / "stored", tmp_path / "docs" / "benchmarks", tmp_path / "out.json"
    stored.mkdir()
    parts = {"indptr": matrix.indptr, "indices": matrix.indices, "shape": np.array(matrix.shape)}
    np.savez(stored / "pattern.npz", **parts)
    np.savez(stored / "valued.npz", data=matrix.data, **parts)
    monkeypatch.setenv("CVRARRAY_MATRICES", str(stored))
    monkeypatch.setitem(generate.MATRICES, "poisson7", generate.Recipe(generate.poisson7, (160,), (143,), (6,)))
    argv = ("bench", "poisson7", mtx, "--scale", "small", "--device", "cpu", "--repeats", 2, "--rounds", 2, "--threads", "1,2")
    code, text, _ = run(*argv, "--report", pages, "--json", out)
    assert code == 0
    page = (pages / "cpu.md").read_text()
    found, full = (json.loads(path.read_text()) for path in (pages / "cpu.json", out))
    names = ["poisson7", "matrix", "pattern", "valued"]
    assert found.keys() == full.keys()
    assert found["summary"] == full["summary"]
    assert [case["matrix"] for case in found["results"]] == [name for name in names for _ in range(4)]
    assert [case["generated"] for case in found["results"]] == [True] * 4 + [False] * 12
    for heading in ("float32, one thread", "float32, 2 threads", "float64, one thread", "float64, 2 threads"):
        table_text = page.partition(f"## {heading}\n\n")[2].partition("\n\n")[0].strip()
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table_text.split("\n")]
        assert [line[0] for line in lines[2:]] == names
        assert len({len(line) for line in lines}) == 1
        assert {"over mkl", "over scipy", "over sparse"} <= set(lines[0])
    for word in (measure.processor(), np.__version__, "Summary", "Medians of 2", "all of it 2 times"):
        assert word in page
    for private in (str(tmp_path), os.uname().nodename):
        assert private not in page + (pages / "cpu.json").read_text()
    assert "geometric means" in text


def test_bench_takes_the_medians_of_its_rounds(run, known_rates, no_mkl, monkeypatch, tmp_path, mtx):
    """One round that something disturbs leaves no trace."""
    measured = iter([2.0, 100.0, 3.0])

    def times(self, calls, repeats, setting):
        factor = next(measured)
        return {key: measure.Timing(*[factor * (2 if key[0] == "scipy" else 5)] * 4) for key in calls}

    monkeypatch.setattr(measure.HostMeter, "times", times)
    out = tmp_path / "out.json"
    argv = ("bench", mtx, "--device", "cpu", "--dtype", "float64", "--formats", "cvr", "--rounds", 3, "--json", out)
    assert run(*argv)[0] == 0
    report = json.loads(out.read_text())
    (case,) = report["results"]
    runs = {entry["name"]: entry for entry in case["runs"]}
    assert report["rounds"] == 3
    assert case["peer"] == "scipy"
    assert {name: entry["seconds"] for name, entry in runs.items()} == {"cvr": 15.0, "scipy": 6.0, "sparse": 15.0}
    assert runs["cvr"]["speedup"] == pytest.approx(0.4)
    assert runs["cvr"]["break_even_products"] is None


def test_medians_of_reports():
    """None, which stands for never, is above all numbers; a product that is wrong in one round is wrong."""
    found = [{"a": 3, "b": None, "c": True, "d": [1.0, 5.0], "e": "x", "f": None} for _ in range(3)]
    found[1] = {"a": 9, "b": 7.0, "c": False, "d": [2.0, 9.0], "e": "x", "f": 1}
    found[2]["b"] = 5.0
    assert bench.medians(found) == {"a": 3, "b": 7.0, "c": False, "d": [1.0, 5.0], "e": "x", "f": None}


def test_conversions_are_timed_in_turn_with_products():
    """What slows a machine down for a while slows both down: their ratio holds."""
    now, slow = [0.0], [1]

    def takes(seconds):
        def call():
            now[0] += slow[0] * seconds

        return call

    def convert():
        takes(0.05)()
        slow[0] = 3 if now[0] > 0.3 else 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure.time, "perf_counter", lambda: now[0])
        found = measure.HostMeter().conversion(convert, 5, takes(0.01))
    assert found.products == pytest.approx(5)
    assert found.peak_bytes is None


@pytest.mark.parametrize(
    ("content", "message"),
    [({"indptr": np.zeros(2, int)}, "no indices, shape"), (None, "must name a folder")],
)
def test_bench_report_rejects(run, known_rates, no_mkl, monkeypatch, tmp_path, mtx, content, message):
    stored = tmp_path / "stored"
    if content is not None:
        stored.mkdir()
        np.savez(stored / "broken.npz", **content)
    monkeypatch.setenv("CVRARRAY_MATRICES", str(stored))
    code, _, err = run("bench", mtx, "--device", "cpu", "--dtype", "float32", "--repeats", 1, "--report", tmp_path / "pages")
    assert code == 2
    assert message in err


def test_gpu_bench_rejects_what_is_for_the_cpu(run, gpu, mtx, tmp_path):
    for option in (("--threads", "1"), ("--report", tmp_path)):
        code, _, err = run("bench", mtx, "--device", gpu, *option)
        assert code == 2
        assert f"{option[0]} is for the CPU" in err


def test_every_generated_matrix_has_a_medium_scale():
    assert all(len(recipe.medium) == len(recipe.full) for recipe in generate.MATRICES.values())
    device = devices.parse("cpu")
    assert sources.load("elasticity", scale="medium", seed=0, device=device).nnz > 4_000_000


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: generate.rmat(12, 16), "power law"),
        (lambda: generate.elast3(6), "blocks"),
        (lambda: generate.poisson7(10), "regular"),
        (lambda: generate.uniform(1000, 16), "regular"),
        (lambda: scipy.sparse.random_array((500, 500), density=0.004, format="csr", rng=np.random.default_rng(1)), "other"),
        (lambda: scipy.sparse.csr_array((5, 4)), "regular"),
        (lambda: scipy.sparse.csr_array((0, 4)), "regular"),
    ],
)
def test_group(make, expected):
    assert report.group(make()) == expected


def case_of(matrix, group, cvr, bbcsr, threads=1):
    runs = [
        {"name": "cvr", "speedup": cvr, "plan": None, "correct": True},
        {"name": "bbcsr", "speedup": bbcsr, "plan": "why", "correct": True},
    ]
    case = {"matrix": matrix, "dtype": "float64", "threads": threads, "group": group, "generated": group == "blocks"}
    return case | {"runs": runs if bbcsr else runs[:1]}


def test_summary():
    """Means of what there is: a format that was left out, or was wrong, counts nowhere."""
    wrong = case_of("d", "other", 9.0, None)
    wrong["runs"][0]["correct"] = False
    cases = [case_of("a", "blocks", 1.0, 4.0), case_of("b", "power law", 0.5, 1.0), case_of("c", "blocks", 2.0, None), wrong]
    rows = {row["contender"]: row for row in report.summary({"results": cases})}
    means = {name: row["geometric_means"]["all"] for name, row in rows.items()}
    assert means["asarray"] == means["bbcsr"] == {"matrices": 2, "speedup": pytest.approx(2)}
    assert means["cvr"] == {"matrices": 3, "speedup": pytest.approx(1)}
    assert means["faster"] == {"matrices": 3, "speedup": pytest.approx(2)}
    assert rows["cvr"]["geometric_means"]["blocks"]["speedup"] == pytest.approx(2**0.5)
    assert rows["cvr"]["geometric_means"]["other"] == {"matrices": 0, "speedup": None}
    assert rows["cvr"]["worst"] == {"matrix": "b", "speedup": 0.5}
    assert rows["cvr"]["below_0.8"] == 1


def test_bench_leaves_out_what_would_be_far_too_large(run, known_rates, tmp_path):
    path = tmp_path / "arrow.npz"
    arrow = scipy.sparse.lil_array((3000, 3000))
    arrow[0, :] = 1
    arrow.setdiag(1)
    scipy.sparse.save_npz(path, arrow.tocsr())
    code, out, _ = run("bench", path, "--device", "cpu", "--repeats", 1, "--dtype", "float64")
    assert code == 0
    assert re.search(r"bbcsr left out, it would store \S+ times the bytes of CSR", out)


def test_bench_keeps_to_complex_where_the_matrix_is(run, known_rates, tmp_path, matrix):
    path = tmp_path / "complex.npz"
    scipy.sparse.save_npz(path, matrix * 1j)
    code, _, err = run("bench", path, "--device", "cpu", "--dtype", "float64")
    assert code == 2
    assert "complex64, complex128" in err


# ---------------------------------------------------------------------------------------------------------- measure


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_worst_error(matrix, dtype):
    matrix = matrix.astype(dtype)
    x = bench.random_vector(50, np.dtype(dtype), seed=1)
    y = matrix @ x
    assert measure.worst_error(matrix, x, y) <= 1
    row = np.diff(matrix.indptr).argmax()
    size = (abs(matrix) @ abs(x))[row]
    allowed = measure.ALLOWED * np.diff(matrix.indptr)[row] * np.finfo(dtype).eps * size
    for times, wrong in ((0.5, False), (2, True)):
        off = y.copy()
        off[row] += times * allowed
        assert (measure.worst_error(matrix, x, off) > 1) == wrong
    empty = np.diff(matrix.indptr).argmin()
    for place, value in ((row, np.nan), (row, np.inf), (empty, 1e-30)):
        off = y.copy()
        off[place] = value
        assert measure.worst_error(matrix, x, off) == math.inf


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("where", ["matrix", "x"])
def test_worst_error_compares_inf_and_nan_by_place(matrix, dtype, where):
    """What inf and nan reach must hold them, nothing else may, and all other rows are compared as ever."""
    matrix = matrix.astype(dtype)
    matrix.data[matrix.data == 0] = 1
    x = bench.random_vector(50, np.dtype(dtype), seed=1)
    if where == "x":
        x[[3, 7]] = np.inf, np.nan
    else:
        matrix.data[[10, 50]] = -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        y = matrix @ x
    special = ~np.isfinite(y)
    assert 1 < special.sum() < 40
    assert measure.worst_error(matrix, x, y) <= 1
    there, beside = np.flatnonzero(special)[0], np.flatnonzero(~special & (np.diff(matrix.indptr) > 0))[0]
    wrong = [(there, 0), (beside, np.nan), (beside, np.inf), (beside, 2 * y[beside])]
    if y.dtype.kind == "f":
        infinite, undefined = np.flatnonzero(np.isinf(y))[0], np.flatnonzero(np.isnan(y))[0]
        wrong += [(infinite, -y[infinite]), (infinite, np.nan), (undefined, np.inf)]
    for place, value in wrong:
        off = y.copy()
        off[place] = value
        assert measure.worst_error(matrix, x, off) > 1, (place, value)


def test_worst_error_lets_sums_overflow():
    """3e38 and 3e38 have a sum in double precision; in single precision it is inf, and nobody is to blame."""
    matrix = scipy.sparse.csr_array(np.array([[3e38, 3e38, 0], [0, 1, 2]], np.float32))
    x = np.ones(3, np.float32)
    assert measure.worst_error(matrix, x, np.array([np.inf, 3], np.float32)) == 0
    assert measure.worst_error(matrix, x, np.array([np.inf, 4], np.float32)) > 1


def test_bench_takes_matrices_with_inf_and_nan(run, known_rates, no_mkl, tmp_path, matrix, device):
    """In float32 some of these values are beyond the range, which makes them inf."""
    matrix.data[[1, 8, 15]] = np.inf, np.nan, 1e300
    path = tmp_path / "special.npz"
    scipy.sparse.save_npz(path, matrix)
    assert run("bench", path, "--device", device, "--repeats", 1)[0] == 0


def test_meter_takes_medians_and_turns(device):
    meter = measure.meter(devices.parse(device))
    turns = []
    calls = {name: (lambda name=name: turns.append(name)) for name in "ab"}
    times = meter.times(calls, 3)
    assert times.keys() == {"a", "b"}
    for timing in times.values():
        assert 0 <= timing.low <= timing.median <= timing.high
    # both are called in every repeat, so neither has the better half of the run to itself
    assert len(re.findall("(?:a+b+){3}$", "".join(turns))) == 1


def test_host_samples_follow_an_untimed_one_in_their_setting():
    """A call's setting holds while it runs, and only then; each sample comes after as many calls that are not timed."""
    settings, seen = [None], []

    @contextmanager
    def setting(name):
        settings.append(name)
        yield
        settings.pop()

    calls = {name: (lambda name=name: (seen.append((name, settings[-1])), time.sleep(3e-3))) for name in ("a", "b")}
    measure.HostMeter().times(calls, 3, setting)
    assert seen == [("a", "a")] * 2 + [("b", "b")] * 2 + ([("a", "a")] * 2 + [("b", "b")] * 2) * 3
    assert settings == [None]


def test_other_load():
    """Busy seconds less our own, over the wall's; never below nothing."""
    load = measure.OtherLoad()
    if load.start is None:
        pytest.skip("this system has no /proc/stat")
    busy, own, wall = load.start
    load.start = (busy - 10, own - 4, wall - 3)
    assert 2 * 0.9 <= load.cpus() <= os.cpu_count() + 2
    load.start = (busy, own - 1e6, wall - 3)
    assert load.cpus() == 0


@pytest.mark.parametrize(
    ("features", "bits"),
    [({"avx512f": True, "avx2": True}, 512), ({"avx512f": False, "avx2": True}, 256), ({"neon": True}, 128), ({}, None)],
)
def test_vector_bits(features, bits):
    assert measure.vector_bits(features) == bits


def test_gpu_peak_memory_counts_what_lives_at_once(gpu):
    cupy = pytest.importorskip("cupy")

    def convert():
        first = cupy.empty(1 << 20, cupy.uint8)
        del first
        return [cupy.empty(1 << 20, cupy.uint8), cupy.empty(1 << 19, cupy.uint8)]

    assert measure.meter(devices.parse(gpu)).conversion(convert, 1).peak_bytes == 3 << 19


def test_gpu_times_are_the_devices_own(gpu):
    """A copy's time follows from its bytes, however long the host dawdles."""
    cupy = pytest.importorskip("cupy")
    source = cupy.ones(1 << 24)
    target = cupy.empty_like(source)

    def dawdle():
        time.sleep(2e-3)
        cupy.copyto(target, source)

    times = measure.meter(devices.parse(gpu)).times({"quick": lambda: cupy.copyto(target, source), "dawdle": dawdle}, 9)
    assert times["dawdle"].host > 2e-3
    assert times["dawdle"].median < 2 * times["quick"].median


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (None, "-"),
        (math.inf, "-"),
        (0.012345, "0.0123"),
        (9.995, "9.99"),
        (12.34, "12.3"),
        (123456.7, "123,457"),
    ],
)
def test_significant(value, text):
    assert table.significant(value) == text


def test_table():
    assert table.size(999) == "999 B"
    assert table.size(12_345_678) == "12.3 MB"
    assert table.size(5e15) == "5,000 TB"
    assert table.markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
    assert table.render(["a", "long"], [["one", "2"], ["x", "13"]]) == "a    long\n---  ----\none     2\nx      13"


# ---------------------------------------------------------------------------------------------------------- demo


def test_demo(run, known_rates, monkeypatch, mtx, device):
    pytest.importorskip("skfem")
    monkeypatch.setattr(demo, "ELASTICITY_REFINEMENTS", 1)
    monkeypatch.setattr(demo, "RMAT_SCALE", 8)
    code, out, _ = run("demo", mtx, "--device", device, "--repeats", 1)
    assert code == 0
    verdicts = out.rpartition("* chosen by asarray")[2].split("\n")
    for name in ("elasticity", "Graph500", str(mtx)):
        (line,) = [line for line in verdicts if line.startswith(f"{name}, float64:")]
        assert "wins" in line


def run_of(name, seconds, peer, plan=None):
    ours = {} if plan is None else {"plan": plan, "break_even_products": 12}
    return {"name": name, "seconds": seconds, "speedup": peer / seconds, "correct": True, **ours}


@pytest.mark.parametrize(
    ("cvr", "plan", "expected"),
    [
        (1.0, "why", "m, float64: cvr wins, 3.00x as fast as scipy; its conversion pays from product 12 on"),
        (6.0, "why", "m, float64: scipy wins; ours, cvr, runs at 0.50x its speed"),
    ],
)
def test_verdict(cvr, plan, expected):
    case = {
        "matrix": "m",
        "dtype": "float64",
        "peer": "scipy",
        "runs": [run_of("cvr", cvr, 3.0, plan), run_of("scipy", 3.0, 3.0)],
    }
    assert demo.verdict(case) == expected


# ---------------------------------------------------------------------------------------------------------- packaging


def test_readme_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(example.replace("cvrarray.asarray(S)", 'cvrarray.asarray(S, device="cpu")'), names)
    np.testing.assert_allclose(names["y"], 3 * (names["S"] @ names["x"]))


def test_every_package_is_packaged():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {"cvrarray", *(f"cvrarray.{path.parent.name}" for path in ROOT.glob("cvrarray/*/__init__.py"))}
    assert set(settings["packages"]) == folders | {"cvrarray.kernels"}
    shipped = {path.suffix for path in (ROOT / "kernels").iterdir() if path.suffix not in (".py", "")}
    assert shipped == {pattern.removeprefix("*") for pattern in settings["package-data"]["cvrarray.kernels"]}
    for file in ("cvrarray/py.typed", "kernels/__init__.py", "LICENSE"):
        assert (ROOT / file).is_file()
