"""Training on a CUDA device: hand-written kernels for stacks, steps recorded into CUDA graphs.

desk     tensors at fixed addresses that a recorded step reads and writes
record   steps recorded once and replayed, whatever computes them
stacks   many small models at once: the back end, with one of two kinds of step
chain    the layers of a simple network, read off its module
work     a step of such a network: forward and backward passes by hand
exam     accuracy and loss of such networks
kernels  the Triton programs behind it
launch   starting them, or compiling all of a step at once
mixing   sparse rows times a stack of models
solo     large models: one per stream, each replaying its own recording
"""
