"""The run of ``make bench``: both formats beside the peers, by threads and in rounds; its summary and its pages."""

import json
import os
import re

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import cvrarray
from asv_bench.record import inputs, machine, pages, products, products_page
from cvrarray import generate
from cvrarray.cli import peers, sources
from cvrarray.core import clocks, devices
from cvrarray.cpu.runtime import threads


@pytest.fixture
def matrix():
    """Rows of 0 to 9 nonzeros."""
    return scipy.sparse.random_array((60, 50), density=0.08, format="csr", rng=np.random.default_rng(3))


@pytest.fixture
def mtx(matrix, tmp_path):
    path = tmp_path / "matrix.mtx"
    scipy.io.mmwrite(path, matrix, symmetry="general")
    return path


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command: (exit code, stdout, stderr). It is spared the measuring of what memory can do."""
    monkeypatch.setattr(machine, "rates", lambda device: {"read": 2e10, "copy": 1e10})

    def call(*argv):
        code = products.main([str(arg) for arg in argv])
        return code, *capsys.readouterr()

    return call


class FakeMKL:
    """What is used of sparse_dot_mkl, by SciPy; notes how many threads were asked for at each product."""

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
    monkeypatch.setattr(peers, "mkl", lambda: library)
    return library


@pytest.fixture
def no_mkl(monkeypatch):
    monkeypatch.setattr(peers, "mkl", lambda: None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("rmat", "--rounds", "0", "--scale", "small"), "--rounds must be at least 1; got 0"),
        (("rmat", "--repeats", "0", "--scale", "small"), "--repeats must be at least 1; got 0"),
        (("rmat", "--formats", "csr"), "'csr'"),
        (("rmat", "--threads", "1,0"), "'0'"),
        (("rmat", "--threads", "most"), "'most'"),
        (("neither",), "neither is no file and no generated matrix"),
        (("rmat", "--json", "nowhere/out.json"), "nowhere"),
    ],
)
def test_bad_usage(run, argv, message):
    code, out, err = run(*argv, "--device", "cpu")
    assert code == 2
    assert message in err
    assert out == ""


@pytest.mark.slow
def test_figures_fit_together(run, no_mkl, tmp_path, mtx, matrix, device):
    out = tmp_path / "out.json"
    code, text, _ = run(mtx, "--device", device, "--repeats", 2, "--json", out)
    report = json.loads(out.read_text())
    assert code == 0
    assert report["device"]["device"] == device
    assert report["versions"]["cvrarray"].startswith(f"{cvrarray.__version__} of sources ")
    assert [case["dtype"] for case in report["results"]] == ["float32", "float64"]
    for case in report["results"]:
        value = np.dtype(case["dtype"]).itemsize
        assert case["floor_bytes"] == matrix.nnz * (value + 4) + 4 * 61 + value * (60 + 50)
        assert case["floor_seconds"] == case["floor_bytes"] / report["bytes_per_second"]["read"]
        for entry in case["runs"]:
            assert entry["bytes_per_second"] == pytest.approx(case["floor_bytes"] / entry["seconds"])
            assert entry["share_of_floor"] == pytest.approx(case["floor_seconds"] / entry["seconds"])
            if entry["name"] in ("cvr", "bbcsr"):
                assert (entry["peak_memory_over_csr_and_result"] is None) == (device == "cpu")
                assert device == "cpu" or entry["peak_memory_over_csr_and_result"] >= 1
    for word in ("matrix.mtx", "float32", "cvr", "of floor", case["peer"], "geometric means"):
        assert word in text


def test_a_wrong_product_is_told(run, no_mkl, monkeypatch, mtx):
    right = cvrarray.CVRArray.__matmul__
    monkeypatch.setattr(cvrarray.CVRArray, "__matmul__", lambda self, x: 1.001 * right(self, x))
    code, text, err = run(mtx, "--device", "cpu", "--repeats", 1, "--dtype", "float64", "--formats", "cvr")
    assert code == 1
    assert f"cvr @ x is wrong for {mtx} in float64" in err
    assert "WRONG" in text


def test_beside_mkl_with_one_thread_and_more(run, mkl, monkeypatch, tmp_path, mtx):
    """Ours and MKL are timed with each number of threads, SciPy and pydata/sparse once; all is set back at the end."""
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", "3")
    mkl.mkl_set_num_threads(3)
    out = tmp_path / "out.json"
    argv = (mtx, "--device", "cpu", "--repeats", 2, "--dtype", "float64", "--threads", "all,1", "--json", out)
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


def test_a_missing_mkl_is_told_and_the_environment_left_alone(run, no_mkl, monkeypatch, mtx):
    monkeypatch.delenv("CVRARRAY_NUM_THREADS", raising=False)
    code, text, _ = run(mtx, "--device", "cpu", "--repeats", 1, "--dtype", "float64", "--threads", "1")
    assert code == 0
    assert "mkl left out: sparse_dot_mkl is not installed" in text
    assert "CVRARRAY_NUM_THREADS" not in os.environ


def test_the_real_mkl(run, tmp_path, mtx, matrix):
    library = peers.mkl()
    if library is None:
        pytest.skip("sparse_dot_mkl is not installed, or finds no MKL")
    np.testing.assert_allclose(library.dot_product_mkl(matrix, np.ones(50)), matrix @ np.ones(50))
    with machine.using_threads(1):
        assert library.mkl_get_max_threads() == 1
    assert library.mkl_get_max_threads() == threads.count()
    out = tmp_path / "out.json"
    assert run(mtx, "--device", "cpu", "--repeats", 1, "--dtype", "complex64", "--json", out)[0] == 0
    assert "mkl" in {entry["name"] for entry in json.loads(out.read_text())["results"][0]["runs"]}


@pytest.mark.slow
def test_pages(run, mkl, monkeypatch, tmp_path, mtx, matrix):
    """The pages name every matrix, and no folder; the JSON is the one that --json has, but for its last digits."""
    stored, folder, out = tmp_path / "stored", tmp_path / "docs" / "benchmarks", tmp_path / "out.json"
    stored.mkdir()
    parts = {"indptr": matrix.indptr, "indices": matrix.indices, "shape": np.array(matrix.shape)}
    np.savez(stored / "pattern.npz", **parts)
    np.savez(stored / "valued.npz", data=matrix.data, **parts)
    monkeypatch.setenv("CVRARRAY_MATRICES", str(stored))
    monkeypatch.setitem(generate.MATRICES, "poisson7", generate.Recipe(generate.poisson7, (160,), (143,), (6,)))
    argv = ("poisson7", mtx, "--scale", "small", "--device", "cpu", "--repeats", 2, "--rounds", 2, "--threads", "1,2")
    code, text, _ = run(*argv, "--formats", "cvr,auto", "--report", folder, "--json", out)
    assert code == 0
    page = (folder / "cpu.md").read_text()
    found, full = (json.loads(path.read_text()) for path in (folder / "cpu.json", out))
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
    for word in (machine.processor(), np.__version__, "Summary", "Medians of 2", "all of it 2 times"):
        assert word in page
    for private in (str(tmp_path), os.uname().nodename):
        assert private not in page + (folder / "cpu.json").read_text()
    assert "geometric means" in text


def test_every_figure_is_the_median_of_its_rounds(run, no_mkl, monkeypatch, tmp_path, mtx):
    """One round that something disturbs leaves no trace."""
    measured = iter([2.0, 100.0, 3.0])

    def times(self, calls, repeats, setting, seconds):
        factor = next(measured)
        return {key: clocks.Timing(*[factor * (2 if key[0] == "scipy" else 5)] * 4) for key in calls}

    monkeypatch.setattr(clocks.HostClock, "times", times)
    out = tmp_path / "out.json"
    argv = (mtx, "--device", "cpu", "--dtype", "float64", "--formats", "cvr", "--rounds", 3, "--repeats", 1, "--json", out)
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
    assert products.medians(found) == {"a": 3, "b": 7.0, "c": False, "d": [1.0, 5.0], "e": "x", "f": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [({"indptr": np.zeros(2, int)}, "no indices, shape"), (None, "must name a folder")],
)
def test_stored_matrices_are_checked(monkeypatch, tmp_path, content, message):
    stored = tmp_path / "stored"
    if content is not None:
        stored.mkdir()
        np.savez(stored / "broken.npz", **content)
    monkeypatch.setenv("CVRARRAY_MATRICES", str(stored))
    with pytest.raises(ValueError, match=message):
        [inputs.read_stored(path) for path in inputs.stored().values()]


def test_what_is_for_the_cpu_is_refused_on_a_gpu(run, gpu, mtx, tmp_path):
    for option in (("--threads", "1"), ("--report", tmp_path)):
        code, _, err = run(mtx, "--device", gpu, *option)
        assert code == 2
        assert f"{option[0]} is for the CPU" in err


def test_generated_matrices_have_a_medium_scale(monkeypatch):
    """Between the other two, and what the command loads with it."""
    for recipe in generate.MATRICES.values():
        assert recipe.small[0] < recipe.medium[0] < recipe.full[0]
        assert len(recipe.small) == len(recipe.medium) == len(recipe.full)
    made = []
    recipe = generate.Recipe(lambda *sizes, **options: made.append((sizes, options["seed"])), (1, 2), (3, 4), (5, 6))
    monkeypatch.setitem(generate.MATRICES, "made", recipe)
    sources.load("made", scale="medium", seed=7, device=devices.CPU)
    assert made == [((3, 4), 7)]


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
    assert products_page.group(make()) == expected


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
    rows = {row["contender"]: row for row in products_page.summary({"results": cases})}
    means = {name: row["geometric_means"]["all"] for name, row in rows.items()}
    assert means["asarray"] == means["bbcsr"] == {"matrices": 2, "speedup": pytest.approx(2)}
    assert means["cvr"] == {"matrices": 3, "speedup": pytest.approx(1)}
    assert means["faster"] == {"matrices": 3, "speedup": pytest.approx(2)}
    assert rows["cvr"]["geometric_means"]["blocks"]["speedup"] == pytest.approx(2**0.5)
    assert rows["cvr"]["geometric_means"]["other"] == {"matrices": 0, "speedup": None}
    assert rows["cvr"]["worst"] == {"matrix": "b", "speedup": 0.5}
    assert rows["cvr"]["below_0.8"] == 1


def test_markdown():
    assert pages.markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


@pytest.mark.parametrize(
    ("features", "bits"),
    [({"avx512f": True, "avx2": True}, 512), ({"avx512f": False, "avx2": True}, 256), ({"neon": True}, 128), ({}, None)],
)
def test_vector_bits(features, bits):
    assert machine.vector_bits(features) == bits


def test_rates_of_memory(monkeypatch):
    """Of a copy twice the bytes count, as they are read and written; all threads together move the whole array once."""
    calls = {}

    def times(self, given, repeats):
        calls.update(given)
        return {name: clocks.Timing(*[seconds] * 4) for name, seconds in (("read", 0.5), ("copy", 1.0))}

    monkeypatch.setattr(clocks.HostClock, "times", times)
    real = np.ones
    monkeypatch.setattr(machine.np, "ones", lambda size: real(size >> 8))  # memory is not what is tested here
    found = machine.rates(devices.CPU)
    assert found["read"] == found["copy"]
    assert found["read"] * 0.5 % 8 == 0
    for call in calls.values():
        call()


def test_gpu_peak_memory_counts_what_lives_at_once(gpu):
    cupy = pytest.importorskip("cupy")

    def convert():
        first = cupy.empty(1 << 20, cupy.uint8)
        del first
        return [cupy.empty(1 << 20, cupy.uint8), cupy.empty(1 << 19, cupy.uint8)]

    assert machine.peak_bytes(convert, devices.parse(gpu)) == 3 << 19
    assert machine.peak_bytes(convert, devices.CPU) is None
