"""Selection inside the training mechanism: the subset never leaves it, so it is not paid for.

A selection releases a short list of pairs (v_g, τ_g), g = 1 … G. A record is a member of the pool if its own coin
says so, or if for some g its score ⟨ĝ_j, v_g⟩ reaches τ_g. Training then draws Poisson batches from the members.

Formal guarantees
-----------------
Unit: one record of D, zero-out. Membership is a function of one record, of its own coin and of released values. A
DP-SGD step therefore computes Σ_j m(z_j, ξ_j)·clip_C(∇ℓ_j) over fresh Bernoulli(q) coins, a sum in which a record's
part has norm at most C and a null record's is zero: an ordinary event (q, σ), whatever the pool's size. Rate, number of
steps and normaliser come from the public target k, never from the pool. The pool is secret state: it is not logged, not
stored, and recomputed from (θ, v, τ) when a run resumes.

Paid for, in the ledger of D, G thresholds and the sums before them, each one Gaussian event with the same σ:

* τ_g: noisy tail counts of the scores of records that are not members yet (`mechanisms.quantile`);
* the sum of the newest members' unit gradients, each of norm below 1, along which v moves: GLISTER's greedy step. The
  first is the sum over the records that the coins chose, if any, so that the thresholds complete what they brought.

Paid for, in the ledger of V: each v_g (`GLISTERDPStrategy._noisy_mean`).

Scores and sums use a public random projection of the last layer's input, because the noise of a release grows with its
dimension.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cords_dp.mechanisms import gaussian_release
from cords_dp.mechanisms.quantile import noisy_tail_counts, threshold_for
from cords_dp.selection.glister import GLISTERDPStrategy, _to_norm
from cords_dp.selection.last_layer import LastLayerGradients, logit_gradients
from cords_dp.selection.scores import get_score, score_records

_BLIND_SHARE = 0.9
Released = list[tuple[Tensor, np.ndarray]]


class ThresholdStrategy(GLISTERDPStrategy):
    """`select` returns the members of a secret pool of about k records."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.score = get_score(self.plan.selection.score)
        self.released: Released = []
        self._released_weights: dict[str, Tensor] = {}

    def select(self, budget: int, model_params: dict[str, Any]) -> tuple[list[int], Tensor]:
        self._charge_round()
        self._score_model(model_params)
        coins = self._coins()
        self.released = self._release(coins)
        members = np.flatnonzero(self.membership(self.released, coins))
        return members.tolist(), torch.ones(len(members))

    def membership(self, released: Released, coins: np.ndarray) -> np.ndarray:
        """Who is in the pool: a function of each record, its coin and released values."""
        member = coins.copy()
        labels = self._labels.cpu().numpy()
        for v, thresholds in released:
            member |= self._scores(v) >= thresholds[labels if len(thresholds) > 1 else np.zeros_like(labels)]
        return member

    # -- what is released -----------------------------------------------------------------------------

    def _release(self, coins: np.ndarray) -> Released:
        selection = self.plan.selection
        target = self.plan.shape.k * (1 - self._exploration) / selection.greedy_rounds
        released: Released = []
        taken, new = coins.copy(), coins
        moved = self._gradients.r.new_zeros(self._gradients.r.shape[1], self._gradients.a.shape[1])
        for number in range(selection.greedy_rounds):
            if number or selection.exploration:  # counted by plan.gaussian_releases
                moved = moved + self._noisy_sum(new)
            v = self._direction(moved)
            scores = self._scores(v)
            thresholds = self._thresholds(np.where(taken, np.nan, scores), target)
            released.append((v, thresholds))
            new = self.membership(released[-1:], np.zeros_like(taken)) & ~taken
            taken |= new
        return released

    def _direction(self, moved: Tensor) -> Tensor:
        """v at the weights moved along the noisy sums: released by V's mechanism, or a function of public V."""
        if not self.plan.validation_is_read:
            return torch.zeros_like(moved)
        step = self.plan.selection.greedy_step / self.plan.shape.k
        logits = self._validation_logits - step * (self._validation.a @ moved.T)
        at_moved = LastLayerGradients(logit_gradients(logits, self._validation_labels, self.loss), self._validation.a)
        return _to_norm(self._noisy_mean(at_moved.clipped_sum(self.plan.privacy.validation_clip)), 1.0)

    def _thresholds(self, scores: np.ndarray, target: float) -> np.ndarray:
        """τ for all records, or one for each class; records already taken have no cell (NaN)."""
        per_class = self.selection_type == "PerClass"
        labels = self._labels.cpu().numpy() if per_class else np.zeros(len(scores), dtype=np.int64)
        tails = noisy_tail_counts(
            scores,
            labels,
            classes=self.num_classes if per_class else 1,
            bins=self.plan.selection.bins,
            noise_multiplier=self.plan.sigma_selection or 0.0,
            rng=self._rng,
        )
        sizes = np.maximum(tails[:, 0], 0.0)  # noisy class sizes
        shares = sizes / sizes.sum() if per_class and sizes.sum() > 0 else np.full(len(tails), 1 / len(tails))
        return np.array([threshold_for(t, target * share) for t, share in zip(tails, shares, strict=True)])

    def _noisy_sum(self, members: np.ndarray) -> Tensor:
        """Σ of the members' unit gradients. A record's part has norm below 1."""
        index = torch.from_numpy(np.flatnonzero(members))
        r = self._gradients.r[index]
        total = (r / (r.norm(dim=1, keepdim=True) + 0.01)).double().T @ self._gradients.a[index].double()
        noisy = gaussian_release(
            total.double().cpu().numpy(),
            sensitivity=1.0,
            noise_multiplier=self.plan.sigma_selection or 0.0,
            rng=self._rng,
        )
        return torch.from_numpy(noisy).to(r)

    # -- scores ---------------------------------------------------------------------------------------

    def _score_model(self, weights: dict[str, Any]) -> None:
        self._released_weights = weights
        self.update_model(weights)
        self.compute_gradients()

    def _last_layer(self, dataset: Any) -> tuple[LastLayerGradients, Tensor, Tensor]:
        """Gradients with the last layer's input projected at random and scaled to norm 1, record by record."""
        gradients, logits, labels = super()._last_layer(dataset)
        return gradients.with_unit_inputs(), logits, labels

    @property
    def _projection(self) -> int | None:
        return self.plan.selection.projection

    def _scores(self, v: Tensor) -> np.ndarray:
        return score_records(self.score, self._gradients, v).double().cpu().numpy()

    @property
    def _exploration(self) -> float:
        """The share of the pool that coins draw: the configured one, or most of it where scores would be noise.

        A sum of k/G unit gradients has norm k/G at most, its noise about σ·√dimension. Where the noise is the longer,
        the data are too few for informed selection at this budget. A rule on public values.
        """
        share = self.plan.selection.exploration
        noise = (self.plan.sigma_selection or 0.0) * math.sqrt(self._gradients.r.shape[1] * self._gradients.a.shape[1])
        too_few = noise > self.plan.shape.k / self.plan.selection.greedy_rounds
        return max(share, _BLIND_SHARE) if share and too_few else share

    def _coins(self) -> np.ndarray:
        """The share of the pool that is drawn without looking at the records."""
        rate = self._exploration * self.plan.shape.k / self.plan.shape.n
        return np.asarray(self._rng.random(self.N_trn) < rate)

    # -- resuming ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Released values only: what a checkpoint may hold instead of the members."""
        return {
            "weights": self._released_weights,
            "directions": [v for v, _ in self.released],
            "thresholds": [torch.from_numpy(t) for _, t in self.released],
        }

    def members_from(self, state: dict[str, Any]) -> tuple[list[int], Tensor]:
        """The pool of a checkpoint, recomputed with fresh coins. Nothing new is released."""
        self._score_model(state["weights"])
        self.released = [(v, t.numpy()) for v, t in zip(state["directions"], state["thresholds"], strict=True)]
        members = np.flatnonzero(self.membership(self.released, self._coins()))
        return members.tolist(), torch.ones(len(members))
