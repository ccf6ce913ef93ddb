"""Runs configs, one or many, each into a folder of results."""
