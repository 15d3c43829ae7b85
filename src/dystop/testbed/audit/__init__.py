"""Were all promises kept? Reads what a run has left behind.

check    the promises, one function each
story    what is left of a run as plain facts
reading  from the files of a run to these facts
leaks    secrets where none may be
"""
