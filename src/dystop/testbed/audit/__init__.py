"""The offline checker of testbed runs.

check  the invariants, one function each
facts  what the checker reads, and how it is read from the files of a run
"""
