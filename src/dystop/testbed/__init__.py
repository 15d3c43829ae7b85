"""The testbed: real workers, real sockets, the same decisions as the simulator.

audit        was every promise kept? reads what a run has left behind
shell        what really runs: threads, sockets and disks around the machines
coordinator  the coordinator as a state machine
worker       the worker as a state machine
ledger       what the coordinator must not forget
enrolment    how a newcomer gets its certificate over the network
transport    how bytes travel: gRPC, memory, MPI
pki          keys and certificates
events       what happens to a machine, and what it wants done
wire         messages and models as bytes, and the interface of a transport
params       the knobs
host         processes, networks and crashes of the machine below

Each imports from those below it only; coordinator and worker, and params and host, do not know
each other.
"""
