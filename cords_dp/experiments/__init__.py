"""Experiments: one config → one result record."""
