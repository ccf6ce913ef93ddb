"""Private tuning: a random number of trials, of which the best is kept."""
