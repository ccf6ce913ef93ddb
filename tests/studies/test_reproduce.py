"""The catalogue of experiments, their figures and tables, and the HTML page in a real browser."""

from __future__ import annotations

import base64
import json
import re
import subprocess

import numpy as np
import pandas as pd
import pytest
from conftest import BROWSER, needs_browser
from dotmap import DotMap

from cords_dp.cli import main
from cords_dp.data.published import known_sizes
from cords_dp.errors import ConfigError, ResultsError
from cords_dp.report.page import write_page
from cords_dp.report.tables import (
    accuracy_tables,
    aligned,
    frontier_tables,
    mean_table,
    paired_differences,
    paper_comparison,
    to_markdown,
)
from cords_dp.studies.catalogue import EXPERIMENTS, METHODS, PRESETS, Choice, experiment_jobs
from cords_dp.studies.figures import draw
from cords_dp.studies.paper import FRACTIONS, imbalance_table, published_frontier
from cords_dp.training.resolve import resolve

PAPER = ("main", "imbalance", "synthetic", "timing", "allocation", "gains")


def made_up_runs(r=None):
    rng = np.random.default_rng(0)
    rows = []
    for method in ("GLISTERDP", "RandomDP", "FullDP"):
        for k in (1.0,) if method == "FullDP" else (0.1, 0.5):
            for seed in range(3):
                row = {"dataset": "mnist", "method": method, "share": k, "budget": 3.0, "seed": seed}
                row |= {"strategy": method, "accuracy": 0.9 + 0.01 * rng.normal()}
                row |= {"train_seconds": 2.0, "selection_seconds": 1.0, "config_hash": f"{method}{k}{seed}"}
                rows.append(row | ({} if r is None else {"split": r}))
    return pd.DataFrame(rows)


def test_the_frontier_stands_beside_what_is_published(tmp_path):
    runs = made_up_runs().query("method == 'FullDP'").assign(dataset="cifar10")
    runs = pd.concat([runs, runs.assign(budget=5.0)])
    table = frontier_tables(runs, published_frontier())["cifar10"].set_index("method")
    assert list(table.columns) == [*(f"ε = {e}" for e in (1, 2, 3, 4, 5, 8)), "seconds"]
    assert table.loc["FullDP", "ε = 5"] == table.loc["FullDP", "ε = 3"] != ""
    assert (table.loc["FullDP", "ε = 1"], table.loc["FullDP", "seconds"]) == ("", "2")
    assert table.loc["scattering, CNN, reproduced in 2024", "ε = 8"] == "72.4"
    runs.to_csv(tmp_path / "runs.csv", index=False)
    published_frontier().to_csv(tmp_path / "published.csv", index=False)
    assert [path.name for path in draw("over_budget", tmp_path, "frontier", "title")] == [
        "frontier.png",
        "frontier.svg",
    ]
    write_page(tmp_path, tmp_path / "page.html")
    assert "reproduced in 2024" in (tmp_path / "page.html").read_text()


# --- the catalogue -------------------------------------------------------------------------------------------


def test_every_experiment_of_the_paper_has_every_preset():
    assert set(PAPER) < set(EXPERIMENTS)
    for experiment in EXPERIMENTS.values():
        assert set(experiment.scales) == set(PRESETS)
        assert set(experiment.methods) <= set(METHODS)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_config_of_the_catalogue_is_sound(name, preset):
    """All keys known and all values allowed, for every cell (the plan itself takes seconds and is left out)."""
    jobs = experiment_jobs(name, preset, Choice(seeds=1))
    assert len({job.id for job in jobs}) == len(jobs)
    for job in jobs:
        resolve(DotMap(dict(job.config)), plan=False)


def test_the_paper_s_grid_is_complete():
    jobs = experiment_jobs("imbalance", "full")
    for dataset in ("mnist", "cifar10", "cifar100"):
        cells = {(j.labels["budget"], j.labels["share"]) for j in jobs if j.labels["dataset"] == dataset}
        assert {(e, k) for e in (3.0, 8.0) for k in FRACTIONS} <= cells
    assert len(imbalance_table()) == 60


def test_methods_of_a_cell_differ_in_the_method_only():
    """Same ε, δ, epochs, batch, model and optimizer for all."""
    jobs = [
        j
        for j in experiment_jobs("cut", "cpu", Choice(seeds=1))
        if j.labels["dataset"] == "mnist" and j.labels["share"] == 0.1
    ]
    assert len(jobs) == len(EXPERIMENTS["cut"].methods) - 1
    for section in ("dataset", "dataloader", "model", "optimizer", "train_args"):
        same = {"print_every": 0, "validation_fraction": 0.1}  # V is a tenth by default where it is read
        kinds = {json.dumps({**j.config[section], **same}, sort_keys=True) for j in jobs}
        assert len(kinds) == 1
    assert {(j.config["privacy"]["epsilon"], j.config["privacy"]["delta"]) for j in jobs} == {(3.0, 1e-5)}


@pytest.mark.parametrize("name", ["robust", "rates", "cut", "adult"])
def test_where_d_is_changed_no_method_is_given_the_clean_records_of_v(name):
    jobs = experiment_jobs(name, "cpu", Choice(seeds=1, epsilons=(3.0,), shares=(0.1,)))
    rivals = ("FullDP, D and V", "FullDP, V alone")  # which are there to show what V is worth
    runs = {
        job.labels["method"]: resolve(DotMap(job.config), plan=False)
        for job in jobs
        if job.labels["method"] not in rivals
    }
    shares = {method: run.section("dataset").get("validation_fraction") for method, run in runs.items()}
    assert not any(run.whole for run in runs.values())
    assert {share for method, share in shares.items() if "FullDP" in method or "RandomDP" in method} == {0.1}
    assert {share for method, share in shares.items() if method.startswith("GLISTER")} == {None}
    equal = next(run for method, run in runs.items() if method.startswith("FullDP, equal compute"))
    first = 10 / equal.epochs if equal.privacy.head_start else 0.0  # steps on V alone
    steps_on_v = (first + 0.1 * 0.9) / 9  # GLISTERDP takes them besides
    assert equal.subset.compute_fraction == pytest.approx(0.1 + steps_on_v)


@pytest.mark.parametrize("name", ["main", "frontier", "imbalance"])
def test_elsewhere_rivals_train_on_all_records_and_equal_compute_stays_equal(name):
    jobs = experiment_jobs(name, "cpu", Choice(datasets=("cifar10",), seeds=1, epsilons=(3.0,), shares=(0.1,)))
    configs = {job.labels["method"]: DotMap(job.config) for job in jobs}
    for method, config in configs.items():
        config.dataset.feature = "dss"  # whose sizes the config tells
        run = resolve(config, plan=False)
        assert known_sizes(run.config) == ((45_000, 5_000) if method.startswith("GLISTER") else (50_000, 0))
        if method == "FullDP, equal compute":
            assert run.subset.compute_fraction * 50_000 == 0.1 * 45_000


def test_one_run_that_selects_is_evaluated_as_it_goes():
    """For the report's figure of ε over epochs."""
    jobs = experiment_jobs("imbalance", "quick")
    often = [j for j in jobs if j.config["train_args"]["print_every"] < 10]
    assert [(j.labels["method"], j.labels["share"]) for j in often] == [("GLISTERDP", 0.1)]


def test_numbers_of_a_column_have_the_same_digits():
    table = aligned(pd.DataFrame({"a": [1.5, 2.25, 3.0], "b": [3.0, 8.0, float("nan")], "c": [1e-5, 2.0, 3.0]}))
    assert table["a"].tolist() == ["1.50", "2.25", "3.00"]
    assert table["b"].tolist() == ["3", "8", ""]
    assert table["c"].tolist() == ["1e-05", "2", "3"]


def test_an_unknown_method_or_name_is_refused(capsys):
    with pytest.raises(ConfigError, match="RandomDP"):
        experiment_jobs("main", "quick", Choice(methods=["NoSuch"]))
    assert main(["reproduce", "nothing"]) == 2
    assert "synthetic" in capsys.readouterr().err
    assert main(["reproduce", "main", "--preset", "huge"]) == 2


# --- tables and figures --------------------------------------------------------------------------------------


def test_tables_show_mean_and_deviation_and_full_training_in_every_column():
    (title,) = tables = accuracy_tables(made_up_runs())
    assert title == "mnist, ε = 3"
    table = tables[title].set_index("method")
    assert list(table.columns) == ["share = 0.1", "share = 0.5"]
    assert table.loc["FullDP", "share = 0.1"] == table.loc["FullDP", "share = 0.5"]
    frame = made_up_runs()
    cell = 100 * frame[(frame["method"] == "RandomDP") & (frame["share"] == 0.5)]["accuracy"]
    assert table.loc["RandomDP", "share = 0.5"] == f"{cell.mean():.2f} ± {cell.std():.2f}"
    assert to_markdown(tables[title]).count("\n") == 4
    assert mean_table(frame, ["method"])["runs"].tolist() == [6, 6, 3]


def test_differences_are_paired_by_seed():
    """What all methods of a seed share cancels out."""
    frame = pd.DataFrame(
        {"dataset": "mnist", "budget": 3.0, "scenario": "both", "seed": s, "method": m, "accuracy": 0.1 * s + gain}
        for s, wobble in ((1, 0.0), (2, 0.01), (3, 0.02))
        for m, gain in (("FullDP", 0.0), ("A", 0.03), ("B", wobble))
    )
    (table,) = paired_differences(frame, "FullDP").values()
    assert table.set_index("method")["both"].to_dict() == {"A": "+3.00 ± 0.00", "B": "+1.00 ± 2.48"}
    assert paired_differences(frame, "no such method") == {}


def test_shares_of_the_records_are_not_averaged_together():
    """Scenarios at a tenth and at all records were one row, with the distance between them as its deviation."""
    frame = pd.DataFrame(
        {"dataset": "mnist", "budget": 3.0, "scenario": "both", "seed": 0, "method": m, "share": share, "accuracy": a}
        for m, share, a in (("A", 0.1, 0.5), ("A", 1.0, 0.9), ("B", 0.1, 0.4), ("B", 1.0, 0.6), ("FullDP", 1.0, 0.7))
    )
    few, all_ = accuracy_tables(frame).values()
    assert few.set_index("method")["both"].to_dict() == {"A": "50.00", "B": "40.00", "FullDP": "70.00"}
    assert all_.set_index("method")["both"].to_dict() == {"A": "90.00", "B": "60.00", "FullDP": "70.00"}
    few, all_ = paired_differences(frame, "B").values()
    assert few.set_index("method")["both"]["A"] == "+10.00"
    assert all_.set_index("method")["both"]["A"] == "+30.00"


def test_the_comparison_pairs_our_cells_with_the_paper_s():
    frame = paper_comparison(made_up_runs(), imbalance_table())
    assert len(frame) == 4
    row = frame[(frame["method"] == "RandomDP") & (frame["share"] == 0.1)].iloc[0]
    assert row["paper"] == 69.82
    assert row["difference"] == pytest.approx(row["ours"] - row["paper"], abs=0.011)


@pytest.mark.parametrize("kind", ["over_fraction", "over_split", "over_time"])
def test_figures_are_drawn_from_csv_alone(kind, tmp_path):
    runs = made_up_runs(r=0.5)
    runs.to_csv(tmp_path / "runs.csv", index=False)
    pd.concat([runs.assign(epoch=e, seconds=2.0 * e) for e in (1, 2)]).to_csv(tmp_path / "curves.csv", index=False)
    for path in draw(kind, tmp_path, "figure", "A title"):
        assert path.stat().st_size > 5_000
    assert "A title" not in (tmp_path / "runs.csv").read_text()


# --- whole experiments and the page --------------------------------------------------------------------------

FAST = ["--set", "train_args.num_epochs=3", "--set", "privacy.accountant=rdp", "--seeds", "1", "--workers", "1"]


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """A real experiment on the synthetic set, and the timing one on digits, with the page about both."""
    out = tmp_path_factory.mktemp("reproduced")
    for name, dataset in (("synthetic", "synthetic"), ("timing", "digits")):
        arguments = ["--dataset", dataset, "--method", "GLISTERDP", "--method", "FullDP", "--out", str(out)]
        assert main(["reproduce", name, *arguments, *FAST]) == 0
    return out


def test_an_experiment_leaves_csv_figures_and_tables(reproduced):
    folder = reproduced / "synthetic"
    runs = pd.read_csv(folder / "runs.csv")
    assert {"method", "share", "budget", "seed", "accuracy", "config_hash", "v_torch"} <= set(runs.columns)
    assert len(runs) == 4
    for name in ("synthetic.png", "synthetic.svg", "tables.md", "curves.csv", "experiment.json"):
        assert (folder / name).stat().st_size > 100
    curves = pd.read_csv(reproduced / "timing" / "curves.csv")
    assert curves.groupby("method")["epoch"].max().eq(3).all()
    assert {"epsilon_training", "epsilon_selection", "epsilon_validation"} <= set(curves.columns)


def bars_of_time(page: str) -> int:
    """Count what is only drawn of runs that took a second: more of them on a busy machine."""
    return page.count("seconds of training and of selection")


def test_the_page_is_self_contained(reproduced):
    page = (reproduced / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # nothing is fetched
    for words in (
        "differentially private for zero-out",
        "The synthetic shift set",
        "Accuracy over seconds",
        "Not covered",
        "selection",
        "ema_decay",
        "Single runs",
    ):
        assert words in page, words
    assert "±" not in page, "one seed has no spread"
    assert page.count("data:image/svg+xml;base64,") == 5 + bars_of_time(page)  # figures, and epsilon over epochs
    assert base64.b64decode(page.split("base64,")[1].split('"')[0]).startswith(b"<?xml")


def test_the_page_of_one_run_and_of_an_empty_folder(reproduced, tmp_path):
    run = next((reproduced / "synthetic" / "runs").iterdir())
    page = write_page(run, tmp_path / "one.html").read_text()
    assert "accuracy" in page
    with pytest.raises(ResultsError, match="no results"):
        write_page(tmp_path / "nothing")


def test_text_from_files_is_escaped(tmp_path):
    (tmp_path / "experiment.json").write_text(json.dumps({"title": "<script>alert(1)</script>", "paper": "a < b"}))
    made_up_runs().to_csv(tmp_path / "runs.csv", index=False)
    page = write_page(tmp_path).read_text()
    assert page.count("<script") == 1  # the page's own, which sorts tables
    assert "&lt;script&gt;alert(1)" in page
    assert "a &lt; b" in page


@needs_browser
def test_the_page_opens_in_a_real_browser(reproduced, tmp_path):
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    address = (reproduced / "report.html").as_uri()
    shot = tmp_path / "page.png"
    command = [BROWSER, *options, "--window-size=1100,2400", f"--screenshot={shot}", address]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert shot.stat().st_size > 20_000
    dump = [BROWSER, *options, "--dump-dom", address]
    dom = subprocess.run(dump, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "results</h1>" in dom
    assert dom.count("<img") == 5 + bars_of_time(dom)
