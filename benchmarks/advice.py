"""How good is the rule of `cords_dp.planning.budget`, beside what was measured? Reads docs/results/*.csv; no training.

python benchmarks/advice.py [--json FILE]

Strategy: in each setting (dataset, scenario, ε, share) in which the rule's choice was measured beside others of as
many gradients, is it within half a point of the best? Once as for a user who knows nothing, and once as for one who
knows that the data are alike (scenario "nothing"). Share and epochs: of one strategy in one setting, is the largest
value that was measured (shares up to a half) within half a point of the best?
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from cords_dp.planning.budget import ALIKE, UNKNOWN, advise

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
TOLERANCE = 0.5
NAMES = {"GLISTERDP": "GLISTERDP", "FullDP": "FullDP, equal compute"}  # in the tables; align is GLISTERDP's default
SETTING = ["file", "dataset", "scenario", "budget"]
# Made with the present features; the accuracies of the other files are not comparable with theirs.
PRESENT = (
    "frontier-without-v",
    "imbalance-mnist-without-v",
    "imbalance-cifar10-without-v",
    "robust-mnist-leaves",
    "robust-cifar10-leaves",
)


def measured() -> pd.DataFrame:
    """Mean accuracies, in per cent, of every method in every setting, of files with a share and a budget."""
    frames = []
    for path in sorted(RESULTS.glob("*.csv")):
        frame = pd.read_csv(path)
        wanted = {"method", "share", "budget", "accuracy", "experiment"} <= set(frame.columns)
        if wanted and path.stem not in ("rates", "own-rates", "allocation-mnist"):  # other keys vary there
            scenario = frame.get("scenario", frame["experiment"])
            frames.append(frame.assign(file=path.stem, scenario=scenario))
    rows = pd.concat(frames)
    return (100 * rows.groupby([*SETTING, "share", "method"])["accuracy"].mean()).reset_index()


def of_strategies(table: pd.DataFrame, shift: str) -> Iterator[dict[str, object]]:
    for key, group in table.groupby([*SETTING, "share"]):
        advice = advise(float(key[-1]), shift)
        chosen = group[group["method"] == NAMES[advice.strategy]]
        if shift == ALIKE and key[2] not in ("nothing", "main"):
            continue
        if len(group) > 1 and len(chosen) == 1:
            yield _row(key, chosen["accuracy"].item(), group["accuracy"].max())


def of_shares(table: pd.DataFrame) -> Iterator[dict[str, object]]:
    """GLISTERDP by any mechanism; those of align lie in several files, of which only the features are told apart."""
    own = table[table["method"].isin(["GLISTERDP", "GLISTERDP match"]) & (table["share"] <= 0.5)]
    own = own.assign(features=own["file"].map(_version))
    own = own[own["dataset"] != "synthetic"]  # its means are uncertain by more than the tolerance: ± 1 at five seeds
    setting = ["features", "dataset", "scenario", "budget", "method"]
    own = own.groupby([*setting, "share"], as_index=False)["accuracy"].mean()
    for key, group in own.groupby(setting):
        if len(group) > 1:
            yield _row(key, group.loc[group["share"].idxmax(), "accuracy"], group["accuracy"].max())


def _version(file: str) -> str:
    """Tell apart what must not be averaged: features, and whether `align` knew the likelihood of labels and V."""
    if file.startswith("shift-"):
        return "V in the steps"
    return "likelihood" if file.endswith("-likelihood") else "present" if file in PRESENT else "earlier"


def of_epochs() -> Iterator[dict[str, object]]:
    frame = pd.read_csv(RESULTS / "epochs-mnist.csv")
    means = (100 * frame.groupby(["privacy.epsilon", "train_args.num_epochs"])["accuracy"].mean()).reset_index()
    for key, group in means.groupby("privacy.epsilon"):
        chosen = group[group["train_args.num_epochs"] == advise(0.1).epochs]["accuracy"].item()
        yield _row(("mnist", key), chosen, group["accuracy"].max())


def _row(key: tuple, chosen: float, best: float) -> dict[str, object]:
    setting = ", ".join(str(part) for part in key)
    return {"setting": setting, "chosen": chosen, "best": best, "good": bool(best - chosen <= TOLERANCE)}


def checked() -> dict[str, list[dict[str, object]]]:
    table = measured()
    return {
        "strategy, nothing known": list(of_strategies(table, UNKNOWN)),
        "strategy, known to be alike": list(of_strategies(table, ALIKE)),
        "share": list(of_shares(table)),
        "epochs": list(of_epochs()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    results = checked()
    for name, rows in results.items():
        good = sum(bool(row["good"]) for row in rows)
        print(f"{name}: within {TOLERANCE} points of the best in {good} of {len(rows)} settings")
        for row in rows:
            if not row["good"]:
                print(f"    not: {row['setting']}: {row['chosen']:.1f}, best {row['best']:.1f}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
