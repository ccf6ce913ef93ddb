"""The docs site: its menu, its links, and the configuration reference against what the reader accepts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY

import cords_dp
from cords_dp.config.keys import KEYS, SOURCE_KEYS, TOP_LEVEL
from cords_dp.planning.mechanism import mechanism_keys
from cords_dp.runs.reference import MARK, documented_keys, reference, write_reference

DOCS = REPOSITORY / "docs"
SITE = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())


def menu(entries) -> list[str]:
    pages = []
    for entry in entries:
        inside = next(iter(entry.values())) if isinstance(entry, dict) else entry
        pages += menu(inside) if isinstance(inside, list) else [inside]
    return pages


def test_every_page_is_in_the_menu():
    assert {page.name for page in DOCS.glob("*.md")} <= set(menu(SITE["nav"]))


def test_the_site_asks_nobody_else_for_anything():
    assert SITE["theme"]["font"] is False
    assert "extra_javascript" not in SITE
    for style in SITE.get("extra_css", []):
        assert "//" not in (REPOSITORY / "docs" / style).read_text()  # a file of ours, which names no address
    assert "offline" not in SITE["plugins"]  # for all its name it loads a script from a public host


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    """Files, and headings of pages. Pages in the menu that others write may still be missing."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if file.name in menu(SITE["nav"]) and not file.exists():
            continue
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


# --- the configuration reference ----------------------------------------------------------------------------------


def accepted_keys() -> dict[str, set[str]]:
    """What `training.resolve` lets through."""
    accepted = {section: set(keys) for section, keys in KEYS.items()}
    accepted["top level"] = set(TOP_LEVEL)
    accepted["dss_args"] |= mechanism_keys()
    accepted["dataset"] |= {key for keys in SOURCE_KEYS.values() for key in keys}
    return accepted


def test_the_reference_has_every_key_that_a_config_may_have():
    assert documented_keys() == accepted_keys()


def test_the_page_in_a_clone_holds_the_reference_as_it_is():
    """In a process of its own: other tests register mechanisms. After a change: the command in the page's mark."""
    page = (DOCS / "configuration.md").read_text()
    assert page.count(MARK) == 1
    made = subprocess.run(
        [sys.executable, "-m", "cords_dp.runs.reference"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert page.partition(MARK)[2] == made.stdout


def test_the_reference_is_written_below_the_mark(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{MARK}old\n")
    write_reference(page)
    assert page.read_text() == f"# Title\n\n{MARK}{reference()}"


def test_every_key_is_explained():
    """The last cell of a row says what the key is; CORDS' own arguments are explained together."""
    text = reference().split("### CORDS' own keys")
    rows = re.findall(r"^\| `(\w+)` .*\| *([^|]*) \|$", text[0] + text[1].partition("\n## ")[2], re.MULTILINE)
    assert len(rows) > 150
    assert [key for key, words in rows if not words.strip()] == []


def test_the_reference_says_what_the_checks_say():
    text = reference()
    assert (
        "| `fraction` | a number in (0, 1] | `1.0` | the share of the records to train on in each epoch; `FullDP` takes"
        in text
    )
    assert '| `batch_size` | `"auto"` or a whole number from 1 to 1000000000 |' in text
    assert "| `epsilon` | a number in (0, 500] | must be given |" in text


# --- the API reference ------------------------------------------------------------------------------------------------


def test_the_api_page_has_every_public_name():
    named = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    missing = set(cords_dp.__all__) - {name.rsplit(".", 1)[1] for name in named} - {"CordsDPError"}
    assert not missing
    for name in named:
        module, _, attribute = name.rpartition(".")
        if attribute != "errors":
            assert getattr(__import__(module, fromlist=[attribute]), attribute).__doc__
