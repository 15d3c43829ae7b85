"""Fuzz targets: every parser of foreign bytes, under mutated input, with a seed and a time limit.

    PYTHONPATH=src:tests python -m fuzz --seconds 300

mutations  how valid inputs become hostile ones
targets    the parsers, valid inputs for each, and the errors that they may raise
engine     draws inputs, limits memory and time, and reports what a target may not do
"""
