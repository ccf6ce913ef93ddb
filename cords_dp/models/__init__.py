"""Models that keep CORDS' contract and Opacus'."""
