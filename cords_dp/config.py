"""CORDS' config files ⇄ validated settings.

A config is what CORDS has: a ``.py`` file with a dict called ``config``, or YAML, loaded into a DotMap
by CORDS' own loader. cords_dp adds one section, ``privacy``. Everything that can be wrong with a config
is found here, before any data is read, and named: the key, its value, the fix.
"""

from __future__ import annotations

import ast
import copy
import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dotmap import DotMap

from cords_dp.errors import ConfigError, ConfigFileError

# Keys that CORDS' own configs and train loops use, and ours. `None` leaves a section open.
KNOWN_KEYS: dict[str, set[str] | None] = {
    "dataset": {
        "name", "datadir", "feature", "type", "classimb_ratio", "balanced_validation", "num_samples",
        "ss_path", "data_dir", "wordvec_dim", "weight_path", "validation_fraction", "class_separation",
        "keep_range",
    },
    "dataloader": {"shuffle", "batch_size", "pin_memory", "collate_fn"},
    "model": {
        "architecture", "type", "numclasses", "num_classes", "input_dim", "h1", "h2", "l1", "l2",
        "wordvec_dim", "weight_path", "num_layers", "hidden_size", "args",
    },
    "ckpt": {"is_load", "is_save", "dir", "save_every"},
    "loss": {"type", "use_sigmoid"},
    "optimizer": {"type", "momentum", "lr", "lr1", "lr2", "lr3", "weight_decay", "nesterov"},
    "scheduler": {
        "type", "T_max", "T_0", "T_mult", "stepsize", "step_size", "gamma", "milestones", "max_steps",
    },
    "dss_args": {
        "type", "fraction", "select_every", "kappa", "linear_layer", "selection_type", "greedy", "r",
        "collate_fn", "mechanism", "compute_fraction", "score", "greedy_rounds", "greedy_step", "exploration",
        "projection", "bins", "concentration", "publish_subset", "secret_subset",
        # arguments of CORDS' other strategies, kept so that a config can swap its type by one word
        "lam", "valid", "v1", "eps", "temperature", "per_class", "kw", "global_order_file", "gc_ratio",
        "gc_stochastic_subsets_file", "stochastic_subsets_file", "submod_function", "if_convex",
        "size_chunk", "batch_sampler", "delta", "optimizer", "data_type",
    },
    "train_args": {
        "num_epochs", "device", "print_every", "run", "results_dir", "wandb", "print_args", "return_args",
        "seed",
    },
    "privacy": None,  # checked against PrivacySettings
}  # fmt: skip
_TOP_LEVEL = {"setting", "is_reg", "report_tune", *KNOWN_KEYS}

AUTO = "auto"  # optimizer.lr and dataloader.batch_size that follow the plan
GREEDY_VARIANTS = ("Frozen", "RGreedy", "Stochastic", "Naive")
MECHANISMS = ("match", "threshold", "top_k", "exponential")
SECRET_POOLS = ("match", "threshold")  # mechanisms whose pool never leaves the training mechanism
GRAD_SAMPLE_MODES = ("auto", "linear", "hooks", "functorch", "ew", "ghost")


@dataclass(frozen=True)
class PrivacySettings:
    """The ``privacy`` section. Every value here is public.

    epsilon, delta: the budget of the whole run, for each record of D and of V. ``epsilon = inf`` turns
        clipping and noise off. delta defaults to 1e-5, or a tenth of 1/n where n is large.
    composition: ``joint`` composes training and selection numerically; ``basic`` splits ε and δ (the paper).
    split: the share r of the budget that goes to training where selection takes part of it; 0.9 for ``match``, which
        needs little, and 0.8 otherwise.
    selection_composition: how picks add up: ``paper``, ``bounded_range`` or ``freeze``.
    validation: is the validation set ``private`` (its use is charged to it) or ``public``?
    max_grad_norm, clipping: per-example clip norm; ``flat`` or ``automatic`` (normalised) clipping.
    selection_clip, validation_clip: clip norms C_e and C_v of the last-layer gradients in selection.
    validation_noise: noise multiplier of V's releases; calibrated to (ε, δ) when left out.
    accountant: ``auto`` (prv, then pld, then rdp) or one of them by name.
    grad_sample_mode: how per-example gradients are computed; ``auto`` tries and takes the fastest.
    max_physical_batch_size: larger batches are computed in pieces of this size.
    augmentations: random views of an image whose gradients are averaged before clipping (1: the image as it is).
    ema_decay: average the weights over steps with this decay (0: take the last ones); costs no privacy.
    labels_public: the user declares which class each index belongs to as public.
    exact_metrics: log exact metrics of private data. They are not covered by the guarantee.
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

    @property
    def noiseless(self) -> bool:
        return math.isinf(self.epsilon)


@dataclass(frozen=True)
class SelectionSettings:
    """The part of ``dss_args`` that the plan needs. The first names are CORDS' own.

    mechanism: ``match`` (every step draws records that together resemble the validation set; looks at the records once
        a run, so ``select_every`` means nothing to it), ``threshold`` (a secret pool of the highest scores), ``top_k``
        (a subset to publish, one Gaussian release a round) or ``exponential`` (the paper's). ``match`` is the default
        for the score ``glister``, ``threshold`` for others.
    greedy, r: how the exponential mechanism's picks move the validation gradient; ``Frozen`` does not.
    score: ``glister``, ``el2n``, ``grad_norm`` or a registered one.

    For ``threshold`` (projection also for ``match`` and ``top_k``, bins for ``match``); defaults chosen on MNIST with
    five classes cut to 10 %:
    greedy_rounds: how often a selection moves the validation gradient along the records chosen so far.
    greedy_step: how far, in logits, the whole pool would move it.
    exploration: the share of the pool drawn by coins, without looking: selection then cannot hurt much. Raised to 0.9
        where the data are so few that the releases would be mostly noise; 0 switches coins off.
    projection: dimensions that the last layer's input is projected to; noise grows with them.
    bins: cells of the score histogram on [−1, 1].
    concentration: for ``match``, how many times as often as in a uniform draw a record may come, from 1 to
        1/fraction. Noise grows with it, wasted gradients fall. Left out it is the cube root of n/k.
    publish_subset: write the last subset to ``subset.json``; only where it was paid for or drawn blindly.

    For ``RandomDP``:
    secret_subset: draw the subset by secret coins and never release it. Training then needs less noise for the same
        guarantee (`plan.amplified`). Such a run cannot be resumed, since a checkpoint would have to hold the subset.
    """

    fraction: float = 1.0
    select_every: int = 1
    kappa: float = 0.0
    mechanism: str = "match"
    greedy: str = "Frozen"
    r: int = 15
    linear_layer: bool = True
    selection_type: str = "Supervised"
    compute_fraction: float = 1.0
    score: str = "glister"
    greedy_rounds: int = 3
    greedy_step: float = 200.0
    exploration: float = 0.3
    projection: int = 8
    bins: int = 128
    concentration: float | None = None
    publish_subset: bool = False
    secret_subset: bool = False
    reads_validation: bool = True  # a property of the score, filled in when the config is read


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> DotMap:
    """Load a CORDS config file and apply ``a.b=c`` overrides."""
    from cords_dp.toolkit import load_config_data

    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigFileError(f"no config file {str(path)!r}; configs/ holds ready-made ones")
    if path.suffix not in (".py", ".yaml", ".yml"):
        raise ConfigFileError(f"{path.name}: a config is a .py file with a dict `config`, or .yaml")
    try:
        cfg = _load_yml(path) if path.suffix == ".yml" else load_config_data(str(path))
    except AttributeError as error:
        raise ConfigFileError(f"{path.name} defines no dict called `config`") from error
    except Exception as error:
        raise ConfigFileError(f"{path.name} cannot be read: {type(error).__name__}: {error}") from error
    for override in overrides:
        apply_override(cfg, override)
    return cfg


def _load_yml(path: Path) -> DotMap:
    """CORDS accepts ``.yml`` and then forgets to read it."""
    import yaml

    return DotMap(yaml.safe_load(path.read_text()))


def apply_override(cfg: DotMap, override: str) -> None:
    """Apply one ``section.key=value``; the value is a Python literal or, failing that, a string."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError("--set", override, "write it as section.key=value, for instance privacy.epsilon=8")
    *sections, leaf = key.strip().split(".")
    target = cfg
    for depth, section in enumerate(sections):
        if section not in target:
            if section not in KNOWN_KEYS or depth:
                raise ConfigError(".".join(sections), text, _suggest(section, target.keys()))
            target[section] = DotMap()
        target = target[section]
    target[leaf] = _parse_value(text)


def _parse_value(text: str) -> Any:
    special = {"inf": math.inf, "true": True, "false": False, "none": None}
    if text.lower() in special:
        return special[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def check_keys(cfg: Mapping[str, Any], *, private: bool) -> None:
    """Refuse unknown sections and keys: a misspelt privacy key must not be ignored."""
    for section in cfg:
        if section not in _TOP_LEVEL:
            raise ConfigError(str(section), _short(cfg[section]), _suggest(section, _TOP_LEVEL))
    for section, known in KNOWN_KEYS.items():
        if section == "privacy":
            known = {f.name for f in fields(PrivacySettings)}
        if known is None or section not in cfg or (section == "dss_args" and not private):
            continue
        if not isinstance(cfg[section], Mapping):
            raise ConfigError(section, cfg[section], "this is a section: write it as dict(...)")
        for key in cfg[section]:
            if key not in known:
                raise ConfigError(f"{section}.{key}", _short(cfg[section][key]), _suggest(key, known))


def _suggest(key: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(key), list(known), n=1)
    return f"unknown key; did you mean {close[0]!r}?" if close else f"unknown key; known are {sorted(known)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def privacy_settings(cfg: Mapping[str, Any]) -> PrivacySettings:
    """Read and check the ``privacy`` section."""
    section = dict(cfg.get("privacy") or {})
    if "epsilon" not in section:
        raise ConfigError("privacy.epsilon", None, "a private strategy needs a budget: privacy=dict(epsilon=3.0)")
    settings = PrivacySettings(**section)
    _number("privacy.epsilon", settings.epsilon, low=0, infinite=True)
    if settings.delta is not None:
        _number("privacy.delta", settings.delta, low=0, high=1)
    if settings.split is not None:
        _number("privacy.split", settings.split, low=0, high=1)
    for name in ("max_grad_norm", "selection_clip", "validation_clip"):
        _number(f"privacy.{name}", getattr(settings, name), low=0)
    if settings.validation_noise is not None:
        _number("privacy.validation_noise", settings.validation_noise, low=0)
    _number("privacy.ema_decay", settings.ema_decay, low=0, high=1, low_included=True)
    _one_of("privacy.composition", settings.composition, ("joint", "basic"))
    _one_of(
        "privacy.selection_composition",
        settings.selection_composition,
        (None, "paper", "bounded_range", "freeze"),
    )
    _one_of("privacy.validation", settings.validation, ("private", "public"))
    _one_of("privacy.clipping", settings.clipping, ("flat", "automatic"))
    _one_of("privacy.accountant", settings.accountant, ("auto", "prv", "pld", "rdp"))
    _one_of("privacy.grad_sample_mode", settings.grad_sample_mode, GRAD_SAMPLE_MODES)
    for name in ("poisson_sampling", "labels_public", "exact_metrics"):
        _flag(f"privacy.{name}", getattr(settings, name))
    for name in ("max_physical_batch_size", "augmentations"):
        _whole(f"privacy.{name}", getattr(settings, name))
    if not settings.poisson_sampling:
        raise ConfigError(
            "privacy.poisson_sampling",
            False,
            "the accounting holds for Poisson batches only; remove the key or set it to True",
        )
    return settings


def selection_settings(cfg: Mapping[str, Any], *, selects: bool, whole: bool) -> SelectionSettings:
    """Read and check ``dss_args``. ``whole``: the strategy trains on all of D; ``selects``: it scores D."""
    section = cfg.get("dss_args") or {}
    names = {f.name for f in fields(SelectionSettings)}
    names.discard("reads_validation")
    given = {key: section[key] for key in section if key in names and section[key] is not None}
    if given.get("score", "glister") != "glister":
        given.setdefault("mechanism", "threshold")
    settings = SelectionSettings(**given)
    if not whole:
        if "fraction" not in given:
            raise ConfigError("dss_args.fraction", None, "say which share of the data to train on, e.g. 0.1")
        _number("dss_args.fraction", settings.fraction, low=0, high=1, high_included=True)
        _number("dss_args.kappa", settings.kappa, low=0, high=1, low_included=True)
    _number("dss_args.compute_fraction", settings.compute_fraction, low=0, high=1, high_included=True)
    if settings.compute_fraction != 1 and not whole:
        raise ConfigError(
            "dss_args.compute_fraction",
            settings.compute_fraction,
            "only FullDP takes it: use dss_args.fraction",
        )
    _whole("dss_args.select_every", settings.select_every)
    _flag("dss_args.publish_subset", settings.publish_subset)
    _flag("dss_args.secret_subset", settings.secret_subset)
    if settings.secret_subset and (cfg.get("ckpt") or {}).get("is_load"):
        raise ConfigError("ckpt.is_load", True, "a run on a secret subset cannot be resumed: no file holds the subset")
    if settings.publish_subset and (
        whole or settings.secret_subset or (selects and settings.mechanism in SECRET_POOLS)
    ):
        raise ConfigError(
            "dss_args.publish_subset",
            True,
            "the pool of this strategy is secret state of the training mechanism (or all records); to publish a subset "
            "use RandomDP, or GLISTERDP with mechanism 'top_k' or 'exponential'",
        )
    if selects:
        _one_of("dss_args.mechanism", settings.mechanism, MECHANISMS)
        _one_of("dss_args.greedy", settings.greedy, GREEDY_VARIANTS)
        _whole("dss_args.r", settings.r)
        _flag("dss_args.linear_layer", settings.linear_layer)
        for name in ("greedy_rounds", "projection", "bins"):
            _whole(f"dss_args.{name}", getattr(settings, name))
        _number("dss_args.greedy_step", settings.greedy_step, low=0, low_included=True)
        _number("dss_args.exploration", settings.exploration, low=0, high=1, low_included=True)
        if settings.concentration is not None:
            limit = 1 / settings.fraction  # a fixed subset of k records comes n/k times as often
            _number(
                "dss_args.concentration",
                settings.concentration,
                low=1,
                high=limit,
                low_included=True,
                high_included=True,
            )
    return settings


def check_training(cfg: Mapping[str, Any]) -> tuple[int, int | None]:
    """Check what every run needs; return (epochs, batch size or None where the plan chooses it)."""
    for section in ("dataset", "dataloader", "model", "dss_args", "train_args", "optimizer", "loss"):
        if not cfg.get(section):
            raise ConfigError(section, None, "this section is missing; see configs/ for complete examples")
    epochs = _whole("train_args.num_epochs", cfg["train_args"].get("num_epochs"))
    batch = cfg["dataloader"].get("batch_size")
    if batch != AUTO:
        _whole("dataloader.batch_size", batch)
    _whole("train_args.print_every", cfg["train_args"].get("print_every", 1))
    if cfg["optimizer"].get("lr") != AUTO:
        _number("optimizer.lr", cfg["optimizer"].get("lr"), low=0)
    return epochs, None if batch == AUTO else batch


def to_plain(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """A config as plain dicts, without live objects, ready for YAML or JSON."""
    plain = cfg.toDict() if isinstance(cfg, DotMap) else copy.copy(dict(cfg))
    return {key: _plain_value(value) for key, value in plain.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__name__", type(value).__name__)


def config_digest(cfg: Mapping[str, Any]) -> str:
    """A hash of what decides the gradients: one seed must not give two different trainings the same noise."""
    plain = to_plain(cfg)
    plain.get("dataset", {}).pop("datadir", None)
    decisive = {key: plain.get(key) for key in ("dataset", "model", "loss", "optimizer", "scheduler")}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


# --- checks of single values ---------------------------------------------------------------------


def _number(
    key: str,
    value: Any,
    *,
    low: float,
    high: float = math.inf,
    infinite: bool = False,
    low_included: bool = False,
    high_included: bool = False,
) -> float:
    interval = f"{'[' if low_included else '('}{low:g}, {high:g}{']' if high_included or infinite else ')'}"
    fix = f"must be a number in {interval}"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ConfigError(key, value, fix)
    if math.isinf(value):
        if infinite and value > 0:
            return float(value)
        raise ConfigError(key, value, fix)
    if value < low or (value == low and not low_included):
        raise ConfigError(key, value, fix)
    if value > high or (value == high and not high_included):
        raise ConfigError(key, value, fix)
    return float(value)


def _whole(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(key, value, "must be a whole number of at least 1")
    return value


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(key, value, "must be True or False")
    return value


def _one_of(key: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise ConfigError(key, value, f"must be one of {', '.join(map(repr, choices))}")
    return value
