"""Defines selection mechanisms and registers them by name.

A mechanism is a frozen object whose fields are its keys in ``dss_args``. It checks itself, lays out the schedule, lists
what it releases and builds the selector that does the work. Plan, budget, statement, report and docs read the registry
and never ask for a mechanism by name.

To write one: subclass `Mechanism`, `register_mechanism` it, and set ``dss_args.mechanism`` to its name. The package
charges what `releases` declares before a selector can draw it, refuses to draw more, and draws the batches itself at
the charged rate. Two things are taken on trust: the *sensitivity* of each release (and `own_score`), and that nothing
about the records goes past `Releases`, which no interface in Python can prevent. ``cords-dp audit`` replays every
registered mechanism without single records, on data of several shapes, and finds what was declared too low.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cords_dp.accounting import (
    TEST_DATA,
    TRAINING_DATA,
    VALIDATION_DATA,
    Bound,
    Event,
    ExponentialPicks,
    GumbelFreeze,
)
from cords_dp.config.settings import SELECTION_PRIVACY_KEYS, PrivacySettings, SubsetSettings
from cords_dp.config.values import check_keys, keys_of
from cords_dp.errors import ConfigError, MechanismError
from cords_dp.extensions import load_extensions
from cords_dp.planning.schedule import (
    EVALUATION,
    PREPARATION,
    SELECTION,
    VALIDATION,
    EpochPlan,
    Sizes,
    subset_schedule,
)

if TYPE_CHECKING:
    from cords_dp.selection.context import SelectionContext, Selector


@dataclass(frozen=True)
class SelectionNoise:
    """The calibrated noise of a selection: the mechanism's own parameter on D, a noise multiplier on V if private."""

    on_training: float
    on_validation: float | None


@dataclass(frozen=True)
class Release:
    """Something that each selection releases, ``event.count`` times.

    event: what it costs in one selection; None for a set that the user has declared public.
    sensitivity: how far one record can move it, in L2 norm (a score's own range for picks by score).
    description: what it is and what its sensitivity means, for the privacy statement.
    own_score: of picks by the exponential mechanism: zeroing a record moves its own score and no other. Then picks of
        ε₀ have log-likelihood ratios of range ε₀/2, else ε₀.
    before_training: it is no selection's, but released once, before the first step (`schedule.Preparation`).
    """

    name: str
    dataset: str
    event: Event | None
    sensitivity: float
    description: str
    own_score: bool = False
    before_training: bool = False

    @property
    def epsilon0(self) -> float | None:
        """ε₀ in ``P(e) ∝ exp(ε₀·u_e/2Δ)``, which follows from the event; None where it is not one of picks."""
        if type(self.event) is GumbelFreeze and self.own_score:
            return self.event.epsilon0
        if type(self.event) is ExponentialPicks:
            return self.event.epsilon0 * (2 if self.own_score else 1)
        return None

    @property
    def phase(self) -> str:
        if self.before_training:
            return PREPARATION
        return {TRAINING_DATA: SELECTION, TEST_DATA: EVALUATION}.get(self.dataset, VALIDATION)


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """A way of selecting. Subclasses are frozen, keyword-only dataclasses; their fields are keys of ``dss_args``.

    A field says in one place how it is checked, its default and what it means (`config.values.Key`):
    ``looks: int = Key(whole, 3, "how many looks").field()``.

    name: the word in ``dss_args.mechanism``.
    summary, use_case: what it costs and when to use it, for the table in the docs.
    secret_pool: the pool is secret state of the training mechanism; otherwise it is released and paid for.
    default_split: the share of the budget left to training where the config does not say.
    privacy_keys: which of the keys in ``privacy`` that concern selection it uses.
    sharded: all that it takes from the records before noise are sums over records, handed to `Releases`, and what it
        decides about a record follows from that record and released values; its pool is one of ``context.training``'s
        records. Several processes can then select together, each on its own records (`processes`).
    counts_owners: in all sums that it hands to `Releases` a record counts with its mass (`Records.masses`), and it
        picks no records and sets no levels. Its releases then give an owner what they gave a record.
    uses_average: it looks through the averaged weights, where an average is kept, instead of the last ones.
    noise_symbol, cost_rises: the parameter that is calibrated on D, and whether the cost rises with it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    use_case: ClassVar[str]
    secret_pool: ClassVar[bool] = False
    default_split: ClassVar[float] = 0.8
    privacy_keys: ClassVar[frozenset[str]] = frozenset({"split"})
    sharded: ClassVar[bool] = False
    counts_owners: ClassVar[bool] = False
    uses_average: ClassVar[bool] = False
    noise_symbol: ClassVar[str] = "sigma_s"
    cost_rises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse wrong values, however the object was made: sensitivities are proved for checked values only."""
        check_keys("dss_args", vars(self), keys_of(type(self)))

    @classmethod
    def own_keys(cls) -> frozenset[str]:
        return frozenset(f.name for f in fields(cls))

    @classmethod
    def suits(cls, keys: Mapping[str, Any]) -> bool:
        """Return whether it is the default for a config with these keys in ``dss_args``."""
        return False

    @classmethod
    def as_default(cls, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what it takes of ``dss_args`` where no mechanism is named: the config may be another strategy's."""
        return keys

    @classmethod
    def variants(cls) -> Sequence[tuple[str, dict[str, Any], dict[str, Any]]]:
        """List its lines in the table of alternatives: label, changes of its own keys, changes of ``privacy``."""
        return ((f"joint, {cls.name}", {}, {"composition": "joint", "selection_composition": None}),)

    # -- the contract ---------------------------------------------------------------------------------

    def check(self, privacy: PrivacySettings, subset: SubsetSettings) -> None:
        """Raise a ConfigError where keys contradict each other or no guarantee is proved. Needs no data, no sizes.

        Each value by itself was checked by its `Key` when the object was made.
        """
        return None

    def schedule(self, sizes: Sizes, subset: SubsetSettings, epochs: int) -> tuple[EpochPlan, ...]:
        """Lay out the epochs, by default as CORDS does: k records, selected anew every ``select_every`` epochs."""
        return subset_schedule(
            sizes, subset, epochs, selects=lambda epoch, _: epoch > 1 and (epoch - 1) % subset.select_every == 0
        )

    def concentrations(self, sizes: Sizes) -> tuple[float, ...]:
        """Return the concentrations of the branches that a release chooses between, from the lowest.

        The schedule marks the epochs that they decide. A branch of concentration c samples at c·B/n with noise of its
        own. Empty: there is no such choice.
        """
        return ()

    def draws_from(self, n: int, k: int) -> int:
        """Return how many records a step draws from: no batch may be larger. Decides it where the plan chooses."""
        return k

    @property
    @abstractmethod
    def reads_validation(self) -> bool:
        """Whether it reads the validation set."""

    @abstractmethod
    def releases(self, noise: SelectionNoise, privacy: PrivacySettings, sizes: Sizes) -> tuple[Release, ...]:
        """List what one selection releases, on D and, with `SelectionNoise.on_validation`, on V.

        What it charges to D may not depend on the noise on V, which is found last.
        """

    @abstractmethod
    def build(self, context: SelectionContext) -> Selector:
        """Build the object that selects."""

    # -- optional -------------------------------------------------------------------------------------

    def bound(self, events: Sequence[Event], delta: float, privacy: PrivacySettings) -> Bound | None:
        """Compose its events on D in its own way (the paper's formula); None for numerical composition.

        It may claim more than the package's accountants find, not less: the larger counts.
        """
        return None

    def describe(self, noise: float, privacy: PrivacySettings, sizes: Sizes, rounds: int) -> list[tuple[str, str]]:
        """Lines of the budget table about one run."""
        draws = sum(r.event.count for r in self.releases(SelectionNoise(noise, None), privacy, sizes) if r.event)
        text = f"{rounds} rounds by {self.name}, {rounds * draws} Gaussian releases, {self.noise_symbol} = {noise:.4f}"
        return [("selection", text)]

    def describe_price(self, price: Callable[[float], float], sizes: Sizes, rate: float) -> str:
        """Say what its sampling rate costs, where it is not B/k.

        ``price(q)``: by how much the training noise exceeds that of the same steps at rate q without selection.
        """
        return ""


def declared_releases(
    mechanism: Mechanism, noise: SelectionNoise, privacy: PrivacySettings, sizes: Sizes
) -> tuple[Release, ...]:
    """Return what a mechanism declares; refuse a release that reads records without a charge."""
    releases = mechanism.releases(noise, privacy, sizes)
    names = [r.name for r in releases]
    if len(set(names)) < len(names):
        raise MechanismError(f"mechanism {mechanism.name!r} declares a release twice: {names}")
    for release in releases:
        if release.dataset not in (TRAINING_DATA, VALIDATION_DATA):
            raise MechanismError(f"mechanism {mechanism.name!r}: {release.name!r} reads the unknown dataset")
        free = release.dataset == VALIDATION_DATA and privacy.validation == "public"
        if release.event is None and not free:
            raise MechanismError(f"mechanism {mechanism.name!r}: {release.name!r} reads private records at no charge")
    reads = any(r.dataset == VALIDATION_DATA for r in releases)
    if reads != mechanism.reads_validation:
        raise MechanismError(f"mechanism {mechanism.name!r}: reads_validation and its releases on V do not agree")
    return releases


# --- by name -------------------------------------------------------------------------------------------

_MECHANISMS: dict[str, type[Mechanism]] = {}


def register_mechanism(mechanism: type[Mechanism], *, force: bool = False) -> type[Mechanism]:
    """Make ``dss_args.mechanism = mechanism.name`` choose this class. May stand above a class as a decorator."""
    load_extensions()
    return add_mechanism(mechanism, force=force)


def add_mechanism(mechanism: type[Mechanism], *, force: bool = False) -> type[Mechanism]:
    """Register a mechanism that comes with us: before extensions, so that none is loaded for it."""
    if not (isinstance(mechanism, type) and issubclass(mechanism, Mechanism) and is_dataclass(mechanism)):
        raise MechanismError("a mechanism is a subclass of cords_dp.Mechanism and a frozen, keyword-only dataclass")
    if not mechanism.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise MechanismError(f"mechanism {mechanism.name!r} must be frozen: @dataclass(frozen=True, kw_only=True)")
    unknown = mechanism.privacy_keys - SELECTION_PRIVACY_KEYS
    if unknown:
        raise MechanismError(f"mechanism {mechanism.name!r}: no such keys of privacy concern selection: {unknown}")
    if mechanism.name in _MECHANISMS and not force:
        raise MechanismError(f"there is a mechanism {mechanism.name!r} already; pass force=True to replace it")
    _MECHANISMS[mechanism.name] = mechanism
    return mechanism


def unregister_mechanism(name: str) -> None:
    """Forget a mechanism, for instance after a test."""
    _MECHANISMS.pop(name, None)


def registered_mechanisms() -> tuple[type[Mechanism], ...]:
    """List the mechanisms in the order of registration; the first that suits a config is its default."""
    load_extensions()
    return tuple(_MECHANISMS.values())


def mechanism_keys() -> frozenset[str]:
    """Return every key of ``dss_args`` that some mechanism uses."""
    return frozenset().union(*(m.own_keys() for m in registered_mechanisms()))


def read_mechanism(
    section: Mapping[str, Any], privacy: PrivacySettings, subset: SubsetSettings, *, default: str | None = None
) -> Mechanism:
    """Read the mechanism that ``dss_args`` asks for, or the strategy's default, and check it."""
    known = registered_mechanisms()
    name = default if section.get("mechanism") is None else section["mechanism"]
    if name is None:
        chosen = next(m for m in known if m.suits(section))
    elif name in _MECHANISMS:
        chosen = _MECHANISMS[name]
    else:
        raise ConfigError("dss_args.mechanism", name, f"unknown; known are {', '.join(repr(m.name) for m in known)}")
    keys = chosen.as_default(section) if name is None else section
    given = {key: keys[key] for key in chosen.own_keys() if keys.get(key) is not None}
    mechanism = chosen(**given)
    mechanism.check(privacy, subset)
    return mechanism


def mechanism_table() -> list[dict[str, str]]:
    """Return one row per mechanism, for README and docs."""
    first = registered_mechanisms()[0].name
    return [
        {
            "`dss_args.mechanism`": f"`{m.name}`" + (" (default)" if m.name == first else ""),
            "what it costs": m.summary,
            "use case": m.use_case,
            "its keys": ", ".join(f"`{key}`" for key in sorted(m.own_keys())),
        }
        for m in registered_mechanisms()
    ]
