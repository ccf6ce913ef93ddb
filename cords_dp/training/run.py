"""`Run`: everything that a config says, checked and frozen. `resolve` alone makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from dotmap import DotMap

from cords_dp.config import PrivacySettings, SubsetSettings, frozen_copy, thawed_copy
from cords_dp.config.settings import PRIVATE, PUBLIC, RECORDS_PER_OWNER
from cords_dp.data.published import known_sizes
from cords_dp.data.record_set import Share, Splits
from cords_dp.errors import AccountingError, ConfigError
from cords_dp.noise.generators import Streams
from cords_dp.planning import Mechanism, PrivacyPlan, build_plan
from cords_dp.planning.schedule import Preparation
from cords_dp.processes import World, current_world, local_rank
from cords_dp.training.strategies import Strategy


@dataclass(frozen=True)
class Run:
    """Everything that a config says, checked. ``config`` is a read-only copy with defaults filled in.

    privacy is None for a strategy that is not private, mechanism for one that does not select. batch_size and
    learning_rate are None where the plan chooses. unused: CORDS' keys that this run does not use.
    notes: sentences about what else of the config is not used. preparation: what is released of D before training.
    own_device: that of a model which is on one already. whole: no V is split off, since nothing reads it and the config
    does not ask for one (``dataset.validation_fraction`` is then 0 in ``config``): its records are trained on.
    """

    config: Mapping[str, Any]
    strategy: Strategy
    privacy: PrivacySettings | None
    subset: SubsetSettings
    mechanism: Mechanism | None
    epochs: int
    batch_size: int | None
    learning_rate: float | None
    seed: int | None
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    planned_learning_rate: bool = False
    preparation: Preparation | None = None
    own_device: str | None = None
    whole: bool = False

    @property
    def resumes(self) -> bool:
        """Whether it continues an earlier run from its checkpoint."""
        return bool((self.config.get("ckpt") or {}).get("is_load"))

    @property
    def reads_validation(self) -> bool:
        """Whether anything reads V: the strategy, which may read what it is handed, or its mechanism."""
        return self.strategy.reads_validation or (self.mechanism is not None and self.mechanism.reads_validation)

    def with_validation(self) -> Run:
        """Return the same run with V split off, as every run had it that began before V's records were trained on."""
        section = {key: value for key, value in self.section("dataset").items() if key != "validation_fraction"}
        return replace(self, config=frozen_copy({**self.config, "dataset": section}), whole=False)

    @property
    def regression(self) -> bool:
        return bool(self.config["is_reg"])

    @cached_property
    def device(self) -> str:
        """Where it runs: the device of the config, if this machine has it. Asking imports torch."""
        return self.own_device or _device(self.config["train_args"].get("device"))

    def section(self, name: str) -> Mapping[str, Any]:
        return self.config.get(name) or {}

    @property
    def test(self) -> str:
        """What may be told of the test set: ``private`` (one noisy release), ``public`` (exact metrics), ``unread``."""
        return str(self.section("dataset").get("test") or PUBLIC)

    @property
    def shows_test(self) -> bool:
        """Whether exact metrics of the test set may be told."""
        return self.test == PUBLIC

    def plan(self, n: int, n_validation: int, n_test: int = 0) -> PrivacyPlan | None:
        """Return the privacy plan for public sizes, or None for a strategy that is not private.

        ``n_test``: of a private test set; 0 plans no release of it, and then nothing is told of it.
        """
        if self.privacy is None:
            return None
        try:
            return build_plan(
                self.strategy.name,
                self.privacy,
                self.subset,
                self.mechanism,
                epochs=self.epochs,
                batch_size=self.batch_size,
                n=n,
                n_validation=n_validation,
                uses_all=self.strategy.uses_all,
                preparation=self.preparation,
                n_test=n_test if self.test == PRIVATE else 0,
            )
        except AccountingError as error:
            raise ConfigError(
                "privacy.epsilon", self.privacy.epsilon, f"no noise meets this budget with the other keys: {error}"
            ) from error

    def share(self, world: World) -> Share:
        """Return what a process holds of the records."""
        weights = self.config["train_args"].get("shares") or ()
        return Share() if world.size == 1 else Share(world.rank, world.size, tuple(weights))

    def as_cords(self) -> DotMap:
        """Return the config in CORDS' form, to be written into."""
        return DotMap(thawed_copy(self.config))

    def for_owners(self, *, owned: bool) -> Run:
        """Return the same run on sets that a program has handed over; ``owned``: with owners of their records."""
        return replace(self, privacy=with_unit(self.privacy, owned=owned))

    def with_plan(self, plan: PrivacyPlan | None, learning_rate: float) -> Run:
        """Return the same run with everything known: batch size and learning rate as they will be used."""
        batch_size = plan.shape.batch_size if plan else self.batch_size
        changes = {
            "dataloader": {**self.section("dataloader"), "batch_size": batch_size},
            "optimizer": {**self.section("optimizer"), "lr": learning_rate},
        }
        config = frozen_copy({**self.config, **changes})
        planned = self.learning_rate is None
        return replace(
            self, config=config, batch_size=batch_size, learning_rate=learning_rate, planned_learning_rate=planned
        )


def with_unit(privacy: PrivacySettings | None, *, owned: bool) -> PrivacySettings | None:
    """Let the unit of privacy be an owner where it is known whose each record is, and only there."""
    if privacy is None:
        return None
    if owned:
        return replace(privacy, records_per_owner=privacy.records_per_owner or RECORDS_PER_OWNER)
    if privacy.records_per_owner is not None:
        fix = "nobody owns several records here; say whose each record is (dataset.owner, or owners=), or leave it out"
        raise ConfigError("privacy.records_per_owner", privacy.records_per_owner, fix)
    return privacy


def _device(name: Any) -> str:
    if name is None or name == "cpu":
        return "cpu"
    wanted = str(name) if isinstance(name, (str, torch.device)) else ""
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise ConfigError("train_args.device", name, "must be cpu, cuda or cuda:N")
    if device.type == "cpu":
        return wanted
    if not torch.cuda.is_available():
        return "cpu"
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError("train_args.device", name, f"this machine has {torch.cuda.device_count()} CUDA devices")
    return f"cuda:{local_rank()}" if current_world().size > 1 else wanted


def public_sizes(run: Run) -> tuple[int, ...]:
    """Return n, |V| and, of a private test set, |T|: public. Those of an imbalanced variant have to be counted."""
    sizes: tuple[int, ...] | None = known_sizes(run.config)
    if sizes is None:
        from cords_dp.data.build import build_dataset  # late: it needs torch

        data = build_dataset(run.config, Streams(run.seed).numpy("data"))
        sizes = sizes_of(data, run)
    return sizes


def sizes_of(data: Splits, run: Run) -> tuple[int, ...]:
    """Count the units of privacy in D, in V and, where it is private, in the test set."""
    from cords_dp.data.handed_over import as_records

    parts = data[:3] if run.test == PRIVATE else data[:2]
    return tuple(as_records(part).units for part in parts)
