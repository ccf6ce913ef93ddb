"""Random generators, clipping, and the mechanisms that add noise. Pure functions."""
