"""The paper's experiments, and ours beside them, as data: what is varied, over which methods, at which scale."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dotmap import DotMap

from cords_dp.config import HEAD_START, PACE, PAPER_SELECTION, apply_override, config_for, merge_into, paper_model
from cords_dp.errors import ConfigError
from cords_dp.runs.jobs import Job, Work, execute
from cords_dp.studies.paper import FRACTIONS
from cords_dp.studies.works import execute_adjusted, execute_by_group

PRESETS = ("quick", "cpu", "full")


@dataclass(frozen=True)
class Method:
    """A line of a figure: a strategy, what differs in its config, and what makes a run's files."""

    strategy: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    work: Work = execute
    own_model: bool = False  # ours, where the others of its experiment have the paper's


_SPLIT_OFF = 0.1  # the share that is V for the others
_PUBLIC_V = {"privacy": {"validation": "public"}}  # as the paper takes it

METHODS: dict[str, Method] = {
    "GLISTERDP": Method("GLISTERDP"),
    "GLISTERDP draw": Method("GLISTERDP", {"dss_args": {"correction": "draw"}}),
    "GLISTERDP loss": Method("GLISTERDP", {"dss_args": {"correction": "loss"}}),
    "GLISTERDP match": Method("GLISTERDP", {"dss_args": {"mechanism": "match"}}),
    "GLISTERDP threshold": Method("GLISTERDP", {"dss_args": {"mechanism": "threshold"}}),
    "GLISTERDP top_k": Method("GLISTERDP", {"dss_args": {"mechanism": "top_k"}}),
    "GLISTERDP frozen": Method("GLISTERDP", {"dss_args": {"mechanism": "exponential", "greedy": "Frozen"}}),
    "GLISTER-DP, paper": Method("GLISTERDP", PAPER_SELECTION),
    "paper, but accounting": Method("GLISTERDP", {"dss_args": PAPER_SELECTION["dss_args"], **_PUBLIC_V}),
    "paper, but mechanism": Method("GLISTERDP", _PUBLIC_V),  # ours cannot be composed as the paper composes
    "paper, but model": Method("GLISTERDP", PAPER_SELECTION, own_model=True),
    "ours": Method("GLISTERDP", own_model=True),
    "RandomDP": Method("RandomDP"),
    "RandomDP, secret subset": Method("RandomDP", {"dss_args": {"secret_subset": True}}),
    "ClassWeightsDP": Method("ClassWeightsDP"),
    "BalancedSoftmaxDP": Method("BalancedSoftmaxDP"),
    "Logits adjusted": Method("ClassWeightsDP", {"dss_args": {"power": 0}}, execute_adjusted),
    "ForwardCorrectionDP": Method("ForwardCorrectionDP"),
    "GroupRatesDP": Method("GroupRatesDP"),
    "FullDP, equal compute": Method("FullDP"),
    "FullDP": Method("FullDP"),
    "FullDP, D and V": Method(
        "FullDP", {"dataset": {"feature": "shift", "validation_fraction": 0.0, "clean_share": _SPLIT_OFF}}
    ),
    "FullDP, V alone": Method(
        "FullDP", {"dataset": {"feature": "shift", "validation_fraction": 0.0, "only_share": _SPLIT_OFF}}
    ),
}
_USING_V = ("FullDP, D and V", "FullDP, V alone")
_RIVALS = ("ClassWeightsDP", "BalancedSoftmaxDP", "GroupRatesDP")  # of data that are shifted
_REPLACED = ("paper, but accounting", "paper, but mechanism", "paper, but model", "ours")
_HALVES = ("GLISTERDP draw", "GLISTERDP loss")
_CORRECTIONS = ("Logits adjusted", "ForwardCorrectionDP")  # rivals of the likelihood
_ALSO = (
    *_HALVES,
    *("GLISTERDP match", "GLISTERDP threshold", "GLISTERDP top_k", "GLISTERDP frozen"),
    *_RIVALS,
    *_CORRECTIONS,
    *_REPLACED,
    *_USING_V,
)
_SHIFTED = (
    "GLISTERDP",
    *_HALVES,
    "GLISTERDP match",
    "GLISTERDP threshold",
    "RandomDP",
    *_RIVALS,
    *_CORRECTIONS,
    "FullDP, equal compute",
    "FullDP",
)
_USUAL = tuple(m for m in METHODS if m not in _ALSO)
_EQUAL = "FullDP, equal compute"
_WHOLE = ("FullDP", *_USING_V)  # does not depend on the share of the records
_READ_NO_VALIDATION = ("FullDP", "RandomDP")  # they train on all records, unless V is set apart


@dataclass(frozen=True)
class Scale:
    """How much of an experiment a preset runs."""

    datasets: tuple[str, ...]
    shares: tuple[float, ...]
    epsilons: tuple[float, ...] = (3.0,)
    seeds: int = 3
    paper_models: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """What is varied, over which methods, and how it is shown (a name in `studies.figures`)."""

    title: str
    figure: str
    scales: Mapping[str, Scale]
    methods: tuple[str, ...] = _USUAL
    changes: Mapping[str, Any] = field(default_factory=dict)
    splits: tuple[float | None, ...] = (None,)
    scenarios: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    rates: tuple[float | None, ...] = (None,)  # multiples of the planned learning rate
    first_seed: int = 0
    reference: str = ""  # the method that the others are compared with, seed by seed
    in_study: bool = True  # part of "all"; otherwise a tool for choosing settings
    groups: str = ""  # a column of a table, for whose categories accuracies are told one by one
    validation_apart: bool = False  # D is changed and V is not: no method trains on V, as in the tables reported


_SHORT = {"train_args": {"num_epochs": 10}, "dss_args": {"select_every": 5}}
_TENTHS = tuple(round(0.1 * i, 1) for i in range(1, 10))
_SPLITS = (0.1, 0.3, 0.5, 0.7, 0.9)
_BOTH = ("mnist", "cifar10")
# The paper's networks learn some hundred images a second on a CPU: few epochs, over a part of the images.
_PASSES = {"train_args": {"num_epochs": 6}, "dss_args": {"select_every": 3}}
_FEW_IMAGES = {**_PASSES, "dataset": {"feature": "mildimb", "keep_range": [0.24, 0.3]}}  # about 16,000
_FEWER_IMAGES = {**_PASSES, "dataset": {"feature": "mildimb", "keep_range": [0.048, 0.06]}}
_EACH_EPOCH = {"train_args": {"num_epochs": 4}, "dss_args": {"select_every": 1}}
_SOME_RECORDS = {**_EACH_EPOCH, "dataset": {"num_samples": 5000}, "dataloader": {"batch_size": 64}}
_FEW_RECORDS = {  # a network of this size takes minutes for the test set, so a part of them is tested on
    **_EACH_EPOCH,
    "dataset": {"num_samples": 120, "test_from_train": 0.2},
    "dataloader": {"batch_size": 2},
}
_ODD_CUT = {"cut_classes": [1, 3, 5, 7, 9], "cut_share": 0.05}
_MOVED = {"label_noise": 0.4, "label_noise_kind": "pair"}

FEW_WOMEN = {"cut_column": "sex", "cut_values": ["Female"], "cut_share": 0.05}

EXPERIMENTS: dict[str, Experiment] = {
    "main": Experiment(
        "Accuracy over subset size",
        "over_fraction",
        {
            "quick": Scale(("mnist",), (0.1, 0.3), seeds=1, changes=_SHORT),
            "cpu": Scale(_BOTH, (0.1, 0.3, 0.5), (3.0, 8.0)),
            "full": Scale(_BOTH, _TENTHS, (3.0, 8.0), seeds=5, paper_models=True),
        },
    ),
    "imbalance": Experiment(
        "Mild class imbalance: each class keeps 80 to 100 % of its records",
        "over_fraction",
        {
            "quick": Scale(("mnist",), (0.1, 0.5), (3.0,), seeds=1, changes=_SHORT),
            "cpu": Scale((*_BOTH, "cifar100"), FRACTIONS, (3.0, 8.0)),
            "full": Scale((*_BOTH, "cifar100"), FRACTIONS, (3.0, 8.0), seeds=5, paper_models=True),
        },
        changes={"dataset": {"feature": "mildimb"}},
    ),
    "paper": Experiment(
        "The paper's own setting: networks from scratch, the exponential mechanism, basic composition, a public V",
        "over_fraction",
        {
            "quick": Scale(("mnist",), (0.1,), seeds=1, paper_models=True, changes=_FEWER_IMAGES),
            "cpu": Scale(("mnist",), FRACTIONS, (3.0, 8.0), seeds=1, paper_models=True, changes=_FEW_IMAGES),
            "full": Scale((*_BOTH, "cifar100"), FRACTIONS, (3.0, 8.0), seeds=3, paper_models=True),
        },
        methods=("GLISTER-DP, paper", "RandomDP", "FullDP"),
        changes={"dataset": {"feature": "mildimb"}},
    ),
    "ablation": Experiment(
        "The paper's GLISTER-DP, with one part at a time replaced by ours, and with all",
        "over_fraction",
        {
            "quick": Scale(("mnist",), (0.1,), seeds=1, paper_models=True, changes=_FEWER_IMAGES),
            "cpu": Scale(("mnist",), (0.1, 0.3), seeds=1, paper_models=True, changes=_FEW_IMAGES),
            "full": Scale(_BOTH, (0.1, 0.3), (3.0, 8.0), seeds=3, paper_models=True),
        },
        methods=("GLISTER-DP, paper", *_REPLACED),
        changes={"dataset": {"feature": "mildimb"}},
    ),
    "networks": Experiment(
        "Ours: networks from scratch, end to end",
        "over_fraction",
        {
            "quick": Scale(("mnist",), (0.1,), seeds=1, paper_models=True, changes=_FEWER_IMAGES),
            "cpu": Scale(("mnist",), (0.1,), seeds=1, paper_models=True, changes={"train_args": {"num_epochs": 10}}),
            "full": Scale(_BOTH, (0.1, 0.3), seeds=3, paper_models=True),
        },
        methods=("GLISTERDP", "FullDP, equal compute"),
        changes={"dss_args": {"select_every": 2}},
    ),
    "resnet18": Experiment(
        "CORDS' ResNet18 on a few CIFAR-10 images, end to end",
        "over_fraction",
        {
            "quick": Scale(("cifar10",), (0.1,), seeds=1, paper_models=True, changes=_FEW_RECORDS),
            "cpu": Scale(("cifar10",), (0.1,), seeds=1, paper_models=True, changes=_SOME_RECORDS),
            "full": Scale(("cifar10",), (0.1, 0.3), seeds=3, paper_models=True),
        },
        methods=("GLISTERDP", "FullDP, equal compute"),
    ),
    "synthetic": Experiment(
        "The synthetic shift set: classes 1:9 in training, 6:4 in validation, 9:1 in test",
        "over_fraction",
        {
            "quick": Scale(("synthetic",), (0.1, 0.3, 0.5), seeds=1),
            "cpu": Scale(("synthetic",), FRACTIONS, seeds=5),
            "full": Scale(("synthetic",), _TENTHS, seeds=20),
        },
        methods=(*_USUAL, "paper, but accounting"),
    ),
    "timing": Experiment(
        "Accuracy over seconds",
        "over_time",
        {
            "quick": Scale(("mnist",), (0.1, 0.5), seeds=1, changes=_SHORT),
            "cpu": Scale(("cifar10",), (0.1, 0.3, 0.5), seeds=1),
            "full": Scale(("cifar10",), _TENTHS, seeds=3, paper_models=True),
        },
        methods=("GLISTERDP", "GLISTER-DP, paper", "RandomDP", "FullDP"),
        changes={"train_args": {"print_every": 1}},
    ),
    "allocation": Experiment(
        "Accuracy over the share r of the budget that goes to training",
        "over_split",
        {
            "quick": Scale(("mnist",), (0.1,), seeds=1, changes=_SHORT),
            "cpu": Scale(("mnist",), (0.1,)),
            "full": Scale(_BOTH, (0.1, 0.3), (3.0, 8.0), seeds=5, paper_models=True),
        },
        methods=("GLISTERDP", "GLISTER-DP, paper"),
        splits=_SPLITS,
    ),
    "gains": Experiment(
        "True gains of the records against what the mechanism samples",
        "gains",
        {
            "quick": Scale(("mnist",), (0.1,)),
            "cpu": Scale(("cifar10",), (0.1,)),
            "full": Scale(("cifar10",), (0.1,), paper_models=True),
        },
        methods=("GLISTERDP",),
    ),
    "robust": Experiment(
        "Ours: training data that differ from the validation set in class shares, in wrong labels, in both, in neither",
        "over_scenario",
        {
            "quick": Scale(("mnist",), (0.1,), seeds=1),
            "cpu": Scale(_BOTH, (0.1, 1.0)),
            "full": Scale((*_BOTH, "cifar100"), (0.1, 0.3), (1.0, 3.0, 8.0), seeds=5),
        },
        methods=(*_SHIFTED, *_USING_V),
        reference="FullDP, equal compute",
        validation_apart=True,
        scenarios={
            "nothing": {},
            "odd classes cut to 5 %": {"dataset": {"feature": "shift", **_ODD_CUT}},
            "40 % of labels moved on": {"dataset": {"feature": "shift", **_MOVED}},
            "both": {"dataset": {"feature": "shift", **_ODD_CUT, **_MOVED}},
            "40 % of labels at random": {
                "dataset": {"feature": "shift", "label_noise": 0.4, "label_noise_kind": "random"}
            },
            "90 % of images inverted": {"dataset": {"feature": "shift", "inverted_share": 0.9}},
            "90 % of images turned": {"dataset": {"feature": "shift", "rotated_share": 0.9}},
        },
    ),
    "adult": Experiment(
        "Ours: UCI's Adult, a table, as it is and collected mostly from men, tested on everyone",
        "over_scenario",
        {
            "quick": Scale(("uci_adult",), (0.1,), (1.0,), seeds=1, changes=_SHORT),
            "cpu": Scale(("uci_adult",), (0.1,), (1.0, 3.0, 8.0), seeds=5),
            "full": Scale(("uci_adult",), (0.1, 0.3), (0.5, 1.0, 3.0, 8.0), seeds=20),
        },
        methods=("GLISTERDP", "RandomDP", *_RIVALS, "FullDP, equal compute", "FullDP"),
        reference="FullDP, equal compute",
        scenarios={"nothing": {}, "few women": {"dataset": FEW_WOMEN}},
        groups="sex",
        validation_apart=True,
    ),
    "frontier": Experiment(
        "Ours: accuracy over the budget, beside what was published without public data",
        "over_budget",
        {
            "quick": Scale(("mnist",), (1.0,), (1.0, 3.0, 8.0), seeds=1, changes=_SHORT),
            "cpu": Scale((*_BOTH, "cifar100"), (1.0,), (1.0, 2.0, 3.0, 4.0, 8.0), seeds=5),
            "full": Scale((*_BOTH, "cifar100"), (1.0,), (1.0, 2.0, 3.0, 4.0, 8.0), seeds=5),
        },
        methods=("FullDP",),
    ),
    "rates": Experiment(
        "Choosing learning rates, on scenarios and seeds that no table reports and on held-out training records",
        "over_scenario",
        {
            "quick": Scale(("mnist",), (0.1,), seeds=1),
            "cpu": Scale(_BOTH, (0.1,), seeds=2),
            "full": Scale((*_BOTH, "cifar100"), (0.1,), seeds=3),
        },
        methods=_SHIFTED,
        changes={"dataset": {"feature": "shift", "test_from_train": 1 / 6}},
        scenarios={
            "nothing": {},
            "five classes cut to 10 %": {"dataset": {"cut_classes": [0, 1, 4, 6, 8], "cut_share": 0.1}},
            "30 % of labels moved on": {"dataset": {"label_noise": 0.3, "label_noise_kind": "pair"}},
        },
        rates=(0.5, 1.0, 2.0, 4.0),
        first_seed=100,
        in_study=False,
        validation_apart=True,
    ),
    "cut": Experiment(
        "Ours: five classes cut to a tenth in training, balanced validation and test sets",
        "over_fraction",
        {
            "quick": Scale(("mnist",), (0.1, 0.3), seeds=1, changes=_SHORT),
            "cpu": Scale(_BOTH, FRACTIONS),
            "full": Scale((*_BOTH, "cifar100"), FRACTIONS, (3.0, 8.0), seeds=5),
        },
        methods=tuple(m for m in METHODS if m not in (*_REPLACED, *_USING_V)),
        changes={"dataset": {"feature": "classimb", "classimb_ratio": 0.5, "balanced_validation": True}},
        validation_apart=True,
    ),
}


@dataclass(frozen=True)
class Choice:
    """What the user runs of an experiment, or changes in it; whatever is left out is as the preset says."""

    datasets: Sequence[str] = ()
    methods: Sequence[str] = ()
    scenarios: Sequence[str] = ()
    shares: Sequence[float] = ()
    epsilons: Sequence[float] = ()
    seeds: int | None = None
    overrides: Sequence[str] = ()


def experiment_jobs(name: str, preset: str, choice: Choice = Choice()) -> list[Job]:
    """List the runs of an experiment."""
    experiment, scale = EXPERIMENTS[name], EXPERIMENTS[name].scales[preset]
    scale = replace(
        scale,
        datasets=tuple(choice.datasets) or scale.datasets,
        shares=tuple(choice.shares) or scale.shares,
        epsilons=tuple(choice.epsilons) or scale.epsilons,
        seeds=choice.seeds or scale.seeds,
    )
    methods = _chosen("--method", choice.methods, experiment.methods, name)
    scenarios = _chosen("--scenario", choice.scenarios, tuple(experiment.scenarios), name)
    jobs, first = list[Job](), experiment.first_seed
    for dataset, scenario, epsilon, seed, method in itertools.product(
        scale.datasets, scenarios, scale.epsilons, range(first, first + scale.seeds), methods
    ):
        shares = (1.0,) if method in _WHOLE else scale.shares
        if method == _EQUAL and "FullDP" in methods:  # of all gradients it is FullDP itself
            shares = tuple(share for share in shares if share < 1)
        for share, split, rate in itertools.product(shares, experiment.splits, experiment.rates):
            config = _config(experiment, scale, dataset, scenario, method, share, epsilon, split, seed)
            if rate is not None:
                config.optimizer.lr_scale = rate
            if not any(job.config["dss_args"]["type"] == "GLISTERDP" for job in jobs):
                # the run whose privacy the report shows: ε over its epochs costs some seconds of accounting
                often = max(1, config.train_args.num_epochs // 5)
                config.train_args.print_every = min(config.train_args.print_every, often)
            for override in choice.overrides:
                apply_override(config, override)
            labels = {"experiment": name, "dataset": dataset, "method": method, "share": share, "budget": epsilon}
            labels |= {"scenario": scenario} if scenario else {}
            labels |= {} if split is None else {"split": split}
            labels |= {} if rate is None else {"method": f"{method}, rate × {rate:g}"}
            work = partial(execute_by_group, column=experiment.groups) if experiment.groups else METHODS[method].work
            jobs.append(Job(config.toDict(), {**labels, "seed": seed}, work))
    return jobs


def _chosen(option: str, wanted: Sequence[str], known: Sequence[str], name: str) -> list[str]:
    for word in wanted:
        if word not in known:
            raise ConfigError(option, word, f"{name} has {', '.join(map(repr, filter(None, known))) or 'none'}")
    return [word for word in known if word in wanted or not wanted]


def _config(
    experiment: Experiment,
    scale: Scale,
    dataset: str,
    scenario: str,
    method: str,
    share: float,
    epsilon: float,
    split: float | None,
    seed: int,
) -> DotMap:
    chosen = METHODS[method]
    apart = _set_apart(experiment, dataset, chosen.strategy)
    part = {"fraction": share}
    if chosen.strategy == "FullDP":  # at equal compute, as many gradients as of D without V
        part = {"compute_fraction": round(share * (1 - _SPLIT_OFF), 9) if share < 1 and apart == 0 else share}
    config = config_for(
        dataset,
        chosen.strategy,
        dss_args=part,
        privacy={"epsilon": epsilon, "delta": 1e-5},
        train_args={"print_every": 10**6, "seed": seed, "device": "cuda"},
        ckpt={"is_save": False},
    )
    layers = (
        paper_model(dataset) if scale.paper_models and not chosen.own_model else {},
        scale.changes,
        experiment.changes,
        experiment.scenarios[scenario],
        chosen.changes,
        {} if apart is None or method in _USING_V else {"dataset": {"validation_fraction": apart}},
    )
    for layer in layers:
        merge_into(config, copy.deepcopy(dict(layer)))
    if split is not None:
        config["privacy"]["split"] = split
    if chosen.strategy == "FullDP" and share < 1 and experiment.validation_apart:
        passes = HEAD_START if config["privacy"].get("head_start") else 0  # over V, by GLISTERDP
        more = (passes / config["train_args"]["num_epochs"] + share * PACE) * _SPLIT_OFF / (1 - _SPLIT_OFF)
        config["dss_args"]["compute_fraction"] = min(1.0, share + more)
    return DotMap(config)


def _set_apart(experiment: Experiment, dataset: str, strategy: str) -> float | None:
    """Return the share of the records that is V for a method that reads none; None where that is not to be said."""
    if strategy not in _READ_NO_VALIDATION or dataset == "synthetic":
        return None
    return _SPLIT_OFF if experiment.validation_apart else 0.0


def gains_config(preset: str, choice: Choice = Choice()) -> DotMap:
    """Return the config of the gains figure, which is one short run and not a sweep."""
    job = experiment_jobs("gains", preset, replace(choice, methods=(), seeds=1))[0]
    return DotMap(dict(job.config))
