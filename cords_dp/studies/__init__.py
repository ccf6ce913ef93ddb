"""Studies: the paper's experiments and ours beside them."""
