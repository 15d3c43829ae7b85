"""An experiment on the testbed: from its specification to processes, threads or ranks.

enrolment    who takes part, on which device; what must stay while a run lasts; free of torch
parts        what the parties need of data and models: every worker its own shard and no more
coordinator  the coordinator's part, in this process
nodes        a worker's, the server's and the observer's
watch        what operators do to a run: revoke, issue, pardon, restore
launch       all parties as processes, from the run folder to the last record
threads      all parties as threads
mpi          all parties as ranks of a job
interrupt    Ctrl-C in the middle of starting and stopping them
"""
