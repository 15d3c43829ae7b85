"""The DySTop paper, checked with dystop: its figures, its claims and its theorems.

reproduce/  recipes for the figures, their runs, the paper's claims, and the search over readings
theory/     the bounds of Theorems 1 and 2, and the constants that they need
bound       both theorems against a recorded run
atlas       a grid of networks, with every mechanism at each point
data/       numbers of runs: measures, verdicts, distances, winners
figures/    what the commands draw
pages/      the pages that they write
cli/        the commands that this package adds to `dystop`
"""
