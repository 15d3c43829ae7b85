"""The CUDA back ends: Triton kernels for stacks of small models, CUDA graphs for all.

streams       large models: one per stream, each replaying its own graphs
stacks        small models: a stack of them, trained by one graph
evaluate      accuracy and loss of a stack of small models
stages        the layers of a small network, grouped as the kernels compute them
stage_passes  forward and backward passes of these stages
buffers       the static buffers of a graph, and the mini-batches in them
graphs        capture and replay of CUDA graphs, compilation of kernels
kernels       the Triton kernels
"""
