"""`dystop bench`: speed on this machine, always beside a reference measured in the same run.

command     the command
suite       the benchmarks by name
training    training and evaluation against one large batch and against plain loops
planning    planning against the same planner without kernels, and how it grows with the fleet
mixing      the sparse-dense product against a plain loop and against a memory copy
processes   a whole run, its memory, and the start of the command, each in a process of its own
waves       mechanisms that wake one worker at a time against D-PSGD
testbed/    a coordinator under load, a worker that serves while it trains, and the wire
scaling     cost against the number of workers and against the size of the model
references  what training is measured against: one large batch, plain loops
stopwatch   fair measurement: clocks wait for the device, measurements alternate
settings    how much is measured, and with which images
machine     what the numbers were measured on
child       one run in a process of its own, measured
result      one line of the table with its reference, as JSON and as Markdown
figures     cost of a round by fleet size, cost of an image by model size

Import the submodules: this file stays empty so that `dystop --help` does not load torch.
"""
