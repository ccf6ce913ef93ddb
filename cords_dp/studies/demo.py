"""The demo: a case in which it matters which records a private model learns from.

The paper's synthetic shift: most training records come from elsewhere than the records that the model is meant for, of
which a validation set shows a few. Every strategy has the same (ε, δ); the choice of records is charged to it.
"""

from __future__ import annotations

import json
import shutil
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from dotmap import DotMap

from cords_dp import config_for, run_experiment
from cords_dp.runs.run import console
from cords_dp.studies.figures import accuracy_curves

_RUNS = 3  # of each strategy: with seeds that follow each other


@dataclass(frozen=True)
class _Case:
    strategy: str
    records: str
    dss_args: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return "-".join([self.strategy, *filter(None, [self.dss_args.get("mechanism")])])


_CASES = (
    _Case("FullDP", "all records"),
    _Case("RandomDP", "30 % at random", {"fraction": 0.3}),
    _Case("GLISTERDP", "30 % an epoch, chosen privately (align)", {"fraction": 0.3, "mechanism": "align"}),
    _Case("GLISTERDP", "30 % an epoch, chosen privately (match)", {"fraction": 0.3, "mechanism": "match"}),
)
_NEXT = """What to try next{here}:
  cords-dp budget --n 50000 --epsilon 3          what a budget buys: noise, steps, the price of each mechanism
  cords-dp run --config configs/glister_dp_mnist.py
                                                 a private MNIST model (fetches the data once)
  cords-dp data fetch adult                      a table of people, with a public schema; docs/your-own-data.md
  cords-dp report {out:<30} a page about these runs
What the words of a statement mean: docs/privacy-statement.md.
Where training and validation data are alike, or records are few, selection gains nothing: docs/results.md."""


def run_demo(
    out: Path, *, epsilon: float = 3.0, seed: int = 0, verbose: bool = False, quiet: bool = False
) -> pd.DataFrame:
    """Train each strategy a few times, write a table and a picture into ``out``, return the table."""
    if not quiet:
        print(f"The paper's synthetic shift, epsilon = {epsilon:g}: {_RUNS} runs of each of {len(_CASES)} strategies.")
    rows, curves = [], {}
    for number, case in enumerate(_CASES, 1):
        begin = time.perf_counter()
        if not quiet:  # before it runs, so that nobody waits in front of a screen that says nothing
            print(
                f"[{number}/{len(_CASES)}] {case.strategy:<10} {case.records:<42}",
                end="\n" if verbose else "",
                flush=True,
            )
        # only the first is drawn: where others are measured midway, an accountant has work to do
        results = [_run(case, out, epsilon, seed + i, 100 if i else 2, verbose=verbose) for i in range(_RUNS)]
        accuracies = [100 * result.accuracy for result in results]
        rows.append(
            {
                "strategy": case.strategy,
                "trains on": case.records,
                "test accuracy": f"{sum(accuracies) / len(accuracies):.1f} %",
                "lowest to highest": f"{min(accuracies):.1f} to {max(accuracies):.1f}",
                "epsilon": f"{results[0].epsilon:.2f}",
                "delta": f"{results[0].delta:.0e}",
            }
        )
        curves[f"{case.strategy}, {case.records}"] = pd.read_csv(_folder(case, out, seed) / "metrics.csv")
        if not quiet:
            print(f" {time.perf_counter() - begin:5.1f} s", flush=True)
    table = pd.DataFrame(rows)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "demo.csv", index=False)
    picture = accuracy_curves(curves, out / "demo.png", title=f"Shifted data, every run (ε = {epsilon:g}, δ)-private")
    statement = json.loads((_folder(_CASES[-1], out, seed) / "privacy.json").read_text())["statement"]
    print(f"\n{table.to_string(index=False)}\n")
    print(textwrap.fill(f"What the last line promises: {statement}", 100))
    print(f"\npicture: {picture}\nevery run's files, with its whole statement in privacy.md: {out}/*/")
    if not quiet:
        here = "" if shutil.which("cords-dp") else " (in a clone, first `source .venv/bin/activate`)"
        print("\n" + _NEXT.format(here=here, out=str(out)))
    return table


def _run(case: _Case, out: Path, epsilon: float, seed: int, every: int, *, verbose: bool) -> Any:
    config = config_for(
        "synthetic",
        case.strategy,
        dss_args=case.dss_args,
        privacy={"epsilon": epsilon},
        train_args={"print_every": every, "device": "cpu", "seed": seed},
        ckpt={"is_save": False},
    )
    with console(verbose):
        return run_experiment(DotMap(config), _folder(case, out, seed), progress=verbose)


def _folder(case: _Case, out: Path, seed: int) -> Path:
    return out / f"{case.folder}-seed{seed}"
