"""What the pages show, computed from records.

measures   numbers of the paper's claims, from runs
verdicts   each claim of the paper against our runs
nearness   how near a reading comes to the paper
group_fit  whether one reading fits all groups of numbers
atlas      the contests of `dystop atlas`, one at every point of a map
"""
