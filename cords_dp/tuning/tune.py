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
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from dotmap import DotMap

from cords_dp.accounting import Account, Ledger, Reservation, TrialLaw, ledger_under
from cords_dp.config import load_config, thawed_copy, to_plain
from cords_dp.errors import AccountingError, ConfigError, CordsDPError
from cords_dp.files import caches_in, make_owners_folder, write_durably
from cords_dp.noise.generators import secure_generator
from cords_dp.planning import PrivacyPlan
from cords_dp.runs.jobs import RESULT
from cords_dp.runs.sweep import Backend, run_jobs
from cords_dp.runs.workers import LocalWorkers
from cords_dp.training.resolve import resolve
from cords_dp.training.run import public_sizes
from cords_dp.tuning.plan import TuningPlan, goodness, planner, read_law, read_metric, tuning_plan_of
from cords_dp.tuning.search import Space, config_of_trial, keeping_validation, read_space, with_settings
from cords_dp.tuning.statement import TuningResult, tuning_markdown, tuning_report
from cords_dp.tuning.trial import CACHE, MODEL_FILES, SCORE, Trial, run_trial

_PRIVATE, _TRIALS, _LEDGER, _RESULT = "private", "trials.json", "ledger.jsonl", "tuning.json"


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
        metric = read_metric(metric, regression=run.regression)
        for settings in space.ends():
            resolve(with_settings(config, settings), plan=False)
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
        run = resolve(config_of_trial(self.config, settings), plan=False)
        plan_with = planner(run, self.sizes)
        try:
            privacy = self.plan.fit(plan_with)
        except AccountingError as error:
            raise ConfigError("--search", settings, f"no noise brings such a trial into the budget: {error}") from error
        own = {"epsilon": privacy.epsilon, "validation_noise": privacy.validation_noise}
        return {"privacy": own, "plan": plan_with(privacy).fingerprint}

    def _trial(self, token: str, settings: dict[str, Any], privacy: dict[str, Any], plan: str) -> Trial:
        config = config_of_trial(self.config, settings)
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
        best = max(trials, key=lambda trial: goodness(scores[trial.id], self.plan.metric))
        shown = resolve(self.config, plan=False).shows_test
        report = tuning_report(self.plan, self.single, tested=shown)
        write_durably(self.out / "privacy.json", json.dumps(report, indent=2))
        write_durably(self.out / "privacy.md", tuning_markdown(report))
        chosen = to_plain(keeping_validation(with_settings(self.config, best.labels)))
        write_durably(self.out / "config.yaml", yaml.safe_dump(chosen, sort_keys=False))
        for name in MODEL_FILES:
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


_WORDS = "trials are running; how many there are is secret"


@contextmanager
def heartbeat(title: str, *, show: bool = True, every: float = 1.0) -> Iterator[None]:
    """Show the seconds that have passed, at its own pace: a display that moves with the work could be counted."""
    if not show:
        yield
        return
    if not sys.stderr.isatty():
        print(f"{title}: {_WORDS}", file=sys.stderr)
        yield
        return
    ended, start = threading.Event(), time.monotonic()

    def beat() -> None:
        while not ended.wait(every):
            minutes, seconds = divmod(int(time.monotonic() - start), 60)
            print(f"\r{title}: {minutes}:{seconds:02d}, {_WORDS}", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        print("\r\033[K", end="", file=sys.stderr)
