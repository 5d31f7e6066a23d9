"""The page "What works with what" says what is so: its calls are made again."""

from __future__ import annotations

import re

import pytest
from checks import docs_module

works = docs_module("works")


def written(title):
    """call -> what came of it, as the page has it."""
    return dict(re.findall(r"^\| `(.+?)` \| (.*) \|$", works.standing(title), re.MULTILINE))


def alike(found, text):
    """The same kind of result; the words of other libraries' errors may change."""
    return found == text or ("Error" in found and "Error" in text)


@pytest.mark.parametrize("section", works.SECTIONS, ids=lambda section: section.package)
def test_sections(section):
    pytest.importorskip(section.package)
    found, page = dict(works.rows(section)), written(section.title)
    assert set(found) == set(page), "run `make works`"
    assert not {call: (what, page[call]) for call, what in found.items() if not alike(what, page[call])}


def test_numpy():
    """And every error of a function of NumPy's names a way."""
    found, page = dict(works.rows_of_numpy()), written("NumPy")
    both = set(found) & set(page)  # another NumPy has other functions
    assert len(both) > 400
    assert not {call: (found[call], page[call]) for call in both if not alike(found[call], page[call])}
    ways = re.compile(r"todense|tocsr|tocsc|with_values|cvrarray\.|Use |A\.|concatenate|axis")
    for call, what in found.items():
        if call.startswith("np.") and "nditer" not in call and what.startswith(("TypeError", "DenseResultError")):
            assert ways.search(what), (call, what)
