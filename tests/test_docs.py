"""Pages that people read: lines of a length that fits a screen."""

from __future__ import annotations

import pytest
from conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_over_120_characters(page):
    assert [line for line in page.read_text().splitlines() if len(line) > 120] == []
