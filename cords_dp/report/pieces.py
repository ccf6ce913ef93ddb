"""Pieces of an HTML page: tables that sort, pictures inside of the page, text that cannot break out of it."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from cords_dp.report.plots import plt

_LONG = 24  # characters; a cell of more is a sentence, which may be broken into lines


def table_html(table: pd.DataFrame, *, sortable: bool = True) -> str:
    """Render a table that a click on a heading sorts (page.js), in a box of its own that scrolls on a narrow screen."""
    right = [place > 0 and _numeric(table[name]) for place, name in enumerate(table)]  # the first names the row
    head = "".join(_cell("th", str(name), number) for name, number in zip(table.columns, right, strict=True))
    lines = [
        "".join(_cell("td", _shown(value), number) for value, number in zip(row, right, strict=True))
        for row in table.itertuples(index=False)
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = " class=sortable" if sortable else ""
    return f"<div class=scroll><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _numeric(column: pd.Series) -> bool:
    """Return whether every cell begins as a number does; such a column stands on the right."""
    return all(re.match(r"[-+−]?[\d.]|$|nan|None|none|under", str(value)) for value in column)


def _cell(tag: str, text: str, number: bool) -> str:
    kinds = " ".join([*(["number"] if number else []), *(["words"] if len(text) > _LONG else [])])
    return f"<{tag}{f' class={kinds!r}' if kinds else ''}>{html.escape(text)}</{tag}>"


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def figure_html(figure: Any, alt: str) -> str:
    """Draw a figure into the page, and close it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    plt.close(figure)
    return image_html(buffer.getvalue(), alt)


def image_html(svg: bytes, alt: str) -> str:
    address = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    return f'<p><img alt="{html.escape(alt)}" src="{address}"></p>'


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of a run; an empty dict where it is not there."""
    return json.loads(path.read_text()) if path.is_file() else {}
