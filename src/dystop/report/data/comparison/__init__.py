"""A comparison or a sweep, computed from its runs.

study_results   groups, target and rankings, computed once
ranking         the tables: mean and standard deviation over seeds
leads           by how much one group is ahead of another, and how sure that is
headline        who was first, by how much, and why
other_law       whether another law of time would change the first place, from planned runs
sweep_layout    which key of a sweep is the axis, what a line is, and what shares a panel
"""
