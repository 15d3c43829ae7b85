"""The coordinator: a pure state machine, and the process that runs it.

machine        events in, actions out (alg:dystop)
state          what the parts of the machine share, and the actions they request
setup          what a coordinator is built from, and which joins it refuses
members        the members of a run and their states
conduct        what members did wrong, and what follows: strikes, accusations, quarantine, failures
observations   measurements, as the observation that a mechanism decides from
inbox          messages of members: which are refused, and who applies the others
joining        who is refused, who is admitted, the quorum and the roster
rounds         rounds from planning to closing
open_round     the open round: whom it waits for, and who has failed in it
orders         a plan as one order for each node
round_reports  the reports of a round as its outcome and its trace line
evaluations    the evaluations that are due
message_check  which messages of a member can be true
records        records that wait for their evaluation
warm_up        rounds that are played and dropped before members join, so that code is compiled
process        the thread, sockets and ledger around the machine: the only module with I/O
"""
