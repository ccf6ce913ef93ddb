"""Registers CORDS' own strategies, which are not private, under the names that its configs give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from cords_dp.cords import WeightedSubset, adaptive, nonadaptive
from cords_dp.training.strategies import StrategyContext, register_strategy


def _full(c: StrategyContext) -> DataLoader:
    size = len(c.trainset)  # type: ignore[arg-type]
    return DataLoader(WeightedSubset(c.trainset, list(range(size)), [1] * size), **_options(c))


def _options(c: StrategyContext) -> dict[str, Any]:
    loader = c.config["dataloader"]
    return {
        "batch_size": loader["batch_size"],
        "shuffle": bool(loader.get("shuffle", True)),
        "pin_memory": bool(loader.get("pin_memory", False)) and str(c.dss_args.device).startswith("cuda"),
        "collate_fn": c.dss_args.get("collate_fn") or None,
    }


def _cords(loader: type, *, validation: bool) -> Callable[[StrategyContext], Any]:
    """Return a builder for one of CORDS' loaders, which take the validation loader or not."""

    def build(c: StrategyContext) -> Any:
        loaders = (c.train_loader, c.val_loader) if validation else (c.train_loader,)
        return loader(*loaders, c.dss_args, c.logger, **_options(c))

    return build


def _selcon(c: StrategyContext) -> Any:
    c.dss_args.update(
        lr=c.config["optimizer"]["lr"], optimizer=c.optimizer, batch_size=c.config["dataloader"]["batch_size"]
    )
    options = _options(c)
    options.pop("collate_fn")
    return adaptive.SELCONDataLoader(
        c.trainset, c.validset, c.train_loader, c.val_loader, c.dss_args, c.logger, **options
    )


class _GLISTERDataLoader(adaptive.GLISTERDataLoader):
    """CORDS' GLISTER, whose RGreedy hands out more indices than weights when r does not divide k."""

    def _resample_subset_indices(self) -> tuple[Any, Any]:
        indices, weights = super()._resample_subset_indices()
        size = min(len(indices), len(weights))
        return indices[:size], weights[:size]


# CORDS' loaders: class, the config names that select it, whether it is given the validation loader
_CORDS_LOADERS: list[tuple[str, tuple[str, ...], bool]] = [
    ("GradMatchDataLoader", ("GradMatch", "GradMatchPB"), True),
    ("CRAIGDataLoader", ("CRAIG", "CRAIGPB"), True),
    ("RandomDataLoader", ("Random",), False),
    ("OLRandomDataLoader", ("OLRandom",), False),
    ("AdaptiveRandomDataLoader", ("AdaptiveRandom",), False),
    ("WeightedRandomDataLoader", ("WeightedRandomExploration", "WRE"), False),
    ("StochasticGreedyDataLoader", ("StochasticGreedyExploration", "SGE"), False),
    ("MILODataLoader", ("MILO",), False),
    ("MILOFixedDataLoader", ("MILOFixed",), False),
    ("FacLocDataLoader", ("FacLoc",), True),
]


def register_all() -> None:
    register_strategy("Full", _full, uses_all=True)
    register_strategy("SELCON", _selcon)
    for name in ("GLISTER", "GLISTERPB", "GLISTER-Warm", "GLISTERPB-Warm"):
        register_strategy(name, _cords(_GLISTERDataLoader, validation=True))
    for class_name, names, validation in _CORDS_LOADERS:
        loader = getattr(adaptive, class_name, None) or getattr(nonadaptive, class_name, None)
        if loader is not None:  # the wheel and a checkout of CORDS do not have the same ones
            _register(names, loader, validation=validation)
    if hasattr(adaptive, "OLRandomDataLoader") and not hasattr(adaptive, "AdaptiveRandomDataLoader"):
        # Renamed in later versions of CORDS; configs of either work with either.
        _register(("AdaptiveRandom",), adaptive.OLRandomDataLoader, validation=False)


def _register(names: tuple[str, ...], loader: type, *, validation: bool) -> None:
    for name in names:
        for suffix in ("", "-Warm"):
            register_strategy(name + suffix, _cords(loader, validation=validation))
