"""The settings that a run is planned from: frozen, checked, documented. Every value here is public.

Each field is a key of its section (`values.Key`): its check, default and meaning stand in its line and nowhere else.
Keys of ``dss_args`` that belong to one mechanism are the fields of that mechanism (`planning.mechanism`).
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any

from cords_dp.config.values import Key, flag, number, one_of, whole
from cords_dp.errors import ConfigError

HEAD_START = 10  # steps on V that a run begins with, where that is left to the plan
PACE = 0.9  # how often V's records come into a step, as a share of the rate of D's, where V's budget allows it
AUTO = "auto"  # what the plan, the machine or the model decides
PRIVATE, PUBLIC, UNREAD = "private", "public", "unread"  # what a test set may be
GRADIENT_MODES = ["linear", "bookkeeping", "ghost", "ew", "hooks", "functorch"]  # and those that are registered
_MOST_EPSILON = 500.0  # e^ε has to be a number; nobody is protected long before
_MOST_VIEWS = 1024  # of one image, held in memory together
_TINY = 1e-9
RECORDS_PER_OWNER = 10  # a constant: how many records owners have is private. Means of more are hardly less noisy

_norm = partial(number, low=_TINY, high=1 / _TINY)  # float32 has to hold it
share = partial(number, low=0, high=1, high_included=True)
part_or_none = partial(number, low=0, high=1, low_included=True)
count = partial(whole, high=10**9)


def _accountant(key: str, value: Any) -> Any:
    from cords_dp.accounting import ACCOUNTANTS

    return one_of(key, value, (AUTO, *ACCOUNTANTS))


def _head_start(key: str, value: Any) -> int | str:
    return AUTO if isinstance(value, str) and value == AUTO else whole(key, value, low=0, high=1000)


def _gradient_mode(key: str, value: Any) -> Any:
    return one_of(key, value, (AUTO, *GRADIENT_MODES))


def _account(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(key, value, "must be the path of an account file")
    return value


def _always(key: str, value: Any) -> Any:
    if not flag(key, value):
        fix = "the accounting holds for Poisson batches only; remove the key or set it to True"
        raise ConfigError(key, value, fix)
    return value


# fmt: off
@dataclass(frozen=True)
class PrivacySettings:
    """The ``privacy`` section."""

    epsilon: float = Key(
        partial(number, low=0, high=_MOST_EPSILON, infinite=True), MISSING,
        "the budget of the whole run, for each record of D and of V; `inf`, or `None` where it is written down, turns "
        "clipping and noise off: NOT private",
    ).field()
    delta: float | None = Key(
        partial(number, low=0, high=1), None, "the same; left out it is 1e-5, or a tenth of 1/n if that is less"
    ).field()
    composition: str = Key(
        partial(one_of, choices=("joint", "basic")), "joint",
        "`joint` composes training and selection numerically; `basic` splits ε and δ (the paper)",
    ).field()
    split: float | None = Key(
        partial(number, low=1e-3, high=1 - 1e-3), None,  # neither part vanishes
        "the share of the budget that goes to training where selection takes part of it; the mechanism knows a default",
    ).field()
    selection_composition: str | None = Key(
        partial(one_of, choices=("paper", "bounded_range", "freeze")), None,
        "how picks add up: `paper`, `bounded_range` or `freeze`",
    ).field()
    validation: str = Key(
        partial(one_of, choices=("private", "public")), "private",
        "is the validation set `private` (its use is charged to it) or `public`?",
    ).field()
    max_grad_norm: float = Key(_norm, 1.0, "the norm to which each example's gradient is clipped").field()
    clipping: str = Key(
        partial(one_of, choices=("flat", "automatic")), "flat", "`flat` or `automatic` (normalised) clipping"
    ).field()
    selection_clip: float = Key(_norm, 1.0, "clip norm C_e of D's last-layer gradients in selection").field()
    validation_clip: float = Key(_norm, 1.0, "clip norm C_v of V's last-layer gradients in selection").field()
    validation_noise: float | None = Key(
        _norm, None, "noise multiplier of V's releases; calibrated to (ε, δ) when left out"
    ).field()
    head_start: int | str = Key(
        _head_start, 0,
        "where V is read and private: so many first steps on V, which are charged to V alone; `auto`: "
        f"{HEAD_START} where V is large enough for them. 0 for none, as runs were before",
    ).field()
    train_on_validation: bool = Key(
        flag, True,
        "where V is read and private: its records take part in every step, at nine tenths of the highest rate of a "
        "record of D. V alone pays, and D's noise is as it was; what selections read of V is noisier. `False` is how "
        "runs were before",
    ).field()
    temperature: bool = Key(
        flag, True,
        "where V is read: divide the logits of the model that a run ends with by a number fitted on V, by one noisy "
        "release that is charged to V. Probabilities become honest, and the likeliest class stays what it is. `False` "
        "is how runs were before",
    ).field()
    augmentations: int = Key(
        partial(whole, high=_MOST_VIEWS), 1,
        "random views of an image whose gradients are averaged before clipping (1: the image as it is)",
    ).field()
    ema_decay: float = Key(
        part_or_none, 0.0, "average the weights over steps with this decay (0: take the last ones); costs no privacy"
    ).field()
    accountant: str = Key(_accountant, AUTO, "`auto` (prv, then pld, then rdp) or one of them by name").field()
    grad_sample_mode: str = Key(
        _gradient_mode, AUTO,
        "how per-example gradients are computed; `auto` takes the first that is right for the model: `linear` (closed "
        "form, for linear heads), `bookkeeping` (one backward pass that writes down what clipping needs), the quicker "
        "of Opacus' `hooks` and `ew`, `functorch`. `ghost` has to be asked for: no bound on its rounding is proved",
    ).field()
    max_physical_batch_size: int = Key(count, 512, "larger batches are computed in pieces of this size").field()
    records_per_owner: int | None = Key(
        partial(whole, high=10_000), None,
        f"where records have owners (`dataset.owner`): a step uses at most so many of one owner's, drawn anew each "
        f"time it draws the owner; {RECORDS_PER_OWNER} if left out",
    ).field()
    poisson_sampling: bool = Key(
        _always, True, "always True: the accounting holds for batches that are drawn by independent coins"
    ).field()
    labels_public: bool = Key(flag, False, "declares which class each index belongs to as public").field()
    exact_metrics: bool = Key(
        flag, False, "log exact metrics of private data; they are not covered by the guarantee"
    ).field()
    secure_noise: bool = Key(
        flag, False, "draw noise as a sum of four, against attacks on floating-point numbers; takes longer"
    ).field()
    account: str | None = Key(
        _account, None,
        "a file that adds up all runs on these data (`python -m cords_dp account`); a run that would exceed its total "
        "is refused before data is read",
    ).field()
    reproducible_noise: bool = Key(
        flag, False, "compute noise from `train_args.seed`; such a run repeats and is NOT private"
    ).field()

    @property
    def noiseless(self) -> bool:
        return math.isinf(self.epsilon)

    @property
    def unit(self) -> str:
        """Whose contribution is hidden: one ``record``'s, or one ``owner``'s with all its records."""
        return "record" if self.records_per_owner is None else "owner"


# Keys of ``privacy`` that mean something to some mechanisms only; each mechanism names those that it uses.
SELECTION_PRIVACY_KEYS = frozenset(
    {"split", "selection_composition", "selection_clip", "validation_clip", "validation_noise", "labels_public"}
)


@dataclass(frozen=True)
class SubsetSettings:
    """The keys of ``dss_args`` that do not depend on the mechanism. The first three are CORDS' own."""

    fraction: float = Key(
        share, 1.0,
        "the share of the records to train on in each epoch; `FullDP` takes all of them, and a run of it with another "
        "share warns that it has no effect",
    ).field()
    select_every: int = Key(count, 1, "select anew every so many epochs").field()
    kappa: float = Key(
        part_or_none, 0.0,
        "the share of the epochs before the first selection; part of them is a warm start on all records",
    ).field()
    compute_fraction: float = Key(
        share, 1.0, '`FullDP` only: the share of the steps of full epochs to take ("equal compute")'
    ).field()
    publish_subset: bool = Key(
        flag, False,
        "write the last subset to `subset.json`, as rows of the file or the published set; only where it was paid for "
        "or drawn without looking",
    ).field()
    secret_subset: bool = Key(
        flag, False,
        "`RandomDP` only: draw the subset by secret coins and never release it. Training then needs less noise for the "
        "same guarantee (`planning.plan.amplified`). Such a run cannot be resumed, since a checkpoint would have to "
        "hold the subset",
    ).field()
# fmt: on
