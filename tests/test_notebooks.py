"""The notebooks run from start to end, in an empty folder, on data that they make up."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def run(path) -> dict:
    names: dict = {"__name__": "notebook"}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec", dont_inherit=True), names)
    return names


def test_there_are_three_and_they_hold_no_output():
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run(path)
    if path.stem == "your_own_table":
        assert names["result"].accuracy > 0.75
        assert names["result"].epsilon <= 1.0
    elif path.stem == "from_a_dataframe":
        assert names["model"].privacy_.epsilon <= 1.0
        found = names["found"].metrics
        assert found["accuracy"]["value"] > found["base_rate"]["value"] + 0.1
        assert names["chosen"].recall > 0.85
        assert [row["group"] for row in found["by_group"]] == ["surgery", "medicine", "cardiology"]
        assert "differentially private" in names["statement"]
        expected = names["model"].predict(names["held_out"].head(20), threshold=names["chosen"].threshold)
        assert names["predictions"]["prediction"].tolist() == expected.tolist()
        assert [m for m in names["told"] if "NOT PRIVATE" in str(m.message)]
    else:
        table: pd.DataFrame = names["table"]
        assert (table["epsilon"] <= names["EPSILON"]).all()
        assert table["accuracy"]["GLISTERDP, match"] > table["accuracy"]["RandomDP"]
        assert "differentially private" in names["statement"]
