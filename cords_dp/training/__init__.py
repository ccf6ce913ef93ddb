"""Trains: one step, gradient modes, strategies, the session, CORDS' trainer, loaders for custom loops."""
