"""The model card of a run: what hubs read, from the facts of the other files."""

from __future__ import annotations

import json

import pytest
import yaml

from cords_dp.runs.model_readme import is_ours, model_readme
from cords_dp.runs.run import run_experiment


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from cords_dp.config import config_for

    out = tmp_path_factory.mktemp("card") / "my-model"
    privacy = {"epsilon": 3.0, "accountant": "rdp", "grad_sample_mode": "hooks"}
    config = config_for("digits", "FullDP", privacy=privacy, train_args={"device": "cpu", "num_epochs": 2, "seed": 0})
    run_experiment(config, out, progress=False)
    return out


def metadata(text):
    _, head, _ = text.split("---\n", 2)
    return yaml.safe_load(head)


def test_the_card_has_the_facts_of_the_other_files(run):
    text = (run / "README.md").read_text()
    result, report = (json.loads((run / name).read_text()) for name in ("result.json", "privacy.json"))
    facts = metadata(text)
    assert facts["library_name"] == "cords_dp"
    assert facts["pipeline_tag"] == "tabular-classification"
    assert facts["datasets"] == ["digits"]
    assert {"differential-privacy", "FullDP"} <= set(facts["tags"])
    assert facts["differential_privacy"]["epsilon"] == report["epsilon"]
    assert facts["differential_privacy"]["delta"] == report["delta"]
    (model,) = facts["model-index"]
    assert model["name"] == "my-model"
    assert {"type": "accuracy", "value": result["accuracy"]} in model["results"][0]["metrics"]
    assert report["statement"] in text
    assert report["about"]["model"]["sha256"] in text
    assert all(item in text for item in [*report["protects"], *report["does_not_protect"], *report["not_covered"]])
    assert str(run.parent) not in text, "a path of the machine"


def test_a_card_of_a_run_without_privacy_says_so_and_replaces_the_private_one(make_config, tmp_path):
    run_experiment(make_config("FullDP", train_args={"num_epochs": 2}), tmp_path, progress=False)
    run_experiment(make_config("Random", train_args={"num_epochs": 2}), tmp_path, progress=False)
    text = (tmp_path / "README.md").read_text()
    assert "WITHOUT privacy" in text
    assert "differential_privacy" not in metadata(text)
    assert "differential-privacy" not in metadata(text)["tags"]


def test_somebody_else_s_readme_stays(make_config, tmp_path):
    (tmp_path / "README.md").write_text("# My project\n")
    assert not is_ours(tmp_path / "README.md")
    run_experiment(make_config("FullDP", train_args={"num_epochs": 2}), tmp_path, progress=False)
    assert (tmp_path / "README.md").read_text() == "# My project\n"


@pytest.mark.parametrize(
    ("changes", "task"),
    [
        ({"regression": True, "classes": []}, "tabular-regression"),
        ({"shape": [1, 28, 28]}, "image-classification"),
        ({"dtype": "uint8"}, "text-classification"),
    ],
)
def test_kinds_of_records_have_their_tasks(run, changes, task):
    card = {**json.loads((run / "model.json").read_text()), **changes}
    result = {"strategy": "FullDP", "dataset": "own", "fraction": 1.0, "rmse": 2.0, "metrics": {"auc": 0.75}}
    text = model_readme("x", card, result, {})
    assert metadata(text)["pipeline_tag"] == task
    assert "| AUC | 0.75 |" in text
