"""docs/your-own-data.md does what it says: every block about tables is run, in order, in an empty folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from conftest import REPOSITORY

from cords_dp.cli import main, run_main

PAGE = (REPOSITORY / "docs" / "your-own-data.md").read_text()
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def run_block(kind: str, code: str) -> None:
    if kind:
        name = re.match(r"# (\S+)\n", code)[1]
        Path(name).write_text(code)
        if kind == "python":
            exec(compile(code, name, "exec"), {"__name__": "docs"})
        return
    for command in code.splitlines():
        program, *arguments = command.split()[1:]
        assert (main(arguments[1:]) if program == "-m" else run_main([*arguments, "--quiet"])) == 0


def test_every_block_about_tables_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part = PAGE.split("\n## Tables\n")[1].split("\n## ")[0]
    blocks = list(BLOCK.finditer(part))
    assert len(blocks) == part.count("```") / 2
    for block in blocks:
        run_block(block["kind"], block["code"].replace("epsilon=1.0", 'epsilon=1.0, accountant="rdp"'))
    assert yaml.safe_load(Path("draft.yaml").read_text())["columns"]["smoker"] == "TODO"
    result = json.loads(Path("runs/patients/result.json").read_text())
    assert result["accuracy"] > 0.75
    assert result["epsilon"] <= 1.0
    assert "differentially private" in Path("runs/patients/privacy.md").read_text()
