"""Threads, sockets and disks around the machines: what really runs.

seat           the coordinator: one thread with the machine, the ledger and the sessions
node           a worker: updating, training, pushing, fetching threads
observer       tests everybody's published model
line           the end of a session to the coordinator
fetch          one model, until it is there or there is no hope
fetchers       the threads that do it
shelf          models on their way out, packed and digested once
tutor          the training thread, as slow as its device
local_trainer  the simulator's trainer as the lesson of one worker
vault          the checkpoint: always whole, and the one before it
history        the diary of a node
"""
