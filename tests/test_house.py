"""What those who join are told is so: what pages name exists."""

from __future__ import annotations

import re
from pathlib import Path

import house
import pytest

from cvrarray import cli

ROOT = Path(__file__).parent.parent
PAGES = ("CONTRIBUTING.md", "README.md", "docs/architecture.md", "docs/contributing.md", ".github/pull_request_template.md")


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


def headings(page):
    """Anchors of a page's headings, as GitHub and MyST make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


def test_environment_variables_are_listed():
    table = (ROOT / "docs" / "api.md").read_text().partition("## Environment variables\n")[2]
    sources = "".join(path.read_text() for path in (ROOT / "cvrarray").rglob("*.py"))
    assert {*re.findall(r"CVRARRAY_[A-Z_]+", sources)} == {*re.findall(r"^\| `(CVRARRAY_[A-Z_]+)`", table, re.MULTILINE)}


def test_links_lead_to_files_and_headings():
    """Relative ones, on the site and in the repository."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, *link) for page in pages for link in re.findall(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)", page.read_text())]
    assert len(links) > 50
    for page, target, anchor in links:
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in headings(path), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_pages_name_exist(page):
    text = (ROOT / page).read_text()
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:^    |`)make ([\w-]+)", text, re.MULTILINE):
        assert target in targets
    for command in re.findall(r"(?:^    |`)cvrarray (\w+)", text, re.MULTILINE):
        assert command in cli.COMMANDS


def test_tests_compare_devices_with_names_that_the_fixtures_give():
    """They give "cpu" and "cuda:0": a comparison with "cuda" is never true, and what depends on it never runs on a GPU."""
    fixtures = re.compile(r"\b(?:device|gpu) [!=]= \"cuda\"")
    wrong = [path.name for path in (ROOT / "tests").glob("*.py") if fixtures.search(path.read_text())]
    assert not wrong


def test_pages_that_all_should_read_stay_short():
    assert 5_000 < house.words() <= 25_000
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 350
