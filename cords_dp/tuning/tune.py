"""Private tuning: a random number of trials, the best model kept, all within one (ε, δ).

`tuning.plan` has the guarantee. This file keeps what it rests on:

- The number of trials and their settings are drawn once, from the operating system's entropy, before data is read, and
  kept in ``private/trials.json`` for the owner's eyes only: a tuning that is interrupted continues with the same draws.
  If that file is lost after the charge, the tuning is refused, for a second draw would choose among more trials.
- The whole is charged to ``ledger.jsonl``, and to the account if there is one, before the first trial begins.
- Trials are told apart by random names, and all their files are below ``private`` until the end: logs, what they
  release, and the noise that is calibrated for them, which otherwise stays in the user's cache. Then the best one's are
  copied out and ``private`` is removed. Features are cached only where no setting decides them. Nothing that is shown
  depends on how many trials there are or on what they scored: the display counts seconds, and a trial's place among the
  others is not kept.
- A trial that fails is run again, anew, when the tuning is started again; until all have ended nothing is released.

A trial is a whole private run and the noisy score of its model on the validation set. Released by a trial to the
tuning, and by the tuning of its best trial alone: everything that the run releases, charged by its plan, and the score:
how many records of V the model gets right, sensitivity 1 (a null record is no hit), by the Gaussian mechanism; or, for
another metric, the counts of `evaluation.released`, of sensitivity 1 too.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from dotmap import DotMap

from cords_dp.accounting import (
    LAWS,
    VALIDATION_DATA,
    Account,
    Entry,
    Ledger,
    RenyiFilter,
    Reservation,
    TrialLaw,
    ledger_under,
)
from cords_dp.config import PrivacySettings, load_config, thawed_copy, to_plain
from cords_dp.config.settings import PRIVATE, PUBLIC, UNREAD
from cords_dp.config.values import number, one_of
from cords_dp.data.build import evaluation_batches
from cords_dp.data.sources.base import VALIDATION_FRACTION
from cords_dp.errors import AccountingError, ConfigError, CordsDPError, MechanismError
from cords_dp.evaluation.metrics import LOWER_IS_BETTER, names
from cords_dp.files import caches_in, make_owners_folder, write_durably
from cords_dp.models.card import FILE as MODEL_CARD
from cords_dp.noise.generators import secure_generator
from cords_dp.planning import PrivacyPlan, Release
from cords_dp.report.metrics import metric_words, shown_metric
from cords_dp.runs.jobs import RESULT, Job
from cords_dp.runs.run import run_and_hand_over
from cords_dp.runs.sweep import Backend, run_jobs
from cords_dp.runs.workers import LocalWorkers, heartbeat
from cords_dp.selection.releases import Releases
from cords_dp.training.metrics import evaluate
from cords_dp.training.private_test import as_released, counts_of
from cords_dp.training.resolve import resolve
from cords_dp.training.run import Run, public_sizes
from cords_dp.training.trainer import TrainClassifier
from cords_dp.tuning.plan import ACCURACY, PlanWith, TuningPlan, build_tuning_plan
from cords_dp.tuning.search import Space, read_space
from cords_dp.tuning.statement import tuning_markdown, tuning_report

_PRIVATE, _TRIALS, _LEDGER, _RESULT = "private", "trials.json", "ledger.jsonl", "tuning.json"


@dataclass(frozen=True)
class TuningResult:
    """A tuning's release. ``score``: the best trial's noisy metric on V. ``accuracy``: of a public test set."""

    settings: dict[str, Any]
    score: float
    accuracy: float
    epsilon: float
    delta: float
    trials: str
    out: str
    metric: str = ACCURACY

    def text(self) -> str:
        rows = [(f"best {key}", f"{value:.6g}" if isinstance(value, float) else str(value)) for key, value in
                self.settings.items()]  # fmt: skip
        rows += [
            (f"its {metric_words(self.metric)} on V", f"{shown_metric(self.metric, self.score)} (noisy)"),
            *([] if math.isnan(self.accuracy) else [("test accuracy", f"{100 * self.accuracy:.2f} %")]),
            ("epsilon, delta", f"{self.epsilon:.4f}, {self.delta:.3g} for all trials together"),
            ("trials", f"a secret number, by the {self.trials}"),
            ("results in", self.out),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


class TrialsFailedError(CordsDPError, RuntimeError):
    """Some trials ended with an error, so nothing is released."""


def tune(
    config: Mapping[str, Any] | str | Path,
    search: Mapping[str, Any] | Sequence[str],
    *,
    trials: float = 10,
    law: str | float = "geometric",
    out: str | Path = "runs/tune",
    backend: Backend | None = None,
    progress: bool = True,
    metric: str | None = None,
) -> TuningResult:
    """Tune a config privately; write the best model, its settings and the privacy statement into ``out``.

    ``search``: keys and laws, ``{"optimizer.lr": "loguniform(0.01, 1)"}``; lists of choices and Ray Tune's domains are
    understood too. ``trials``: the mean of the number of trials. ``law``: geometric, logarithmic, or the shape of a
    truncated negative binomial law. ``metric``: by which trials are compared; accuracy, of a regression rmse, or
    another of `evaluation.metrics`. Calling it again continues where it stopped.
    """
    cfg = load_config(config) if isinstance(config, (str, Path)) else DotMap(thawed_copy(config))
    tuning = Tuning.planned(cfg, read_space(search), read_law(trials, law), Path(out), metric)
    return tuning.run(backend or LocalWorkers(), progress=progress)


def read_law(trials: float, law: str | float) -> TrialLaw:
    mean = number("--trials", trials, low=1, high=10_000)
    if isinstance(law, str) and law in LAWS:
        return TrialLaw(mean, LAWS[law])
    try:
        shape = float(law)
    except ValueError:
        raise ConfigError("--law", law, f"must be {', '.join(LAWS)} or the shape of the law, a number") from None
    return TrialLaw(mean, number("--law", shape, low=0, high=100, low_included=True))


@dataclass(frozen=True)
class Trial(Job):
    """One trial. Its random name says nothing about its place, and equal settings are still two trials."""

    token: str = ""

    @property
    def id(self) -> str:
        return self.token


@dataclass(frozen=True)
class Tuning:
    """A planned tuning. Public but for what lies in ``out/private``."""

    config: DotMap
    space: Space
    plan: TuningPlan
    single: PrivacyPlan
    sizes: tuple[int, ...]
    out: Path

    @classmethod
    def planned(cls, config: DotMap, space: Space, law: TrialLaw, out: Path, metric: str | None = None) -> Tuning:
        """Plan a tuning. Everything that can be wrong is found here, before data is read."""
        run = resolve(keeping_validation(config), plan=False)
        if run.privacy is None:
            raise ConfigError("dss_args.type", run.strategy.name, "only private strategies can be tuned privately")
        metric = one_of(
            "--metric", metric or ("rmse" if run.regression else ACCURACY), names(regression=run.regression)
        )
        for settings in space.ends():
            resolve(_with(config, settings), plan=False)
        sizes = public_sizes(run)
        plan = tuning_plan_of(run, sizes, law, metric)
        return cls(config, space, plan, planner(run, sizes)(run.privacy), sizes, out)

    @property
    def fingerprint(self) -> str:
        """Binds draws, ledger and result to this config, space and budget."""
        facts = json.dumps(to_plain(self.config), sort_keys=True) + repr(self.space) + self.plan.fingerprint
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    # -- the course of a tuning -----------------------------------------------------------------------

    def run(self, backend: Backend, *, progress: bool = True) -> TuningResult:
        finished = self._finished()
        if finished is not None:
            return finished
        trials = self._trials()
        ledger, reservation = self._paid()
        try:
            with heartbeat("tuning", show=progress):
                result = run_jobs(trials, self._private, backend, progress=False)
            if result.failures:
                reason = next(iter(result.failures.values())).strip().splitlines()[-1]
                raise TrialsFailedError(
                    f"trials ended with an error, so nothing is released: {reason}. The same command tries them again."
                )
            return self._release(trials)
        finally:
            ledger.close()
            if reservation is not None:
                reservation.settle(ledger.entries)

    @property
    def _private(self) -> Path:
        return self.out / _PRIVATE

    def _finished(self) -> TuningResult | None:
        """Return the result that is there already, if it is this tuning's."""
        path = self.out / _RESULT
        if not path.is_file():
            return None
        found = json.loads(path.read_text())
        if found.pop("fingerprint", None) != self.fingerprint:
            raise ConfigError("--out", str(self.out), "holds the result of another tuning; choose another folder")
        shutil.rmtree(self._private, ignore_errors=True)  # of a tuning that was killed after its last word
        return TuningResult(**found)

    def _trials(self) -> list[Trial]:
        """Return the trials that were drawn, or draw them now: secret, and never twice."""
        path = self._private / _TRIALS
        if not path.is_file():
            if (self.out / _LEDGER).is_file():
                raise AccountingError(
                    f"the trials of {self.out.name} are gone although they are paid for; drawing others would choose "
                    "among more than that: start afresh in another folder, at its own price"
                )
            with caches_in(make_owners_folder(self._private) / CACHE):
                drawn = self._drawn()
            write_durably(path, json.dumps({"fingerprint": self.fingerprint, "trials": drawn}), mode=0o600)
        found = json.loads(path.read_text())
        if found["fingerprint"] != self.fingerprint:
            raise ConfigError("--out", str(self.out), "another tuning has begun there; choose another folder")
        return [self._trial(**one) for one in found["trials"]]

    def _drawn(self) -> list[dict[str, Any]]:
        # Settings that no plan fits end the tuning here, before data is read. Who then starts over draws from
        # P[K = k]·p^k, with p the chance of settings that fit: a law of the same family with a smaller mean.
        rng = secure_generator()
        drawn = [self.space.draw(rng) for _ in range(self.plan.law.draw(rng))]
        return [{"token": secrets.token_hex(8), "settings": own, **self._fitted(own)} for own in drawn]

    def _fitted(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the budget of a trial with these settings, and the plan that follows from it."""
        run = resolve(_of_a_trial(self.config, settings), plan=False)
        plan_with = planner(run, self.sizes)
        try:
            privacy = self.plan.fit(plan_with)
        except AccountingError as error:
            raise ConfigError("--search", settings, f"no noise brings such a trial into the budget: {error}") from error
        own = {"epsilon": privacy.epsilon, "validation_noise": privacy.validation_noise}
        return {"privacy": own, "plan": plan_with(privacy).fingerprint}

    def _trial(self, token: str, settings: dict[str, Any], privacy: dict[str, Any], plan: str) -> Trial:
        config = _of_a_trial(self.config, settings)
        config.privacy.update(accountant="rdp", epsilon=privacy["epsilon"])
        if privacy["validation_noise"] is not None:
            config.privacy.validation_noise = privacy["validation_noise"]
        score, private = self.plan.score_release(), str(self._private.resolve())
        work = partial(run_trial, score=score, plan=plan, private=private, metric=self.plan.metric)
        return Trial(config.toDict(), settings, work, token)

    def _paid(self) -> tuple[Ledger, Reservation | None]:
        """Return the ledger with the charge of the whole tuning in it, reserved in the account before."""
        path, entries = self.out / _LEDGER, self.plan.entries()
        name = Ledger.id_of(path, self.fingerprint) if path.is_file() else secrets.token_hex(8)
        reservation = None
        if self.plan.privacy.account is not None:
            account = Account.read(Path(self.plan.privacy.account).expanduser())
            reservation = account.reserve(name, entries)
        ledger = ledger_under(reservation, path, entries, fingerprint=self.fingerprint, name=name, resume=True)
        for entry in entries:
            if entry.event not in ledger.events(entry.dataset):
                ledger.charge(entry.dataset, entry.phase, entry.event)
        return ledger, reservation

    def _release(self, trials: Sequence[Trial]) -> TuningResult:
        """Copy the best trial out, and forget all others."""
        runs = self._private / "runs"
        scores = {trial.id: json.loads((runs / trial.id / SCORE).read_text())["score"] for trial in trials}
        best = max(trials, key=lambda trial: _goodness(scores[trial.id], self.plan.metric))
        shown = resolve(self.config, plan=False).test == PUBLIC
        report = tuning_report(self.plan, self.single, tested=shown)
        write_durably(self.out / "privacy.json", json.dumps(report, indent=2))
        write_durably(self.out / "privacy.md", tuning_markdown(report))
        chosen = to_plain(keeping_validation(_with(self.config, best.labels)))
        write_durably(self.out / "config.yaml", yaml.safe_dump(chosen, sort_keys=False))
        for name in (MODEL_CARD, MODEL):
            if (runs / best.id / name).is_file():
                write_durably(self.out / name, (runs / best.id / name).read_bytes())
        summary = json.loads((runs / best.id / RESULT).read_text())
        result = TuningResult(
            settings=dict(best.labels),
            score=scores[best.id],
            accuracy=float(summary.get("accuracy", math.nan)),
            metric=self.plan.metric,
            epsilon=self.plan.epsilon,
            delta=self.plan.delta,
            trials=report["trials"],
            out=str(self.out),
        )
        own = {"epsilon": result.epsilon, "epsilon_allowed": self.plan.privacy.epsilon, "out": str(self.out)}
        write_durably(self.out / RESULT, json.dumps({**summary, **own, "score": result.score}, indent=2))
        facts = {**result.__dict__, "fingerprint": self.fingerprint}
        write_durably(self.out / _RESULT, json.dumps(facts, indent=2))  # last: where it is, the tuning is done
        shutil.rmtree(self._private)
        return result


# --- plans of a config ---------------------------------------------------------------------------------


def tuning_plan_of(run: Run, sizes: tuple[int, ...], law: TrialLaw, metric: str = ACCURACY) -> TuningPlan:
    assert run.privacy is not None
    orders: tuple[int, ...] = ()
    if run.privacy.account is not None:
        account = Account.read(Path(run.privacy.account).expanduser())
        orders = RenyiFilter(account.epsilon, account.delta).orders
    try:
        return build_tuning_plan(run.privacy, planner(run, sizes), law, orders, metric)
    except AccountingError as error:
        why = f"no noise meets this budget for a tuning: {error}"
        raise ConfigError("privacy.epsilon", run.privacy.epsilon, why) from error


def planner(run: Run, sizes: tuple[int, ...]) -> PlanWith:
    """Return this run's plan at another budget; what else its ``privacy`` section says stays."""
    assert run.privacy is not None
    own = run.privacy

    def plan_with(privacy: PrivacySettings) -> PrivacyPlan:
        changed = replace(
            own,
            epsilon=privacy.epsilon,
            accountant=privacy.accountant,
            validation_noise=privacy.validation_noise,
            account=None,
        )
        plan = replace(run, privacy=changed).plan(*sizes)
        assert plan is not None
        return plan

    return plan_with


def _with(config: Mapping[str, Any], settings: Mapping[str, Any]) -> DotMap:
    """Copy the config with these settings."""
    copy = thawed_copy(config)
    for name, value in settings.items():
        section, key = name.split(".", 1)
        copy[section] = {**(copy.get(section) or {}), key: value}
    return DotMap(copy)


# What would tell of a trial to others than the tuning, or charge it by itself.
_SILENCE = {
    "train_args.wandb": False,
    "train_args.tensorboard": False,
    "ckpt.is_save": False,
    "ckpt.is_load": False,
    "privacy.account": None,
}


# What decides a model's frozen features. Where trials draw it, cached features would tell who drew what.
_DECIDE_FEATURES = frozenset({"model.architecture", "model.features", "model.weights", "model.args"})


def keeping_validation(config: Mapping[str, Any]) -> DotMap:
    """Copy the config so that V is split off whatever the strategy reads: trials are scored on V.

    A private test set is kept apart: each trial would release of it, and the choice depends on V alone.
    """
    run = resolve(_with(config, {}), plan=False)
    apart = {"dataset.test": UNREAD} if run.test == PRIVATE else {}
    return _with(config, {**apart, **({"dataset.validation_fraction": VALIDATION_FRACTION} if run.whole else {})})


def _of_a_trial(config: Mapping[str, Any], settings: Mapping[str, Any]) -> DotMap:
    copy = keeping_validation(_with(config, {**settings, **_SILENCE}))
    if _DECIDE_FEATURES & settings.keys():
        copy.model.feature_cache = False
    copy.pop("report_tune", None)
    return copy


CACHE = "cache"
SCORE = "score.json"
MODEL = "model.pt"
_KEPT = (MODEL, MODEL_CARD, RESULT)  # what else a run leaves speaks of its own budget, not of the tuning's


def run_trial(
    config: Mapping[str, Any], *, score: Release, plan: str, private: str, metric: str = ACCURACY
) -> dict[str, bytes]:
    """Train and score in a folder of its own. ``plan``: the fingerprint of the plan that the tuning pays for.

    Logs, and the noise that is calibrated, tell that there was a trial and what it did, also after an interruption, so
    they lie below ``private``, the tuning's folder for the owner's eyes. A machine of a Ray cluster that does not see
    that folder has a temporary one.
    """
    home = Path(private) if Path(private).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="cords_dp-", dir=home) as folder, caches_in((home or Path(folder)) / CACHE):
        trainer, _ = run_and_hand_over(DotMap(to_plain(config)), Path(folder), progress=False)
        if trainer.plan is None or trainer.plan.fingerprint != plan:
            raise MechanismError("a trial ran by another plan than the one that the tuning pays for")
        files = {name: (Path(folder) / name).read_bytes() for name in _KEPT}
        return {**files, SCORE: json.dumps({"score": noisy_score(trainer, score, metric)}).encode()}


def noisy_score(trainer: TrainClassifier, release: Release, metric: str = ACCURACY) -> float:
    """Return a metric of the released model on V, with noise; without where V is declared public (no event).

    NaN where the noise leaves nothing of it.
    """
    assert trainer.data is not None
    assert trainer.model is not None
    allowance = () if release.event is None else (Entry(VALIDATION_DATA, release.phase, release.event),)
    releases = Releases(
        (release,),
        charge=Ledger(allowance=allowance).charge,
        generators={VALIDATION_DATA: secure_generator()},
        secure=trainer.plan is not None and trainer.plan.privacy.secure_noise,
    )
    if metric != ACCURACY:
        total = counts_of(trainer.session, trainer.data.validation)
        vector = releases.gaussian(release.name, total)
        found = as_released(trainer.session, vector, releases.noise_multiplier(release.name))
        value = found.metrics()[metric]["value"]
        return math.nan if value is None else float(value)
    validation, (_, criterion) = trainer.data.validation, trainer.loss_function()
    batches, size = evaluation_batches(validation, trainer.run.config, private=True), len(validation)
    _, accuracy = evaluate(trainer.model, batches, criterion, trainer.run.device)
    return float(releases.gaussian(release.name, np.array(accuracy * size))) / size


def _goodness(score: float, metric: str) -> float:
    """Return what the best trial has most of; a score that is lost in the noise counts as the worst."""
    return -math.inf if math.isnan(score) else -score if metric in LOWER_IS_BETTER else score
