"""The simulator: the paper's rounds in virtual time, with the decisions that the testbed takes too.

`dystop.simulator.round.simulate` is the algorithm.

run               the algorithm, or many rounds side by side where that gives the same records
round             one round, and the loop over rounds: the algorithm
state             what a simulation is made of, and where it stands
params            its parameters, without torch
transfers         a plan carried out on the models: transfers, mixing, new trainings
model_stack       all models in one stack
mixing            the mixing of a plan on that stack, plain, by other rules or deferred
carrying          vectors that a mechanism carries, after the mixing of a round
exchange          what nodes hand out, and what is charged for it
mailbox           pushed models
evaluation        which models are evaluated, and when
checkpoint        the state in a file
pipeline          rounds started ahead of those that are finished
waves             trainings of several rounds as one stack
"""

from dystop.simulator.run import every_round, is_pipelined, no_round, run_rounds

__all__ = ["every_round", "is_pipelined", "no_round", "run_rounds"]
