"""Executors: where the runs of a study run, chosen by `--on`.

choice          what `--on` and the keys of an engine choose
executor        the interface of an engine: submit a job, watch it, cancel it
driver          the study: hands runs to an engine, follows them, publishes their results
driver_lock     one driver at a time, on whichever host
attempts        a folder for each attempt at a run, published by renaming
node            what an engine runs on a node
shared_folder   proof that a node sees the folder of the study
local           child processes, one GPU each
slurm           Slurm, through submitit
ray_cluster     the Ray cluster of this host, and what its nodes can do
ray_tasks       tasks of a Ray cluster
"""
