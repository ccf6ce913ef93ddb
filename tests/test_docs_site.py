"""The docs site: its menu, its links, and the configuration reference against what the reader accepts."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY

import cords_dp
from cords_dp import errors, extend
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


def public_modules() -> dict[str, set[str]]:
    """The modules that the API page lists for studies, with the names that it gives them."""
    text = (DOCS / "api.md").read_text().partition("## Modules for studies")[2].partition("\n## ")[0]
    listed = re.findall(r"^- `(cords_dp[\w.]*)`:((?:.|\n  )*)", text, re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in listed}


def test_the_api_page_has_every_name_of_extend():
    text = (DOCS / "api.md").read_text().partition("## Extending")[2].partition("\n## ")[0]
    shown = {name.rsplit(".", 1)[1] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    named = set(re.findall(r"`(\w+)`", text.partition("###")[0]))
    assert set(extend.__all__) == shown | (named - {"state_dict", "Key", "cords_dp"})
    undocumented = [name for name in shown if not inspect.getdoc(getattr(extend, name))]
    assert undocumented == []


def test_the_api_page_lists_the_modules_for_studies_as_they_are():
    listed = public_modules()
    assert len(listed) > 5
    for module, names in listed.items():
        assert names == set(importlib.import_module(module).__all__), module


def test_extensions_in_the_docs_need_public_names_alone():
    imports = re.findall(r"^from (cords_dp\S*) import (.*)$", (DOCS / "extending.md").read_text(), re.MULTILINE)
    assert imports
    allowed = {"cords_dp": set(cords_dp.__all__), "cords_dp.extend": set(extend.__all__)}
    for module, names in imports:
        assert {name.strip() for name in names.split(",")} <= allowed[module], module
    assert not re.findall(r"^import cords_dp\.", (DOCS / "extending.md").read_text(), re.MULTILINE)


def test_studies_need_public_names_alone():
    """Whatever a study of ours does a user can do with what the API page names."""
    public = {"cords_dp": set(cords_dp.__all__), "cords_dp.extend": set(extend.__all__), **public_modules()}
    public["cords_dp.errors"] = {name for name in vars(errors) if name.endswith("Error")}
    for path in (REPOSITORY / "cords_dp/studies").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("cords_dp")], path
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cords_dp"):
                if (node.module or "").startswith("cords_dp.studies"):
                    continue
                hidden = {a.name for a in node.names} - public.get(node.module or "", set())
                assert not hidden, f"{path.name}: {node.module} {hidden}"
