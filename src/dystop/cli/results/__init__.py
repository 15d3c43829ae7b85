"""The commands that show what recorded runs hold.

report     pages, tables, animations and exports
plot       figures for a paper
dashboard  the live page
gap        a testbed run against the simulator
"""
