"""docs/from-cords.md does what it says: every block of code is run, in order, in an empty folder.

The blocks about loops and tuning are run by tests/training/test_loop.py and tests/tuning/test_tune.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from conftest import REPOSITORY

from cords_dp.cli import main, run_main

PAGE = (REPOSITORY / "docs" / "from-cords.md").read_text()
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def run_block(kind: str, code: str, names: dict) -> None:
    if kind == "python":
        if named := re.match(r"# (\w+\.py)\n", code):  # a file, and its names are there for the blocks below
            Path(named[1]).write_text(code)
        exec(compile(code, "docs/from-cords.md", "exec"), names)
        return
    for command in code.splitlines():
        program, *arguments = command.split()[1:]
        assert (main(arguments[1:]) if program == "-m" else run_main(arguments)) == 0


def test_every_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "docs"}
    part = PAGE.split("\n## The loop")[0]
    blocks = list(BLOCK.finditer(part))
    assert len(blocks) == part.count("```") / 2
    for block in blocks:
        # rdp answers at once; accountants and gradient modes have tests of their own
        fast = block["code"].replace("epsilon=3.0", 'epsilon=3.0, accountant="rdp", grad_sample_mode="hooks"')
        run_block(block["kind"], fast, names)
    assert (tmp_path / "runs" / "first" / "privacy.md").is_file()
    assert names["classifier"].spent().epsilon <= 3.0
    (log,) = (tmp_path / "elsewhere").rglob("digits_GLISTERDP.log")
    assert (log.parent / "privacy.md").is_file()
    assert (log.parent / "model.json").is_file()
    assert names["random"].plan.privacy.epsilon == 1.0
    assert names["own"].plan.shape.n == names["regression"].plan.shape.n == 400
