"""Every block of code in the docs is run, in order, in an empty folder; or it says in the page why not.

A line above a block decides, if there is one:

    <!-- not run: REASON -->            it is not run
    <!-- run by tests/... -->           another test runs it, which names the page
    <!-- slow: REASON -->               it is run by `make test-all` only

Blocks of Python share their names within a page. A block that begins with ``# NAME`` is written to that file.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import REPOSITORY

import cords_dp.models.features
from cords_dp.cli import main, run_main
from cords_dp.data import unregister_source
from cords_dp.planning.mechanism import unregister_mechanism
from cords_dp.selection import scores
from cords_dp.training.strategies import unregister_strategy

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = ("text", "toml", "yaml")  # output, and files that other blocks read
# Pages with a test of their own, which makes what their blocks need.
ELSEWHERE = {"from-cords.md": "tests/test_docs_from_cords.py", "your-own-data.md": "tests/test_docs_your_own_data.py"}


class Block(NamedTuple):
    mark: str
    kind: str
    code: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = [Block(m["mark"] or "", m["kind"], m["code"]) for m in BLOCK.finditer(text)]
    assert len(found) == len(re.findall(r"^```", text, re.MULTILINE)) / 2, f"{page.name}: an odd fence"
    return found


def ids(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_mark_is_one_that_counts(page):
    for block in blocks(page):
        if block.mark.startswith("run by "):
            test = REPOSITORY / block.mark.removeprefix("run by ")
            assert page.name in test.read_text()
        elif block.mark.startswith(("not run: ", "slow: ")):
            assert len(block.mark.partition(": ")[2]) > 8, "a reason, please"
        elif block.kind in ("", "python") and block.mark:
            pytest.fail(f"{page.name}: unknown mark {block.mark!r}")


def runnable(page: Path, *, slow: bool) -> list[Block]:
    if page.name in ELSEWHERE:
        assert page.name in (REPOSITORY / ELSEWHERE[page.name]).read_text()
        return []
    passed = ("not run: ", "run by ") if slow else ("not run: ", "run by ", "slow: ")
    return [b for b in blocks(page) if b.kind not in SHOWN and not b.mark.startswith(passed)]


def fast(code: str) -> str:
    """rdp answers at once; accountants and gradient modes have tests of their own. Estimators take a second anyway."""
    return re.sub(
        r"(?<!Classifier\()(?<!Regressor\()(?<!y_test, )epsilon=(\d\.0)\b(?=[,)])",
        r'epsilon=\1, accountant="rdp", grad_sample_mode="hooks"',
        code,
    )


def run_command(command: str) -> None:
    program, *arguments = shlex.split(command, comments=True)
    if program == "cat":
        assert Path(arguments[0]).read_text()
        return
    if program == "cords-dp":
        arguments = ["-m", "cords_dp", *arguments]
    else:
        assert program == "python", f"no way to run {command!r}"
    runs = arguments[2:3] == ["run"] or arguments[0] == "run_experiment.py"
    if runs:
        arguments += ["--quiet", "--set", "privacy.accountant=rdp", "--set", "train_args.num_epochs=4"]
    assert (main(arguments[2:]) if arguments[0] == "-m" else run_main(arguments[1:])) == 0, command


def run_page(page: Path, *, slow: bool) -> None:
    names: dict = {"__name__": "docs"}
    for block in runnable(page, slow=slow):
        if block.kind == "python":
            code = fast(block.code)
            if named := re.match(r"# (\S+\.py)\n", code):
                Path(named[1]).write_text(code)
            exec(compile(code, page.name, "exec", dont_inherit=True), names)
        else:
            for command in block.code.replace("\\\n", " ").splitlines():
                run_command(command)


@pytest.fixture
def clean_registries():
    """What the pages register is gone afterwards."""
    features = dict(cords_dp.models.features._REGISTERED)
    known_scores = dict(scores._SCORES)
    yield
    cords_dp.models.features._REGISTERED.clear()
    cords_dp.models.features._REGISTERED.update(features)
    scores._SCORES.clear()
    scores._SCORES.update(known_scores)
    unregister_mechanism("balanced")
    unregister_strategy("FirstHalfDP")
    unregister_source("circle")


@pytest.mark.parametrize("page", [p for p in PAGES if runnable(p, slow=False)], ids=ids)
def test_the_blocks_run(page, tmp_path, monkeypatch, clean_registries):
    monkeypatch.chdir(tmp_path)
    run_page(page, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.mark.startswith("slow") for b in blocks(p))], ids=ids)
def test_the_slow_blocks_run_too(page, tmp_path, monkeypatch, clean_registries):
    monkeypatch.chdir(tmp_path)
    run_page(page, slow=True)
