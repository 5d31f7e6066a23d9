"""The report of a GPU run: it fits its sources or says loudly why not, and never fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_report
import pytest

from cvrarray.core import devices

TESTS = Path(__file__).parent
GOOD = {"counts": {"passed": 3}, "gpu": {"name": "a GPU"}, "date": "2000-01-01", "whole": True}


@pytest.fixture
def root(tmp_path):
    """A small checkout."""
    for name, text in (("cvrarray/cpu/a.py", "x = 1\n"), ("kernels/b.cu", "//\n"), ("kernels/c.cuh", "//\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_hash_follows_contents_and_names_of_sources(root):
    """The same in every checkout: line ends and files that are no sources do not count."""
    hashes = {gpu_report.source_hash(root)}
    (root / "cvrarray" / "cpu" / "a.py").write_bytes(b"x = 1\r\n")
    (root / "kernels" / "README.md").write_text("text")
    (root / "cvrarray" / "__pycache__").mkdir()
    (root / "cvrarray" / "__pycache__" / "a.pyc").write_bytes(b"code")
    assert hashes == {gpu_report.source_hash(root)}
    for path in (root / "cvrarray/cpu/a.py", root / "kernels/b.cu", root / "kernels/c.cuh"):
        path.write_text("y = 2\n")
        hashes.add(gpu_report.source_hash(root))
        path.rename(path.with_stem("renamed"))
        hashes.add(gpu_report.source_hash(root))
    assert len(hashes) == 7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"source_hash": "0"}, "sources have changed"),
        ({"gpu": None}, "no GPU"),
        ({"failures": ["test_a", "test_b"]}, "2 failures: test_a, test_b"),
        ({"counts": {"passed": 0}}, "passed no test"),
        ({"whole": False}, "did not come to its end"),
    ],
)
def test_whether_a_report_fits(root, changes, words):
    path = root / "report.json"
    path.write_text(json.dumps(GOOD | {"source_hash": gpu_report.source_hash(root)} | changes))
    found = gpu_report.problems(path, root)
    assert len(found) == (words is not None)
    assert all(words in problem and words in gpu_report.warning([problem]) for problem in found)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ERROR SUMMARY: 0 errors", None),
        ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\nRACECHECK SUMMARY: 0 hazards displayed", None),
        ("ERROR SUMMARY: 0 errors\nERROR SUMMARY: 2 errors", "has 2 errors"),
        ("RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", "has 1 errors"),
        ("COMPUTE-SANITIZER", "does not say how many"),
        (None, "does not say how many"),
    ],
)
def test_what_a_sanitizer_found(root, log, words):
    (root / "racecheck.json").write_text(json.dumps(GOOD | {"source_hash": gpu_report.source_hash(root)}))
    if log is not None:
        (root / "racecheck.log").write_text(f"========= {log}\n")
    found = gpu_report.problems_of_tool("racecheck", root, root)
    assert len(found) == (words is not None)
    assert all(words in problem for problem in found)
    (root / "kernels" / "b.cu").write_text("// other\n")
    assert "racecheck: the sources have changed" in gpu_report.problems_of_tool("racecheck", root, root)[0]


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "null", "not json"])
def test_no_report(root, text):
    path = root / "report.json"
    if text is not None:
        path.write_text(text)
    assert len(gpu_report.problems(path, root)) == 1


def test_check_warns_and_succeeds(tmp_path, capsys):
    """A loud warning over several lines, exit code 0."""
    assert gpu_report.main(["--check", str(tmp_path / "missing.json")]) == 0
    warning = capsys.readouterr().out
    assert "WARNING" in warning
    assert len(warning.splitlines()) >= 4


@pytest.mark.parametrize("options", [("-n", "1"), ("-x",)], ids=" ".join)
def test_a_run_writes_its_report(tmp_path, options):
    """Counts, skips with reasons and failures, of one process or of several, and whether it came to its end."""
    (tmp_path / "test_some.py").write_text(
        "import os, gpu_report, pytest\n"
        "gpu_report.gpu = lambda: {'name': os.environ.get('PYTEST_XDIST_WORKER', 'alone')}\n"
        "def test_device(device): pass\n"
        "def test_skips(): pytest.skip('no reason')\n"
        "@pytest.mark.xfail\n"
        "def test_xfails(): assert False\n"
        "def test_fails(): assert False\n"
        "def test_last(): pass\n"
    )
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", tmp_path]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}  # as of no worker
    environment = own | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    path = tmp_path / "report.json"
    subprocess.run([*command, "--gpu-report", path, *options, tmp_path], env=environment, capture_output=True, check=False)
    report = json.loads(path.read_text())
    is_whole, has_gpu = "-n" in options, devices.gpu_count() > 0
    assert report["gpu"]["name"] in (("gw0",) if is_whole else ("alone",))
    expected = {"passed": 1 + is_whole + has_gpu, "failed": 1, "error": 0, "skipped": 2 - has_gpu, "xfailed": 1}
    assert report["counts"] == expected
    assert [name.rpartition("::")[2] for name in report["failures"]] == ["test_fails"]
    assert any(name.endswith("test_skips: no reason") for name in report["skips"])
    assert report["source_hash"] == gpu_report.source_hash()
    assert report["versions"]["numpy"]
    assert report["whole"] == is_whole
