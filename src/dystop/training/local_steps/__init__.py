"""The steps of a local training: what a mini-batch holds, and how it changes a model.

batches        which samples a mini-batch holds
augmentation   random crops and flips of images
optimisers     SGD with momentum, Adam(W), and their state
schedules      the learning rate by a worker's local step
privacy        differentially private steps
"""
