"""People with several records: what it costs to promise them ε, and what the usual ways around it cost.

    python benchmarks/people.py randhie [--seeds 5]      the RAND Health Insurance Experiment, at most 5 years a person
    python benchmarks/people.py hospital [--seeds 5]     a made-up hospital, at most 19 visits a patient

Every seed puts a fifth of the people into the test set, the same for all ways, and everything else is the default of
`config_for`. The ways:

* *person*: `dataset.owner`; ε is a person's.
* *one row*: a random row of each person; a record is then a person.
* *group privacy*: records are the unit, at an ε' of theirs so small that the bound that is computed for as many records
  as the step would use of a person (`cords_dp.accounting.group_epsilons`) is ε. Who has more has more than ε.
* *divided*: ε' = ε / that number, which is no bound for anyone.
* *record*: records are the unit and have ε. What a person has is printed beside it.
* *not private*: scikit-learn's logistic regression on the same encoding of all rows.

Prints AUC and log loss on the rows of the test set's people: mean ± standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from cords_dp import load_model
from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, group_epsilons
from cords_dp.config import config_for
from cords_dp.data.build import build_dataset
from cords_dp.evaluation.metrics import classifier_metrics
from cords_dp.report.tables import to_markdown
from cords_dp.runs.run import run_experiment
from cords_dp.studies.randhie import SCHEMA as RANDHIE
from cords_dp.studies.randhie import fetch_randhie
from cords_dp.training.resolve import resolve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hospital import SCHEMA as HOSPITAL
from hospital import visits

_DELTA = 1e-5
_SCORES = {"auc": "AUC", "log_loss": "log loss"}
_PATIENTS = 1000


@dataclass(frozen=True)
class Table:
    """``rows`` of people, whose ``owner`` is a column of; ``cap``: how many of one a step uses."""

    rows: pd.DataFrame
    schema: Any
    owner: str
    target: str
    cap: int


def randhie(_seed: int) -> Table:
    rows = pd.read_csv(fetch_randhie(Path("data")), dtype=str, keep_default_na=False)
    return Table(rows, str(RANDHIE), "zper", "visit", 5)


def hospital(seed: int) -> Table:
    return Table(pd.DataFrame(visits(_PATIENTS, seed)), HOSPITAL, "patient_id", "readmitted", 10)


TABLES = {"randhie": randhie, "hospital": hospital}


@dataclass(frozen=True)
class Case:
    """One seed: the files, and how to train on them."""

    table: Table
    folder: Path
    seed: int

    def config(self, train: str, epsilon: float | None, strategy: str = "FullDP", **owner: Any) -> dict[str, Any]:
        section = {"path": str(self.folder / train), "test_path": str(self.folder / "test.csv"), **owner}
        cap = {"records_per_owner": self.table.cap} if owner else {}
        subset = {"dss_args": {"fraction": 0.5}} if strategy == "GLISTERDP" else {}
        return config_for(
            "table",
            strategy,
            dataset={**section, "schema": self.table.schema, "datadir": str(self.folder / "data")},
            train_args={"device": "cpu", "seed": self.seed, "results_dir": str(self.folder / "runs")},
            privacy={"epsilon": epsilon, "delta": _DELTA, **cap},
            **subset,
        )

    def scores(self, train: str, epsilon: float, strategy: str = "FullDP", **owner: Any) -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=self.folder) as out:
            config = self.config(train, epsilon, strategy, **owner)
            config["ckpt"] = {"dir": out, "is_save": False}
            run_experiment(config, Path(out), progress=False)
            given = load_model(out).predict_file(self.folder / "test.csv")["p_yes"].to_numpy()
        return self.scored(given)

    def scored(self, positive: np.ndarray) -> dict[str, float]:
        labels = (pd.read_csv(self.folder / "test.csv", dtype=str)[self.table.target] == "yes").to_numpy(dtype=int)
        return classifier_metrics(labels, np.stack([1 - positive, positive], axis=1), tuple(_SCORES))

    def not_private(self) -> dict[str, float]:
        config = self.config("train.csv", 1.0)
        splits = build_dataset(resolve(config, plan=False).config, np.random.default_rng(0))
        (x, y), (new, _) = (part.batch(np.arange(len(part))) for part in (splits.train, splits.test))
        model = LogisticRegression(C=10.0, max_iter=2000).fit(x.numpy(), y.numpy())
        return self.scored(model.predict_proba(new.numpy())[:, 1])

    def of_a_group(self, epsilon: float, size: int) -> float:
        """Bound a person's ε with so many records where a record has ``epsilon``."""
        plan = resolve(self.config("train.csv", epsilon), plan=False).plan(len(self.rows("train.csv")), 0)
        assert plan is not None
        on = {part: [e.event for e in plan.entries() if e.dataset == part] for part in (TRAINING_DATA, VALIDATION_DATA)}
        return group_epsilons(on[TRAINING_DATA], on[VALIDATION_DATA], plan.delta, sizes=(size,))[size]

    def by_group_privacy(self, epsilon: float) -> float:
        """Find an ε of a record at which the computed bound for a person is at most ``epsilon``, and hardly less."""
        high = epsilon / self.table.cap
        low = 0.8 * high
        while self.of_a_group(low, self.table.cap) > epsilon:
            low, high = 0.8 * low, low
        while high - low > 0.02 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.of_a_group(middle, self.table.cap) <= epsilon else (low, middle)
        return low

    def rows(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / name, dtype=str, keep_default_na=False)


def prepared(table: Table, folder: Path, seed: int) -> Case:
    """Write the seed's files: a fifth of the people for testing, all rows of the others, and one row of each."""
    rng = np.random.default_rng([seed, 26])
    (folder := folder / str(seed)).mkdir()
    people = table.rows[table.owner].unique()
    tested = table.rows[table.owner].isin(rng.permutation(people)[: len(people) // 5])
    rows = table.rows[~tested]
    single = rows.iloc[rng.permutation(len(rows))].drop_duplicates(table.owner).sort_index()
    for name, part in (("test.csv", table.rows[tested]), ("train.csv", rows), ("single.csv", single)):
        part.to_csv(folder / name, index=False)
    return Case(table, folder, seed)


def ways(case: Case, epsilons: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield a row of results for each way and ε; ``whose``: what the promise is about."""
    cap, owner = case.table.cap, {"owner": case.table.owner}
    yield {"way": "not private", "ε": "none", **case.not_private()}
    for epsilon in epsilons:
        label = {"ε": f"{epsilon:g}"}
        yield {"way": "person, FullDP", **label, **case.scores("train.csv", epsilon, **owner)}
        yield {"way": "person, GLISTERDP", **label, **case.scores("train.csv", epsilon, "GLISTERDP", **owner)}
        yield {"way": "one row of each", **label, **case.scores("single.csv", epsilon)}
        small = case.by_group_privacy(epsilon)
        yield {"way": f"group privacy for {cap}", **label, "ε of a record": small, **case.scores("train.csv", small)}
        small = epsilon / cap
        bound = case.of_a_group(small, cap)
        scores = case.scores("train.csv", small)
        yield {"way": f"divided by {cap}", **label, "ε of a record": small, "ε of a person": bound, **scores}
        bound = case.of_a_group(epsilon, cap)
        scores = case.scores("train.csv", epsilon)
        yield {"way": "record", **label, "ε of a record": epsilon, "ε of a person": bound, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--epsilon", type=float, action="append", help="budgets (default 1, 3)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, help="write every run to this CSV file")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            case = prepared(TABLES[args.table](seed), Path(folder), seed)
            for row in ways(case, args.epsilon or [1.0, 3.0]):
                found.append({"seed": seed, **row})
                print(found[-1], file=sys.stderr, flush=True)
    frame = pd.DataFrame(found)
    if args.rows is not None:
        frame.to_csv(args.rows, index=False, float_format="%.6g")
    print(to_markdown(table_of(frame)))


def table_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the means over seeds; the ε of a record and of a person where they are not the promised one."""
    by_way = frame.groupby(["ε", "way"], sort=False)
    scores = [by_way[name].agg(spread).rename(title) for name, title in _SCORES.items()]
    epsilons = [by_way[name].mean().map(_shown) for name in ("ε of a record", "ε of a person")]
    return pd.concat([*epsilons, *scores], axis=1).reset_index()


def spread(values: pd.Series) -> str:
    return f"{values.mean():.3f} ± {values.std():.3f}"


def _shown(epsilon: float) -> str:
    return "" if math.isnan(epsilon) else "over 20" if math.isinf(epsilon) else f"{epsilon:.2f}"


if __name__ == "__main__":
    main()
