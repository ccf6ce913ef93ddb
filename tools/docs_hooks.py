"""What the docs site needs beside its pages: the configuration reference, made from the code."""

from __future__ import annotations

from typing import Any

MARK = "<!-- reference -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    if MARK not in markdown:
        return markdown
    from cords_dp.experiments.reference import reference

    return markdown.replace(MARK, reference())
