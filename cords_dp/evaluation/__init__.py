"""How good a model is: measured exactly on public records, or from one noisy release of private ones."""
