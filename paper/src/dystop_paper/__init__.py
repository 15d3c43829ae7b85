"""The DySTop paper, checked against dystop: its theorems, beside recorded runs.

theory/   the bounds of Theorems 1 and 2, and the constants that they need
bound     both theorems against a recorded run
figures/  what the commands draw
cli/      the commands that this package adds to `dystop`
"""
