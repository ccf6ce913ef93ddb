"""`exponential`: the paper's GLISTER-DP. GLISTER with every argmax replaced by the exponential mechanism.

A record's score in a selection is ``u_j = ⟨clip_{C_e}(g_j), v⟩``: ``g_j`` its last-layer gradient at the released
model, ``v`` the validation gradient brought to norm C_v, so |u_j| ≤ C_e·C_v. Picks follow
``P(e) ∝ exp(ε₀·u_e/2Δ)`` without replacement; weights are 1; exactly k indices.

Formal guarantees
-----------------
Unit: one record of D, zero-out; a null record stays in the index set with score 0 and adds nothing to sums.

*Frozen* (``v`` stands still during a selection): zeroing record j changes u_j alone, from u_j to 0, hence by at
most Δ = C_e·C_v. A selection is one Gumbel freeze; its cost does not depend on k.

*RGreedy, Stochastic, Naive* (``v`` is recomputed at ``θ − η·Σ_{picked} clip(g)`` as in CORDS): given the picks so
far, zeroing a picked record changes ``v`` and with it every score. Both values of a score lie in
[−C_e·C_v, C_e·C_v] because ``v`` is brought to norm C_v each time, so no score moves by more than
Δ = 2·C_e·C_v, whatever ``v`` becomes. Each pick is ε₀-DP given the earlier picks, and picks compose
adaptively. This ``v`` depends on gradients that are not released: it is neither logged nor stored.
A Stochastic pick is charged in full: the pick reveals that its record was among the candidates.

The validation gradient reads V only through ``Σ_V clip_{C_v}(g)``. With V private, each evaluation gets Gaussian noise
of standard deviation σ_v·C_v on every coordinate and is one Gaussian event on V. For a record of D, this noise is
randomness independent of D, so the bounds above hold for every value of it; for a record of V, the picks are
post-processing of the noisy gradients and of D. Hence the run's ε is the larger of the two.

*PerClass* is for labels that the user has declared public. Each class has its own ``v``, from the records of V in that
class. All classes' sums are released together: a record is in one of them, so the sensitivity is still C_v. Frozen
scores of all classes get their Gumbel noise in one freeze, of which each class keeps its best.

Of many records, only those that are proposed are shown to the model (`noise.primitives.proposed_picks`): the law
of the picks is the same, and whether it is done so is decided by public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cords_dp.accounting import TRAINING_DATA, Bound, Event, ExponentialPicks, GumbelFreeze, advanced_composition
from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.config.values import Key, one_of, whole
from cords_dp.errors import AccountingError, ConfigError
from cords_dp.noise.primitives import bounded_scores
from cords_dp.planning.mechanism import Mechanism, Release, SelectionNoise
from cords_dp.planning.schedule import Sizes
from cords_dp.selection.context import SelectionContext, Selector, Weights
from cords_dp.selection.last_layer import LastLayer, LastLayerGradients, moved_sum, to_norm
from cords_dp.selection.pool import Pool
from cords_dp.selection.releases import Releases
from cords_dp.selection.scores import get_score, score_records
from cords_dp.selection.shared import LINEAR_LAYER, SCORE, SELECTION_TYPE, ReleasedSubset, validation_gradient

_FROZEN = "Frozen"
_GREEDY_VARIANTS = (_FROZEN, "RGreedy", "Stochastic", "Naive")
_STOCHASTIC_ERROR = 0.01  # CORDS' choice: candidates = n/k · ln(1/0.01)
_PICKS, _VALIDATION = "picks", "validation gradient"


@dataclass(frozen=True, kw_only=True)
class Exponential(Mechanism):
    """The paper's mechanism. ``greedy``, ``r``, ``linear_layer`` and ``selection_type`` are CORDS' own keys."""

    name: ClassVar[str] = "exponential"
    summary: ClassVar[str] = 'the paper\'s; every pick is paid for, unless `greedy="Frozen"`'
    use_case: ClassVar[str] = "reproducing the paper"
    privacy_keys: ClassVar[frozenset[str]] = frozenset(
        {"split", "selection_composition", "selection_clip", "validation_clip", "validation_noise", "labels_public"}
    )
    noise_symbol: ClassVar[str] = "epsilon0"
    cost_rises: ClassVar[bool] = True

    greedy: str = Key(
        partial(one_of, choices=_GREEDY_VARIANTS), _FROZEN, "how picks move the validation gradient; `Frozen` does not"
    ).field()
    r: int = Key(whole, 15, "rounds of RGreedy").field()
    linear_layer: bool = LINEAR_LAYER.field()
    selection_type: str = SELECTION_TYPE.field()
    score: str = replace(SCORE, doc=f"{SCORE.doc}; others than `glister` need `Frozen`").field()

    @classmethod
    def variants(cls) -> Sequence[tuple[str, dict[str, Any], dict[str, Any]]]:
        def way(label: str, composition: str, picks: str, greedy: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
            return label, {"greedy": greedy}, {"composition": composition, "selection_composition": picks}

        return (
            way("paper: basic, advanced composition", "basic", "paper", "RGreedy"),
            way("basic, bounded range", "basic", "bounded_range", "RGreedy"),
            way("joint, bounded range", "joint", "bounded_range", "RGreedy"),
            way("basic, frozen scores", "basic", "freeze", _FROZEN),
            way("joint, frozen scores", "joint", "freeze", _FROZEN),
        )

    @property
    def frozen(self) -> bool:
        """Whether the validation gradient stands still while records are picked."""
        return self.greedy == _FROZEN

    @property
    def reads_validation(self) -> bool:
        return get_score(self.score).uses_validation

    def check(self, privacy: PrivacySettings, subset: SubsetSettings) -> None:
        composition = self.composition(privacy)
        if self.score != "glister" and not self.frozen:
            raise ConfigError("dss_args.greedy", self.greedy, f"score {self.score!r} has no greedy step: use 'Frozen'")
        if composition == "freeze" and not self.frozen:
            raise ConfigError(
                "privacy.selection_composition",
                "freeze",
                f"greedy={self.greedy!r} moves every score between picks, so the freeze bound does not "
                "hold; use dss_args.greedy='Frozen' or selection_composition='bounded_range'",
            )
        if composition == "paper" and privacy.composition == "joint":
            raise ConfigError(
                "privacy.selection_composition",
                "paper",
                "the paper's formula gives (ε, δ) and no divergence to compose jointly; use composition='basic'",
            )
        if self.selection_type == "PerClass" and not privacy.labels_public:
            raise ConfigError(
                "dss_args.selection_type",
                "PerClass",
                "a class quota reveals who is in the class (with one record in it the pick is certain); use "
                "'Supervised', or declare the labels public with privacy.labels_public=True",
            )

    # -- what is released and what it costs ---------------------------------------------------------------

    def composition(self, privacy: PrivacySettings) -> str:
        """Return how picks are composed."""
        if privacy.selection_composition is not None:
            return privacy.selection_composition
        if privacy.composition == "basic":
            return "paper"
        return "freeze" if self.frozen else "bounded_range"

    def freezes(self, k: int) -> int:
        """Return how many stretches of unchanged scores a selection of k picks has."""
        return {_FROZEN: 1, "RGreedy": min(self.r, k)}.get(self.greedy, k)

    def score_sensitivity(self, privacy: PrivacySettings) -> float:
        """Return Δ of the scores: see the proof above."""
        unit = privacy.selection_clip * privacy.validation_clip
        return unit if self.frozen else 2 * unit

    def releases(self, noise: SelectionNoise, privacy: PrivacySettings, sizes: Sizes) -> tuple[Release, ...]:
        delta = self.score_sensitivity(privacy)
        picks = Release(
            _PICKS,
            TRAINING_DATA,
            self._event(noise.on_training, privacy, sizes.k),
            delta,
            f"the subset, picked by score; {delta:g} (score)",
            own_score=self.frozen and self.composition(privacy) != "paper",
        )
        if not self.reads_validation:
            return (picks,)
        return picks, validation_gradient(_VALIDATION, noise, privacy, self.freezes(sizes.k))

    def _event(self, epsilon0: float, privacy: PrivacySettings, k: int) -> Event:
        composition = self.composition(privacy)
        if composition == "freeze":
            return GumbelFreeze(epsilon0)
        if composition == "bounded_range" and self.frozen:
            return ExponentialPicks(epsilon0 / 2, k)  # only the record's own score moves: range ε₀/2
        return ExponentialPicks(epsilon0, k)

    def bound(self, events: Sequence[Event], delta: float, privacy: PrivacySettings) -> Bound | None:
        """Apply the paper's formula, where it is asked for."""
        if self.composition(privacy) != "paper" or not events:
            return None
        picks = [e for e in events if isinstance(e, ExponentialPicks)]
        if len(picks) != len(events) or len({p.epsilon0 for p in picks}) != 1:
            raise AccountingError("the paper's composition takes picks of one and the same epsilon0")
        return advanced_composition(ExponentialPicks(picks[0].epsilon0, sum(p.count for p in picks)), delta)

    def describe(self, noise: float, privacy: PrivacySettings, sizes: Sizes, rounds: int) -> list[tuple[str, str]]:
        span = 2 * privacy.selection_clip * privacy.validation_clip  # scores lie in [−C_e·C_v, C_e·C_v]
        best = noise * span / (2 * self.score_sensitivity(privacy))
        odds = math.exp(best) if best < 50 else math.inf
        total = rounds * sizes.k
        return [
            ("selection", f"{rounds} rounds of {sizes.k} picks = {total} picks, greedy {self.greedy}"),
            ("per pick", f"epsilon0 = {noise:.6f}, composed by {self.composition(privacy)}"),
            ("meaning", f"the best record is picked at most e^{best:.4f} = {odds:.4f} times as often as the worst"),
        ]

    def build(self, context: SelectionContext) -> Selector:
        return ExponentialSelector(self, context)


class ExponentialSelector(ReleasedSubset):
    """Picks k records; the pool is released and paid for."""

    def __init__(self, mechanism: Exponential, context: SelectionContext):
        self.mechanism, self.context = mechanism, context
        self.privacy = context.plan.privacy
        self.k = context.plan.shape.k
        self._asked: tuple[np.ndarray, LastLayerGradients] | None = None  # the last records of D that were looked at

    def select(self, weights: Weights, releases: Releases) -> Pool:
        self.describe(weights, few=self._reads_few(releases))
        self._pool = Pool(self.pick(releases))
        return self._pool

    def _reads_few(self, releases: Releases) -> bool:
        """Say whether D can be looked at as picks need it, in every freeze, so that the model sees few records."""
        if self.mechanism.greedy == "Stochastic" or self.mechanism.selection_type == "PerClass":
            return False
        most, freezes = len(self.context.training) - self.k, self.mechanism.freezes(self.k)
        return releases.reads_few(_PICKS, most, _share(self.k, freezes, 0), bound=self._bound)

    def describe(self, weights: Weights, *, few: bool = False) -> None:
        """Compute last-layer gradients of D and V, as factors; CORDS' n × classes·dim matrix is never built.

        ``few``: those of D when they are asked for.
        """
        layer, validation = self.mechanism.linear_layer, self.context.validation
        self.training: LastLayer | None = None if few else self.context.training.at(weights, linear_layer=layer)
        self.validation = None if validation is None else validation.at(weights, linear_layer=layer)
        self._weights, self._asked = weights, None

    def _gradients(self, indices: np.ndarray) -> LastLayerGradients:
        """Return the gradients of some records of D."""
        if self.training is not None:
            return self.training.gradients.rows(torch.from_numpy(indices))
        if self._asked is not None and np.isin(indices, self._asked[0]).all():  # picks are among what was proposed
            return self._asked[1].rows(torch.from_numpy(np.searchsorted(self._asked[0], indices)))
        layer = self.mechanism.linear_layer
        found = self.context.training.some(indices, self._weights, linear_layer=layer).gradients
        if (np.diff(indices) > 0).all():
            self._asked = indices, found
        return found

    # -- picking ----------------------------------------------------------------------------------------

    def pick(self, releases: Releases) -> np.ndarray:
        """Pick k indices in freezes of the scores, moving v between freezes."""
        groups, quotas = self._groups()
        remaining = [np.flatnonzero(members) for members in groups]
        directions = self.directions(releases)
        moves = [torch.zeros_like(v) for v in directions]
        picked: list[np.ndarray] = []
        freezes = self.mechanism.freezes(self.k)
        for number in range(freezes):
            if number:
                directions = self.directions(releases, moves)
            sizes = [_share(quota, freezes, number) for quota in quotas]
            chosen = self._draw(releases, remaining, directions, sizes)
            picked += chosen
            remaining = [_without(r, c) for r, c in zip(remaining, chosen, strict=True)]
            if not self.mechanism.frozen:
                for move, indices in zip(moves, chosen, strict=True):
                    move += self._gradients(indices).clipped_sum(self.privacy.selection_clip)
        return np.concatenate(picked)

    def _groups(self) -> tuple[list[np.ndarray], list[int]]:
        """Return all records, or each class by itself with its quota of the k."""
        if self.mechanism.selection_type != "PerClass":
            return [np.ones(len(self.context.training), dtype=bool)], [self.k]
        assert self.training is not None
        labels = self.training.labels.cpu().numpy()
        classes, counts = np.unique(labels, return_counts=True)
        return [labels == label for label in classes], class_quotas(counts, self.k)

    def _draw(
        self, releases: Releases, remaining: list[np.ndarray], directions: list[Tensor], sizes: list[int]
    ) -> list[np.ndarray]:
        """Draw ``sizes[i]`` records out of each group, in one freeze."""
        if self.mechanism.frozen and len(remaining) > 1:
            # One freeze of all scores; the best of each class, in the order of the noisy scores, are post-processing.
            everyone = np.concatenate(remaining)
            scores = np.concatenate([self.scores(v, r) for v, r in zip(directions, remaining, strict=True)])
            order = everyone[releases.picks(_PICKS, scores, len(everyone))]
            return [order[np.isin(order, r)][:size] for r, size in zip(remaining, sizes, strict=True)]
        chosen = []
        for indices, v, size in zip(remaining, directions, sizes, strict=True):
            if not size:  # nothing is drawn, so nothing is charged
                chosen.append(indices[:0])
                continue
            candidates = self._candidates(indices)
            score_of = partial(self._scores_at, v, candidates)
            chosen.append(candidates[releases.few_picks(_PICKS, score_of, len(candidates), size, bound=self._bound)])
        return chosen

    def _scores_at(self, v: Tensor, candidates: np.ndarray, places: np.ndarray) -> np.ndarray:
        return self.scores(v, candidates[places])

    @property
    def _bound(self) -> float:
        """No score is larger, and none is below its negative."""
        return self.privacy.selection_clip * self.privacy.validation_clip

    def _candidates(self, remaining: np.ndarray) -> np.ndarray:
        """Return records that take part in a freeze: all, or a random sample for Stochastic."""
        if self.mechanism.greedy != "Stochastic":
            return remaining
        sample = math.ceil(self.context.plan.shape.n / self.k * math.log(1 / _STOCHASTIC_ERROR))
        return self.context.coins.choice(remaining, size=min(sample, len(remaining)), replace=False, shuffle=False)

    def scores(self, v: Tensor, indices: np.ndarray) -> np.ndarray:
        """Compute the gains of some records, in float64."""
        everyone = None if self.training is None else self.training.gradients
        if everyone is not None and len(indices) > len(everyone) // 2:  # copying most inputs takes longer than scoring
            return self._scores(v, everyone)[indices]
        return self._scores(v, self._gradients(indices))

    def _scores(self, v: Tensor, gradients: LastLayerGradients) -> np.ndarray:
        bound = self._bound
        if self.mechanism.score == "glister":
            scores = gradients.scores(v, self.privacy.selection_clip)
        else:
            score = get_score(self.mechanism.score)
            scores = bound * score_records(score, gradients.with_unit_inputs(), torch.zeros_like(v))
        # Rounding must not carry a score past the bound that the sensitivity rests on.
        return bounded_scores(scores.double().cpu().numpy(), bound)

    # -- the validation gradient --------------------------------------------------------------------------

    def directions(self, releases: Releases, moves: list[Tensor] | None = None) -> list[Tensor]:
        """Return v of each group, at the model's weights or one step along ``moves``; ‖v‖ = C_v."""
        groups, clip = self._groups()[0], self.privacy.validation_clip
        if self.validation is None:
            record = self._gradients(np.zeros(1, dtype=np.int64))  # for its shape
            return [record.r.new_zeros(record.r.shape[1], record.width) for _ in groups]
        parts = [self.validation]
        if len(groups) > 1:
            assert self.training is not None
            classes = torch.unique(self.training.labels).tolist()
            parts = [self.validation.rows(self.validation.labels == label) for label in classes]
        rate, loss = self.context.learning_rate, self.context.training.loss
        sums = [
            moved_sum(part, loss, clip, None if moves is None else rate * moves[number])
            for number, part in enumerate(parts)
        ]
        noisy = releases.gaussian(_VALIDATION, torch.stack(sums).double().cpu().numpy())
        return [to_norm(torch.from_numpy(total).to(self.validation.logits), clip) for total in noisy]


def _without(indices: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Return sorted indices less those that were taken."""
    kept = np.ones(len(indices), dtype=bool)
    kept[np.searchsorted(indices, taken)] = False
    return indices[kept]


def _share(quota: int, freezes: int, number: int) -> int:
    """Count the picks of one freeze: they add up to the quota exactly (CORDS' RGreedy overshoots)."""
    base, extra = divmod(quota, freezes)
    return base + (number < extra)


def class_quotas(counts: np.ndarray, k: int) -> list[int]:
    """Split the k records in proportion to public class sizes, by largest remainder."""
    exact = counts * (k / counts.sum())
    quotas = np.floor(exact).astype(int)
    for index in np.argsort(-(exact - quotas), kind="stable")[: k - quotas.sum()]:
        quotas[index] += 1
    return quotas.tolist()
