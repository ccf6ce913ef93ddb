"""Which CORDS configs can be made private by changing a word, and the reason where one cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cords_dp.config import load_config
from cords_dp.errors import CordsDPError
from cords_dp.training import resolve

STRATEGIES = ("FullDP", "RandomDP", "GLISTERDP")
_SUFFIXES = (".py", ".yaml", ".yml")


@dataclass(frozen=True)
class Verdict:
    """One config with one word. ``refusal``: why it cannot be used and what to do; empty where it can."""

    path: Path
    strategy: str
    refusal: str = ""


def config_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves and those in folders, without the packages' own ``__init__.py``."""
    found = (p for path in paths for p in (sorted(path.rglob("*")) if path.is_dir() else [path]))
    return [p for p in found if p.suffix in _SUFFIXES and p.name != "__init__.py"]


def convert(
    files: Iterable[Path], strategies: Sequence[str] = STRATEGIES, *, epsilon: float = 3.0, own_data: bool = False
) -> list[Verdict]:
    """Change ``dss_args.type`` of each config and add a budget; see whether a run could start. No data is read.

    ``own_data``: datasets will be handed to ``train``, whatever the config names.
    """
    return [_verdict(path, name, epsilon, own_data) for name in strategies for path in files]


def _verdict(path: Path, strategy: str, epsilon: float, own_data: bool) -> Verdict:
    try:
        changes = [f"dss_args.type={strategy}", f"privacy.epsilon={epsilon}"]
        resolve(load_config(path, changes), own_data=own_data, plan=False)
    except CordsDPError as error:
        return Verdict(path, strategy, str(error))
    return Verdict(path, strategy)


def conversion_text(verdicts: Sequence[Verdict]) -> str:
    """A count for each word, and every reason once with the configs that it is about."""
    lines = []
    for strategy in dict.fromkeys(v.strategy for v in verdicts):
        own = [v for v in verdicts if v.strategy == strategy]
        refused: dict[str, list[str]] = {}
        for verdict in own:
            if verdict.refusal:
                refused.setdefault(verdict.refusal, []).append(verdict.path.name)
        count = sum(len(names) for names in refused.values())
        lines.append(f"{strategy}: {len(own) - count} of {len(own)} accepted")
        for reason, names in refused.items():
            lines += [f"  refused: {reason}", f"    {', '.join(names)}"]
    return "\n".join(lines)
