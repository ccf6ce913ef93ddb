"""Every key of a config, with the check of its value: CORDS' own keys, those of its train loops, and ours.

None is the same as leaving a key out. What depends on two keys, on a mechanism or on the data is checked where it is
used; here stands what can be said about a value by itself.

What the keys of a config mean that have no settings class of their own, for the configuration reference.

Keys of ``privacy`` and the common ones of ``dss_args`` are explained in `config.settings`, those of a mechanism in its
docstring. `config.keys` says what values each may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cords_dp.config.values import file_name, flag, function, list_of, number, one_of, path, text, whole
from cords_dp.errors import ConfigError

AUTO = "auto"  # optimizer.lr and dataloader.batch_size that follow the plan
# A schedule, a layer and a data set of more than this are slips of the keyboard that would fill the memory.
MOST_EPOCHS, _WIDEST, _MOST_SAMPLES, _LONGEST = 100_000, 100_000, 10_000_000, 10_000
_GREEDY = ("Naive", "RGreedy", "Stochastic", "Frozen")  # CORDS' three and ours
_LARGEST = 1e9  # a rate beyond it overflows in a step or two

Check = Callable[[str, Any], Any]

_positive = partial(number, low=0)
_count = partial(whole, high=10**9)
_size = partial(whole, high=_WIDEST)
_share = partial(number, low=0, high=1, high_included=True)
_part = partial(number, low=0, high=1)
_rate = partial(number, low=0, high=_LARGEST)


def _any(key: str, value: Any) -> Any:
    return value


def _section(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "must be a dict")
    return value


def _auto_or(check: Check) -> Check:
    def checked(key: str, value: Any) -> Any:
        return value if isinstance(value, str) and value == AUTO else check(key, value)

    return checked


def _range(key: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(key, value, "must be two shares, the lowest and the highest, such as (0.8, 1.0)")
    low, high = list_of(key, value, _share)
    if low > high:
        raise ConfigError(key, value, "the first share must not exceed the second")
    return value


def _milestones(key: str, value: Any) -> Any:
    milestones = list_of(key, value, _count)
    if list(milestones) != sorted(set(milestones)):
        raise ConfigError(key, value, "must be epochs in ascending order")
    return value


# CORDS' names of supervised learning, and what to do about a config for something else.
_SUPERVISED = ("SL", "supervisedlearning")
_OTHER_SETTINGS = {
    "SSL": "semi-supervised training looks at records without labels too, outside of the mechanisms that are proved "
    "here; use a config of CORDS' configs/SL, whose setting is 'SL'",
    "hyperparamtuning": "this file says how to tune, not how to train; train the config that its subset_config names "
    "(docs/from-cords.md)",
}
# Sections that CORDS' notebooks write to and CORDS never reads, with the section that was meant.
DEAD_SECTIONS = {"dss_strategy": "dss_args"}


def check_setting(key: str, value: Any) -> Any:
    if isinstance(value, str) and value in _OTHER_SETTINGS:
        raise ConfigError(key, value, _OTHER_SETTINGS[value])
    return one_of(key, value, choices=_SUPERVISED)


TOP_LEVEL: dict[str, Check] = {"setting": check_setting, "is_reg": flag, "report_tune": flag}

# None: the section is read into a class of its own (`config.settings.PrivacySettings`).
KEYS: dict[str, Mapping[str, Check] | None] = {
    "dataset": {
        "name": file_name, "datadir": path, "feature": text, "type": text, "classimb_ratio": _part,
        "balanced_validation": flag, "num_samples": partial(whole, low=20, high=_MOST_SAMPLES), "ss_path": path,
        "use_ss_if_exists": flag, "max_length": partial(whole, high=_LONGEST),
        "data_dir": path, "wordvec_dim": _size, "weight_path": path, "validation_fraction": _part,
        "test_from_train": _part,
        "class_separation": partial(number, low=0, high=1e6), "keep_range": _range,
        "cut_classes": partial(list_of, check=partial(whole, low=0, high=10**6)), "cut_share": _share,
        "inverted_share": _share,
        "rotated_share": _share,
        "label_noise": partial(number, low=0, high=1, low_included=True),
        "label_noise_kind": partial(one_of, choices=("pair", "random")),
    },
    "dataloader": {
        "shuffle": flag, "batch_size": _auto_or(_count), "pin_memory": flag, "collate_fn": function,
    },
    "model": {
        "architecture": text, "type": text, "numclasses": _size, "num_classes": _size, "input_dim": _size,
        "h1": _size, "h2": _size, "l1": _size, "l2": _size, "wordvec_dim": _size, "weight_path": path,
        "num_layers": _size, "hidden_size": _size, "args": _section, "features": text, "weights": path,
        "feature_cache": flag,
    },
    "ckpt": {"is_load": flag, "is_save": flag, "dir": path, "save_every": _count},
    "loss": {"type": text, "use_sigmoid": flag},
    "optimizer": {
        "type": text, "momentum": partial(number, low=0, high=1, low_included=True), "lr": _auto_or(_rate),
        "lr1": _rate, "lr2": _rate, "lr3": _rate, "weight_decay": partial(number, low=0, high=_LARGEST,
        low_included=True), "nesterov": flag, "lr_scale": partial(number, low=0, high=100),
    },
    "scheduler": {
        "type": text, "T_max": _count, "T_0": _count, "T_mult": _count, "stepsize": _count, "step_size": _count,
        "gamma": _share, "milestones": _milestones, "max_steps": _count,
    },
    "dss_args": {
        "type": file_name, "mechanism": text, "score": text, "collate_fn": function, "fraction": _share,
        "select_every": _count, "kappa": partial(number, low=0, high=1, low_included=True),
        # CORDS' own
        "linear_layer": flag, "selection_type": text, "greedy": partial(one_of, choices=_GREEDY), "r": _positive,
        "lam": partial(number, low=0, low_included=True), "valid": flag, "v1": flag, "eps": _positive,
        "temperature": _positive, "per_class": flag, "global_order_file": path, "gc_ratio": _positive,
        "gc_stochastic_subsets_file": path, "stochastic_subsets_file": path, "submod_function": text,
        "if_convex": flag, "size_chunk": _count,
    },
    "train_args": {
        "num_epochs": partial(whole, high=MOST_EPOCHS), "device": _any, "print_every": _count,
        "run": partial(_count, low=0), "results_dir": path, "wandb": flag, "tensorboard": flag,
        "print_args": _any, "return_args": _any,
        "seed": partial(whole, low=0, high=2**63 - 1),
        "shares": partial(list_of, check=partial(number, low=0, high=1e12, low_included=True)),
    },
    "privacy": None,
}  # fmt: skip

# The keys of ``dataset`` that a source of records of the user's own reads, by its name (`datasets.sources`).
SOURCE_KEYS: dict[str, Mapping[str, Check]] = {}
_OF_ANY_SOURCE = ("name", "datadir", "feature", "type")


def section_checks(section: str, values: Mapping[str, Any]) -> Mapping[str, Check] | None:
    """The keys that a section may have, with their checks. Those of ``dataset`` depend on its name."""
    checks, name = KEYS[section], values.get("name")
    if section != "dataset" or checks is None or not isinstance(name, str) or name not in SOURCE_KEYS:
        return checks
    return {**{key: checks[key] for key in _OF_ANY_SOURCE}, **SOURCE_KEYS[name]}


def check_values(cfg: Mapping[str, Any]) -> None:
    """Check every value that is given, one by one. Keys that are not known here are left to others."""
    for key, check in TOP_LEVEL.items():
        if cfg.get(key) is not None:
            check(key, cfg[key])
    for section in KEYS:
        values = cfg.get(section) or {}
        for key, check in (section_checks(section, values) or {}).items():
            if values.get(key) is not None:
                check(f"{section}.{key}", values[key])


TOP_LEVEL_WORDS = {
    "setting": "supervised learning, which is all that is private here",
    "is_reg": "CORDS' flag for a regression; `loss.type` decides what is trained",
    "report_tune": "report the accuracy to Ray Tune after each evaluation, as CORDS' tuning does",
}

SECTION_WORDS = {
    "dataset": "Which records, and where they lie.",
    "dataloader": "Batches. Private strategies draw each batch anew, by independent coins (Poisson).",
    "model": "What is trained.",
    "ckpt": "CORDS' checkpoint; the ledger lies beside it.",
    "loss": "What is minimised.",
    "optimizer": "How steps are taken.",
    "scheduler": "How the learning rate changes.",
    "dss_args": "The strategy: which records to train on.",
    "train_args": "How long, where, and what is logged.",
    "privacy": "The budget and everything that concerns it. Without this section nothing is private.",
}

KEY_WORDS: dict[str, dict[str, str]] = {
    "dataset": {
        "name": "a published set, a source of your own records, or any name if you hand the records over",
        "datadir": "where data and cached features are kept",
        "feature": "`dss` as it is, `classimb` some classes cut, `mildimb` each a little, `shift` D changed as below",
        "type": "CORDS' kind of records: `image`, `tabular`, `text`",
        "classimb_ratio": "with `feature=\"classimb\"`: the share of the classes that is cut to a tenth",
        "balanced_validation": "keep the validation set balanced while classes are cut",
        "num_samples": "records of the synthetic set",
        "class_separation": "how far apart the two classes of the synthetic set lie",
        "keep_range": "with `feature=\"mildimb\"`: between which shares each class keeps its records",
        "ss_path": "CORDS' folder of self-supervised features; not used by private strategies",
        "use_ss_if_exists": "CORDS' switch for them; not used by private strategies",
        "max_length": "words, or for a text source bytes, to which every text is cut or filled up",
        "data_dir": "where a text set of CORDS lies",
        "wordvec_dim": "dimensions of the word vectors",
        "weight_path": "the folder of GloVe's word vectors",
        "validation_fraction": "the share of the records that becomes the validation set V",
        "test_from_train": "test on this share of the training records instead of the test set: for choosing settings",
        "cut_classes": "classes of which only a part is kept in D",
        "cut_share": "which part of them is kept",
        "inverted_share": "the share of D whose images are inverted",
        "rotated_share": "the share of D whose images are turned",
        "label_noise": "the share of D's labels that are made wrong",
        "label_noise_kind": "`pair` moves a label to the next class, `random` to any",
    },
    "dataloader": {
        "shuffle": "CORDS' switch; Poisson batches have no order",
        "batch_size": "the expected size of a batch; `\"auto\"` lets the plan choose",
        "pin_memory": "as in torch",
        "collate_fn": "how records become a batch; of a private strategy it is given one record at a time",
    },
    "model": {
        "architecture": "the network: CORDS', one of ours, or a registered one (models.md)",
        "type": "CORDS' kind, `pre-defined`",
        "numclasses": "how many classes there are",
        "num_classes": "CORDS' other spelling",
        "input_dim": "the length of a record",
        "h1": "width of the first hidden layer", "h2": "width of the second hidden layer",
        "l1": "width of the first linear layer of CORDS' HyperParamNet", "l2": "CORDS' second layer of a text network",
        "wordvec_dim": "dimensions of the word vectors",
        "weight_path": "the folder of GloVe's word vectors",
        "num_layers": "layers of the LSTM",
        "hidden_size": "width of the LSTM",
        "args": "further arguments of the architecture",
        "features": "frozen features below the head: `scattering`, `leaves` (`leaves:mirrored`: images that mean the "
        "same in a mirror), `torchvision:NAME`, `sentence:FOLDER`, your own",
        "weights": "a file with the backbone's weights",
        "feature_cache": "keep the records' features on disk, for their owner alone",
    },
    "ckpt": {
        "is_load": "go on from the last checkpoint (`--resume`)",
        "is_save": "write checkpoints",
        "dir": "where",
        "save_every": "every so many epochs",
    },
    "loss": {
        "type": "`CrossEntropyLoss`, or `MeanSquaredLoss` for a regression",
        "use_sigmoid": "CORDS' switch; means nothing to these losses",
    },
    "optimizer": {
        "type": "`sgd`, `adam`, `adamw` or `rmsprop`",
        "momentum": "of SGD",
        "lr": "the learning rate; `\"auto\"` lets the plan choose (heads on features of known length)",
        "lr1": "CORDS' rate of a network's first part", "lr2": "of the second part", "lr3": "of the third part",
        "weight_decay": "shrinks the weights in each step; costs no privacy",
        "nesterov": "of SGD",
        "lr_scale": "multiplies an automatic rate: what `reproduce rates` compares",
    },
    "scheduler": {
        "type": "`cosine_annealing` (also `_WS`, `_step`), `linear_decay`, `StepLR`, `multistep` or `None`",
        "T_max": "epochs of a half cosine",
        "T_0": "epochs before the first restart",
        "T_mult": "by which the time between restarts grows",
        "stepsize": "epochs between steps of the rate", "step_size": "the same, torch's spelling",
        "gamma": "by which a step multiplies the rate",
        "milestones": "epochs of the steps",
        "max_steps": "steps of the whole schedule",
    },
    "dss_args": {
        "type": "the strategy: `FullDP`, `RandomDP`, `GLISTERDP`, `ClassWeightsDP`, `GroupRatesDP`, or CORDS' own",
        "mechanism": "how `GLISTERDP` chooses; each has keys of its own, below. An error for strategies that select "
        "nothing (`FullDP`, `RandomDP`), as are those keys",
        "score": "what a record is worth: `glister`, `el2n`, `grad_norm`, or a registered one",
        "collate_fn": "as in `dataloader`",
        "fraction": "the share of the records to train on in each epoch",
        "select_every": "select anew every so many epochs",
        "kappa": "the share of the epochs before the first selection",
        "linear_layer": "score by the last layer's weights too, not its bias alone",
        "selection_type": "`Supervised`, `PerClass`, or another of CORDS' groupings",
        "greedy": "how picks follow each other",
        "r": "rounds of RGreedy",
    },
    "train_args": {
        "num_epochs": "how many epochs",
        "device": "`cpu`, `cuda` or `cuda:N`; `cuda` falls back to the CPU",
        "print_every": "evaluate every so many epochs",
        "run": "a number of the run, part of CORDS' log path",
        "results_dir": "where logs and checkpoints go",
        "wandb": "send the rows of metrics.csv to Weights & Biases; call `wandb.init` before",
        "tensorboard": "write the rows of metrics.csv for TensorBoard",
        "print_args": "what CORDS' log lines show; exact metrics of private records are left out",
        "return_args": "changes nothing, as in CORDS",
        "seed": "fixes the data split and the initial weights, never noise",
        "shares": "with torchrun: which part of the records each process keeps",
    },
}  # fmt: skip
OF_CORDS = "an argument of CORDS' own strategies, which private ones do not use; those that select name it in the log"

# Keys of sources of one's own records, where the source's docstring does not explain them.
SOURCE_WORDS = {
    "path": "the file or folder",
    "labels": "the file of y, where `path` holds x alone",
    "classes": "names of the classes, in the order of the labels, or how many there are",
    "target": "the column to predict",
    "text": "the column of texts",
    "image": "the column of images",
    "columns": "columns of numbers",
    "size": "pixels a side that images are brought to",
    "channels": "1 for grey, 3 for colour",
    "mean": "constants by which pixels are normalised",
    "std": "constants by which pixels are normalised",
    "max_length": "bytes to which every text is cut",
    "validation_fraction": "the share that becomes the validation set V",
    "test_fraction": "the share that becomes the test set, which is public",
    "validation_path": "a file of its own for V",
    "test_path": "a file of its own for the test set",
    "cache": "keep a compact copy below `datadir`, for its owner alone",
    "binning": "bins of numeric columns for which the schema has none",
    "cut_values": "values of `cut_column` whose records are cut",
    "cut_column": "the column by which records of D are cut",
    "cut_share": "which part of them is kept",
}  # fmt: skip
