"""What reports show, computed from records: pure functions, no figures, no pages.

comparison/    a comparison or a sweep: groups, rankings, leads, headline
contests/      who wins by time, traffic or computation
groups         runs that differ in nothing but the seed
summary        the numbers of a run
summary_table  the table that shows them
scores         the score of a task, and when a run had which
series         points of lines
time_shares    what the workers did with their time
names          mechanism, label, status and commands of a run
settings       settings of runs, and where they differ
notices        warnings that a reader needs
plot_request   what `dystop plot` is asked for
"""
