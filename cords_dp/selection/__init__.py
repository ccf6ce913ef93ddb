"""Private subset selection."""

from cords_dp.selection.glister import GLISTERDPStrategy

__all__ = ["GLISTERDPStrategy"]
