"""The settings that a config is read into: frozen, checked, documented. Every value here is public.

Everything that can be wrong with a config is found before any data is read, and named: the key, its value, the fix.
Keys of ``dss_args`` that belong to one mechanism are the fields of that mechanism (`planning.mechanism`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from cords_dp.config.keys import AUTO, DEAD_SECTIONS, KEYS, MOST_EPOCHS, TOP_LEVEL, check_setting, section_checks
from cords_dp.config.values import flag, number, one_of, suggest, whole
from cords_dp.errors import ConfigError

GRADIENT_MODES = ("linear", "bookkeeping", "ghost", "ew", "hooks", "functorch")
_PICK_COMPOSITIONS = ("paper", "bounded_range", "freeze")
_MOST_EPSILON = 500.0  # e^ε has to be a number; nobody is protected long before
_TINY = 1e-9
_MOST_VIEWS = 1024  # of one image, held in memory together

# Arguments of CORDS' strategies. They stand in every CORDS config and must not hinder a swap by one word.
CORDS_STRATEGY_KEYS = frozenset(
    {
        "linear_layer", "selection_type", "greedy", "r", "lam", "valid", "v1", "eps", "temperature", "per_class", "kw",
        "global_order_file", "gc_ratio", "gc_stochastic_subsets_file", "stochastic_subsets_file", "submod_function",
        "if_convex", "size_chunk", "batch_sampler", "delta", "optimizer", "data_type",
    }
)  # fmt: skip


@dataclass(frozen=True)
class PrivacySettings:
    """The ``privacy`` section.

    epsilon, delta: the budget of the whole run, for each record of D and of V. ``epsilon = inf`` turns
        clipping and noise off. delta defaults to 1e-5, or a tenth of 1/n if that is less.
    composition: ``joint`` composes training and selection numerically; ``basic`` splits ε and δ (the paper).
    split: the share of the budget that goes to training where selection takes part of it; the mechanism knows a
        default.
    selection_composition: how picks add up: ``paper``, ``bounded_range`` or ``freeze``.
    validation: is the validation set ``private`` (its use is charged to it) or ``public``?
    max_grad_norm, clipping: per-example clip norm; ``flat`` or ``automatic`` (normalised) clipping.
    selection_clip, validation_clip: clip norms C_e and C_v of the last-layer gradients in selection.
    validation_noise: noise multiplier of V's releases; calibrated to (ε, δ) when left out.
    accountant: ``auto`` (prv, then pld, then rdp) or one of them by name.
    grad_sample_mode: how per-example gradients are computed; ``auto`` takes the first that is right for the model:
        ``linear`` (closed form, for linear heads), ``bookkeeping`` (one backward pass that writes down what clipping
        needs), the quicker of Opacus' ``hooks`` and ``ew``, ``functorch``. ``ghost`` has to be asked for: no bound on
        its rounding is proved.
    max_physical_batch_size: larger batches are computed in pieces of this size.
    augmentations: random views of an image whose gradients are averaged before clipping (1: the image as it is).
    ema_decay: average the weights over steps with this decay (0: take the last ones); costs no privacy.
    poisson_sampling: always True: the accounting holds for batches that are drawn by independent coins.
    labels_public: the user declares which class each index belongs to as public.
    exact_metrics: log exact metrics of private data. They are not covered by the guarantee.
    secure_noise: draw noise as a sum of four, against attacks on floating-point numbers; takes longer.
    account: a file that adds up all runs on these data (`python -m cords_dp account`); a run that would exceed its
        total is refused before data is read.
    reproducible_noise: compute noise from ``train_args.seed``. Such a run repeats and is NOT private.
    """

    epsilon: float
    delta: float | None = None
    composition: str = "joint"
    split: float | None = None
    selection_composition: str | None = None
    validation: str = "private"
    max_grad_norm: float = 1.0
    clipping: str = "flat"
    selection_clip: float = 1.0
    validation_clip: float = 1.0
    validation_noise: float | None = None
    augmentations: int = 1
    ema_decay: float = 0.0
    accountant: str = "auto"
    grad_sample_mode: str = "auto"
    max_physical_batch_size: int = 512
    poisson_sampling: bool = True
    labels_public: bool = False
    exact_metrics: bool = False
    secure_noise: bool = False
    account: str | None = None
    reproducible_noise: bool = False

    @property
    def noiseless(self) -> bool:
        return math.isinf(self.epsilon)


# Keys of ``privacy`` that mean something to some mechanisms only; each mechanism names those that it uses.
SELECTION_PRIVACY_KEYS = frozenset(
    {"split", "selection_composition", "selection_clip", "validation_clip", "validation_noise", "labels_public"}
)


@dataclass(frozen=True)
class SubsetSettings:
    """The keys of ``dss_args`` that do not depend on the mechanism. The first three are CORDS' own.

    fraction: the share of the records to train on in each epoch; ``FullDP`` takes all of them, and a run of it with
        another share warns that it has no effect.
    select_every: select anew every so many epochs.
    kappa: the share of the epochs before the first selection; part of them is a warm start on all records.
    compute_fraction: ``FullDP`` only: the share of the steps of full epochs to take ("equal compute").
    publish_subset: write the last subset to ``subset.json``, as rows of the file or the published set; only where it
    was paid for or drawn without looking.
    secret_subset: ``RandomDP`` only: draw the subset by secret coins and never release it. Training then needs less
        noise for the same guarantee (`planning.plan.amplified`). Such a run cannot be resumed, since a checkpoint
        would have to hold the subset.
    """

    fraction: float = 1.0
    select_every: int = 1
    kappa: float = 0.0
    compute_fraction: float = 1.0
    publish_subset: bool = False
    secret_subset: bool = False


def check_sections(cfg: Mapping[str, Any]) -> None:
    """Refuse unknown sections and keys: a misspelt key must not be ignored. ``dss_args`` has a check of its own."""
    if cfg.get("setting") is not None:
        check_setting("setting", cfg["setting"])  # first: the sections of another setting are not ours to judge
    known_sections = {*TOP_LEVEL, *KEYS}
    for section in cfg:
        empty = isinstance(cfg[section], Mapping) and not cfg[section]  # a DotMap makes one of every name that is read
        if section not in known_sections and section not in DEAD_SECTIONS and not empty:
            raise ConfigError(section, cfg[section], suggest(section, known_sections))
    for section in KEYS:
        if section not in cfg:
            continue
        if not isinstance(cfg[section], Mapping):
            raise ConfigError(section, cfg[section], "this is a section: write it as dict(...)")
        if section != "dss_args":
            keys = section_checks(section, cfg[section])
            known = {f.name for f in fields(PrivacySettings)} if keys is None else set(keys)
            check_keys(section, cfg[section], known)


def check_keys(section: str, values: Mapping[str, Any], known: Collection[str]) -> None:
    for key in values:
        if key not in known:
            raise ConfigError(f"{section}.{key}", values[key], suggest(key, known))


def read_privacy(cfg: Mapping[str, Any]) -> PrivacySettings:
    """Read and check the ``privacy`` section."""
    from cords_dp.accounting import ACCOUNTANTS

    section = {key: value for key, value in (cfg.get("privacy") or {}).items() if value is not None}
    if "epsilon" not in section:
        raise ConfigError("privacy.epsilon", None, "a private strategy needs a budget: privacy=dict(epsilon=3.0)")
    settings = PrivacySettings(**section)
    number("privacy.epsilon", settings.epsilon, low=0, high=_MOST_EPSILON, infinite=True)
    if settings.delta is not None:
        number("privacy.delta", settings.delta, low=0, high=1)
    if settings.split is not None:
        number("privacy.split", settings.split, low=1e-3, high=1 - 1e-3)  # neither part vanishes
    for name in ("max_grad_norm", "selection_clip", "validation_clip"):
        number(f"privacy.{name}", getattr(settings, name), low=_TINY, high=1 / _TINY)  # float32 has to hold it
    if settings.validation_noise is not None:
        number("privacy.validation_noise", settings.validation_noise, low=_TINY, high=1 / _TINY)
    number("privacy.ema_decay", settings.ema_decay, low=0, high=1, low_included=True)
    one_of("privacy.composition", settings.composition, ("joint", "basic"))
    one_of("privacy.selection_composition", settings.selection_composition, (None, *_PICK_COMPOSITIONS))
    one_of("privacy.validation", settings.validation, ("private", "public"))
    one_of("privacy.clipping", settings.clipping, ("flat", "automatic"))
    one_of("privacy.accountant", settings.accountant, (AUTO, *ACCOUNTANTS))
    one_of("privacy.grad_sample_mode", settings.grad_sample_mode, (AUTO, *GRADIENT_MODES))
    for name in ("poisson_sampling", "labels_public", "exact_metrics", "secure_noise", "reproducible_noise"):
        flag(f"privacy.{name}", getattr(settings, name))
    whole("privacy.max_physical_batch_size", settings.max_physical_batch_size, high=10**9)
    whole("privacy.augmentations", settings.augmentations, high=_MOST_VIEWS)
    if settings.account is not None and not isinstance(settings.account, str):
        raise ConfigError("privacy.account", settings.account, "must be the path of an account file")
    if not settings.poisson_sampling:
        raise ConfigError(
            "privacy.poisson_sampling",
            False,
            "the accounting holds for Poisson batches only; remove the key or set it to True",
        )
    return settings


def read_subset(cfg: Mapping[str, Any], *, uses_all: bool) -> SubsetSettings:
    """Read and check the common keys of ``dss_args``. ``uses_all``: the strategy trains on all of D."""
    section = cfg.get("dss_args") or {}
    given = {f.name: section[f.name] for f in fields(SubsetSettings) if section.get(f.name) is not None}
    settings = SubsetSettings(**given)
    if not uses_all:
        if "fraction" not in given:
            raise ConfigError("dss_args.fraction", None, "say which share of the data to train on, e.g. 0.1")
        number("dss_args.fraction", settings.fraction, low=0, high=1, high_included=True)
        number("dss_args.kappa", settings.kappa, low=0, high=1, low_included=True)
    number("dss_args.compute_fraction", settings.compute_fraction, low=0, high=1, high_included=True)
    if settings.compute_fraction != 1 and not uses_all:
        raise ConfigError(
            "dss_args.compute_fraction", settings.compute_fraction, "only FullDP takes it: use dss_args.fraction"
        )
    flag("dss_args.publish_subset", settings.publish_subset)
    flag("dss_args.secret_subset", settings.secret_subset)
    if settings.secret_subset and (cfg.get("ckpt") or {}).get("is_load"):
        raise ConfigError("ckpt.is_load", True, "a run on a secret subset cannot be resumed: no file holds the subset")
    return settings


def read_training(cfg: Mapping[str, Any]) -> tuple[int, int | None, float | None]:
    """Check what every run needs: (epochs, batch size, learning rate); None where the plan chooses it."""
    for section in ("dataset", "dataloader", "model", "dss_args", "train_args", "optimizer", "loss"):
        if not cfg.get(section):
            raise ConfigError(section, None, "this section is missing; see configs/ for complete examples")
    epochs = whole("train_args.num_epochs", cfg["train_args"].get("num_epochs"), high=MOST_EPOCHS)
    batch, rate = cfg["dataloader"].get("batch_size"), cfg["optimizer"].get("lr")
    return (
        epochs,
        None if batch == AUTO else whole("dataloader.batch_size", batch),
        None if rate == AUTO else number("optimizer.lr", rate, low=0),
    )
