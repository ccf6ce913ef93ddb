"""Chooses what takes the steps of a private session: its engine, in the gradient mode that suits its model.

Nothing here reads a record: modes are tried on made-up numbers in the shape of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cords_dp.config.settings import AUTO
from cords_dp.errors import ConfigError
from cords_dp.training.gradients import GradientMode, choose_mode, gradient_mode, gradient_modes
from cords_dp.training.step import PlainEngine, PrivateEngine, Views

if TYPE_CHECKING:
    from cords_dp.training.private_session import PrivateSession

_MODE = "gradient mode"  # among the notes of a ledger


def build_engine(session: PrivateSession, model: nn.Module) -> PlainEngine | PrivateEngine:
    """Build the engine that steps on a model: the session's, or a twin with its weights."""
    plan, privacy = session.plan, session.plan.privacy
    if plan.noiseless:
        return PlainEngine(
            model, session.optimizer, session.training_loss, batch_size=plan.shape.batch_size, world=session.world
        )
    views = _views(session)
    mode = _chosen_mode(session, model, views)
    session.logger.info("Per-example gradients: mode %s.", mode)
    return PrivateEngine(
        model,
        session.optimizer,
        session.training_loss,
        sigma=plan.sigma,
        max_grad_norm=privacy.max_grad_norm,
        batch_size=plan.shape.batch_size,
        mode=mode,
        noise=session.steps,
        normalise=privacy.clipping == "automatic",
        max_physical_batch_size=privacy.max_physical_batch_size,
        views=views,
        by_owner=privacy.unit == "owner",
        most_at_once=plan.shape.n_validation + plan.shape.batch_size if plan.validation_is_read else 0,
        world=session.world,
    )


def _views(session: PrivateSession) -> Views | None:
    count = session.plan.privacy.augmentations
    if count == 1:
        return None
    if session.data.train.no_records()[0].dim() != 4 or hasattr(session.model, "input_transform"):
        raise ConfigError(
            "privacy.augmentations", count, "only models that read images themselves can be shown other views"
        )
    return Views(count, session.streams.numpy("augmentation", rank=session.world.rank))


def _chosen_mode(session: PrivateSession, model: nn.Module, views: Views | None) -> GradientMode:
    """Return the mode that the run began with, the configured one, or the best for the model; tried in any case.

    The ledger remembers it, so that a resumed run continues as it began, whatever a stopwatch would say now.
    """
    privacy, say = session.plan.privacy, session.logger.info
    wanted = session.ledger.notes.get(_MODE, privacy.grad_sample_mode)
    modes = gradient_modes() if wanted == AUTO else (gradient_mode(wanted),)
    if views is not None:
        modes = tuple(mode for mode in modes if mode.averages_views)
    if privacy.unit == "owner":
        modes = tuple(mode for mode in modes if mode.sums_owners)
    if not modes:
        fix = "cannot add up the gradients of an owner's records before it clips; leave it at auto"
        raise ConfigError("privacy.grad_sample_mode", wanted, fix)
    chosen = choose_mode(model, *made_up_batch(session), session.training_loss, modes, say=say)
    chosen = gradient_mode(session.world.share(chosen.name))
    session.ledger.note(_MODE, chosen.name)
    return chosen


def made_up_batch(session: PrivateSession) -> tuple[Tensor, Tensor]:
    """Make up numbers in the shape of four records: choosing a mode must not read any."""
    records, targets = session.data.train.no_records()
    generator, device = torch.Generator().manual_seed(0), session.run.device
    if records.is_floating_point():
        x = torch.randn(4, *records.shape[1:], generator=generator).to(records.dtype)
    else:  # the first two words: every vocabulary has them
        x = torch.randint(0, 2, (4, *records.shape[1:]), generator=generator)
    if session.run.regression:
        return x.to(device), torch.randn(4, *targets.shape[1:], generator=generator).to(device)
    return x.to(device), torch.arange(4, device=device) % session.data.num_classes
