"""One run: from a configuration to its results.

building/      a configuration becomes data, models and a whole simulation
fleet          fleet, world and stop rules of a configuration; free of torch
run            one experiment in one run folder: run, resume, verify
api            `dystop.simulate` and `dystop.compare`
simulation     an experiment in Python, which runs while it is iterated
callbacks      what follows such a run
progress_text  sentences about the progress of a run
results        finished runs as Python values
common_time    the accuracy of several runs at one time
examples       the examples that come with dystop
processes      `dystop` commands as child processes
interrupts     Ctrl-C and SIGTERM
"""
