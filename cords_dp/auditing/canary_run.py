"""Audits a whole run by canaries, through the real trainer."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from dotmap import DotMap
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from cords_dp.accounting import TRAINING_DATA, BranchMaximum, Event, PoissonGaussian
from cords_dp.accounting.trade_off import trade_off
from cords_dp.auditing.findings import Finding
from cords_dp.auditing.null import NullSession
from cords_dp.auditing.one_run import count_right, epsilon_from_guesses, mu_from_guesses
from cords_dp.auditing.toys import CRITERION, LENGTH, CanarySet, along_canaries
from cords_dp.auditing.trade_off import Counts, epsilon_at, frequency_finding, rates_finding
from cords_dp.config import thawed_copy
from cords_dp.data.record_set import records_at
from cords_dp.errors import AccountingError, ConfigError
from cords_dp.noise.generators import secure_generator
from cords_dp.planning import PrivacyPlan
from cords_dp.training.log import console
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier

_GUESSED = 0.1  # of the canaries; on the others the guesser abstains
_GUESS_DELTA = 1e-9  # 2·m·δ has to be small beside the joint confidence


def audited_config(cfg: Any, epsilon: float, data: CanarySet, folder: str) -> DotMap:
    """Put the config's strategy, schedule and privacy on the canary set, with a linear model whose weights hardly move.

    ε does not depend on the model or the learning rate; the canaries' gradients do, and stay long this way.
    """
    config = thawed_copy(cfg)
    if "privacy" not in config:
        raise ConfigError("privacy", None, "an audit needs a private strategy: there is no claim to try otherwise")
    config["dataset"] = {"name": "audit"}
    config["model"] = {"architecture": "LogisticRegNet", "input_dim": data.inputs, "numclasses": 2}
    config["optimizer"] = {"type": "sgd", "lr": 1.0, "momentum": 0.0}
    config["scheduler"] = {"type": None}
    config["ckpt"] = {"is_load": False, "is_save": False, "dir": folder, "save_every": 1}
    epochs = int(config["train_args"]["num_epochs"])
    config["train_args"] = {"num_epochs": epochs, "device": "cpu", "print_every": epochs, "run": 1,
                            "results_dir": folder, "print_args": ["tst_loss"]}  # fmt: skip
    config["privacy"] = {**config["privacy"], "epsilon": epsilon, "ema_decay": 0.0, "augmentations": 1}
    k = int(data.n * (config["dss_args"].get("fraction") or 1.0))
    batch = config.setdefault("dataloader", {}).get("batch_size")
    if isinstance(batch, int) and batch > k // 2:
        config["dataloader"]["batch_size"] = max(1, k // 4)
    audited = DotMap(config)
    plan = audited_plan(audited, data)
    spread = plan.sigma * plan.privacy.max_grad_norm * plan.shape.steps**0.5 * LENGTH
    audited.optimizer.lr = 0.01 * plan.shape.batch_size / spread  # noise moves a canary's logit by 0.01 in all
    return audited


def audited_plan(config: DotMap, data: CanarySet) -> PrivacyPlan:
    plan = resolve(config, own_data=True).for_owners(owned=data.each > 1).plan(data.n, data.held_out)
    if plan is None or plan.noiseless:
        raise ConfigError("dss_args.type", config["dss_args"]["type"], "an audit needs a private strategy")
    return plan


class ObservedTraining(TrainClassifier):
    """The real trainer, and an observer who sees the weights after every step, as the guarantee allows.

    included: which of the canaries, the first records of D, are not null; ``each`` records are one canary.
    """

    def __init__(self, config: DotMap, included: np.ndarray, each: int = 1):
        super().__init__(config)
        self.included, self.count, self.each = included, len(included), each
        self.show_progress, self.seen, self.drawn = False, list[np.ndarray](), list[np.ndarray]()
        self._before: Tensor | None = None

    def _new_session(self) -> NullSession:
        assert self.plan is not None
        session = NullSession(self.run, self.plan, checkpoint=self.checkpoint, world=self.world, logger=self.logger)
        session.null = np.flatnonzero(np.repeat(~self.included, self.each))
        return session

    def _loop(self, done: int) -> None:
        self._before = self._weight()
        self.initial = {k: v.detach().clone() for k, v in self._plain().state_dict().items()}
        super()._loop(done)

    def _after_step(self, bar: tqdm) -> None:
        super()._after_step(bar)
        now, plan = self._weight(), self.plan
        assert plan is not None
        assert self._before is not None
        assert self.run.learning_rate is not None
        scale = plan.shape.batch_size / (self.run.learning_rate * plan.privacy.max_grad_norm)
        self.seen.append(along_canaries((self._before - now) * scale, self.count))
        self.drawn.append(np.isin(np.arange(self.count), self._last_drawn()))
        self._before = now

    def _last_drawn(self) -> np.ndarray:
        """Return which canaries, and what else, the newest batch holds."""
        assert self.data is not None
        return self.data.train.store.last // self.each

    def _plain(self) -> torch.nn.Module:
        model = self.session.model
        return getattr(model, "_module", model)

    def _weight(self) -> Tensor:
        return self._plain().linear.weight.detach().double().clone()  # type: ignore[union-attr, operator]


@dataclass(frozen=True)
class Observed:
    """One run: which canaries were in and which each step drew (the auditor knows the coins), what each step showed of
    each canary in clip norms (steps × canaries), and by how much the loss of each fell."""

    plan: PrivacyPlan
    steps: tuple[PoissonGaussian, ...]  # of each epoch, in the branch that the run took
    charged: tuple[Event, ...]
    included: np.ndarray
    drawn: np.ndarray
    projections: np.ndarray
    losses: np.ndarray


def observe(config: DotMap, data: CanarySet) -> Observed:
    splits = data.splits()
    included = secure_generator().random(data.count) < 0.5
    with console(False):  # the run is the audit's own
        trainer = ObservedTraining(config, included, data.each)
        owners = {} if data.each == 1 else {"owners": data.owners()}
        trainer.train(trainset=splits.train, validset=splits.validation, testset=splits.test, num_cls=2, **owners)
    assert trainer.plan is not None
    after = {k: v.detach().clone() for k, v in trainer._plain().state_dict().items()}
    firsts = np.arange(data.count) * data.each
    losses = _losses(trainer.initial, splits.train, firsts) - _losses(after, splits.train, firsts)
    charged = tuple(trainer.ledger.events(TRAINING_DATA))
    assert isinstance(trainer.session, NullSession)
    steps = steps_taken(trainer.plan, trainer.session.branch)
    return Observed(trainer.plan, steps, charged, included, np.array(trainer.drawn), np.array(trainer.seen), losses)


def steps_taken(plan: PrivacyPlan, branch: int | None) -> tuple[PoissonGaussian, ...]:
    """Return the events that the steps of each epoch are, once a release has chosen the branch."""
    events = []
    for epoch in plan.shape.epochs:
        if epoch.steps and epoch.branched and branch is not None:
            chosen = plan.branches[branch]
            events.append(PoissonGaussian(chosen.sigma, chosen.rate, epoch.steps))
        elif epoch.steps:
            events.append(plan.step_event(epoch))
    return tuple(events)


def _losses(weights: dict[str, Tensor], dataset: Dataset, indices: np.ndarray) -> np.ndarray:
    x, y = records_at(dataset, indices)
    logits = x.double() @ weights["linear.weight"].double().T + weights["linear.bias"].double()
    return CRITERION(logits, y).numpy()


def audit_run(config: DotMap, data: CanarySet) -> list[Finding]:
    """Train once; say what the steps and what the final losses tell about the canaries."""
    run = observe(config, data)
    name, mu = f"run, {config['dss_args']['type']}", _claimed_mu(run.plan)
    findings = []
    for what, scores in (("steps", step_scores(run)), ("final losses", run.losses)):
        findings.append(_guesses(f"{name}: {what}", run, scores))
        if mu is not None:
            findings.append(_curve(f"{name}: {what}", run, scores, mu))
    return [
        *findings,
        _trade_off(f"{name}: all steps", run),
        _drawn_steps(f"{name}: steps, drawn", run),
        _frequency(f"{name}: batches", run),
        _bookkeeping(name, run),
    ]


def step_scores(run: Observed) -> np.ndarray:
    """Return the log-likelihood ratio of each canary, if every step were the charged event."""
    rates, sigmas = (np.repeat([getattr(e, name) for e in run.steps], [e.count for e in run.steps])[:, None]
                     for name in ("rate", "sigma"))  # fmt: skip
    with np.errstate(over="ignore"):
        odds = np.exp(np.minimum((run.projections - 0.5) / sigmas**2, 700.0))
    return np.log1p(rates * (odds - 1)).sum(axis=0)


def _guesses(name: str, run: Observed, scores: np.ndarray) -> Finding:
    m, guesses, right = _guessed(run, scores)
    return Finding(
        name,
        "one run, guesses",
        _claim(run.plan, _GUESS_DELTA),
        _GUESS_DELTA,
        f"{right} of {guesses} guesses about {m} canaries are right",
        lambda alpha: epsilon_from_guesses(m, guesses, right, delta=_GUESS_DELTA, alpha=alpha),
    )


def _curve(name: str, run: Observed, scores: np.ndarray, mu: float) -> Finding:
    """Hold the same guesses against the claimed μ of Gaussian DP; claim and bound are told as ε at the run's δ."""
    m, guesses, right = _guessed(run, scores)
    return Finding(
        name,
        "one run, f-DP",
        _of_gaussian(mu, run.plan.delta),
        run.plan.delta,
        f"{right} of {guesses} guesses about {m} canaries are right, claimed is {mu:g}-GDP",
        lambda alpha: _of_gaussian(mu_from_guesses(m, guesses, right, alpha=alpha), run.plan.delta),
    )


def _guessed(run: Observed, scores: np.ndarray) -> tuple[int, int, int]:
    """Count canaries, guesses, and how many of these are right. How many are made is fixed beforehand."""
    guesses = 2 * max(1, round(len(scores) * _GUESSED / 2))
    return len(scores), guesses, count_right(scores, run.included, guesses)


def _claimed_mu(plan: PrivacyPlan) -> float | None:
    """Return μ of the events on D; None where an event has no privacy loss distribution, or no μ dominates.

    That a run composed otherwise (basic, or with a secret subset) claims less or more than this changes nothing: the
    events themselves are μ-GDP.
    """
    try:
        mu = trade_off(_on_d(plan)).mu
    except AccountingError:
        return None
    return mu if np.isfinite(mu) else None


def _of_gaussian(mu: float, delta: float) -> float:
    return epsilon_at([PoissonGaussian(1 / mu, 1.0)], delta) if mu > 0 else 0.0


def _trade_off(name: str, run: Observed) -> Finding:
    """Take each canary of the run as a sample: independent if the noise on their coordinates and their coins are."""
    kinds = dict.fromkeys((e.sigma, e.rate) for e in run.steps)
    events = [PoissonGaussian(*kind, sum(e.count for e in run.steps if (e.sigma, e.rate) == kind)) for kind in kinds]
    # sums, not likelihood ratios: with less noise than charged those would lie far below the charged law's
    sums, middle = run.projections.sum(axis=0), sum(e.rate * e.count for e in events) / 2
    counts = Counts.above(middle, sums[run.included], sums[~run.included])
    return rates_finding(name, "one run, trade-off", events, counts, run.plan.delta)


def _drawn_steps(name: str, run: Observed) -> Finding:
    """Judge single steps of the run, for an auditor who knows the coins: one Gaussian event (σ) each."""
    event = PoissonGaussian(min(e.sigma for e in run.steps), 1.0)
    counts = Counts.above(0.5, run.projections[run.drawn], run.projections[:, ~run.included].ravel())
    return rates_finding(name, "one run, trade-off", [event], counts, run.plan.delta)


def _frequency(name: str, run: Observed) -> Finding:
    """Hold how often the trainer drew the canaries that were in against the rates that it was charged for."""
    chances = run.drawn[:, run.included]
    rate, sigma = sum(e.count * e.rate for e in run.steps) / len(chances), min(e.sigma for e in run.steps)
    event, drawn = PoissonGaussian(sigma, rate), int(chances.sum())
    return frequency_finding(name, "one run, frequency", event, run.plan.delta, drawn=drawn, total=chances.size)


def _bookkeeping(name: str, run: Observed) -> Finding:
    """Check that what was charged is what was planned, and that as many steps were taken as were charged."""
    planned, charged, taken = _counted(_on_d(run.plan)), _counted(run.charged), len(run.projections)
    violations = []
    if planned != charged:
        violations.append(f"planned {planned}, charged {charged}")
    rates = {e.rate for e in run.plan.shape.epochs if e.steps}
    single = (e for e in charged if isinstance(e, PoissonGaussian) and e.rate in rates and e.rate < 1)
    together = (e for e in charged if isinstance(e, BranchMaximum))
    paid = sum(charged[e] for e in single)
    paid += sum(charged[e] * min(sum(step.count for step in branch) for branch in e.branches) for e in together)
    if rates != {1.0} and taken > paid:
        violations.append(f"{taken} steps were taken, {paid} charged")
    return Finding(name, "bookkeeping", None, None, f"{taken} steps", violations=tuple(violations))


def _claim(plan: PrivacyPlan, delta: float) -> float:
    """Return ε of the whole plan on D at another δ."""
    if plan.privacy.composition == "basic" or plan.inclusion < 1:
        return replace(plan, delta=delta).cost().training_data.epsilon
    return epsilon_at(_on_d(plan), delta)


def _on_d(plan: PrivacyPlan) -> list[Event]:
    return [e.event for e in plan.entries() if e.dataset == TRAINING_DATA]


def _counted(events: Any) -> dict[Event, int]:
    counts: dict[Event, int] = {}
    for event in events:
        counts[event.with_count(1)] = counts.get(event.with_count(1), 0) + event.count
    return counts


def audit_trainer(cfg: Any, epsilon: float, *, count: int) -> tuple[PrivacyPlan, list[Finding]]:
    """Return the plan that a config leads to on the canary set, and what one run under it shows.

    Where the config names owners, canaries are owners of two records each.
    """
    owned = thawed_copy(cfg).get("dataset", {}).get("owner") is not None
    data = CanarySet(count, each=2 if owned else 1)
    with tempfile.TemporaryDirectory() as folder:
        config = audited_config(cfg, epsilon, data, folder)
        return audited_plan(config, data), audit_run(config, data)
