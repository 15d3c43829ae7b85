"""How far the code of a mechanism can be trusted to be what its name says."""

FAITHFUL = frozenset({"paper", "authors' code", "own work", "example"})
"""Needs no warning: followed to the letter, or not published by anybody else."""
