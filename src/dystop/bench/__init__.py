"""`dystop bench`: how fast this machine is, always beside a reference measured in the same run.

suite       what can be measured, in order
training    whole rounds against one large batch and against plain loops
planner     planning against its straight twin, and how it grows with the fleet
mixing      the sparse-dense product against a plain loop and against a memory copy
evaluation  all models against one model at a large batch
processes   a whole run, its memory, and the start of the command, each in a process of its own
wire        a model pulled over mutual TLS against a socket written by hand
sweeps      cost against the number of workers and against the size of the model
result      one line of the table, with its reference
table       the same as Markdown, for the documentation

Import the submodules: this file stays empty so that `dystop --help` need not load torch.
"""
