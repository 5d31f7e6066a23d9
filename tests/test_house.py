"""What those who join are told is so: what pages name exists."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import house
import pytest
from checks import docs_module

from cvrarray import cli

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.pages
PAGES = ("CONTRIBUTING.md", "README.md", "docs/architecture.md", "docs/contributing.md", ".github/pull_request_template.md")


def test_the_map_says_what_each_file_is_for():
    """In a whole sentence, the first line of the file."""
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", docs_module("file_map").page(), re.MULTILINE)
    assert len(rows) > 100
    assert not [name for name, about in rows if not about.endswith((".", ":"))]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_exist(page):
    text = (ROOT / page).read_text()
    roots = {path.name for path in ROOT.iterdir()}
    named = [path for path in re.findall(r"`([\w./-]+)`", text) if "/" in path and path.split("/")[0] in roots]
    named += re.findall(r"`(\w+\.md|\.\w+/\w+)`", text)
    assert named
    for path in named:
        assert (ROOT / path).exists(), path
    for path, *options in re.findall(r"literalinclude\} (\S+)\n:\S+: (.+)\n:end-before: (.+)\n", text):
        shown = ((ROOT / page).parent / path).read_text()
        start, end = (option.strip('"') for option in options)
        assert start in shown
        assert end in shown[shown.index(start) + len(start) :]


def test_links_between_pages_lead_to_files():
    """Relative ones, on the site and in the repository."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:\s]+)(?:#[\w-]+)?\)", page.read_text())]
    assert len(links) > 50
    assert not [(page.name, link) for page, link in links if not (page.parent / link).exists()]


def headings(page):
    """Anchors of a page's headings, as GitHub and MyST make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


def test_environment_variables_are_listed():
    table = (ROOT / "docs" / "api.md").read_text().partition("## Environment variables\n")[2]
    sources = "".join(path.read_text() for path in (ROOT / "cvrarray").rglob("*.py"))
    assert {*re.findall(r"CVRARRAY_[A-Z_]+", sources)} == {*re.findall(r"^\| `(CVRARRAY_[A-Z_]+)`", table, re.MULTILINE)}


def test_links_to_a_heading_find_it():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, target, anchor)
        for page in pages
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([\w-]+)\)", page.read_text())
    ]
    assert len(links) > 30
    assert not [
        (page.name, target, anchor)
        for page, target, anchor in links
        if anchor not in headings(page.parent / target if target else page)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_pages_name_exist(page):
    text = (ROOT / page).read_text()
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:^    |`)make ([\w-]+)", text, re.MULTILINE):
        assert target in targets
    for command in re.findall(r"(?:^    |`)cvrarray (\w+)", text, re.MULTILINE):
        assert command in cli.COMMANDS


def test_bench_targets_run_what_there_is():
    """The recorded runs of the Makefile, their options included: parsed, not run."""
    makefile = (ROOT / "Makefile").read_text()
    on_cpu = re.search(r"^ON_CPU := (.+)$", makefile, re.MULTILINE)[1]
    lines = dict(re.findall(r"-m asv_bench\.record\.(\w+) (.+)$", makefile, re.MULTILINE))
    assert {"products", "solve", "gpu", "gpu_columns", "ops", "few_values"} <= set(lines)
    for name, options in lines.items():
        assert ("$(ON_CPU)" if name == "products" else "--report docs/benchmarks") in options
        given = shlex.split(on_cpu if name == "products" else "--report docs/benchmarks")
        module = importlib.import_module(f"asv_bench.record.{name}")
        assert str(module.parser().parse_args(given).report) == "docs/benchmarks"


def test_hooks_have_the_versions_of_the_extra():
    """pre-commit's ruff and mypy are those of ``make lint``."""
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    for tool in ("ruff", "mypy"):
        (requirement,) = (line for line in dev if line.startswith(tool))
        assert set(re.findall(rf'"({tool}[=><][^"]*)"', hooks)) == {requirement}


def test_tests_compare_devices_with_names_that_the_fixtures_give():
    """They give "cpu" and "cuda:0": a comparison with "cuda" is never true, and what depends on it never runs on a GPU."""
    fixtures = re.compile(r"\b(?:device|gpu) [!=]= \"cuda\"")
    wrong = [path.name for path in (ROOT / "tests").glob("*.py") if fixtures.search(path.read_text())]
    assert not wrong


def test_pages_that_all_should_read_stay_short():
    assert 5_000 < house.words() <= 25_000
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 350
