"""The only source of noise for what a selection releases: a draw is a charge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

import numpy as np

from cords_dp.accounting import Event, GumbelFreeze, PoissonGaussian
from cords_dp.errors import MechanismError
from cords_dp.noise.primitives import (
    ScoreFreeze,
    bounded_scores,
    check_size,
    enough_proposals,
    finite_sum,
    gaussian_release,
    proposed_picks,
    tail_histogram,
    tails_from,
)
from cords_dp.planning.mechanism import Release
from cords_dp.processes import World

Charge = Callable[[str, str, Event], None]
_MANY = 4096  # records from which on it pays to look at few of their scores


class Releases:
    """What one selection may draw: the declared releases, each as often as declared.

    Formal guarantee: before the first draw of a release its whole event is charged to its dataset's ledger, which may
    refuse. Later draws are counted against that charge and refused beyond it. The noise is that of the charged event;
    a selector cannot choose it. A sum that is not finite is refused. A release without an event is exact: the plan
    admits that only for a validation set that was declared public.

    Of several processes (``world``) each hands in the sum over its own records and gets the noisy sum over all. Every
    rank charges, rank 0's ledger is the one on disk; rank 0 alone adds the noise, to its own part, before the parts are
    added up. The sum over all needs rank 0, so nothing is released before it was charged there.
    """

    def __init__(
        self,
        declared: Sequence[Release],
        *,
        charge: Charge,
        generators: Mapping[str, np.random.Generator],
        noiseless: bool = False,
        secure: bool = False,
        world: World = World(),  # noqa: B008 - frozen
    ):
        self._world = world
        plain = (_built_anew(release) for release in declared)
        self._declared = {release.name: release for release in plain}
        self._charge, self._generators, self._noiseless, self._secure = charge, generators, noiseless, secure
        self._left: dict[str, int] = {}

    def gaussian(self, name: str, total: np.ndarray) -> np.ndarray:
        """Release a sum over records with noise. One record's part has L2 norm at most the declared sensitivity."""
        return self._noisy(name, total, stretch=1.0)

    def tail_counts(self, name: str, scores: np.ndarray, labels: np.ndarray, *, classes: int, bins: int) -> np.ndarray:
        """Release noisy numbers of scores in each cell or above, for each class: see `noise.primitives`."""
        factored, stretch = tail_histogram(scores, labels, classes=classes, bins=bins)
        return tails_from(self._noisy(name, factored, stretch=stretch))

    def picks(self, name: str, scores: np.ndarray, size: int) -> np.ndarray:
        """Pick ``size`` distinct positions by the exponential mechanism, in one freeze of the scores."""
        check_size(size, len(scores))  # before it is counted
        if self._noiseless:
            self._refuse_parts()
            return np.argsort(-np.asarray(scores), kind="stable")[:size]
        release, epsilon0 = self._charged_picks(name, size)
        freeze = ScoreFreeze(scores, epsilon0=epsilon0, sensitivity=release.sensitivity)
        return freeze.draw(size, self._generators[release.dataset])

    def few_picks(
        self, name: str, score_of: Callable[[np.ndarray], np.ndarray], count: int, size: int, *, bound: float
    ) -> np.ndarray:
        """Make `picks` among ``count`` records whose scores are asked for as they are needed; |score| ≤ bound.

        The law is the same.
        """
        check_size(size, count)
        if not self.reads_few(name, count, size, bound=bound):
            return self.picks(name, bounded_scores(score_of(np.arange(count)), bound), size)
        release, epsilon0 = self._charged_picks(name, size)
        return proposed_picks(
            score_of,
            count,
            size,
            bound=bound,
            epsilon0=epsilon0,
            sensitivity=release.sensitivity,
            rng=self._generators[release.dataset],
        )

    def reads_few(self, name: str, count: int, size: int, *, bound: float) -> bool:
        """Say whether `few_picks` will ask for the scores of some records only. Public numbers alone decide."""
        release = None if self._noiseless else self._get(name)
        if release is None or release.epsilon0 is None or count < _MANY:
            return False
        return 2 * enough_proposals(count, size, size, bound, release.epsilon0, release.sensitivity) <= count

    def _charged_picks(self, name: str, size: int) -> tuple[Release, float]:
        """Return the release, charged and counted, and its ε₀."""
        self._refuse_parts()
        release = self._get(name)
        if release.epsilon0 is None:
            raise MechanismError(f"release {name!r} was not declared as picks: its event has no epsilon0")
        self._count(release, 1 if isinstance(release.event, GumbelFreeze) else size)
        return release, release.epsilon0

    def _refuse_parts(self) -> None:
        if self._world.size > 1:
            raise MechanismError("picks compare all records with each other, and each process has only its own")

    def noise_multiplier(self, name: str) -> float:
        """Return σ of a declared Gaussian release, a public number; 0 where no noise is added."""
        event = None if self._noiseless else self._get(name).event
        return event.sigma if isinstance(event, PoissonGaussian) else 0.0

    def _noisy(self, name: str, total: np.ndarray, *, stretch: float) -> np.ndarray:
        """Add noise. ``stretch``: the norm of the public linear map that came after what the sensitivity is of."""
        release = None if self._noiseless else self._get(name)
        if release is None or release.event is None:
            return self._world.total(total)
        if type(release.event) is not PoissonGaussian or release.event.rate != 1:
            raise MechanismError(f"release {name!r} is no Gaussian release")
        self._count(release, 1)
        total = finite_sum(total)
        if self._world.main:
            total = gaussian_release(
                total,
                sensitivity=release.sensitivity * stretch,
                noise_multiplier=release.event.sigma,
                rng=self._generators[release.dataset],
                secure=self._secure,
            )
        return self._world.total(total)

    def _get(self, name: str) -> Release:
        if name not in self._declared:
            raise MechanismError(f"release {name!r} was not declared; declared are {sorted(self._declared)}")
        return self._declared[name]

    def _count(self, release: Release, draws: int) -> None:
        assert release.event is not None
        if release.name not in self._left:
            self._charge(release.dataset, release.phase, release.event)
            self._left[release.name] = release.event.count
        if not 0 <= draws <= self._left[release.name]:  # so said, it refuses NaN; a negative number would add draws
            raise MechanismError(
                f"release {release.name!r} was declared {release.event.count} times for one selection and has been "
                "drawn as often; declare more in the mechanism's releases()"
            )
        self._left[release.name] -= draws


def _built_anew(release: Release) -> Release:
    """Take over what was declared, and nothing of a subclass, which could draw with another ε₀ than is charged."""
    return Release(**{field.name: getattr(release, field.name) for field in fields(Release)})
