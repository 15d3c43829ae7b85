"""Local training and evaluation of every worker's model (torch; no files, no network).

adapters         LoRA: a base that all workers share, and what each one trains
tasks            what models learn: the loss and the score
trainer          `Trainer`: what the simulator and the testbed call
trainers         what may take its place: a Flower app, or nothing
params           `TrainerParams`
problem          the interface of a training back end
backends         sequential (the reference), stacked, cpu, cuda
backend_choice   which back end trains a model
executors        one executor for each CPU core or GPU
local_steps      mini-batches, augmentation, optimisers, schedules, private steps
samples          the data on the device, and which worker owns what
randomness       random numbers by address inside torch
evaluate         score and loss of many models
batch_norm       batch-norm recalibration
flat             a model as one flat vector
carried_vectors  vectors beside models: the state of an optimiser, and what a mechanism carries
memory           what a run needs and whether it fits
saved            trained models in files
device           devices, transfers, clocks
models           the networks and their catalogue

Import the submodules. This file imports nothing, so that `dystop --help` does not load torch.
"""
