"""Experiments: from a configuration to run folders, studies and results.

config/        what can be set: sections, keys, files, readings of the paper
building/      a configuration becomes data, models and a whole simulation
fleet          fleet, world and stop rules of a configuration; free of torch
run            one experiment in one run folder: run, resume, verify
folders/       run folders: what lies in them, and who writes it
studies/       several runs that belong together
executors/     where the runs of a study run: here, Slurm, Ray
testbed/       an experiment with real processes
export/        runs as tables and for other tools
api            `dystop.simulate` and `dystop.compare`
simulation     an experiment in Python, which runs while it is iterated
callbacks      what follows such a run
progress_text  sentences about the progress of a run
results        finished runs as Python values
common_time    the accuracy of several runs at one time
gap            the simulator against a testbed run
trace_metrics  differences between two runs
partitions     who has which sample, for other frameworks
examples       the examples that come with dystop
environment    versions, device, threads, memory and disk
interrupts     Ctrl-C and SIGTERM
"""
