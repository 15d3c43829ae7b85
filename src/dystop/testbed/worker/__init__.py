"""The worker as a state machine: no clock, no socket, no disk.

machine   events in, actions out: the whole of it (alg:device)
state     what it knows at first, and what survives a restart
session   joining, heartbeats, reports until acknowledged
orders    what it does: orders, training, publishing
errand    one order on its way through its stages
fetches   which fetches are under way, and from whom it may fetch
guard     what it believes of what it fetched, and how it mixes
training  local training: begun, begun again, ended
keeper    what it has, hands out, and has written down
slot      its last publications, and snapshots for who needs an exact one
"""
