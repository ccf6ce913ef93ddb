"""Pages that people read: lines of a length that fits a screen."""

from __future__ import annotations

import pytest
from conftest import REPOSITORY

NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(REPOSITORY / name for name in NAMES), *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_over_120_characters(page):
    """Rows of the tables that are made from the code have no line breaks to give."""
    made = page.name == "configuration.md"
    lines = [line for line in page.read_text().splitlines() if not (made and line.startswith("|"))]
    assert [line for line in lines if len(line) > 120] == []


def test_the_readme_fits_one_look():
    lines = (REPOSITORY / "README.md").read_text().splitlines()
    assert [line for line in lines if len(line) > 100] == []
    assert len(lines) < 100
