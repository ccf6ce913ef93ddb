"""What a private strategy hands over: which records may be drawn, with which weights and chances. Never batches."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, replace

import numpy as np

from cords_dp.errors import MechanismError
from cords_dp.selection.likelihood import LabelLikelihood


@dataclass(frozen=True)
class Pool:
    """Records to draw from. The package draws the batches, at the rate and as often as charged.

    indices: distinct positions in the training set; where the unit is an owner, in the list of its owners, unless the
        pool is ``own``.
    weights: in [0, 1], multiply the clipped gradients of the records; None for 1.
    chances: in [0, 1], of a record that a step has drawn to stay in it; None for 1.
    branch: which of the plan's branches the steps take, where a mechanism has several.
    levels: the branch of each record, where each takes its own for the whole run; None where all take ``branch``.
    likelihood, predicted: how the records' labels came about (`selection.likelihood`), and the class that the released
        model predicted for each when it looked last; both or neither. They enter a record's loss, before clipping.
    own: set by `Selections`. Of several processes each has a pool of its own records, and ``indices`` are positions
        among them; any other pool is one of the whole training set, and rank 0's counts.

    Formal guarantee: with values in these ranges and distinct indices, a record's part of a step has norm at most C and
    is there with probability at most the charged rate. Anything else is refused here.
    """

    indices: np.ndarray
    weights: np.ndarray | None = None
    chances: np.ndarray | None = None
    branch: int = 0
    levels: np.ndarray | None = None
    own: bool = False
    likelihood: LabelLikelihood | None = None
    predicted: np.ndarray | None = None

    def __post_init__(self) -> None:
        indices = np.asarray(self.indices)
        if indices.ndim != 1 or (indices.size and not np.issubdtype(indices.dtype, np.integer)):
            raise MechanismError("a pool's indices must be a vector of whole numbers")
        indices = indices.astype(np.int64)
        if indices.size and (indices.min() < 0 or np.unique(indices).size < indices.size):
            raise MechanismError("a pool's indices must be distinct and not negative: no record may be drawn twice")
        object.__setattr__(self, "indices", _read_only(indices))
        for name in ("weights", "chances"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._in_range(name))
        if self.levels is not None:
            levels = np.asarray(self.levels)
            if levels.shape != indices.shape or not np.issubdtype(levels.dtype, np.integer):
                raise MechanismError("a pool needs as many levels as indices, whole numbers")
            object.__setattr__(self, "levels", _read_only(levels.astype(np.int64)))
        if self.likelihood is not None or self.predicted is not None:
            object.__setattr__(self, "predicted", _read_only(self._checked_predictions()))

    def _checked_predictions(self) -> np.ndarray:
        predicted = np.asarray(self.predicted)
        if not isinstance(self.likelihood, LabelLikelihood) or predicted.shape != self.indices.shape:
            raise MechanismError("a pool with a likelihood needs the predicted class of every record, and conversely")
        if predicted.size and not np.issubdtype(predicted.dtype, np.integer):
            raise MechanismError("a pool's predicted classes must be whole numbers")
        if predicted.size and not 0 <= predicted.min() <= predicted.max() < self.likelihood.classes:
            raise MechanismError("a pool's predicted classes must be among those of its likelihood")
        return predicted.astype(np.int64)

    def _in_range(self, name: str) -> np.ndarray:
        values = np.array(getattr(self, name), dtype=np.float64)
        if values.shape != self.indices.shape:
            raise MechanismError(f"a pool needs as many {name} as indices")
        if not ((values >= 0) & (values <= 1)).all():  # false for NaN
            raise MechanismError(f"a pool's {name} must lie in [0, 1]: no charge covers others")
        return _read_only(values)

    def __len__(self) -> int:
        return len(self.indices)

    def among(self, places: np.ndarray) -> Pool:
        """Return the part of a pool of the whole set that a process with the records at ``places``, ascending, has."""
        slots = np.searchsorted(places, self.indices)
        here = slots < len(places)
        here[here] = places[slots[here]] == self.indices[here]

        return replace(self.only(here), indices=slots[here], own=True)

    def only(self, here: np.ndarray) -> Pool:
        """Return the records at ``here``, a mask or positions in the pool, each as it is."""
        each = ("indices", "weights", "chances", "levels", "predicted")
        kept = {name: getattr(self, name)[here] for name in each if getattr(self, name) is not None}
        return replace(self, **kept)

    def of_owners(self, codes: np.ndarray) -> Pool:
        """Return this process's records whose owners are in the pool, each as its owner. ``codes``: whose each is."""
        order = np.argsort(self.indices)
        slots = np.minimum(np.searchsorted(self.indices[order], codes), max(len(order) - 1, 0))
        here = self.indices[order][slots] == codes if len(order) else np.zeros(len(codes), dtype=bool)
        places = order[slots[here]]
        each = ("weights", "chances", "levels", "predicted")
        kept = {name: getattr(self, name)[places] for name in each if getattr(self, name) is not None}
        return replace(self, indices=np.flatnonzero(here), own=True, **kept)

    def as_own(self) -> Pool:
        """Return the same pool, whose indices are positions among the records of this process."""
        pool = copy.copy(self)
        object.__setattr__(pool, "own", True)
        return pool

    @classmethod
    def everything(cls, n: int) -> Pool:
        return cls(np.arange(n))


def checked_pool(pool: object, n: int, branches: int = 0) -> Pool:
    """Return what a strategy has handed over, if it is a pool of records of a training set of n.

    It is built anew: a subclass may have skipped the checks, and a pool can be written to after it passed them.
    """
    if not isinstance(pool, Pool):
        raise MechanismError(
            f"a private strategy hands over a cords_dp.Pool, not {type(pool).__name__}: which records may be drawn. "
            "The package draws the batches, so that there are as many as were charged, at the charged rate. Write "
            "register_strategy(name, build, private=True) with build(context) returning Pool(indices, weights=None, "
            "chances=None), or an object whose pool(epoch) returns one"
        )
    pool = Pool(**{f.name: getattr(pool, f.name) for f in fields(Pool)})
    if len(pool) and int(pool.indices.max()) >= n:
        raise MechanismError("a pool's indices lie outside the training set")
    if not (isinstance(pool.branch, int) and 0 <= pool.branch < max(1, branches)):
        raise MechanismError("a pool asks for a branch that the plan does not have")
    if pool.levels is not None and pool.levels.size and not 0 <= pool.levels.min() <= pool.levels.max() < branches:
        raise MechanismError("a pool asks for levels that the plan does not have")
    return pool


def drawn_by_level(pool: Pool, rates: np.ndarray, sigmas: np.ndarray) -> Pool:
    """Return the pool for steps at the highest rate with the smallest noise; records are drawn as in their levels.

    Formal guarantee: record j is drawn with probability at most rates[level_j] and its part has norm at most
    C·σ_min/σ[level_j], so its share of the steps is dominated by the events (rates[level_j], σ[level_j]).
    """
    assert pool.levels is not None
    chances = (rates / rates.max())[pool.levels] * (1.0 if pool.chances is None else pool.chances)
    weights = (sigmas.min() / sigmas)[pool.levels] * (1.0 if pool.weights is None else pool.weights)
    return replace(pool, weights=weights, chances=chances, levels=None)


def _read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False
    return values
