"""Contests: which mechanism reaches a target with the least time, traffic or computation.

winners   one contest: its contenders, its winner, and by how much it wins
advice    the contests of `dystop advise`
"""
