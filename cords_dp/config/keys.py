"""The table of a config's keys, by section: the check of each value, its default and its meaning, once.

CORDS' own keys, those of its train loops, and ours. ``privacy`` and the common keys of ``dss_args`` are the fields of
the classes in `config.settings`; a mechanism's own keys are its fields, those of a source stand in its ``keys``. The
code that reads a config, fills in defaults, checks, suggests and explains is made from this table.

None is the same as leaving a key out. What depends on two keys, on a mechanism or on the data is checked where it is
used; here stands what can be said about a value by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from functools import partial
from typing import Any, NamedTuple

from cords_dp.config.settings import (
    AUTO,
    PRIVATE,
    PUBLIC,
    UNREAD,
    PrivacySettings,
    SubsetSettings,
    count,
    part_or_none,
    share,
)
from cords_dp.config.values import (
    Check,
    Key,
    anything,
    check_keys,
    file_name,
    flag,
    function,
    keys_of,
    list_of,
    number,
    one_of,
    path,
    section,
    text,
    whole,
)
from cords_dp.errors import ConfigError, Problems

# A schedule, a layer and a data set of more than this are slips of the keyboard that would fill the memory.
MOST_EPOCHS, _WIDEST, _MOST_SAMPLES, _LONGEST = 100_000, 100_000, 10_000_000, 10_000
_LARGEST = 1e9  # a rate beyond it overflows in a step or two
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
LOSSES = ("CrossEntropyLoss", "MeanSquaredLoss")

_positive = partial(number, low=0)
_size = partial(whole, high=_WIDEST)
_part = partial(number, low=0, high=1)
_part_or_none = partial(number, low=0, high=1, low_included=True)
_rate = partial(number, low=0, high=_LARGEST)


class Section(NamedTuple):
    """A section's purpose and its keys."""

    doc: str
    keys: Mapping[str, Key]


def _auto_or(check: Check) -> Check:
    def checked(key: str, value: Any) -> Any:
        return value if isinstance(value, str) and value == AUTO else check(key, value)

    return checked


def _range(key: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(key, value, "must be two shares, the lowest and the highest, such as (0.8, 1.0)")
    low, high = list_of(key, value, share)
    if low > high:
        raise ConfigError(key, value, "the first share must not exceed the second")
    return value


def _milestones(key: str, value: Any) -> Any:
    milestones = list_of(key, value, count)
    if list(milestones) != sorted(set(milestones)):
        raise ConfigError(key, value, "must be epochs in ascending order")
    return value


# What to do about a config for something else than supervised learning.
_OTHER_SETTINGS = {
    "SSL": "semi-supervised training looks at records without labels too, outside of the mechanisms that are proved "
    "here; use a config of CORDS' configs/SL, whose setting is 'SL'",
    "hyperparamtuning": "this file says how to tune, not how to train; train the config that its subset_config names "
    "(docs/from-cords.md)",
}


def _setting(key: str, value: Any) -> Any:
    if isinstance(value, str) and value in _OTHER_SETTINGS:
        raise ConfigError(key, value, _OTHER_SETTINGS[value])
    return one_of(key, value, choices=("SL", "supervisedlearning"))


# fmt: off
TOP_LEVEL: Mapping[str, Key] = {
    "setting": Key(_setting, "SL", "supervised learning, which is all that is private here"),
    "is_reg": Key(flag, None, "CORDS' flag for a regression; `loss.type` decides what is trained"),
    "report_tune": Key(flag, None, "report the accuracy to Ray Tune after each evaluation, as CORDS' tuning does"),
}

# Arguments of CORDS' strategies. They stand in every CORDS config and must not hinder a swap by one word.
CORDS_STRATEGY_KEYS: Mapping[str, Key] = {
    "linear_layer": Key(flag), "selection_type": Key(text), "r": Key(_positive),
    "greedy": Key(partial(one_of, choices=("Naive", "RGreedy", "Stochastic", "Frozen"))),  # CORDS' three and ours
    "lam": Key(partial(number, low=0, low_included=True)), "valid": Key(flag), "v1": Key(flag), "eps": Key(_positive),
    "temperature": Key(_positive), "per_class": Key(flag), "global_order_file": Key(path), "gc_ratio": Key(_positive),
    "gc_stochastic_subsets_file": Key(path), "stochastic_subsets_file": Key(path), "submod_function": Key(text),
    "if_convex": Key(flag), "size_chunk": Key(count), "kw": Key(anything), "batch_sampler": Key(anything),
    "delta": Key(anything), "optimizer": Key(anything), "data_type": Key(anything),
}
# Of every strategy and mechanism.
COMMON_STRATEGY_KEYS: Mapping[str, Key] = {
    "type": Key(
        file_name, MISSING,
        "the strategy: `FullDP`, `RandomDP`, `GLISTERDP`, the rivals `ClassWeightsDP`, `BalancedSoftmaxDP`, "
        "`ForwardCorrectionDP` and `GroupRatesDP`, or CORDS' own",
    ),
    "mechanism": Key(
        text, None,
        "how `GLISTERDP` chooses; each has keys of its own, below. An error for strategies that select nothing "
        "(`FullDP`, `RandomDP`), as are those keys",
    ),
    "collate_fn": Key(function, None, "as in `dataloader`"),
    **keys_of(SubsetSettings),
}

SECTIONS: Mapping[str, Section] = {
    "dataset": Section("Which records, and where they lie.", {
        "name": Key(
            file_name, "custom",
            "a published set, a source of your own records, or any name if you hand the records over",
        ),
        "datadir": Key(path, None, "where data and cached features are kept"),
        "feature": Key(
            text, None,
            "`dss` as it is, `classimb` some classes cut, `mildimb` each a little, `shift` D changed as "
            "below",
        ),
        "type": Key(text, None, "CORDS' kind of records: `image`, `tabular`, `text`"),
        "classimb_ratio": Key(
            _part, None,
            'with `feature="classimb"`: the share of the classes that is cut to a tenth',
        ),
        "balanced_validation": Key(flag, None, "keep the validation set balanced while classes are cut"),
        "num_samples": Key(
            partial(whole, low=20, high=_MOST_SAMPLES), None,
            "take only this many records of a published set's training records; or the size of the synthetic set",
        ),
        "ss_path": Key(path, None, "CORDS' folder of self-supervised features; not used by private strategies"),
        "use_ss_if_exists": Key(flag, None, "CORDS' switch for them; not used by private strategies"),
        "max_length": Key(
            partial(whole, high=_LONGEST), None,
            "words, or for a text source bytes, to which every text is cut or filled up",
        ),
        "data_dir": Key(path, None, "where a text set of CORDS lies"),
        "wordvec_dim": Key(_size, None, "dimensions of the word vectors"),
        "weight_path": Key(path, None, "the folder of GloVe's word vectors"),
        "validation_fraction": Key(
            _part_or_none, None,
            "the share of the records that becomes the validation set V; left out, a tenth where V is read, else none",
        ),
        "test_from_train": Key(
            _part, None,
            "test on this share of the training records instead of the test set: for choosing settings",
        ),
        "test": Key(
            partial(one_of, choices=(PRIVATE, PUBLIC, UNREAD)), None,
            "the test set: `private`, of which a run releases noisy counts once, at its end, under its own (ε, δ), and "
            "every metric with an interval from them; `public`, a declaration: exact metrics are shown; `unread`, kept "
            "apart. Left out: `private` for records of your own, `public` for published sets and those handed over",
        ),
        "class_separation": Key(
            partial(number, low=0, high=1e6), None,
            "how far apart the two classes of the synthetic set lie",
        ),
        "keep_range": Key(_range, None, 'with `feature="mildimb"`: between which shares each class keeps its records'),
        "cut_classes": Key(
            partial(list_of, check=partial(whole, low=0, high=10**6)), None,
            "classes of which only a part is kept in D",
        ),
        "cut_share": Key(share, None, "which part of them is kept"),
        "inverted_share": Key(share, None, "the share of D whose images are inverted"),
        "rotated_share": Key(share, None, "the share of D whose images are turned"),
        "clean_share": Key(share, None, "the share of D's records that are left as they are, as V's are"),
        "only_share": Key(share, None, "so large a share of D is all of it, left as it is, as V is"),
        "label_noise": Key(part_or_none, None, "the share of D's labels that are made wrong"),
        "label_noise_kind": Key(
            partial(one_of, choices=("pair", "random")), None,
            "`pair` moves a label to the next class, `random` to any",
        ),
    }),
    "dataloader": Section("Batches. Private strategies draw each batch anew, by independent coins (Poisson).", {
        "shuffle": Key(flag, None, "CORDS' switch; Poisson batches have no order"),
        "batch_size": Key(_auto_or(count), MISSING, 'the expected size of a batch; `"auto"` lets the plan choose'),
        "pin_memory": Key(flag, None, "as in torch"),
        "collate_fn": Key(
            function, None,
            "how records become a batch; of a private strategy it is given one record at a time",
        ),
    }),
    "model": Section("What is trained.", {
        "architecture": Key(text, None, "the network: CORDS', one of ours, or a registered one (models.md)"),
        "type": Key(text, None, "CORDS' kind, `pre-defined`"),
        "numclasses": Key(_size, None, "how many classes there are"),
        "num_classes": Key(_size, None, "CORDS' other spelling"),
        "input_dim": Key(_size, None, "the length of a record"),
        "h1": Key(_size, None, "width of the first hidden layer"),
        "h2": Key(_size, None, "width of the second hidden layer"),
        "l1": Key(_size, None, "width of the first linear layer of CORDS' HyperParamNet"),
        "l2": Key(_size, None, "CORDS' second layer of a text network"),
        "wordvec_dim": Key(_size, None, "dimensions of the word vectors"),
        "weight_path": Key(path, None, "the folder of GloVe's word vectors"),
        "num_layers": Key(_size, None, "layers of the LSTM"),
        "hidden_size": Key(_size, None, "width of the LSTM"),
        "args": Key(section, None, "further arguments of the architecture"),
        "features": Key(
            text, None,
            "frozen features below the head: `scattering`, `leaves` (`leaves:mirrored`, `leaves:steady`: "
            "images that mean the same in a mirror), `torchvision:NAME`, `sentence:FOLDER`, your own",
        ),
        "weights": Key(path, None, "a file with the backbone's weights"),
        "feature_cache": Key(flag, None, "keep the records' features on disk, for their owner alone"),
    }),
    "ckpt": Section("CORDS' checkpoint; the ledger lies beside it.", {
        "is_load": Key(flag, False, "continue from the last checkpoint (`--resume`)"),
        "is_save": Key(flag, False, "write checkpoints"),
        "dir": Key(path, "results/", "where"),
        "save_every": Key(count, 1, "every so many epochs"),
    }),
    "loss": Section("What is minimised.", {
        "type": Key(
            partial(one_of, choices=LOSSES), MISSING,
            "`CrossEntropyLoss`, or `MeanSquaredLoss` for a regression",
        ),
        "use_sigmoid": Key(flag, None, "CORDS' switch; means nothing to these losses"),
    }),
    "optimizer": Section("How steps are taken.", {
        "type": Key(partial(one_of, choices=OPTIMIZERS), MISSING, "`sgd`, `adam`, `adamw` or `rmsprop`"),
        "momentum": Key(part_or_none, None, "of SGD"),
        "lr": Key(
            _auto_or(_rate), MISSING,
            'the learning rate; `"auto"` lets the plan choose (heads on features of known length)',
        ),
        "lr1": Key(_rate, None, "CORDS' rate of a network's first part"),
        "lr2": Key(_rate, None, "of the second part"),
        "lr3": Key(_rate, None, "of the third part"),
        "weight_decay": Key(
            partial(number, low=0, high=_LARGEST, low_included=True), None,
            "shrinks the weights in each step; costs no privacy",
        ),
        "nesterov": Key(flag, None, "of SGD"),
        "lr_scale": Key(
            partial(number, low=0, high=100), None,
            "multiplies an automatic rate: what `reproduce rates` compares",
        ),
    }),
    "scheduler": Section("How the learning rate changes.", {
        "type": Key(
            text, None,
            "`cosine_annealing` (also `_WS`, `_step`), `linear_decay`, `StepLR`, `multistep` or `None`",
        ),
        "T_max": Key(count, None, "epochs of a half cosine"),
        "T_0": Key(count, None, "epochs before the first restart"),
        "T_mult": Key(count, None, "by which the time between restarts grows"),
        "stepsize": Key(count, None, "epochs between steps of the rate"),
        "step_size": Key(count, None, "the same, torch's spelling"),
        "gamma": Key(share, None, "by which a step multiplies the rate"),
        "milestones": Key(_milestones, None, "epochs of the steps"),
        "max_steps": Key(count, None, "steps of the whole schedule"),
    }),
    "dss_args": Section("The strategy: which records to train on.", {**COMMON_STRATEGY_KEYS, **CORDS_STRATEGY_KEYS}),
    "train_args": Section("How long, where, and what is logged.", {
        "num_epochs": Key(partial(whole, high=MOST_EPOCHS), MISSING, "how many epochs"),
        "device": Key(anything, None, "`cpu`, `cuda` or `cuda:N`; `cuda` falls back to the CPU"),
        "print_every": Key(count, 1, "evaluate every so many epochs"),
        "run": Key(partial(count, low=0), 1, "a number of the run, part of CORDS' log path"),
        "results_dir": Key(path, "results/", "where logs and checkpoints go"),
        "wandb": Key(flag, None, "send the rows of metrics.csv to Weights & Biases; call `wandb.init` before"),
        "tensorboard": Key(flag, None, "write the rows of metrics.csv for TensorBoard"),
        "print_args": Key(anything, None, "what CORDS' log lines show; exact metrics of private records are left out"),
        "return_args": Key(anything, None, "changes nothing, as in CORDS"),
        "metrics": Key(
            anything, None,
            "what is measured on the test set when a run ends: `accuracy` (with the base rate), `balanced_accuracy`, "
            "`auc`, `average_precision`, `log_loss`, `calibration_error`, `by_class`, `confusion_matrix`; of a "
            "regression `rmse`, `mae`, `r2`. Default: all",
        ),
        "metrics_by": Key(text, None, "a categorical column of the table: the metrics of each of its groups besides"),
        "seed": Key(
            partial(whole, low=0, high=2**63 - 1), None,
            "fixes the data split and the initial weights, never noise",
        ),
        "shares": Key(
            partial(list_of, check=partial(number, low=0, high=1e12, low_included=True)), None,
            "with torchrun: which part of the records each process keeps",
        ),
    }),
    "privacy": Section(
        "The budget and everything that concerns it. Without this section nothing is private.",
        keys_of(PrivacySettings),
    ),
}
# fmt: on
KEYS: Mapping[str, Mapping[str, Key]] = {name: found.keys for name, found in SECTIONS.items()}
# Sections that CORDS' notebooks write to and CORDS never reads, with the section that was meant.
DEAD_SECTIONS = {"dss_strategy": "dss_args"}

# The keys of ``dataset`` that a source of the user's own records reads, by its name (`data.sources`).
SOURCE_KEYS: dict[str, Mapping[str, Key]] = {}
_OF_ANY_SOURCE = ("name", "datadir", "feature", "type", "test")


def section_keys(name: str, values: Mapping[str, Any]) -> Mapping[str, Key]:
    """Return the keys that a section may have. Those of ``dataset`` depend on its name."""
    source = values.get("name")
    if name != "dataset" or not isinstance(source, str) or source not in SOURCE_KEYS:
        return KEYS[name]
    return {**{key: KEYS[name][key] for key in _OF_ANY_SOURCE}, **SOURCE_KEYS[source]}


def check_values(cfg: Mapping[str, Any]) -> None:
    """Check every value that is given, each by itself, and report all that are wrong."""
    problems = Problems()
    with problems.noted():
        check_keys("", cfg, TOP_LEVEL)
    for name in KEYS:
        values = cfg.get(name) or {}
        with problems.noted():
            check_keys(name, values, section_keys(name, values))
    problems.refuse()


def with_defaults(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the defaults that CORDS' constructor reads and a short config leaves out."""
    filled = {**cfg, **_filled(cfg, TOP_LEVEL)}
    for name in ("dataset", "ckpt", "train_args", "scheduler"):
        values = cfg.get(name) or {}
        filled[name] = {**values, **_filled(values, KEYS[name])}
    return filled


def _filled(given: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
    defaults = {name: key.default for name, key in keys.items() if key.default not in (None, MISSING)}
    return {name: default for name, default in defaults.items() if given.get(name) is None}
