"""docs/your-own-data.md does what it says: every block is run, in order, in an empty folder, on made-up records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import yaml
from conftest import REPOSITORY
from PIL import Image

from cords_dp import run_experiment
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
    for block in (block for block in blocks if block["kind"] != "text"):  # what a command prints
        code = block["code"].replace("epsilon=1.0", 'epsilon=1.0, accountant="rdp"')
        run_block(block["kind"], code.replace('schema="days.yaml"', 'schema="days.yaml", test="public"'))  # an exact R²
    assert yaml.safe_load(Path("draft.yaml").read_text())["columns"]["smoker"] == "TODO"
    result = json.loads(Path("runs/patients/result.json").read_text())
    assert result["accuracy"] > 0.75
    assert result["epsilon"] <= 1.0
    assert "differentially private" in Path("runs/patients/privacy.md").read_text()
    assert json.loads(Path("runs/days/result.json").read_text())["r2"] > 0.4


def make_photos(folder: Path, rng: np.random.Generator, count: int = 30) -> None:
    """Bright cats, dark dogs."""
    for name, level in (("cat", 160), ("dog", 60)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(rng.normal(level, 30, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def trained(config: dict, out: str, **model: object) -> None:
    """Train what a block has configured, for a moment."""
    config["model"].update(model)
    config["train_args"].update(num_epochs=2, device="cpu")
    config["privacy"].update(accountant="rdp", grad_sample_mode="hooks")
    run_experiment(config, out, progress=False)


def test_every_other_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    make_photos(Path("photos"), rng)
    make_photos(Path("new-photos"), rng, 3)
    np.savez("embeddings.npz", x=rng.normal(size=(200, 12)).astype("float32"), y=rng.integers(0, 2, 200))
    part = PAGE.split("\n## Image folders\n")[1]
    marked = re.compile(r"^<!-- not run: .*?-->\n```.*?^```$", re.MULTILINE | re.DOTALL)
    assert len(marked.findall(part)) == 2
    names: dict = {"__name__": "docs", "pixels": rng.integers(0, 255, (2, 8, 8, 3), dtype=np.uint8)}
    ran = []
    for block in BLOCK.finditer(marked.sub("", part)):
        code = block["code"].replace("size=32", "size=8")
        if block["kind"] == "python":
            exec(compile(code, "docs/your-own-data.md", "exec"), names)
            if "config = config_for" in code:
                source = names["config"]["dataset"]["name"]
                # features of images have tests of their own, and take longer than all the rest
                trained(names["config"], {"folder": "runs/photos"}.get(source, f"runs/{source}"), features=None)
                ran.append(source)
        else:
            run_block("", code)
    assert ran == ["folder", "embeddings"]
    assert len(Path("predictions.csv").read_text().splitlines()) == 7
    assert names["model"].classes == ("cat", "dog")
