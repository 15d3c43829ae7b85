"""Local training and evaluation of every worker's model (torch; no files, no network).

catalogue   the table `MODELS`, without torch
models      `build_model` and the networks
flat        a model as one flat vector, `Layout`
trainer     `Trainer`, `TrainerParams`: what the engine calls
sequential  one worker after another: the plain reference
stacked     many workers in one tensor program: the same arithmetic, faster for small models
fused       whole local trainings of small networks as one compiled call, on a CPU
cuda        recorded steps and kernels of our own, on a GPU
dropout     which numbers fall out, by address: the same on every path and device
evaluate    accuracy and loss of many models
memory      what a run needs and whether it fits

Import the submodules: this file stays empty so that `dystop --help` need not load torch.
"""
