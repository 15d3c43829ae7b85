"""The commands that show what recorded runs hold.

report     pages, tables, animations and exports
plot       figures for a paper
dashboard  the live page
bound      a run against the paper's theorems
gap        a testbed run against the simulator
"""
