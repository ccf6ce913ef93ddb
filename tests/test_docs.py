"""Pages that people read: lines that fit a screen, paths that lead somewhere, docstrings that begin with a verb."""

from __future__ import annotations

import ast
import re

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


# --- paths ----------------------------------------------------------------------------------------------------------

PACKAGE = REPOSITORY / "cords_dp"
ROOTS = {"tests", "tools", "benchmarks", "configs", "docs", ".ci", "cords_dp"}
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"runs"}  # where users' runs lie, too


def named_paths(page) -> list[str]:
    """Return the paths of this repository that a page names in backticks; docs leave out ``cords_dp/``."""
    words = re.findall(r"`([^`\s]+)`", page.read_text())
    paths = [word.partition("::")[0] for word in words if re.fullmatch(r"[\w./{},-]+", word) and "/" in word]
    return [
        path for path in paths if path.split("/")[0] in ROOTS | ROOMS and not re.search("NAME|configs/SL", path)
    ]  # CORDS has configs/SL


def alternatives(path: str) -> list[str]:
    """Return the paths that ``a_{b,c}.py`` stands for."""
    braces = re.search(r"\{([^}]*)\}", path)
    return [path] if braces is None else [path.replace(braces[0], one) for one in braces[1].split(",")]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page):
    paths = [one for path in named_paths(page) for one in alternatives(path)]
    assert [path for path in paths if not ((REPOSITORY / path).exists() or (PACKAGE / path).exists())] == []


def test_the_map_names_every_room_and_paths_are_found_in_it():
    page = REPOSITORY / "CONTRIBUTING.md"
    paths = set(named_paths(page))
    assert len(paths) > 40
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    files = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert {f"cords_dp/{name}/" for name in rooms} | {f"cords_dp/{name}" for name in files} <= paths


# --- docstrings -----------------------------------------------------------------------------------------------------

DESCRIBED = ("accounting", "cli", "config", "noise", "planning", "report", "runs", "training", "tuning")
NO_VERB = re.compile(r"The|A|An|What|Every\w*|How|All|One|Each|Is|Does|May|Where|Which|By|Of|For|In|\W.*")


@pytest.mark.parametrize("room", DESCRIBED)
def test_a_function_s_docstring_begins_with_a_verb(room):
    nouns = []
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if text and not is_property(node) and NO_VERB.fullmatch(text.split()[0]):
                nouns.append(f"{path.name}: {text.splitlines()[0]}")
    assert nouns == []


def is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id.endswith("property") for one in node.decorator_list)
