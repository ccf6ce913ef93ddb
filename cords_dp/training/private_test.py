"""Releases the noisy counts of a private test set, once a run: all that the run tells of it follows from them.

Formal guarantee
----------------
Released, with the run's model: the sum of `evaluation.released` over the records of the test set T, at the model that
the run ends with, by the Gaussian mechanism of the plan's event (sensitivity 1: a null record contributes nothing).

- It is charged to T's own entries in the run's ledger before noise is drawn (`selection.releases`), and the released
  values are on record, with a digest in the ledger, before they are used. A run that is resumed has the same values and
  releases nothing again; one that was killed in between draws anew, under the charge that it had made and whose outcome
  nobody has seen (`accounting.ledger`).
- Nothing else is computed of T: no metric during the epochs, and no choice that depends on it. So the model, and all
  releases on D and V, do not depend on T, and the release depends on D and V through the released model alone. D, V and
  T have no record in common: the run is (max ε, max δ)-DP over the three (`planning.plan`).
- A record's outputs depend on that record and the model alone. The records of one owner, where that is the unit, count
  1 together. Several processes add up their parts; rank 0 alone adds the noise, once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from cords_dp.accounting import TEST_DATA
from cords_dp.data.build import evaluation_batches
from cords_dp.data.record_set import RecordSet
from cords_dp.errors import AccountingError
from cords_dp.evaluation.released import ReleasedTest, classifier_sum, regression_sum, vector_size
from cords_dp.models.unchanged import refuse_changes, state_of
from cords_dp.planning.plan import TEST_RELEASE
from cords_dp.training.metrics import groups_of
from cords_dp.training.released_once import released_once

if TYPE_CHECKING:
    from cords_dp.training.private_session import PrivateSession
    from cords_dp.training.session import Session


def released_test(session: PrivateSession) -> ReleasedTest:
    """Release the counts of the session's test set, or return what it has released before."""
    plan, world, model = session.plan, session.world, _digest(session.released)
    found = released_once(
        TEST_RELEASE,
        plan.test_releases(),
        lambda releases: releases.gaussian(TEST_RELEASE, test_sum(session)),
        plan=plan,
        ledger=session.ledger,
        generators={TEST_DATA: session.streams.numpy("test")},
        world=world,
        model=model,
    )
    if world.main and found["model"] != model:
        raise AccountingError(
            "the one release of the test set that this run pays for was made of another model of it: nothing more can "
            "be told of the test set; start afresh in another folder"
        )
    classes, vector = _classes(session), found["released"].numpy()
    names = _groups(session, session.data.test)[1]
    if len(vector) != vector_size(classes, len(names)):
        raise AccountingError(
            "the one release of the test set that this run pays for was made with another train_args.metrics_by"
        )
    assert plan.sigma_test is not None
    return as_released(session, vector, plan.sigma_test)


def test_sum(session: PrivateSession) -> np.ndarray:
    """Add up the records of this process's part of the test set, at the released model. A private value."""
    return counts_of(session, session.data.test)


def as_released(session: Session, vector: np.ndarray, sigma: float) -> ReleasedTest:
    """Say what a noisy sum is one of."""
    low, high = session.in_unit(np.array([-1.0, 1.0]))
    names = _groups(session, session.data.test)[1]
    return ReleasedTest(_classes(session), sigma, vector, names, float(high - low) / 2)


@torch.no_grad()
def counts_of(session: Session, records: RecordSet) -> np.ndarray:
    """Add up the vectors of records at the released model; sensitivity 1 (`evaluation.released`). A private value."""
    model, run, size = session.released, session.run, max(1, _classes(session))
    model.eval()
    before = state_of(model)
    targets, outputs = [np.zeros(0)], [np.zeros((0, size))]
    for x, y in evaluation_batches(records, run.config, private=True):
        targets.append(y.reshape(len(y)).double().numpy())
        outputs.append(model(x.to(run.device)).double().cpu().numpy().reshape(len(y), -1)[:, :size])
    refuse_changes(model, before)  # else one record would change what the next ones look like
    true, given = np.concatenate(targets), np.concatenate(outputs)
    masses = None if records.owners is None else records.owners.masses
    codes, names = _groups(session, records)
    groups = (codes, len(names)) if names else None
    if run.regression:
        low, high = session.in_unit(np.array([-1.0, 1.0]))
        wanted, guessed = (2 * (session.in_unit(values) - low) / (high - low) - 1 for values in (true, given[:, 0]))
        return regression_sum(wanted, guessed, masses, groups)
    given = torch.softmax(torch.from_numpy(given), dim=1).numpy()
    return classifier_sum(true.astype(np.int64), given, masses, groups)


def _classes(session: Session) -> int:
    return 0 if session.run.regression else session.data.num_classes


def _groups(session: Session, records: RecordSet) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return each record's place among the groups that are asked for, and their names; none by default."""
    column = session.run.config["train_args"].get("metrics_by")
    return groups_of(records, column) or (np.zeros(0, dtype=np.int64), ())


def _digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
