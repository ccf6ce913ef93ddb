"""A line of the audit's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SINGLE, JOINT = 0.05, 0.001  # of one row alone; of all rows together, which decides


@dataclass(frozen=True)
class Finding:
    """What was audited, what was claimed and what was found.

    bound: ε is at least this, with the confidence ``alpha`` says, as a function of alpha; None for a row that compares
        two neighbours under frozen noise, where there is nothing to estimate.
    violations: what such a row has found; empty if all is well. seen: what was done, in a few words.
    """

    target: str
    kind: str
    claimed: float | None
    delta: float | None
    seen: str
    bound: Callable[[float], float] | None = None
    violations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A finding, judged. ``low``: with 95 % confidence for this row; ``joint``: 99.9 % for all rows together."""

    finding: Finding
    low: float | None
    joint: float | None

    @property
    def passed(self) -> bool:
        exceeds = self.joint is not None and self.finding.claimed is not None and self.joint > self.finding.claimed
        return not exceeds and not self.finding.violations

    def row(self) -> dict[str, Any]:
        finding = self.finding
        return {
            "audited": finding.target,
            "audit": finding.kind,
            "claimed": finding.claimed,
            "delta": finding.delta,
            "bound_95": self.low,
            "bound_joint": self.joint,
            "passed": self.passed,
            "seen": "; ".join((finding.seen, *finding.violations)),
        }


def judge(findings: Sequence[Finding]) -> list[Verdict]:
    """Judge findings (Bonferroni): all joint bounds hold with probability 1 − JOINT; 1 sound build in 1000 fails."""
    estimated = sum(f.bound is not None for f in findings)
    verdicts = []
    for finding in findings:
        if finding.bound is None:
            verdicts.append(Verdict(finding, None, None))
        else:
            verdicts.append(Verdict(finding, finding.bound(SINGLE), finding.bound(JOINT / estimated)))
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """Render the verdicts for a terminal."""
    head = ("audited", "audit", "epsilon", "delta", "above, 95 %", "all, 99.9 %", "verdict")
    lines = [head, *(_cells(v) for v in verdicts)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    for verdict in verdicts:
        if not verdict.passed:
            text.append(f"FAILS {verdict.finding.target}: {verdict.row()['seen']}")
    return "\n".join(text)


def _cells(verdict: Verdict) -> tuple[str, ...]:
    finding = verdict.finding
    exact = "exact" if finding.bound is None else "-"
    low, joint = (exact if v is None else f"{v:.3f}" for v in (verdict.low, verdict.joint))
    return (
        finding.target,
        finding.kind,
        "-" if finding.claimed is None else f"{finding.claimed:.3f}",
        "-" if finding.delta is None else f"{finding.delta:.0e}",
        low,
        joint,
        "passes" if verdict.passed else "FAILS",
    )
