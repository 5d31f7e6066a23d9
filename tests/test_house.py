"""What those who join are told is so: the map has every file, and what pages name exists."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from checks import docs_module

from cvrarray import cli

ROOT = Path(__file__).parent.parent
PAGES = ("CONTRIBUTING.md", "README.md", "docs/contributing.md", ".github/pull_request_template.md")


@pytest.fixture(scope="module")
def house():
    return docs_module("house")


def test_the_map_has_every_file(house):
    """Every module, kernel and test in its folder's table, once, with a line that says what it is for."""
    tables = {}
    for part in house.page().split("\n### ")[1:]:
        heading, _, rest = part.partition("\n")
        tables[heading.strip("`/")] = re.findall(r"^\| `(.+?)` \| (.+) \|$", rest, re.MULTILINE)
    found = {f"{folder}/{name}" for folder, rows in tables.items() for name, _ in rows}
    assert sum(map(len, tables.values())) == len(found)
    expected = {
        path.relative_to(ROOT).as_posix()
        for place in ("cvrarray", "kernels", "asv_bench", "tests")
        for path in (ROOT / place).rglob("*")
        if path.suffix in (".py", ".cu", ".cuh") and not path.name.startswith("__")
    }
    assert found == expected
    assert all(about.strip() for rows in tables.values() for _, about in rows)


def test_first_lines_are_sentences(house):
    """Whole ones, on one line, so that the map can show them."""
    for path in house.files():
        assert house.summary(path).endswith((".", ":")), path.relative_to(ROOT)


def test_roles_become_code(house):
    assert house._markdown("See :func:`~a.b`, ``x | y``.") == r"See `a.b`, `x \| y`."


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


def test_every_page_of_measurements_is_listed():
    listed = (ROOT / "docs" / "measurements.md").read_text()
    assert not [
        page.name for page in (ROOT / "docs" / "measurements").glob("*.md") if f"(measurements/{page.name})" not in listed
    ]


def test_contents_of_a_page_of_measurements_are_whole():
    """Of the long ones, which begin with what came of each section."""
    pages = {page.name: page.read_text() for page in (ROOT / "docs" / "measurements").glob("*.md")}
    with_contents = {name: text for name, text in pages.items() if "\n## In short\n" in text}
    assert len(with_contents) >= 3
    for name, text in with_contents.items():
        sections = [title for title in re.findall(r"^#{2,3} (.+)$", text, re.MULTILINE) if title != "In short"]
        assert re.findall(r"^\| \[(.+?)\]\(#", text, re.MULTILINE) == sections, name


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


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.name)
def test_a_decision_is_a_page(page):
    """At most 120 lines of 120 characters; the figures are on the page of the same number in docs/measurements."""
    lines = page.read_text().splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []
    for measured in (ROOT / "docs" / "measurements").glob(f"{page.name[:4]}-*.md"):
        assert f"(../measurements/{measured.name})" in page.read_text()
        assert f"(../decisions/{page.name})" in measured.read_text()


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


def test_lines_of_prose_have_at_most_120_characters():
    """On every page that is written by hand. Tables, code and links may be longer."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    written = [
        page for page in pages if "_build" not in page.parts and page.parent.name != "benchmarks" and page.stem != "works"
    ]
    assert len(written) > 40
    for page in written:
        prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
        too_long = [line for line in prose if len(line) > 120 and not line.lstrip().startswith(("|", "[", "!", "<", "#", ":"))]
        assert not too_long, (page.name, too_long[0])


def test_tests_compare_devices_with_names_that_the_fixtures_give():
    """They give "cpu" and "cuda:0": a comparison with "cuda" is never true, and what depends on it never runs on a GPU."""
    fixtures = re.compile(r"\b(?:device|gpu) [!=]= \"cuda\"")
    wrong = [path.name for path in (ROOT / "tests").glob("*.py") if fixtures.search(path.read_text())]
    assert not wrong
