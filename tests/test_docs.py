"""The docs that are no code cells: tables of what becomes what, asv's pages, citation."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import sparse
import zoo
from checks import docs_module

import cvrarray

ROOT = Path(__file__).parent.parent
MOVING = (ROOT / "docs" / "moving.md").read_text()


def rows(section):
    """(left, right) expressions of a section's table."""
    text = MOVING.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`|]+)` \| `([^`|]+)` \|.*\|$", text, re.MULTILINE)


def dense(value):
    for name in ("todense", "toarray"):
        if hasattr(value, name):
            return getattr(value, name)()
    return np.asarray(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(
    ("section", "left", "right"),
    [(section, *row) for section in ("From scipy.sparse", "From pydata/sparse") for row in rows(section)],
)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.extended)])
def test_what_becomes_what(section, left, right, dtype):
    csr = zoo.floats("rows_of_mixed_length").astype(dtype)
    csr.data = csr.data * (1 + 2j if dtype == "complex128" else 1) / abs(csr.data).max()
    rng = np.random.default_rng(0)
    names = {
        "S": csr,
        "C": sparse.COO.from_scipy_sparse(csr),
        "A": cvrarray.asarray(csr, device="cpu"),
        "x": rng.random(csr.shape[1]),
        "y": rng.random(csr.shape[0]),
        "X": rng.random((csr.shape[1], 3)),
        "np": np,
        "scipy": scipy,
        "cvrarray": cvrarray,
    }
    theirs, ours = (eval(text, names) for text in (left, right))
    if isinstance(dense(theirs), (np.ndarray, np.number)):
        np.testing.assert_allclose(dense(ours), dense(theirs), rtol=1e-12)
    else:
        assert ours == theirs


# ---------------------------------------------------------------------------------------------------------- asv


def test_asv_benchmarks_use_what_there_is():
    """Formats, matrices and scales that asv is told of exist."""
    from cvrarray import generate

    text = (ROOT / "asv_bench" / "benchmarks" / "common.py").read_text()
    names = {
        name
        for line in re.findall(r"^(?:BLOCK_SIZES|NOT_FOR_BBCSR) = (.*)$", text, re.MULTILINE)
        for name in re.findall(r'"(\w+)"', line)
    }
    assert names
    assert names <= generate.MATRICES.keys()
    assert json.loads((ROOT / "asv_bench" / "asv.conf.json").read_text())["benchmark_dir"] == "benchmarks"


# ----------------------------------------------------------------------------------------------------- recorded figures


@pytest.fixture
def recorded_pages():
    return docs_module("recorded")


def test_charts_of_the_front_page_are_those_of_the_records(recorded_pages):
    """README shows files: ``PYTHONPATH=. python docs/recorded.py`` writes them anew."""
    for name, picture in recorded_pages.front().items():
        assert (ROOT / "docs" / "_static" / name).read_text() == str(picture), name
        assert f"docs/_static/{name}" in (ROOT / "README.md").read_text()


def test_readme_has_the_figures_of_the_records(recorded_pages):
    """``PYTHONPATH=. python docs/recorded.py`` writes them anew."""
    assert f"{recorded_pages.BEGIN}{recorded_pages.readme()}{recorded_pages.END}" in (ROOT / "README.md").read_text()


# ---------------------------------------------------------------------------------------------------------- packaging


def test_citation_names_the_version_and_licence():
    text = (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert f"version: {newest}\n" in text
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools_scm"]
    assert settings["fallback_version"] == f"{newest}.dev0"
    assert "license: BSD-3-Clause" in text


def test_recipe_needs_what_the_package_needs():
    """Dependencies of the conda recipe are those of pyproject.toml, and so is the oldest Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    recipe = (ROOT / "recipe" / "meta.yaml").read_text()

    def listed(section):
        found = re.search(rf"^  {section}:\n((?:    - .+\n)+)", recipe, re.MULTILINE)[1]
        return sorted(re.sub(r"[ \"]", "", line[6:]) for line in found.splitlines())

    python = f"python{project['project']['requires-python']}"
    names = [re.sub("^xxhash", "python-xxhash", name) for name in project["project"]["dependencies"]]  # conda-forge's
    assert listed("run") == sorted([python, *names])
    assert listed("host") == sorted([python, "pip", *project["build-system"]["requires"]])
    (command,) = project["project"]["scripts"].items()
    assert f"- {' = '.join(command)}\n" in recipe


def test_the_version_is_the_installed_distribution_s(monkeypatch):
    from importlib import metadata

    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    cvrarray._version.cache_clear()
    try:
        assert cvrarray.__version__ == metadata.version("cvrarray")
    except metadata.PackageNotFoundError:  # a folder on the path, not installed
        assert cvrarray.__version__ == "0+unknown"
    cvrarray._version.cache_clear()
    monkeypatch.setattr(metadata, "version", unknown)
    assert cvrarray.__version__ == "0+unknown"
    cvrarray._version.cache_clear()


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_workflows_test_what_the_classifiers_promise(python):
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert f'"{python}"' in re.search(r"^ +python: \[(.+)\]", text, re.MULTILINE)[1]
    assert f"Python :: {python}" in (ROOT / "pyproject.toml").read_text()


def test_extras():
    """Every extra that a message or a page names exists."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert {"cuda12", "cuda13", "dask", "bench", "docs", "test"} <= extras
    sources = [*(ROOT / "cvrarray").rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for path in sources:
        for named in re.findall(r"(?:cvrarray|'\.)\[([a-z0-9,]+)\]", path.read_text()):
            assert set(named.split(",")) <= extras, f"{path.name} names {named}"


def test_wheel_contents_finds_what_is_missing_and_what_is_needless(tmp_path):
    import wheel_contents

    names = wheel_contents.expected()
    assert "cvrarray/kernels/common.cuh" in names
    wheel = tmp_path / "a.whl"
    for without, extra, problems in (
        ((), ("cvrarray-0.dist-info/licenses/LICENSE",), []),
        (
            ("cvrarray/cvr.py",),
            ("tests/zoo.py",),
            ["missing: cvrarray/cvr.py", "needless: tests/zoo.py", "missing: the licence"],
        ),
    ):
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in sorted((names - set(without)) | set(extra)):
                archive.writestr(name, "")
        assert wheel_contents.problems(wheel) == problems
        assert wheel_contents.main([str(wheel)]) == bool(problems)
