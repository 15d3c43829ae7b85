"""The CPU back end (`training.path = "fused"`): a whole local training as one compiled call.

backend  `train` and `evaluate`
arena    where the numbers of a training lie in memory
program  the calls of a forward and a backward pass
passes   the compiled loop that executes programs
blocks   the inner loops
vectors  the vector instructions of the inner loops
"""
