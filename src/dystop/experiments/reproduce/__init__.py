"""`dystop reproduce`: the figures of the paper as recipes, their runs, and the paper's claims."""
