"""Runs: one config to one folder of results, and many of them."""
