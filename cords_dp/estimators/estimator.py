"""`PrivateClassifier` and `PrivateRegressor`: scikit-learn's ``fit`` and ``predict`` over a private session.

    model = PrivateClassifier(epsilon=1.0, data_norm=10.0, classes=[0, 1]).fit(X, y)
    model.predict(X_new), model.privacy_.statement

A thin face: parameters become a config, which is resolved and planned as any other, and one `PrivateSession` trains, as
under `TrainClassifier`. The ledger is in memory, an account on disk where one is named. Nothing else is written.

Formal guarantee: that of the run (`planning.plan`), for zero-out of one row of X and y. Released are the weights and
what the plan lists. A fitted estimator holds these, its parameters and public facts, and no record: it may be pickled
and given away with the guarantee of ``privacy_``. Not covered: the set of labels where it is read from y
(`records.label_set`), exact scores of private records by ``score`` (``evaluate`` releases noisy ones), what earlier
steps of a pipeline fit on the same records, and other fits on them (`repeats`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from cords_dp.accounting import Ledger
from cords_dp.errors import ConfigError, DataError, PrivacyWarning
from cords_dp.estimators import records as kinds
from cords_dp.estimators.evaluation import Evaluation, evaluated
from cords_dp.estimators.fitting import released_model, trained
from cords_dp.estimators.parameters import config_of
from cords_dp.estimators.records import Given, Target
from cords_dp.estimators.repeats import Repeated
from cords_dp.files import write_durably
from cords_dp.models.card import FILE as MODEL_CARD
from cords_dp.models.predict import LoadedModel
from cords_dp.planning import Cost, PrivacyPlan
from cords_dp.planning.statement import privacy_markdown, privacy_report, write_statement
from cords_dp.training.provenance import about_handed_over, about_weights
from cords_dp.training.provenance import weights as model_file
from cords_dp.training.resolve import resolve

_LABELS_READ = "the set of labels, which was read from y and is taken to be public (classes=[...] declares it instead)"


@dataclass(frozen=True, repr=False)
class Privacy:
    """What a fit has cost and for what. Public values only.

    ``spent``: (ε, δ) by phase and in total. ``statement``: privacy.md. ``report``: privacy.json. ``ledger``: every
    charge. ``repeated``: what all fits on these records in this process add up to, None where this is the only one or
    an account keeps the total.
    """

    plan: PrivacyPlan
    charges: Ledger
    repeated: Repeated | None = None
    unused_keys: tuple[str, ...] = ()
    labels_read: bool = False
    about: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        unit = "person" if self.plan.privacy.unit == "owner" else "record"
        if self.plan.noiseless:
            return "Privacy(none: epsilon=None)"
        return f"Privacy(ε = {self.epsilon:.4g}, δ = {self.delta:.3g} for each {unit}; print .statement for the rest)"

    @cached_property
    def spent(self) -> Cost:
        return self.plan.spent(self.charges)

    @property
    def epsilon(self) -> float:
        return self.spent.epsilon

    @property
    def delta(self) -> float:
        return self.spent.delta

    @property
    def ledger(self) -> dict[str, Any]:
        return self.charges.to_dict()

    @cached_property
    def report(self) -> dict[str, Any]:
        report = privacy_report(self.plan, self.charges, unused_keys=self.unused_keys, about=self.about, tested=False)
        if "not_covered" in report:
            more = [_LABELS_READ] if self.labels_read else []
            report["not_covered"] = [*more, *report["not_covered"]]
        return report

    @property
    def statement(self) -> str:
        return privacy_markdown(self.report)

    def write(self, folder: Path, model: bytes) -> None:
        """Write the statement beside a model.pt of this content."""
        report = self.report
        if "about" in report:
            report = {**report, "about": {**report["about"], "model": about_weights(model)}}
        write_statement(folder, report)


class PrivateEstimator(BaseEstimator):
    """Fits and predicts, evaluates and saves: what both estimators share."""

    regression: bool
    epsilon: float | None
    schema: Any
    bounds: Any
    data_norm: float | None
    max_length: int | None
    account: str | Path | None
    _loaded: LoadedModel
    privacy_: Privacy

    @property
    def bounded(self) -> bool:
        return self.bounds is not None or self.data_norm is not None

    # -- fit ----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, owners: Any = None) -> Any:
        """Train privately on the rows of X and the targets y. Each call spends its own ε.

        owners: whose each row is, where people have several. The unit of privacy is then an owner with all of its rows.
        """
        kind, X = self._checked(X, fitting=True)
        y = self._checked_target(X, y)
        given, labels_read = self._given(kind, X, y)
        run = resolve(config_of(self, kind, owned=owners is not None), own_data=True, plan=False)
        for note in run.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        if self.epsilon is None:
            warnings.warn("epsilon=None: this fit is NOT PRIVATE.", PrivacyWarning, stacklevel=2)
        session, card, repeated = trained(run, given, owners)
        self._loaded = released_model(card, session.released)
        about = about_handed_over(session)
        self.privacy_ = Privacy(session.plan, session.ledger, repeated, run.unused, labels_read, about)
        return self

    def _checked(self, X: Any, *, fitting: bool) -> tuple[str, Any]:
        """Tell what X is, and check its shape and types as scikit-learn does; what its values are decides nothing."""
        kind = kinds.kind_of(X, schema=self.schema, bounded=self.bounded)
        if kind == kinds.VECTORS:
            X = validate_data(self, kinds.numbers_of(X), reset=fitting, dtype="numeric", ensure_all_finite=False)
        elif kind == kinds.TABLE and fitting:
            _check_feature_names(self, X, reset=True)
            _check_n_features(self, X, reset=True)
        return kind, X

    def _checked_target(self, X: Any, y: Any) -> np.ndarray:
        if y is None:
            raise ValueError(f"requires y to be passed, but the target y is None: {type(self).__name__} learns from it")
        self._target_name = str(getattr(y, "name", None) or "target")
        kinds.refuse_complex(y)
        y = column_or_1d(y, warn=True)
        if len(y) != len(X):
            raise DataError(f"X has {len(X)} records and y {len(y)}: inconsistent numbers of samples")
        return y

    def _given(self, kind: str, X: Any, y: np.ndarray) -> tuple[Given, bool]:
        """Return the records, and whether the set of labels was read from them."""
        raise NotImplementedError

    def _records(self, kind: str, X: Any, y: np.ndarray, target: Target) -> Given:
        if kind == kinds.TEXTS:
            return kinds.texts(X, y, target, self.max_length)
        return kinds.images(X, y, target) if kind == kinds.IMAGES else kinds.vectors(X, y, target)

    # -- predictions ----------------------------------------------------------------------------------------

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        kind, X = self._checked(X, fitting=False)
        if kind == kinds.VECTORS:  # one that is not finite counts as nothing, as in training
            X = np.where(np.isfinite(X).all(axis=1, keepdims=True), X, 0)
        if kind == kinds.TEXTS:
            X = list(X)
        return self._loaded.predict(X) if self.regression else self._loaded.predict_proba(X)

    def evaluate(
        self,
        X: Any,
        y: Any,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        owners: Any = None,
        by: str | None = None,
    ) -> Evaluation:
        """Measure the model on private rows: noisy metrics with intervals, for (ε, δ) of the rows of X and y.

        They should be others than those of ``fit``. owners: whose each row is. by: a categorical column of
        a DataFrame, to measure its groups besides. ``score`` is exact, hence for rows that are public.
        """
        check_is_fitted(self)
        like = copy.copy(self)  # what is read off these rows, such as the name of y, stays out of the fitted model
        if not self.regression:
            like.classes = self.classes_  # type: ignore[attr-defined]
        kind, X = like._checked(X, fitting=False)
        y = like._checked_target(X, y)
        given, _ = like._given(kind, X, y)
        return evaluated(
            given,
            y,
            partial(self._outputs, X),
            ends=kinds.target_range(given.card) if self.regression else None,
            epsilon=epsilon,
            delta=delta,
            owners=owners,
            by=by,
            account=self.account,
        )

    def save(self, folder: str | Path) -> Path:
        """Write model.json, model.pt and the privacy statement, for `cords_dp.load_model` and ``cords-dp predict``.

        What is written is released already: no record, nothing that costs anything.
        """
        check_is_fitted(self)
        folder = Path(folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        content = model_file(self._loaded.model)
        self.privacy_.write(folder, content)
        write_durably(folder / "model.pt", content)
        write_durably(folder / MODEL_CARD, self._loaded.card.to_json())
        return folder

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "privacy_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.epsilon is not None  # noise is fresh and secret, whatever random_state says
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True  # such a record contributes nothing; no record may end a run
        tags.target_tags.required = True
        return tags


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """A classifier that is (ε, δ)-differentially private for each row that it is fitted on.

    Parameters are those of the config, by the names that they have there:

    epsilon: the budget of one fit; None is NOT PRIVATE, for a comparison. strategy: ``dss_args.type``. classes: the
    labels, which are public; without them the set of labels is read from y, with a warning. schema: what is public
    about a DataFrame (`Schema`, a dict or the path of a YAML file). bounds, data_norm: public bounds of the numbers in
    X, (lowest, highest) or the length of a row; without either, a row of an array is scaled to one length by itself, so
    that only its direction counts. max_length: bytes of a text. account: the file that adds up all runs on these data.
    validation_fraction: the share of the rows that a strategy which selects keeps as V; others train on all rows.
    random_state: fixes the split and the initial weights, never noise. config: sections with any other keys.

    After ``fit``: ``classes_``, ``n_features_in_``, ``feature_names_in_`` and ``privacy_`` (`Privacy`).
    """

    regression = False

    def __init__(
        self,
        epsilon: float | None = 1.0,
        *,
        delta: float | None = None,
        strategy: str = "FullDP",
        fraction: float | None = None,
        mechanism: str | None = None,
        architecture: str | None = None,
        features: str | None = None,
        weights: str | None = None,
        schema: Any = None,
        classes: Any = None,
        bounds: Any = None,
        data_norm: float | None = None,
        max_length: int | None = None,
        num_epochs: int | None = None,
        batch_size: int | str | None = None,
        lr: float | str | None = None,
        max_grad_norm: float | None = None,
        validation: str | None = None,
        validation_fraction: float | None = None,
        account: str | Path | None = None,
        device: str | None = "cpu",
        random_state: Any = None,
        config: Mapping[str, Any] | None = None,
    ):
        self.epsilon, self.delta = epsilon, delta
        self.strategy, self.fraction, self.mechanism = strategy, fraction, mechanism
        self.architecture, self.features, self.weights = architecture, features, weights
        self.schema, self.classes = schema, classes
        self.bounds, self.data_norm, self.max_length = bounds, data_norm, max_length
        self.num_epochs, self.batch_size, self.lr, self.max_grad_norm = num_epochs, batch_size, lr, max_grad_norm
        self.validation, self.validation_fraction = validation, validation_fraction
        self.account, self.device, self.random_state, self.config = account, device, random_state, config

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the exact accuracy, for rows that are public; those without a label are left out, as by `evaluate`."""
        labels = column_or_1d(y)
        known = np.flatnonzero(~pd.isna(labels))
        if len(known) < len(labels):
            X, y = _safe_indexing(X, known), labels[known]
            sample_weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(super().score(X, y, sample_weight))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of ``classes_``, a row for each row of X."""
        return self._outputs(X).astype(np.float64)

    def predict(self, X: Any, threshold: float | None = None) -> np.ndarray:
        """Return the likeliest class of each row of X.

        threshold: of two classes, the probability from which a row counts as ``classes_[1]``, instead of a half;
        `cords_dp.choose_threshold` finds one for a wanted recall or for costs of mistakes.
        """
        probabilities = self.predict_proba(X)
        if threshold is None:
            return self.classes_[probabilities.argmax(axis=1)]
        self._loaded.check_threshold(threshold)
        return self.classes_[(probabilities[:, 1] >= threshold).astype(int)]

    def _given(self, kind: str, X: Any, y: np.ndarray) -> tuple[Given, bool]:
        declared, read = self.classes, False
        if kind == kinds.TABLE:
            partial = isinstance(self.schema, Mapping) and self.schema.get("target") is None
            if declared is None and partial:
                declared, read = kinds.label_set(y, None), True
            schema = kinds.read_table_schema(
                self.schema, X, target=self._target_name, classes=declared, range_=None, regression=False
            )
            self.classes_ = kinds.table_classes(schema, y)
            return kinds.table(X, y, schema), read
        self.classes_ = kinds.label_set(y, declared)
        return self._records(kind, X, y, Target(self.classes_)), declared is None


class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """A regression that is (ε, δ)-differentially private for each row that it is fitted on.

    Parameters as for `PrivateClassifier`, except that there are no classes; strategies are FullDP and RandomDP.
    target_range: (lowest, highest) that a target can publicly be; targets outside are moved to the nearer end. Without
    it targets are learnt as they are, which works where they lie about in [−1, 1].
    """

    regression = True

    def __init__(
        self,
        epsilon: float | None = 1.0,
        *,
        delta: float | None = None,
        strategy: str = "FullDP",
        fraction: float | None = None,
        mechanism: str | None = None,
        architecture: str | None = None,
        features: str | None = None,
        weights: str | None = None,
        schema: Any = None,
        target_range: tuple[float, float] | None = None,
        bounds: Any = None,
        data_norm: float | None = None,
        max_length: int | None = None,
        num_epochs: int | None = None,
        batch_size: int | str | None = None,
        lr: float | str | None = None,
        max_grad_norm: float | None = None,
        validation: str | None = None,
        validation_fraction: float | None = None,
        account: str | Path | None = None,
        device: str | None = "cpu",
        random_state: Any = None,
        config: Mapping[str, Any] | None = None,
    ):
        self.epsilon, self.delta = epsilon, delta
        self.strategy, self.fraction, self.mechanism = strategy, fraction, mechanism
        self.architecture, self.features, self.weights = architecture, features, weights
        self.schema, self.target_range = schema, target_range
        self.bounds, self.data_norm, self.max_length = bounds, data_norm, max_length
        self.num_epochs, self.batch_size, self.lr, self.max_grad_norm = num_epochs, batch_size, lr, max_grad_norm
        self.validation, self.validation_fraction = validation, validation_fraction
        self.account, self.device, self.random_state, self.config = account, device, random_state, config

    def predict(self, X: Any) -> np.ndarray:
        """Return a number for each row of X, in the target's unit."""
        return self._outputs(X).astype(np.float64)

    def _given(self, kind: str, X: Any, y: np.ndarray) -> tuple[Given, bool]:
        if y.dtype.kind not in "iufbO":
            raise DataError(f"Unknown label type: y must be numbers, and holds {y.dtype}")
        y = kinds.numbers_alone(y) if y.dtype.kind == "O" else y
        ends = self.target_range
        if ends is not None and not (len(ends) == 2 and -np.inf < ends[0] < ends[1] < np.inf):
            raise ConfigError("target_range", ends, "must be two numbers, the lowest and the highest")
        if kind == kinds.TABLE:
            schema = kinds.read_table_schema(
                self.schema, X, target=self._target_name, classes=None, range_=ends, regression=True
            )
            return kinds.table(X, y, schema), False
        target = Target(np.zeros(0), None if ends is None else (float(ends[0]), float(ends[1])))
        return self._records(kind, X, y, target), False
