"""Figures of a comparison or a sweep: one line, bar or cell for each group of runs."""
