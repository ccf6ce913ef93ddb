"""The report page: what stands where, and the page itself in a real browser where there is one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pandas as pd
import pytest
import torch
from conftest import BROWSER, needs_browser
from dotmap import DotMap

from cords_dp.config import config_for
from cords_dp.report.page import write_page
from cords_dp.report.pieces import table_html
from cords_dp.runs.result import released_draws
from cords_dp.runs.run import run_experiment
from cords_dp.selection.align import Align
from cords_dp.studies.match import Match

# Looks at the page in frames of two widths, clicks a heading, and writes what it saw into the document.
PROBE = """
<script>
const seen = [];
for (const frame of document.querySelectorAll("iframe")) frame.addEventListener("load", () => {
  const page = frame.contentDocument, table = page.querySelector("table.sortable");
  const column = () => [...table.tBodies[0].rows].map((row) => row.cells[1].textContent);
  const before = column(), button = table.querySelectorAll("th button")[1];
  button.click(); const up = column(); button.click(); const down = column();
  seen.push({width: frame.clientWidth, wide: page.documentElement.scrollWidth, before, up, down,
             errors: frame.contentWindow.errors, first: page.querySelector("h3").textContent,
             narrow: [...page.images].filter((image) => image.naturalWidth === 0).length});
  document.body.dataset.seen = JSON.stringify(seen);
});
</script>
"""
WATCH = "<script>window.errors = []; addEventListener('error', (event) => errors.push(event.message));</script>"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "run"
    cfg = config_for(
        "digits", "GLISTERDP", dss_args={"fraction": 0.3},
        privacy={"epsilon": 3.0, "accountant": "rdp", "grad_sample_mode": "hooks"},
        train_args={"device": "cpu", "num_epochs": 6, "print_every": 2, "seed": 0},
    )  # fmt: skip
    run_experiment(DotMap(cfg), out, progress=False)
    return out


def test_the_statement_stands_first_and_everything_is_there(run):
    page = write_page(run).read_text()
    statement = json.loads((run / "privacy.json").read_text())["statement"]
    places = [page.index(text) for text in (
        html.escape(statement), "What it cost, by phase", "<summary>Not covered", "<h3>Result</h3>",
        "Test set: by class", "Which kinds of records were drawn", "ε over the epochs",
        "How to repeat", "<summary>config.yaml",
    )]  # fmt: skip
    assert places == sorted(places)
    assert not re.search(r"""(?:src|href)=["']?https?:""", page)


def test_accuracy_by_class_adds_up(run):
    rows = json.loads((run / "about.json").read_text())["classes"]
    total = sum(row["test records"] for row in rows)
    right = sum(row["test records"] * row["accuracy"] for row in rows)
    assert right / total == pytest.approx(json.loads((run / "result.json").read_text())["accuracy"])


def test_draws_are_told_from_released_values_alone(run):
    """Every number is one of the archive of released values."""
    file = max(run.rglob("selection-*-[0-9]*.pt"), key=lambda path: int(path.stem.rpartition("-")[2]))
    state = torch.load(file, weights_only=True)
    rows = json.loads((run / "about.json").read_text())["draws"]
    assert [row["noisy share of D"] for row in rows] == state["shares"].tolist()
    kept = [[value for key, value in row.items() if key.startswith("kept")] for row in rows]
    assert kept == state["chances"].tolist()


def test_nothing_is_told_about_draws_of_other_mechanisms(run):
    class Own(Align):
        """Whoever writes a mechanism may keep anything in its state."""

    classes = tuple(map(str, range(10)))
    ledger = next(run.rglob("selection-*.pt")).stem.split("-")[1]
    assert len(released_draws(Align(), run, ledger, classes)) == 10
    for mechanism in (None, Match(), Own()):
        assert released_draws(mechanism, run, ledger, classes) == []
    assert released_draws(Align(), run, "another", classes) == []


def test_a_run_without_a_statement_says_so(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"accuracy": 0.5, "dataset": "<b>"}))
    page = write_page(tmp_path).read_text()
    assert "this run is not private" in page
    assert "<b>" not in page


def sweep_page(run, folder, *, runs: int) -> str:
    """The report of a sweep whose runs are all like ``run``."""
    result = json.loads((run / "result.json").read_text())
    fields = {key: value for key, value in result.items() if not isinstance(value, dict) and key != "out"}
    rows = []
    for seed in range(runs):
        copy = folder / "runs" / f"hash{seed}"
        shutil.copytree(run, copy)
        (copy / "result.json").write_text(json.dumps({**result, "seed": seed}))
        rows.append({"dss_args.fraction": 0.3, "seed": seed, **{**fields, "seed": seed}, "config_hash": copy.name})
    pd.DataFrame(rows).to_csv(folder / "runs.csv", index=False)
    return write_page(folder).read_text()


def test_a_sweep_begins_with_the_comparison_and_says_that_its_runs_add_up(run, tmp_path):
    """One run's ε stood above the results of all of them."""
    several = sweep_page(run, tmp_path / "three", runs=3)
    words = [
        "3 runs, 3 seeds.",
        "<table",
        "each of the 3 private runs on digits has read pays",
        "Single runs",
        "Statement of run",
    ]
    places = [several.index(text) for text in words]
    assert places == sorted(places)
    alone = sweep_page(run, tmp_path / "alone", runs=1)
    assert "private runs" not in alone
    assert "1 run, 1 seed." in alone
    assert "±" not in alone.partition("Single runs")[0]


def test_single_runs_are_folded_and_each_statement_names_its_run(run, tmp_path):
    page = sweep_page(run, tmp_path / "two", runs=2)
    for seed in range(2):
        _, _, text = page.partition(f"<details><summary><strong>fraction 0.3, seed {seed}</strong> (accuracy ")
        assert text.partition("</summary>")[0].endswith(f"; folder hash{seed})")
        assert text.index(f"Statement of run hash{seed} (fraction 0.3, seed {seed}).") < text.index("<h3>Result</h3>")


def test_the_result_has_no_empty_cell_and_rounds_nothing_to_zero(run):
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "seed": None, "train_seconds": 0.0}))
    page = write_page(run).read_text()
    (run / "result.json").write_text(json.dumps(result))
    table = page[page.index("<h3>Result</h3>") :].partition("</table>")[0]
    assert "seed" not in table
    assert "<td>train seconds</td><td>under 1</td>" in table
    assert "sortable" not in table


def test_cells_are_escaped_and_aligned():
    table = table_html(
        pd.DataFrame({"name": ["<script>", "b"], "points": ["+1.2 ± 3", "−4"], "n": [1.5, float("nan")]})
    )
    assert "&lt;script&gt;" in table
    assert table.count("class='number'") == 6


@needs_browser
def test_in_a_browser_nothing_fails_and_nothing_overflows(run, tmp_path):
    page = write_page(run).read_text().replace("<style>", WATCH + "<style>", 1)
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:800px" srcdoc="{html.escape(page)}"></iframe>'
        for width in (390, 1280)
    )
    file, profile = tmp_path / "frames.html", tmp_path / "profile"
    file.write_text(f"<!doctype html><body>{frames}{PROBE}</body>")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
               f"--user-data-dir={profile}", "--dump-dom", file.as_uri()]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found, "the page did not load"
    seen = json.loads(html.unescape(found[1]))
    assert sorted(view["width"] for view in seen) == [390, 1280]
    for view in seen:
        assert view["errors"] == []
        assert view["wide"] <= view["width"], "something is wider than the screen"
        assert view["narrow"] == 0, "a picture is broken"
        assert view["first"].startswith("Privacy of")
        assert view["up"] == sorted(view["before"], key=float)
        assert view["down"] == view["up"][::-1]
