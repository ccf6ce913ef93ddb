"""GLISTER-DP: CORDS' GLISTER with every argmax replaced by the exponential mechanism.

A record's score in a round is ``u_j = ⟨clip_{C_e}(g_j), v⟩``: ``g_j`` its last-layer gradient at the released
model, ``v`` the validation gradient brought to norm C_v, so |u_j| ≤ C_e·C_v. Picks follow
``P(e) ∝ exp(ε₀·u_e/2Δ)`` without replacement; weights are 1; exactly k indices.

Formal guarantees
-----------------
Unit: one record of D, zero-out; a null record stays in the index set with score 0 and adds nothing to sums.

*Frozen* (``v`` stands still during a round): zeroing record j changes u_j alone, from u_j to 0, hence by at
most Δ = C_e·C_v. A round is one Gumbel freeze; its cost does not depend on k.

*RGreedy, Stochastic, Naive* (``v`` is recomputed at ``θ − η·Σ_{picked} clip(g)`` as in CORDS): given the picks so
far, zeroing a picked record changes ``v`` and with it every score. Both values of a score lie in
[−C_e·C_v, C_e·C_v] because ``v`` is brought to norm C_v each time, so no score moves by more than
Δ = 2·C_e·C_v, whatever ``v`` becomes. Each pick is ε₀-DP given the earlier picks, and picks compose
adaptively. This ``v`` depends on gradients that are not released: it is neither logged nor stored.
A Stochastic pick is charged in full: the pick reveals that its record was among the candidates.

The validation gradient reads V only through ``Σ_V clip_{C_v}(g)/|V|``. With V private, each evaluation gets
Gaussian noise of standard deviation σ_v·C_v/|V| per coordinate and is one Gaussian event on V. For a record of D,
this noise is randomness independent of D, so the bounds above hold for every value of it; for a record of V,
the picks are post-processing of the noisy gradients and of D. Hence the run's ε is the larger of the two.

Every event is charged to the ledger before its noise is drawn.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Ledger
from cords_dp.errors import MechanismError
from cords_dp.mechanisms import ScoreFreeze, gaussian_release
from cords_dp.plan import SELECTION, VALIDATION, PrivacyPlan, freezes_per_round
from cords_dp.selection.last_layer import LastLayerGradients, last_layer_gradients, logit_gradients
from cords_dp.selection.scores import get_score, score_records
from cords_dp.toolkit import GLISTERStrategy

_STOCHASTIC_ERROR = 0.01  # CORDS' choice: candidates = n/k · ln(1/0.01)


class GLISTERDPStrategy(GLISTERStrategy):
    """CORDS' GLISTER strategy with private picks. `select` returns k indices and weights of 1."""

    chances: np.ndarray | None = None  # set by `match`: of a record that a batch has drawn to stay in it

    def __init__(
        self,
        *args: Any,
        plan: PrivacyPlan,
        ledger: Ledger,
        rng: np.random.Generator,
        validation_rng: np.random.Generator,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.plan, self.ledger = plan, ledger
        self._rng, self._validation_rng = rng, validation_rng

    # -- CORDS' interface -----------------------------------------------------------------------

    def select(self, budget: int, model_params: dict[str, Any]) -> tuple[list[int], Tensor]:
        """Pick ``budget`` records at the released weights ``model_params``. Charges D and, if private, V."""
        if budget != self.plan.shape.k:
            raise MechanismError(f"the plan pays for {self.plan.shape.k} picks a round, not {budget}")
        self._charge_round()
        self.update_model(model_params)
        self.compute_gradients()
        if self.selection_type == "PerClass":
            picked = self._pick_per_class(budget)
        else:
            self._update_grads_val(first_init=True)
            picked = self._pick(np.arange(self.N_trn), budget)
        return picked.tolist(), torch.ones(budget)

    def compute_gradients(self, valid: bool = False, perBatch: bool = False, perClass: bool = False) -> None:
        """Last-layer gradients of D and V, as factors; CORDS' n × classes·dim matrix is never built."""
        self._gradients, _, self._labels = self._last_layer(self.trainloader.dataset)
        self._validation, self._validation_logits, self._validation_labels = self._last_layer(self.valloader.dataset)

    def _update_grads_val(self, grads_curr: Tensor | None = None, first_init: bool = False) -> None:
        """Set ``grads_val_curr`` to v, at the model's weights or one step along ``grads_curr``; ‖v‖ ≤ C_v."""
        validation = self._validation
        if not self.plan.validation_is_read:
            self.grads_val_curr = torch.zeros(validation.r.shape[1], validation.a.shape[1]).to(validation.r)
            return
        if grads_curr is not None and not first_init:
            moved = self._validation_logits - self.eta * (validation.a @ grads_curr.T)
            validation = LastLayerGradients(logit_gradients(moved, self._validation_labels, self.loss), validation.a)
        total = validation.clipped_sum(self.plan.privacy.validation_clip)
        self.grads_val_curr = _to_norm(self._noisy_mean(total), self.plan.privacy.validation_clip)

    def eval_taylor_modular(self, grads: LastLayerGradients) -> np.ndarray:
        """The gains of records: inner products of clipped gradients with v, in float64."""
        privacy = self.plan.privacy
        bound = privacy.selection_clip * privacy.validation_clip
        if self.plan.selection.score == "glister":
            scores = grads.scores(self.grads_val_curr, privacy.selection_clip)
        else:
            score = get_score(self.plan.selection.score)
            scores = bound * score_records(score, grads.with_unit_inputs(), torch.zeros_like(self.grads_val_curr))
        # Rounding must not carry a score past the bound that the sensitivity rests on.
        return np.clip(scores.double().cpu().numpy(), -bound, bound)

    def greedy_algo(self, budget: int) -> tuple[list[int], list[int]]:
        """CORDS' entry for one greedy run over all of D."""
        return self._pick(np.arange(self.N_trn), budget).tolist(), [1] * budget

    # -- picking --------------------------------------------------------------------------------

    def _pick(self, pool: np.ndarray, budget: int) -> np.ndarray:
        """Pick ``budget`` indices out of ``pool`` in score freezes, moving v between freezes."""
        remaining = pool.copy()
        picked: list[np.ndarray] = []
        step_sum = torch.zeros_like(self.grads_val_curr)
        for number, size in enumerate(self._freeze_sizes(budget)):
            if number:
                self._update_grads_val(step_sum)
            candidates = self._candidates(remaining, budget)
            scores = self._scores_of(remaining[candidates])
            chosen = candidates[self._draw(scores, size)]
            indices = remaining[chosen]
            picked.append(indices)
            remaining = np.delete(remaining, chosen)
            if not self.plan.frozen:
                rows = self._gradients.rows(torch.from_numpy(indices))
                step_sum = step_sum + rows.clipped_sum(self.plan.privacy.selection_clip)
        return np.concatenate(picked)

    def _scores_of(self, indices: np.ndarray) -> np.ndarray:
        """Gains of some records. Copying the inputs of most records would take longer than scoring all of them."""
        if len(indices) > self.N_trn // 2:
            return self.eval_taylor_modular(self._gradients)[indices]
        return self.eval_taylor_modular(self._gradients.rows(torch.from_numpy(indices)))

    def _draw(self, scores: np.ndarray, size: int) -> np.ndarray:
        if self.plan.noiseless:
            return np.argsort(-scores, kind="stable")[:size]
        assert self.plan.epsilon0 is not None
        freeze = ScoreFreeze(scores, epsilon0=self.plan.epsilon0, sensitivity=self.plan.score_sensitivity)
        return freeze.draw(size, self._rng)

    def _freeze_sizes(self, budget: int) -> list[int]:
        """Picks of each freeze: they add up to the budget exactly (CORDS' RGreedy overshoots)."""
        freezes = freezes_per_round(self.plan.selection, budget)
        base, extra = divmod(budget, freezes)
        return [base + 1] * extra + [base] * (freezes - extra)

    def _candidates(self, remaining: np.ndarray, budget: int) -> np.ndarray:
        """Positions in ``remaining`` that take part in a freeze: all, or a random sample for Stochastic."""
        if self.greedy != "Stochastic":
            return np.arange(len(remaining))
        sample = math.ceil(self.N_trn / budget * math.log(1 / _STOCHASTIC_ERROR))
        return self._rng.choice(len(remaining), size=min(sample, len(remaining)), replace=False, shuffle=False)

    def _pick_per_class(self, budget: int) -> np.ndarray:
        """Picks within each class, in proportion to its size. Only where labels are declared public."""
        labels = self._labels.cpu().numpy()
        classes, counts = np.unique(labels, return_counts=True)
        picked = []
        everything = (self._validation, self._validation_logits, self._validation_labels)
        for label, quota in zip(classes, _quotas(counts, budget), strict=True):
            members = everything[2] == int(label)
            self._validation = everything[0].rows(members)
            self._validation_logits, self._validation_labels = everything[1][members], everything[2][members]
            self._update_grads_val(first_init=True)
            if quota:
                picked.append(self._pick(np.flatnonzero(labels == label), quota))
        return np.concatenate(picked)

    # -- charges and noise ----------------------------------------------------------------------

    def _charge_round(self) -> None:
        if self.plan.noiseless:
            return
        self.ledger.charge(TRAINING_DATA, SELECTION, self.plan.selection_event())
        if (event := self.plan.validation_event()) is not None:
            self.ledger.charge(VALIDATION_DATA, VALIDATION, event)

    def _noisy_mean(self, total: Tensor, sensitivity: float | None = None) -> Tensor:
        """``total/|V|``, with noise where V is private. |V| is public.

        A record's part of ``total`` has norm at most ``sensitivity``, by default the clip norm C_v.
        """
        if self.plan.sigma_validation is None and self.plan.privacy.validation == "private" and not self.plan.noiseless:
            raise MechanismError("the plan has no noise for the validation set, which is private")
        if self.plan.sigma_validation is not None:
            noisy = gaussian_release(
                total.double().cpu().numpy(),
                sensitivity=self.plan.privacy.validation_clip if sensitivity is None else sensitivity,
                noise_multiplier=self.plan.sigma_validation,
                rng=self._validation_rng,
            )
            total = torch.from_numpy(noisy).to(total)
        return total / max(1, self.N_val)

    def _last_layer(self, dataset: Any) -> tuple[LastLayerGradients, Tensor, Tensor]:
        return last_layer_gradients(
            self.model,
            self.loss,
            dataset,
            linear_layer=self.linear_layer,
            device=self.device,
            projection=self._projection,
        )

    @property
    def _projection(self) -> int | None:
        """Dimensions to project the last layer's input to; the paper's mechanism uses it whole."""
        return None


def _to_norm(v: Tensor, norm: float) -> Tensor:
    """``v`` stretched or shrunk to the given norm: the largest scores that the same Δ pays for."""
    length = float(v.norm())
    if not math.isfinite(length) or length == 0:
        return torch.zeros_like(v)
    return v * (norm / length)


def _quotas(counts: np.ndarray, budget: int) -> list[int]:
    """Shares of the budget in proportion to public class sizes, by largest remainder."""
    exact = counts * (budget / counts.sum())
    quotas = np.floor(exact).astype(int)
    for index in np.argsort(-(exact - quotas), kind="stable")[: budget - quotas.sum()]:
        quotas[index] += 1
    return quotas.tolist()
