"""An experiment on the testbed: from its configuration to processes, threads or ranks.

partitions       who has which sample, for other frameworks
enrolment        who takes part, on which device, with which settings; free of torch
preparation      what is settled before the first process, and the enrolment
parts            what the parties need of data and models: every worker gets its own shard only
coordinator_run  the coordinator's part, in this process
parties          the part of a worker, the server or the observer, in this process
operations       what operators do to a run: revoke, issue, pardon, restore
transports       the transports by name: what each needs, and how it starts the parties
launch           all parties as processes, from the run folder to the last record
threads          all parties as threads
ranks            all parties as ranks of an MPI job
collect_models   the workers' models and their average, after the run
"""
