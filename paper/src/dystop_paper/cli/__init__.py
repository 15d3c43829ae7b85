"""The commands that this package adds to `dystop`, by entry points in pyproject.toml.

reproduce  figures of the paper, with a verdict on each claim
readings   `dystop reproduce readings`: the search over readings
bound      the theorems against a recorded run
atlas      maps of networks
"""
