"""The docs that are no code cells: tables of what becomes what, recorded figures, packaging."""

from __future__ import annotations

import re
import tomllib
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
def test_what_becomes_what(section, left, right):
    csr = zoo.floats("rows_of_mixed_length")
    csr.data /= abs(csr.data).max()
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


# ----------------------------------------------------------------------------------------------------- recorded figures


def test_readme_has_the_charts_and_figures_of_the_records():
    """``PYTHONPATH=. python docs/recorded.py`` writes them anew."""
    recorded, readme = docs_module("recorded"), (ROOT / "README.md").read_text()
    assert f"{recorded.BEGIN}{recorded.readme()}{recorded.END}" in readme
    for name, picture in recorded.front().items():
        assert (ROOT / "docs" / "_static" / name).read_text() == str(picture), name
        assert f"docs/_static/{name}" in readme


# ---------------------------------------------------------------------------------------------------------- packaging


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


def test_the_version_without_a_distribution(monkeypatch):
    from importlib import metadata

    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    cvrarray._version.cache_clear()
    assert cvrarray.__version__ == "0+unknown"
    cvrarray._version.cache_clear()


def test_extras():
    """Every extra that a message or a page names exists."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert {"cuda12", "cuda13", "dask", "bench", "docs", "test"} <= extras
    sources = [*(ROOT / "cvrarray").rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for path in sources:
        for named in re.findall(r"(?:cvrarray|'\.)\[([a-z0-9,]+)\]", path.read_text()):
            assert set(named.split(",")) <= extras, f"{path.name} names {named}"
