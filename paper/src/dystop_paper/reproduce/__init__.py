"""`dystop reproduce`: recipes for the figures of the paper, their runs, and the paper's claims.

campaigns      the runs that recipes share
recipes        the figures, and the runs and claims of each
paper_claims   the sentences of the paper that contain a number
progress       what is done of a recipe, and what is left
run_reuse      finished runs of other folders with the same settings
presets        samples of the open keys, and `nearest`
reading_space  open keys with their plausible values, presets and samples
reading_runs   the runs of a search over readings
distance       how far a number is from the paper's
"""
