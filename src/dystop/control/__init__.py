"""The decisions of the paper as pure functions: one equation, one function, its label beside it.

round                one round from the coordinator's side: view, decision, settlement
activation           WAA: who is active
topology             PTCA: who pulls from whom
priority             priorities of candidate links
staleness            staleness, virtual queues, drift plus penalty
aggregation          mixing weights and mixing
laws                 how long a round lasts and when trainings start
time_spent           what workers do with their time in a round
plan_check           the contract of a plan
stopping             when a run ends, and when models are evaluated
fairness             how evenly a quantity is spread
"""
