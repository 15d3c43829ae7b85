"""Whole local trainings of small networks as one compiled call on a CPU.

backend  `train`, `evaluate`: what a station calls
chain    the layers of a module, if the kernels can compute them
plan     where everything lies that they work on
program  the calls that make up a pass, there and back
passes   the passes of a whole training
blocks   the inner loops
vectors  the instructions that those are made of
windows  which inputs make up an output of a moving window
"""
