"""The mixing of a plan on the stack of all models.

stage     one stage: where each weight takes its model from, and the mixed rows
product   the weights as sparse rows, and their product with the stack
cpu       its kernel on a CPU
cuda      its kernel on a GPU
rules     aggregation rules other than the mean
deferred  mixes that wait for each other and run as one sequence
"""
