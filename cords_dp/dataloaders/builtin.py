"""The strategies that come with cords_dp: three private ones and all of CORDS' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from cords_dp.dataloaders.private import FullDPDataLoader, GLISTERDPDataLoader, RandomDPDataLoader
from cords_dp.registry import LoaderContext, register_strategy
from cords_dp.toolkit import WeightedSubset, adaptive, nonadaptive


def _full_dp(c: LoaderContext) -> FullDPDataLoader:
    assert c.plan is not None
    return FullDPDataLoader(c.train_loader, plan=c.plan, streams=c.streams)


def _random_dp(c: LoaderContext) -> RandomDPDataLoader:
    assert c.plan is not None
    return RandomDPDataLoader(c.train_loader, c.dss_args, c.logger, plan=c.plan, streams=c.streams)


def _glister_dp(c: LoaderContext) -> GLISTERDPDataLoader:
    assert c.plan is not None
    assert c.ledger is not None
    selection = c.plan.selection
    c.dss_args.update(
        greedy=selection.greedy,
        r=selection.r,
        linear_layer=selection.linear_layer,
        selection_type=selection.selection_type,
    )
    return GLISTERDPDataLoader(
        c.train_loader, c.val_loader, c.dss_args, c.logger, plan=c.plan, streams=c.streams, ledger=c.ledger
    )


def _full(c: LoaderContext) -> DataLoader:
    size = len(c.trainset)  # type: ignore[arg-type]
    return DataLoader(WeightedSubset(c.trainset, list(range(size)), [1] * size), **_options(c))


def _options(c: LoaderContext) -> dict[str, Any]:
    loader = c.cfg.dataloader
    return {
        "batch_size": loader.batch_size,
        "shuffle": bool(loader.get("shuffle", True)),
        "pin_memory": bool(loader.get("pin_memory", False)) and str(c.dss_args.device).startswith("cuda"),
        "collate_fn": c.dss_args.get("collate_fn") or None,
    }


def _cords(loader: type, *, validation: bool) -> Callable[[LoaderContext], Any]:
    """A builder for one of CORDS' loaders, which take the validation loader or not."""

    def build(c: LoaderContext) -> Any:
        loaders = (c.train_loader, c.val_loader) if validation else (c.train_loader,)
        return loader(*loaders, c.dss_args, c.logger, **_options(c))

    return build


def _selcon(c: LoaderContext) -> Any:
    c.dss_args.update(lr=c.cfg.optimizer.lr, optimizer=c.optimizer, batch_size=c.cfg.dataloader.batch_size)
    options = _options(c)
    options.pop("collate_fn")
    return adaptive.SELCONDataLoader(
        c.trainset, c.validset, c.train_loader, c.val_loader, c.dss_args, c.logger, **options
    )


register_strategy("FullDP", _full_dp, private=True, whole=True)
register_strategy("RandomDP", _random_dp, private=True)
register_strategy("GLISTERDP", _glister_dp, private=True, selects=True)
register_strategy("Full", _full, whole=True)
register_strategy("SELCON", _selcon)


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
for _name in ("GLISTER", "GLISTERPB", "GLISTER-Warm", "GLISTERPB-Warm"):
    register_strategy(_name, _cords(_GLISTERDataLoader, validation=True))
for _class_name, _names, _validation in _CORDS_LOADERS:
    _loader = getattr(adaptive, _class_name, None) or getattr(nonadaptive, _class_name, None)
    if _loader is None:  # the wheel and a checkout of CORDS do not have the same ones
        continue
    for _name in _names:
        for _suffix in ("", "-Warm"):
            register_strategy(_name + _suffix, _cords(_loader, validation=_validation))
if hasattr(adaptive, "OLRandomDataLoader") and not hasattr(adaptive, "AdaptiveRandomDataLoader"):
    # Renamed in later versions of CORDS; configs of either work with either.
    for _suffix in ("", "-Warm"):
        register_strategy("AdaptiveRandom" + _suffix, _cords(adaptive.OLRandomDataLoader, validation=False))
