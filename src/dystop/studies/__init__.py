"""Studies: several runs that belong together, and how they are planned.

study          the folder of a study: plans, what is left to do, resuming
compare        several mechanisms and seeds
sweep          a grid of values
other_law      a comparison planned under another law
trials         short runs for `dystop advise`
worlds         properties of networks that a study varies
gap            the simulator against a testbed run
trace_metrics  differences between the two
executors      where the runs of a study run: here, Slurm, Ray
"""
