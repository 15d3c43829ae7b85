"""The testbed: real workers, real sockets, the same decisions as the simulator.

setup         a configuration becomes processes, threads or ranks
audit         checks, from the files of a run, that all its guarantees hold
observer      the process that evaluates all models
judgement     the observer's check of a model that a worker refused
coordinator   the coordinator: a pure state machine, and its process
worker        the worker: a pure state machine, and its process
ledger        what the coordinator must not forget
enrolment     how a new member gets its certificate over the network
transport     how bytes travel: gRPC, memory, MPI
security      keys and certificates
events        events and actions of the two state machines
log_throttle  logs that a peer cannot fill
protocol      messages and models as bytes
params        the parameters
launch        processes, networks and failpoints of one machine
names         what the parties are called

A package imports only from those below it; `setup` also uses `dystop.runs`, which does not know it.
Coordinator and worker do not import each other, nor do params, launch and names.
"""
