"""`PrivateTuning`: the estimators' door to `cords_dp.tune`, in the place of a grid search.

Formal guarantee: that of the tuning (`tuning.plan`): one (ε, δ) for all trials and the choice among them, for zero-out
of one row of X and y. Released are the best trial's model, settings and noisy score on V, a share of the rows that is
split off by their number and the seed alone.

Trials read records from files, so the rows are written to a temporary folder that is the owner's alone (mode 0700), and
removed at the end. A trial's test set is made up, a row of zeros or of missing values for each class, and never read.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from cords_dp.config import merge_into
from cords_dp.config.settings import UNREAD
from cords_dp.errors import ConfigError, DataError
from cords_dp.estimators import records as kinds
from cords_dp.estimators.estimator import PrivateClassifier, PrivateRegressor
from cords_dp.estimators.evaluation import Evaluation
from cords_dp.estimators.parameters import SECTIONS, config_of
from cords_dp.estimators.records import Given
from cords_dp.estimators.repeats import Repeated, row_digests, tally
from cords_dp.files import write_durably
from cords_dp.models.predict import load_model
from cords_dp.runs.workers import InThisProcess, LocalWorkers
from cords_dp.tuning.tune import tune


@dataclass(frozen=True)
class TuningPrivacy:
    """What a tuning has cost. ``report``: privacy.json. ``statement``: privacy.md. ``repeated``: as in `Privacy`."""

    epsilon: float
    delta: float
    statement: str
    report: Mapping[str, Any]
    repeated: Repeated | None = None

    def write(self, folder: Path, model: bytes) -> None:
        """Write the statement of the whole tuning beside its model."""
        write_durably(folder / "privacy.json", json.dumps(self.report, indent=2))
        write_durably(folder / "privacy.md", self.statement)


class PrivateTuning(BaseEstimator):
    """Tries random settings of an estimator privately and keeps the best model, all within its ``epsilon``.

    estimator: a `PrivateClassifier`, or a `PrivateRegressor` of DataFrames. search: its parameters, or a config's keys,
    and the laws that they are drawn by: ``{"lr": "loguniform(0.01, 1)", "max_grad_norm": [0.5, 1.0, 2.0]}``. trials:
    the mean of their secret random number. law: of that number, as for `cords_dp.tune`. metric: by which trials are
    compared, from noisy counts of a share of the rows, ``validation_fraction`` of the estimator: accuracy (of a
    regression rmse), or another of `cords_dp.evaluation.metrics`, such as auc. One that is lost in the noise, where V
    is small, is NaN and counts as the worst. out: a folder that keeps model, settings and statement. workers: processes
    to run trials in; None runs them in this one.

    After ``fit``: ``best_params_``, ``best_score_`` (noisy), ``best_estimator_``, ``classes_``, ``privacy_``.
    """

    def __init__(
        self,
        estimator: PrivateClassifier | PrivateRegressor,
        search: Mapping[str, Any],
        *,
        trials: float = 10,
        law: str | float = "geometric",
        metric: str | None = None,
        out: str | Path | None = None,
        workers: int | None = None,
    ):
        self.estimator, self.search = estimator, search
        self.trials, self.law, self.metric, self.out, self.workers = trials, law, metric, out, workers

    def fit(self, X: Any, y: Any, owners: Any = None) -> PrivateTuning:
        """Tune on the rows of X and the targets y; each call spends ε anew. There may be no owners."""
        if owners is not None:
            raise DataError("a tuning has no owners: its scores count records. Fit settings of your own, with owners=")
        known = isinstance(self.estimator, (PrivateClassifier, PrivateRegressor))
        if not known or self.estimator.epsilon is None:
            raise ConfigError("estimator", self.estimator, "give a PrivateClassifier or PrivateRegressor with a budget")
        best: PrivateClassifier | PrivateRegressor = clone(self.estimator)
        kind, X = best._checked(X, fitting=True)
        if best.regression and kind != kinds.TABLE:
            raise ConfigError("X", kind, "a regression is tuned on a DataFrame with a schema, which bounds its target")
        y = best._checked_target(X, y)
        given, _ = best._given(kind, X, y)
        search = {f"{SECTIONS[key]}.{key}" if key in SECTIONS else key: law for key, law in self.search.items()}
        with tempfile.TemporaryDirectory(prefix="cords_dp-") as folder:
            config = config_of(best, kind)
            merge_into(config, {"ckpt": {"is_save": False}, "train_args": {"print_every": 10**6}})
            config["dataset"] = {
                **_written(kind, X, y, given, Path(folder)),
                "validation_fraction": best.validation_fraction,
            }
            backend = InThisProcess() if self.workers is None else LocalWorkers(self.workers)
            out = Path(folder) / "tuning" if self.out is None else Path(self.out).expanduser()
            repeated = self._tallied(given)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # how often one came would tell the number of trials
                found = tune(
                    config,
                    search,
                    trials=self.trials,
                    law=self.law,
                    out=out,
                    backend=backend,
                    progress=False,
                    metric=self.metric,
                )
            report, markdown = ((out / f"privacy.{kind}").read_text() for kind in ("json", "md"))
            self.privacy_ = TuningPrivacy(found.epsilon, found.delta, markdown, json.loads(report), repeated)
            best._loaded = load_model(out)
        best.privacy_ = self.privacy_  # type: ignore[assignment]  # one trial's own would claim too little
        self.best_estimator_ = best
        if isinstance(best, PrivateClassifier):
            self.classes_ = best.classes_
        self.best_params_, self.best_score_ = found.settings, found.score
        return self

    def _tallied(self, given: Given) -> Repeated | None:
        """Count the whole tuning as one fit, before its first trial; an account counts it by itself."""
        if self.estimator.account is not None:
            return None
        assert self.estimator.epsilon is not None
        delta = self.estimator.delta or min(1e-5, 0.1 / max(1, len(given.records)))
        return tally(row_digests(given.records), self.estimator.epsilon, delta)

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class of each row, or a number, by the best trial's model."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of ``classes_``, by the best trial's model."""
        check_is_fitted(self)
        assert isinstance(self.best_estimator_, PrivateClassifier)
        return self.best_estimator_.predict_proba(X)

    def score(self, X: Any, y: Any) -> float:
        """Return the exact accuracy, or R², of the best model: for rows that are public."""
        check_is_fitted(self)
        return float(self.best_estimator_.score(X, y))

    def evaluate(self, X: Any, y: Any, **options: Any) -> Evaluation:
        """Measure the best model on private rows, as `PrivateClassifier.evaluate` does."""
        check_is_fitted(self)
        return self.best_estimator_.evaluate(X, y, **options)

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = (
            own.estimator_type,
            own.classifier_tags,
            own.regressor_tags,
        )
        return tags

    def save(self, folder: str | Path) -> Path:
        """Write the best model and the tuning's statement, for `cords_dp.load_model`."""
        check_is_fitted(self)
        return self.best_estimator_.save(folder)


def _written(kind: str, X: Any, y: np.ndarray, given: Given, folder: Path) -> dict[str, Any]:
    """Write the records for the source that reads them; return the ``dataset`` section."""
    section: dict[str, Any] = {"name": kind, "datadir": str(folder), "feature": "dss", "test": UNREAD}
    if kind == kinds.TABLE:
        return {**section, **_written_table(X, y, given, folder)}
    labels = given.records.targets.numpy()
    places = np.arange(len(given.facts.classes))
    section["classes"] = list(given.facts.classes)
    if kind == kinds.TEXTS:
        lines = {
            "path": zip(list(X), labels.tolist(), strict=True),
            "test_path": (("", place) for place in places.tolist()),
        }
        for key, pairs in lines.items():
            content = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in pairs)
            (folder / f"{key}.jsonl").write_text(content)
        own = {key: str(folder / f"{key}.jsonl") for key in lines}
        return {**section, **own, "max_length": given.facts.shape[0]}
    X = np.asarray(X)
    np.savez(
        folder / "records.npz", x=X, y=labels, x_test=np.zeros((len(places), *X.shape[1:]), X.dtype), y_test=places
    )
    return {**section, "path": str(folder / "records.npz")}


def _written_table(X: pd.DataFrame, y: np.ndarray, given: Given, folder: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    schema, classes = given.card["schema"], given.card["classes"] or [None]
    columns = [column["name"] for column in schema["columns"]]
    frame = kinds.with_target(X, y, schema["target"]["name"])
    made_up = pd.DataFrame({**dict.fromkeys(columns, None), schema["target"]["name"]: classes})
    for key, rows in (("path", frame), ("test_path", made_up)):
        chunks = kinds.frame_chunks(rows, [*columns, schema["target"]["name"]])
        tables = [pa.table(chunk) for chunk in chunks]
        pa_parquet.write_table(pa.concat_tables(tables), folder / f"{key}.parquet")
    own = {key: str(folder / f"{key}.parquet") for key in ("path", "test_path")}
    return {**own, "schema": {**schema, "ignore": []}, "cache": False}
