"""Machine code: where it is kept, who is making it, and processes that make it ahead.

kept        the folder, named after the sources, and the mark of a complete one
claims      of several processes one compiles a function, the others wait for its result
signatures  what runs compile, written down in `signatures.jsonl`
start       begins to compile beside a command, where that is worth it
work        what the process beside the command does

Nothing here imports numba before there is something to compile.
"""
