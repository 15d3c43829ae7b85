"""Back ends of local training; all give the results of `sequential`.

sequential  one worker after another: the reference
stacked     many workers at once, in torch
cpu/        compiled for CPUs
cuda/       stacks and streams on GPUs
layers      a network as a chain of layers, for those that compile it
"""
