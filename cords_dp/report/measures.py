"""The part of a page that shows a run's trade-off curves, with μ and ε at other δ beside them."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from cords_dp.planning.measures import measure_lines
from cords_dp.planning.trade_off_figure import trade_off_figure


def measures_part(report: Mapping[str, Any]) -> str:
    """Render what `privacy.json` holds under ``measures``; nothing where an older statement has none."""
    measures = report.get("measures") or ()
    if not measures:
        return ""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in measure_lines(measures))
    return f"<h4>What an attacker can tell</h4>{trade_off_figure(measures)}<ul class=small>{lines}</ul>"
