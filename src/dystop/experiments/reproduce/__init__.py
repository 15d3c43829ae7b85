"""`dystop reproduce`: recipes for the figures of the paper, their runs, and the paper's claims."""
