"""`align`: records are drawn, and their labels understood, as the validation set asks, seen through the released model.

GLISTER asks, again and again, which records the validation set wants, seen by today's model. Here a record's *kind* is
its label and the class that the released model predicts for it. Before training only labels are counted, unless a head
start on V has made predictions worth something; at each look later, the table of kinds, in D and in V. What D has too
little of is drawn more often, what D has too much of less: a cut class is a label with too few records, a wrong label
is a record whose prediction does not go with it as in V.

What is released is a noisy table of D and one of V. All else follows from them:

* ``r[kind]``, the ratio of V's share to D's, is shrunk towards 1 by empirical Bayes: as much as its noise calls for,
  and altogether to 1 where the tables differ by no more than noise and sampling explain.
* A record stays in a batch with the chance p = min(1, κ·r[kind]). κ is such that the cap at 1 costs a quarter of what V
  asks for: matching V exactly would spend the batch on a few rare records.
* The same tables say how D's labels came about: which classes are missing, which labels were moved. This goes into the
  loss of every record, at no price (`selection.likelihood`); a wrongly labelled record then teaches its probable class
  instead of being left out, and there is something to gain where all records are used anyway.
* The concentration c, how much more often than in a uniform draw a record may come, is chosen at the first look, from a
  few values that the plan has paid for. It trades signal for noise: 1 where nothing differs, which is a uniform draw
  from all records with nothing left out, and more the more D and V differ.

Formal guarantees
-----------------
Unit: one record of D, zero-out. A record lies in exactly one cell of a table, a null record (or one whose prediction is
not finite) in none, so a table has L2 sensitivity 1. Each selection releases one table of D and one of V, a Gaussian
event on each; the predictions are those of released weights. The rest is post-processing.

A step computes Σ_j b_j·s_j·clip_C(∇ℓ_j) + noise with fresh coins b_j ~ Bernoulli(q), s_j ~ Bernoulli(p_j). p_j is a
function of record j and of released values, so the step is dominated by the event (q, σ): the argument of `match`. The
branch (q_c, σ_c) is chosen by released values among branches that were fixed before data was read; all its steps
together are one `BranchMaximum`. Chances and batches are secret state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.config.values import Key, one_of, whole
from cords_dp.planning.mechanism import Release, SelectionNoise
from cords_dp.planning.schedule import EpochPlan, Sizes, subset_schedule
from cords_dp.selection.context import SelectionContext, Selector, Weights
from cords_dp.selection.likelihood import LabelLikelihood, class_given_label, is_spread, of_class_shares, of_tables
from cords_dp.selection.pool import Pool
from cords_dp.selection.releases import Releases
from cords_dp.selection.shared import (
    OWN_SCORE,
    SELECTION_TYPE,
    DrawsFromAll,
    check_weighing,
    released_of_both,
    wants_no_other_score,
)
from cords_dp.selection.tables import CONCENTRATIONS, best_branch, normalised, table_ratios

_TABLE, _VALIDATION = "table", "validation table"
_BEFORE = 0.5  # exponent of the class ratio while only labels are known: they cannot tell shift from label noise
_CLEAR = 3.0  # the concentration from which on a draw tells right labels from wrong ones by itself
_RECORDS_PER_CELL = 4.0  # in deviations of a cell's noise; with fewer, predictions are only told right from wrong


@dataclass(frozen=True, kw_only=True)
class Align(DrawsFromAll):
    """Looks at labels before training and at predictions when CORDS' ``select_every`` says so."""

    name: ClassVar[str] = "align"
    summary: ClassVar[str] = (
        "little: every step draws the kinds of records that the validation set asks for, inside the training "
        "mechanism; a few noisy tables of labels and predictions are released"
    )
    use_case: ClassVar[str] = "the released model: shift, wrong labels, both or neither"
    uses_average: ClassVar[bool] = True
    counts_owners: ClassVar[bool] = True

    looks: int = Key(whole, 3, "how many re-selections look at the records; more looks are noisier each").field()
    correction: str = Key(
        partial(one_of, choices=("both", "draw", "loss")),
        "both",
        "what differs between D and V is made up for by which records are drawn (`draw`), by the likelihood of their "
        "labels in the loss (`loss`), or by both, each knowing of the other",
    ).field()
    score: str = OWN_SCORE.field()
    selection_type: str = SELECTION_TYPE.field()

    @classmethod
    def suits(cls, keys: Mapping[str, Any]) -> bool:
        return wants_no_other_score(keys)

    @classmethod
    def as_default(cls, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave out CRAIG's and GradMatch's ways of grouping records (PerBatch, PerClass, …), unused here."""
        return {key: value for key, value in keys.items() if key != "selection_type"}

    def check(self, privacy: PrivacySettings, subset: SubsetSettings) -> None:
        check_weighing(self, "weighs labels and predictions")
        self.refuse_basic_composition(privacy)

    def schedule(self, sizes: Sizes, subset: SubsetSettings, epochs: int) -> tuple[EpochPlan, ...]:
        """Count labels before the first epoch of its own, then look; from the first look on the branch decides."""
        first = int(subset.kappa * epochs) + 1
        looks = [e for e in range(first + 1, epochs + 1) if (e - 1) % subset.select_every == 0][: self.looks]
        plain = subset_schedule(
            sizes,
            subset,
            epochs,
            rate=sizes.batch_size / sizes.n,
            selects=lambda epoch, start: epoch == start or epoch in looks,
        )
        chosen = bool(looks) and self.correction != "loss"
        return tuple(replace(e, branched=chosen and number >= looks[0]) for number, e in enumerate(plain, 1))

    def concentrations(self, sizes: Sizes) -> tuple[float, ...]:
        if self.correction == "loss":
            return ()
        return tuple(c for c in CONCENTRATIONS if c * sizes.batch_size <= sizes.n)

    def releases(self, noise: SelectionNoise, privacy: PrivacySettings, sizes: Sizes) -> tuple[Release, ...]:
        return released_of_both(_TABLE, _VALIDATION, noise, "counts of records by label and prediction; 1 (one cell)")

    def describe_price(self, price: Callable[[float], float], sizes: Sizes, rate: float) -> str:
        highest = max(self.concentrations(sizes), default=1.0)
        if highest == 1:
            return ""
        return (
            "That is the price where training and validation data do not differ: the draw is then uniform. Where they "
            f"do, records may be drawn up to {highest:g} times as often, with more noise, as the tables advise."
        )

    def build(self, context: SelectionContext) -> Selector:
        return AlignSelector(self, context)


class AlignSelector:
    """Hands over all records with their chances, and the branch."""

    def __init__(self, mechanism: Align, context: SelectionContext):
        self.mechanism, self.context = mechanism, context
        self._labels: tuple[np.ndarray, np.ndarray] | None = None  # shares of D, ratios, of labels
        self._chances: np.ndarray | None = None  # by label and group
        self._given: np.ndarray | None = None  # the likelihood m of D's labels; None for the plain loss
        self._branch: int | None = None
        self._weights: Weights = {}

    def select(self, weights: Weights, releases: Releases) -> Pool:
        self._weights = weights
        sigma_d, sigma_v = releases.noise_multiplier(_TABLE), releases.noise_multiplier(_VALIDATION)
        first = self._labels is None
        groups = 1 if first and not self.context.plan.head_start else self._groups(sigma_d)
        labels, predicted = self.context.training.kinds(weights, self.context.num_classes)
        kinds = self._cells(labels, predicted, groups)
        on_d = releases.gaussian(_TABLE, self.context.training.count(kinds, self.context.num_classes, groups))
        assert self.context.validation is not None
        of_v = self._cells(*self.context.validation.kinds(weights, self.context.num_classes), groups)
        on_v = releases.gaussian(_VALIDATION, self.context.validation.count(of_v, self.context.num_classes, groups))
        if first:
            rows = groups**0.5  # a row's sum has the noise of so many cells
            self._look_at_labels(on_d.sum(axis=1), on_v.sum(axis=1), rows * sigma_d, rows * sigma_v)
        if groups > 1:
            self._look(on_d, on_v, sigma_d, sigma_v, branches=not first)
        return self._pool(kinds, predicted)

    def state(self) -> dict[str, Any]:
        assert self._labels is not None
        assert self._chances is not None
        return {
            "weights": dict(self._weights),
            "shares": torch.from_numpy(self._labels[0]),
            "ratios": torch.from_numpy(self._labels[1]),
            "chances": torch.from_numpy(self._chances),
            "likelihood": torch.zeros(0) if self._given is None else torch.from_numpy(self._given),
            "branch": -1 if self._branch is None else self._branch,
        }

    def restore(self, state: dict[str, Any]) -> Pool:
        self._weights = state["weights"]
        self._labels = state["shares"].numpy(), state["ratios"].numpy()
        self._chances = state["chances"].numpy()
        self._given = state["likelihood"].numpy() if len(state["likelihood"]) else None
        self._branch = None if state["branch"] < 0 else int(state["branch"])
        labels, predicted = self.context.training.kinds(self._weights, self.context.num_classes)
        return self._pool(self._cells(labels, predicted, self._chances.shape[1]), predicted)

    # -- records --------------------------------------------------------------------------------------

    def _groups(self, sigma: float) -> int:
        """Return columns of the table: every predicted class, or right and wrong where cells would be mostly noise."""
        classes = self.context.num_classes
        return classes if self.context.plan.shape.n >= _RECORDS_PER_CELL * sigma * classes**2 else 2

    def _cells(self, labels: np.ndarray, predicted: np.ndarray, groups: int) -> np.ndarray:
        """Return the cell of each record, −1 for none: a function of that record and of released weights."""
        classes = self.context.num_classes
        group = np.zeros_like(labels) if groups == 1 else predicted if groups == classes else labels != predicted
        return np.where(labels >= 0, labels * groups + group, -1)

    def _pool(self, kinds: np.ndarray, predicted: np.ndarray) -> Pool:
        assert self._chances is not None
        chances = np.where(kinds >= 0, self._chances.ravel()[np.maximum(kinds, 0)], 0.0)
        everyone = np.arange(len(kinds))
        if self.mechanism.correction == "draw" or self._given is None:
            return Pool(everyone, chances=chances, branch=self._branch or 0)
        likelihood = LabelLikelihood.under(self._given, self._chances_by_prediction())
        return Pool(everyone, chances=chances, branch=self._branch or 0, likelihood=likelihood, predicted=predicted)

    def _chances_by_prediction(self) -> np.ndarray:
        """Return the chance of a record by its label and predicted class, whatever the columns of the table are."""
        assert self._chances is not None
        classes, groups = self.context.num_classes, self._chances.shape[1]
        labels, predicted = np.indices((classes, classes)).reshape(2, -1)
        return self._chances.ravel()[self._cells(labels, predicted, groups)].reshape(classes, classes)

    # -- post-processing of noisy tables ------------------------------------------------------------------

    def _look_at_labels(self, on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float) -> None:
        (shares,), (ratio,) = table_ratios(on_d[None], on_v[None], sigma_d, sigma_v)
        self._labels = shares, ratio
        _, chances = self._drawn(shares, normalised(shares, ratio**_BEFORE), [(1.0, 1.0)])
        self._chances, self._given = chances[:, None], of_class_shares(ratio)

    def _look(
        self, on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float, *, branches: bool = True
    ) -> None:
        """Take over two tables. ``branches``: whether the steps that follow may be concentrated."""
        assert self._labels is not None
        shares, ratio = self._labels
        within, tilt = table_ratios(on_d, on_v, sigma_d, sigma_v)
        joint = shares[:, None] * within
        joint = (joint / joint.sum()).ravel()
        wanted = normalised(joint, (ratio[:, None] * tilt).ravel())
        options = [(b.concentration, b.sigma) for b in self.context.plan.branches]
        options = options if branches and options else [(1.0, 1.0)]
        if not branches:
            _, chances = self._drawn(joint, wanted, options)
        elif self._branch is None:
            self._branch, chances = self._drawn(joint, wanted, options)
        else:  # the steps that were charged together stay in their branch
            _, chances = self._drawn(joint, wanted, [options[self._branch]])
        self._chances = chances.reshape(on_d.shape)
        classes_of = class_given_label(on_d, on_v, sigma_d, sigma_v)
        spread = is_spread(on_d, on_v, sigma_d, sigma_v)
        explains = self.mechanism.correction == "loss" or _explains(classes_of, spread, options[self._branch or 0][0])
        self._given = of_tables(on_d, on_v, sigma_d, sigma_v, classes_of) if explains else None

    def _drawn(
        self, shares: np.ndarray, wanted: np.ndarray, options: Sequence[tuple[float, float]]
    ) -> tuple[int, np.ndarray]:
        """Return the branch and each cell's chance there."""
        if self.mechanism.correction == "loss":
            return 0, np.ones_like(wanted)
        return best_branch(shares, wanted, options)


def _explains(classes_of: np.ndarray, spread: bool, concentration: float) -> bool:
    """Say whether the likelihood teaches more than the plain loss does on the records that are drawn.

    It does where classes are missing and where labels were moved to another class. It does not where wrong labels are
    spread over all classes: they hurt the plain loss little, and the draw leaves most of them out. Nor where a label is
    mostly wrong and the draw is concentrated: explained by other classes, the label would hardly teach its own.
    """
    return not spread and not (np.diag(classes_of).min() < 0.5 and concentration >= _CLEAR)
