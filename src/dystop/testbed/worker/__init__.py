"""The worker: a pure state machine, and the process that runs it.

machine           events in, actions out (alg:dystop, each device)
state             what a worker knows before it joins, and the state that survives a restart
durable_state     the current state, its saves, reports and trainings
session           joining, heartbeats, reports until acknowledged, and incidents of peers
orders            which orders of the coordinator a worker can execute, and their execution
exchange          the exchange of one order, stage by stage
guard             which pulled models are accepted
mixer             how accepted models are mixed
published_models  the models that peers may pull

The following modules perform I/O.

process           threads, sockets and a disk around the machine
session_client    the client side of a session; the observer uses it, too
training_thread   local training
pulls             pulling models from peers
model_server      serving models to peers, and how many
outgoing          what is served: models, or what an attacker sends
public_copies     what others have of the own models, and the own copies of theirs, under a codec
checkpoint        the checkpoint file
history           the event log
"""
