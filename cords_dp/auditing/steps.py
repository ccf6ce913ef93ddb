"""White-box audits of DP-SGD's step: the noise, the clipping, the sampling rate, and steps composed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from cords_dp.accounting import PoissonGaussian, calibrate
from cords_dp.auditing.findings import Finding
from cords_dp.auditing.toys import CRITERION, OneLinearLayer, along_canaries, canaries
from cords_dp.auditing.trade_off import Counts, epsilon_at, frequency_finding, rates_finding
from cords_dp.data.owners import Owners
from cords_dp.data.record_set import RecordSet, array_set
from cords_dp.noise.generators import noise_source, secure_generator
from cords_dp.planning import PrivacyPlan
from cords_dp.selection import Pool
from cords_dp.training.poisson import poisson_batches
from cords_dp.training.step import PrivateEngine

_CANARIES = 128
_EACH = 3  # records of a canary that is an owner
_BATCH = 16  # any public divisor does: the audit multiplies by it again
MODES = ("linear", "hooks")  # the two ways to a clipped sum: as a whole, and from single gradients


class AuditedSteps:
    """A real engine on a linear layer that is set back to zero after each step."""

    def __init__(
        self,
        inputs: int,
        mode: str,
        *,
        sigma: float,
        clip: float,
        normalise: bool = False,
        by_owner: bool = False,
        key: bytes | None = None,
    ):
        """Build the engine. ``key``: of the noise; None draws one."""
        self.model, self.clip = OneLinearLayer(inputs), clip
        self.inner = self.model.linear
        self.engine = PrivateEngine(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=float(_BATCH)),
            CRITERION,
            sigma=sigma,
            max_grad_norm=clip,
            batch_size=_BATCH,
            mode=mode,
            noise=noise_source(secure_generator(key)) if sigma else None,
            normalise=normalise,
            by_owner=by_owner,
        )

    def step(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the noisy sum that a step has released, in clip norms: of the weights (classes × inputs)."""
        return self.sums(*batch)[:, :-1]

    def sums(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the same with a last column for the biases."""
        self.engine.step(*batch)
        moved = -torch.cat([self.inner.weight.detach(), self.inner.bias.detach()[:, None]], dim=1) / self.clip
        self.model.reset()
        return moved


def audit_step(plan: PrivacyPlan, mode: str, *, steps: int) -> Finding:
    """Audit the step given that the record was drawn: a Gaussian event (σ) and the hardest test of σ and clipping."""
    copies = max(1, min(8, round(plan.sigma)))
    inside, outside = _samples(plan, mode, 1.0, steps, copies)
    return _finding(f"step, record drawn ({mode})", plan, PoissonGaussian(plan.sigma, 1.0), inside, outside, copies)


def audit_sampled_step(plan: PrivacyPlan, mode: str, *, steps: int) -> Finding:
    """Audit the step as it is charged: the event (q, σ), batches by the real sampler."""
    inside, outside = _samples(plan, mode, plan.shape.rate, steps)
    event = PoissonGaussian(plan.sigma, plan.shape.rate)
    return _finding(f"step at its rate ({mode})", plan, event, inside, outside)


def _samples(plan: PrivacyPlan, mode: str, rate: float, steps: int, copies: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return projections of steps on canaries that were in and on canaries that were null.

    Every step has 128 canaries (or groups of so many copies), each in by a fair coin. In a sound build coins and
    coordinates of the noise are independent, hence so are the samples. Where the unit is an owner, a canary is one.
    """
    privacy, coins = plan.privacy, secure_generator()
    automatic = privacy.clipping == "automatic"
    cap = privacy.records_per_owner
    steps_of = AuditedSteps(
        _CANARIES,
        mode,
        sigma=plan.sigma,
        clip=privacy.max_grad_norm,
        normalise=automatic,
        by_owner=cap is not None,
    )
    x, y = canaries(_CANARIES, _CANARIES)
    dataset, each = _units(np.tile(x, (copies, 1)), np.tile(y, copies), owned=cap is not None)
    inside, outside = [], []
    for _ in range(steps):
        included = coins.random(_CANARIES) < 0.5
        pool = Pool(np.flatnonzero(np.repeat(np.tile(included, copies), each)))
        (batch,) = poisson_batches(dataset, pool, rate=rate, steps=1, rng=coins, records_per_owner=cap)
        seen = along_canaries(steps_of.step(*batch), _CANARIES)
        inside.append(seen[included])
        outside.append(seen[~included])
    return np.concatenate(inside), np.concatenate(outside)


def _units(x: np.ndarray, y: np.ndarray, *, owned: bool) -> tuple[RecordSet, int]:
    """Return a set of these records; or of owners that have several equal ones each, and how many."""
    if not owned:
        return array_set(x, y), 1
    dataset = array_set(np.repeat(x, _EACH, axis=0), np.repeat(y, _EACH))
    dataset.owners = Owners(np.repeat(np.arange(len(y)), _EACH), len(y))
    return dataset, _EACH


def audit_rate(plan: PrivacyPlan, *, steps: int) -> Finding:
    """Count how often the real sampler draws a record, or an owner, and compare with the charged rate."""
    n, rate, cap = 500, plan.shape.rate, plan.privacy.records_per_owner
    dataset, each = _units(np.zeros((n, 1), dtype=np.float32), np.zeros(n, dtype=np.int64), owned=cap is not None)
    everyone, coins = Pool.everything(n * each), secure_generator()
    batches = poisson_batches(dataset, everyone, rate=rate, steps=steps, rng=coins, records_per_owner=cap)
    drawn = sum(len(batch[-1] if cap is None else batch[-1].unique()) for batch in batches)
    target, event = "sampling rate of a step", PoissonGaussian(plan.sigma, rate)
    return frequency_finding(target, "white box, frequency", event, plan.delta, drawn=drawn, total=n * steps)


def audit_training(epsilon: float, *, trainings: int, delta: float = 1e-3, cap: int | None = None) -> Finding:
    """Audit from end to end: train a logistic model on eight records, and with one of them null, many times over.

    The statistic is where the final weights lie along the record's gradient; the claim is that of all steps composed.
    With ``cap``, the most records of an owner in a step, the same is done with eight owners of several records each.
    """
    rate, steps = 0.5, 3
    sigma = calibrate(lambda s: epsilon_at([PoissonGaussian(s, rate, steps)], delta), epsilon, start=2.0, rising=False)
    events = [PoissonGaussian(sigma, rate, steps)]
    inside, outside = (np.array(list(_final_weights(first, sigma, rate, steps, trainings, cap))) for first in (0, 1))
    counts = Counts.above(rate * steps / 2, inside, outside)
    unit = "record" if cap is None else "owner"
    seen = f"{trainings} trainings with the {unit} and as many without, {counts.text()}"
    target = f"logistic model, {steps} steps" + ("" if cap is None else " by owners")
    return rates_finding(target, "two datasets, trade-off", events, counts, delta, seen=seen)


def _final_weights(
    first: int, sigma: float, rate: float, steps: int, trainings: int, cap: int | None
) -> Iterator[float]:
    """Train on the units from ``first`` on; yield how far the weights have gone along unit 0."""
    units, clip, learning_rate = 8, 1.0, 0.1
    dataset, each = _units(*canaries(units, units), owned=cap is not None)
    pool = Pool(np.arange(first * each, units * each))
    model = OneLinearLayer(units)
    noise, coins = noise_source(secure_generator()), secure_generator()
    batch_size = max(1, round(rate * units))
    engine = PrivateEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=learning_rate),
        CRITERION,
        sigma=sigma,
        max_grad_norm=clip,
        batch_size=batch_size,
        mode="linear",
        noise=noise,
        by_owner=cap is not None,
    )
    for _ in range(trainings):
        model.reset()
        for batch in poisson_batches(dataset, pool, rate=rate, steps=steps, rng=coins, records_per_owner=cap):
            engine.step(*batch)
        sums = -model.linear.weight.detach() * (batch_size / (learning_rate * clip))
        yield float(along_canaries(sums, units)[0])


def _finding(
    target: str, plan: PrivacyPlan, event: PoissonGaussian, inside: np.ndarray, outside: np.ndarray, copies: int = 1
) -> Finding:
    kind = "white box, trade-off"
    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        claimed = epsilon_at([event], plan.delta)
        return Finding(target, kind, claimed, plan.delta, "", violations=("a step is not finite",))
    counts = Counts.above(copies / 2, inside, outside)
    seen = counts.text() + (f", groups of {copies}" if copies > 1 else "")
    return rates_finding(target, kind, [event], counts, plan.delta, seen=seen, copies=copies)
