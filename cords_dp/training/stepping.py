"""Which engine takes a run's steps, and in which gradient mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cords_dp.config.settings import AUTO, GRADIENT_MODES
from cords_dp.datasets import Splits, no_records
from cords_dp.distributed import current_world
from cords_dp.errors import ConfigError
from cords_dp.mechanisms.noise import Noise
from cords_dp.planning import PrivacyPlan
from cords_dp.seeding import Streams
from cords_dp.training.engine import PlainEngine, PrivateEngine, Views
from cords_dp.training.modes import fastest_mode
from cords_dp.training.run import Run

Engine = PlainEngine | PrivateEngine


def build_engine(
    run: Run,
    plan: PrivacyPlan | None,
    data: Splits,
    model: nn.Module,
    optimizer: Optimizer,
    criterion: nn.Module,
    streams: Streams,
    noise: Noise,
) -> Engine:
    assert run.batch_size is not None
    if plan is None or plan.noiseless:
        return PlainEngine(model, optimizer, criterion, batch_size=run.batch_size)
    privacy = plan.privacy
    views = _views(run, plan, data, model, streams)
    return PrivateEngine(
        model,
        optimizer,
        criterion,
        sigma=plan.sigma,
        max_grad_norm=privacy.max_grad_norm,
        batch_size=plan.shape.batch_size,
        mode=_gradient_mode(run, plan, data, model, criterion, views),
        noise=noise,
        normalise=privacy.clipping == "automatic",
        max_physical_batch_size=privacy.max_physical_batch_size,
        views=views,
        distributed=True,
    )


def _gradient_mode(
    run: Run, plan: PrivacyPlan, data: Splits, model: nn.Module, criterion: nn.Module, views: Views | None
) -> str:
    """The configured mode if it is right for this model, or the fastest one that is."""
    wanted = plan.privacy.grad_sample_mode
    modes = [mode for mode in GRADIENT_MODES if wanted in (AUTO, mode)]
    if views is not None:  # these two cannot average views before they clip
        modes = [mode for mode in modes if mode not in ("linear", "ghost")]
    return current_world().share(fastest_mode(model, *_made_up_batch(run, data), criterion, modes))


def _made_up_batch(run: Run, data: Splits) -> tuple[Tensor, Tensor]:
    """Random numbers in the shape of a record: choosing a mode must not read records."""
    records, targets = no_records(data.train)
    generator = torch.Generator().manual_seed(0)
    if records.is_floating_point():
        x = torch.randn(4, *records.shape[1:], generator=generator).to(records.dtype)
    else:  # the first two words: every vocabulary has them
        x = torch.randint(0, 2, (4, *records.shape[1:]), generator=generator)
    if run.regression:
        return x.to(run.device), torch.randn(4, *targets.shape[1:], generator=generator).to(run.device)
    return x.to(run.device), torch.arange(4, device=run.device) % data.num_classes


def _views(run: Run, plan: PrivacyPlan, data: Splits, model: nn.Module, streams: Streams) -> Views | None:
    count = plan.privacy.augmentations
    if count == 1:
        return None
    if no_records(data.train)[0].dim() != 4 or hasattr(model, "input_transform"):
        raise ConfigError(
            "privacy.augmentations", count, "only models that read images themselves can be shown other views"
        )
    return Views(count, streams.numpy("augmentation", rank=current_world().rank))
