"""The coordinator as a state machine: no clock, no socket, no disk.

machine     events in, actions out: the whole of it (alg:dystop)
setup       what it is made of, and who it lets in
core        what its parts share: books, members, measurements, outbox
members     who takes part, by what was heard of them and when
probe       measurements as the observation that decisions are made from
rounds      from planning to closing
orders      a plan as one order for each node
open_round  a round under way
closing     what a round came to
records     history on its way out
allowance   how much a peer may say
claims      who says that there is a newer coordinator
trust       strikes, and when they lead to quarantine
sanctions   who is sent away, and who may come back
"""
