"""Loops over arrays that the pure packages share: pairs by row, short sorts, lookups, memory.

Nothing here knows what a worker is. All of it is compiled (`dystop.compiled`), equals a plain
NumPy expression that a test writes down, and costs as much as its input is long.
"""
