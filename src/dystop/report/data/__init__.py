"""What reports show, computed from records: pure functions, no figures, no pages.

comparison/    a comparison or a sweep: groups, rankings, leads, headline
contests/      who wins by time, traffic or computation: advice and atlas
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
measures       numbers of the paper's claims, from runs
verdicts       each claim of the paper against our runs
nearness       how near a reading comes to the paper
group_fit      whether one reading fits all groups of numbers
"""
