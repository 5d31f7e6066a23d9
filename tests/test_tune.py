"""tune: what is tried and found, and that what it remembers survives other writers, broken files and full disks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import oracle
import pytest
import scipy.sparse

import cvrarray
from cvrarray import generate
from cvrarray.choice import construct, model, tuning
from cvrarray.core import devices
from cvrarray.input import coercion

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder of the test's own; nothing is in it yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cvrarray" / "tune"


@pytest.fixture
def clock(monkeypatch):
    """Times that a test sets by format and parameter; a list of the comparisons, as (best, challenger)."""
    seen = []

    def install(**seconds):
        def of(array):
            parameter = array.block_size if array.format == "bbcsr" else array.n_chunks
            return seconds.get(f"{array.format}{parameter}", seconds.get(array.format))

        def compare(best, challenger, x, sample, share):
            seen.append((of(best), of(challenger)))
            return seen[-1]

        monkeypatch.setattr(tuning, "_alone", lambda array, x, sample: of(array))
        monkeypatch.setattr(tuning, "_compare", compare)
        return seen

    return install


def matrix(seed=2, n=400, dtype=np.float64):
    return scipy.sparse.random_array((n, 300), density=0.05, format="csr", rng=np.random.default_rng(seed), dtype=dtype)


def files(cache):
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


@pytest.mark.parametrize(
    ("x_dtype", "columns"),
    [(None, 1), (np.float32, 1), (None, 17)],
)
def test_tunes_and_multiplies(device, cache, x_dtype, columns):
    csr = generate.tetrahedra(6, 3, dtype=np.float32)
    found = cvrarray.tune(csr, x_dtype=x_dtype, columns=columns, budget_s=5, device=device)
    assert str(found.device) == device
    assert "candidates measured" in found.plan
    assert len(files(cache)) == 1
    X = np.arange(csr.shape[1] * columns).reshape(-1, columns).astype(x_dtype or np.float32)
    product = found @ found._target.xp.asarray(X if columns > 1 else X[:, 0])
    product = (product if device == "cpu" else product.get()).reshape(-1, columns)
    for x, y in zip(X.T, product.T, strict=True):
        expected, bound = oracle.product(csr, x)
        assert (abs(y - expected) <= bound).all()
    again = cvrarray.tune(csr, x_dtype=x_dtype, columns=columns, device=device)
    assert "remembered" in again.plan
    assert (again.format, again.nbytes) == (found.format, found.nbytes)


def test_the_fastest_wins(clock):
    csr = generate.tetrahedra(6, 3)
    seen = clock(cvr=9.0, bbcsr1=7.0, bbcsr2=6.0, bbcsr3=5.0, bbcsr6=8.0)
    found = cvrarray.tune(csr, device="cpu")
    assert (found.format, found.block_size) == ("bbcsr", 3)
    assert found.plan == f"bbcsr, block size 3: 5e+06 us, the fastest of {len(seen) + 1} candidates measured on cpu"


def test_other_chunks_where_cvr_is_near(clock):
    csr = matrix(n=4000)
    default = cvrarray.CVRArray(csr).n_chunks
    seen = clock(**{"cvr": 4.0, f"cvr{default * 2}": 3.0, "bbcsr": 5.0})
    found = cvrarray.tune(csr, device="cpu", budget_s=60)
    assert (found.format, found.n_chunks) == ("cvr", default * 2)
    again = cvrarray.tune(csr, device="cpu", budget_s=60)
    assert again.n_chunks == default * 2
    assert (again.nbytes, "remembered" in again.plan) == (found.nbytes, True)
    assert len(seen) >= len(tuning.TRIED_CHUNKS)


def test_other_chunks_end_where_its_own_do(device, monkeypatch):
    """Whatever their number: on a GPU they are even where few of them are all, elsewhere as the device's module says."""
    S = matrix(n=4000)
    csr = construct.placed(S, device)
    module = devices.parse(device).backend("cvr")
    if device == "cpu":  # where they always end with rows
        monkeypatch.setattr(module, "default_split", lambda csr, n_lanes: "even")
    own = cvrarray.CVRArray(S, device=device)
    for candidate in tuning.chunk_counts(csr):
        found = candidate.build(csr)
        even = cvrarray.CVRArray(S, n_lanes=own.n_lanes, n_chunks=candidate.parameter, split="even", device=device)
        by_rows = cvrarray.CVRArray(S, n_lanes=own.n_lanes, n_chunks=candidate.parameter, split="rows", device=device)
        steps = [array._tables.step_ptr.tolist() for array in (found, even, by_rows)]
        assert steps[0] == steps[1] != steps[2]


def test_columns_are_measured_apart(device, clock, cache, monkeypatch):
    """Each number of columns has its own winner, and that is as the hint has it."""
    csr, seen, shapes = generate.tetrahedra(6, 3), clock(cvr=1.0, bbcsr=2.0), []
    monkeypatch.setattr(tuning, "_alone", lambda array, x, sample: shapes.append(x.shape) or 3.0)
    for columns, shape in ((1, (csr.shape[1],)), (64, (csr.shape[1], 64)), (16, (csr.shape[1], 16))):
        found = cvrarray.tune(csr, columns=columns, device=device, budget_s=60)
        assert shapes.pop() == shape
        assert (f"us with {columns} columns, the fastest of" in found.plan) == (columns > 1)
        there = construct.placed(csr, device)
        hinted = cvrarray.CVRArray(there, **cvrarray.CVRArray._for_columns(there, columns))
        assert found.format == "cvr" and (found.n_chunks == hinted.n_chunks or columns == 1)
    assert len(files(cache)) == 3
    n_seen = len(seen)
    assert "remembered" in cvrarray.tune(csr, columns=64, device=device).plan
    assert len(seen) == n_seen


def test_noise_changes_nothing(clock):
    csr = generate.tetrahedra(6, 3)
    plan = model.choose(model.statistics(csr, exact=False), "cpu")
    other = {"cvr": "bbcsr", "bbcsr": "cvr"}[plan.format]
    clock(**{plan.format: 1.0, other: 1.0 - tuning.MARGIN / 2})
    assert cvrarray.tune(csr, device="cpu").format == plan.format


def test_budget(clock, cache, monkeypatch):
    """Nothing is begun after it; what is cut short is measured again by a call that has more."""
    csr = generate.tetrahedra(6, 3)
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    seen = clock(cvr=2.0, bbcsr=1.0)
    built = tuning.Candidate.build

    def slow(self, matrix, columns):
        now[0] += 10 * (matrix.nnz == csr.nnz)  # not where the kernels are compiled
        return built(self, matrix, columns)

    monkeypatch.setattr(tuning, "HEAD", 9)
    monkeypatch.setattr(tuning.Candidate, "build", slow)
    cvrarray.tune(csr, device="cpu", budget_s=5)
    assert (len(seen), files(cache)) == (0, [])  # one candidate is no comparison
    cvrarray.tune(csr, device="cpu", budget_s=15)
    assert (len(seen), len(files(cache))) == (1, 1)
    cvrarray.tune(csr, device="cpu", budget_s=15)
    assert len(seen) == 1
    cvrarray.tune(csr, device="cpu", budget_s=1000)
    n_seen = len(seen)
    assert n_seen > 2
    cvrarray.tune(csr, device="cpu", budget_s=1e9)  # complete: no budget finds more
    assert len(seen) == n_seen


@pytest.mark.parametrize("budget_s", [0, 5])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (5, 5)])
def test_without_nonzeros_nothing_is_measured(cache, shape, budget_s):
    csr = scipy.sparse.csr_array(shape)
    found = cvrarray.tune(csr, device="cpu", budget_s=budget_s)
    assert (found.shape, found.format) == (shape, cvrarray.asarray(csr, device="cpu").format)
    assert files(cache) == []


def test_takes_what_asarray_takes(clock):
    clock(cvr=2.0, bbcsr=1.0)
    csr = matrix(n=64)
    for obj in (csr, csr.tocsc(), csr.toarray(), cvrarray.CVRArray(csr), cvrarray.CVRArray(csr.T.tocsr()).T):
        np.testing.assert_array_equal(cvrarray.tune(obj, device="cpu").todense(), csr.toarray())


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"budget_s": -1}, ValueError, "budget_s must be a number of seconds from 0; got -1"),
        ({"budget_s": "long"}, ValueError, "budget_s must be a number of seconds from 0; got 'long'"),
        ({"budget_s": float("nan")}, ValueError, "budget_s must be a number of seconds from 0; got nan"),
        ({"x_dtype": "datetime64[s]"}, TypeError, "values must be"),
        ({"columns": 0}, ValueError, "columns must be an integer of at least 1; got 0"),
        ({"columns": 2.5}, ValueError, "columns must be an integer of at least 1; got 2.5"),
        ({"device": "tpu"}, ValueError, "device must be"),
    ],
)
def test_rejects(keywords, error, message):
    with pytest.raises(error, match=message):
        cvrarray.tune(matrix(), **keywords)


# --- the key ---


def key(csr, x_dtype=np.float64, device=devices.CPU, columns=1):
    return tuning.key(coercion.move(coercion.as_csr(csr), device), np.dtype(x_dtype), device, columns)


def test_key_is_of_the_structure(device):
    device = devices.parse(device)
    csr = matrix()
    other_values = csr.copy()
    other_values.data += 1
    long = scipy.sparse.csr_array((csr.data, csr.indices.astype(np.int64), csr.indptr.astype(np.int64)), shape=csr.shape)
    assert key(csr, device=device) == key(other_values, device=device) == key(long, device=device)
    moved_entry = csr.copy()
    moved_entry.indices[0] += 1 if moved_entry.indices[0] + 1 not in moved_entry.indices[: moved_entry.indptr[1]] else 2
    moved_entry.sort_indices()
    different = [
        key(csr.astype(np.float32), device=device),
        key(csr, np.complex128, device=device),
        key(csr, device=device, columns=2),
        key(scipy.sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=(400, 301)), device=device),
        key(csr[::-1], device=device),
        key(moved_entry, device=device),
    ]
    assert len({key(csr, device=device), *different}) == 7


def test_key_is_of_version_and_machine(monkeypatch):
    before = key(matrix())
    monkeypatch.setattr(cvrarray, "__version__", "0.0.0")
    versioned = key(matrix())
    monkeypatch.setattr(tuning, "describe", lambda device: ["cpu", "another", 3])
    assert len({before, versioned, key(matrix())}) == 3


# --- the folder ---


def test_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    if os.name != "nt":
        assert tuning.folder() == tmp_path / ".cache" / "cvrarray" / "tune"
        monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
        assert tuning.folder() == tmp_path / ".cache" / "cvrarray" / "tune"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert tuning.folder() == tmp_path / "xdg" / "cvrarray" / "tune"


def test_folder_on_windows(monkeypatch, tmp_path):
    """By the text of the path alone: no such path can be made elsewhere."""
    monkeypatch.setattr(tuning.os, "name", "nt")
    monkeypatch.setattr(tuning, "Path", type(tmp_path))  # of the system that this is
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert tuning.folder() == tmp_path / "cvrarray" / "tune"


WINNER = tuning.Winner(tuning.Candidate("bbcsr", 3), 1e-5, 4, True, 1.0)


def test_store_and_load(cache):
    assert tuning.load(cache / "a.json") is None
    for winner in (WINNER, WINNER._replace(candidate=tuning.Candidate("cvr"), complete=False)):
        tuning.store(cache / "a.json", winner)
        assert tuning.load(cache / "a.json") == winner
    assert files(cache) == ["a.json"]


def damaged(text):
    """Every way a file can be broken that is worth a line."""
    whole = json.loads(text)

    def signed(content):
        return json.dumps({"content": content, "checksum": tuning._checksum(content)})

    yield ""
    yield text[: len(text) // 2]
    yield text.replace("bbcsr", "cvrrr")
    yield text.replace("bbcsr", "\udcff").encode("utf-8", "surrogateescape")
    yield "[" * 100_000
    yield "[]"
    yield json.dumps({"content": whole["content"]})
    yield json.dumps({**whole, "content": 3})
    yield signed("{}")
    facts = json.loads(whole["content"])
    for candidate in (["ellpack", 1], ["bbcsr", None], ["bbcsr", "3"], ["bbcsr", True], ["bbcsr"], "bbcsr", 3):
        yield signed(json.dumps({**facts, "candidate": candidate}))
    yield signed(json.dumps({**facts, "seconds": "fast"}))
    yield signed(json.dumps({**facts, "tried": None}))
    yield signed(json.dumps({**facts, "more": 1}))


def test_broken_files_are_ignored_and_replaced(cache, clock):
    csr = matrix(n=64)
    seen = clock(cvr=2.0, bbcsr=1.0)
    cvrarray.tune(csr, device="cpu")
    (path,) = cache.iterdir()
    text = path.read_text()
    for broken in damaged(text):
        path.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
        assert tuning.load(path) is None, broken[:200]
        before = len(seen)
        cvrarray.tune(csr, device="cpu")
        assert len(seen) > before
        assert path.read_text() == text
    path.unlink()
    path.mkdir()  # a folder where a file should be
    assert tuning.load(path) is None
    assert "measured" in cvrarray.tune(csr, device="cpu").plan
    assert files(cache) == [path.name]


def test_impossible_parameters_are_measured_again(cache, clock):
    """Whole and signed, but no such array can be made."""
    clock(cvr=2.0, bbcsr=1.0)
    csr = matrix(n=64)
    cvrarray.tune(csr, device="cpu")
    (path,) = cache.iterdir()
    for candidate in (tuning.Candidate("bbcsr", 1000), tuning.Candidate("cvr", 0)):
        tuning.store(path, WINNER._replace(candidate=candidate))
        assert "measured" in cvrarray.tune(csr, device="cpu").plan


def test_unwritable_folder(tmp_path, monkeypatch, clock):
    clock(cvr=2.0, bbcsr=1.0)
    (tmp_path / "file").write_text("no folder")  # where even root cannot write
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "file"))
    for _ in range(2):
        assert "measured" in cvrarray.tune(matrix(n=64), device="cpu").plan
    assert (tmp_path / "file").read_text() == "no folder"


def test_failed_write_leaves_nothing(cache, monkeypatch):
    tuning.store(cache / "a.json", WINNER)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tuning.os, "replace", full)
    tuning.store(cache / "a.json", WINNER._replace(tried=99))
    assert files(cache) == ["a.json"]
    assert tuning.load(cache / "a.json") == WINNER


def test_oldest_files_go(cache, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_FILES", 3)
    cache.mkdir(parents=True)
    (cache / ".left.tmp").write_text("a writer was killed")
    os.utime(cache / ".left.tmp", (1, 1))
    for k in range(5):
        tuning.store(cache / f"{k}.json", WINNER)
        os.utime(cache / f"{k}.json", (k + 2, k + 2))
    assert files(cache) == ["2.json", "3.json", "4.json"]


def test_asarray_neither_reads_nor_writes(cache, clock):
    csr = generate.tetrahedra(6, 3)
    chosen = cvrarray.asarray(csr, device="cpu")
    other = {"cvr": "bbcsr", "bbcsr": "cvr"}[chosen.format]
    clock(**{chosen.format: 2.0, other: 1.0})
    assert cvrarray.tune(csr, device="cpu").format == other
    before = files(cache)
    assert cvrarray.asarray(csr, device="cpu").plan == chosen.plan
    assert files(cache) == before
