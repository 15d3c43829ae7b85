"""The conduct of members: what they did wrong, and what follows.

misbehaviour   strikes against members, and their message rate
accusations    refused models that the observer checks before their sender is excluded
quarantine     excluded and readmitted members, false claims of a newer epoch
failures       workers that fail their orders are left out for some time
incidents      what went wrong with whom, for the operator
"""
