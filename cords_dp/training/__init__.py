"""Training: one step, gradient modes, strategies, the trainer, loaders for loops of your own."""
