"""What the pages of the dashboard show, as JSON.

index           all runs, for the list
study           one study
run             one run
summary         what a run is and how far it got
workers         staleness and activity of each worker
last_round_map  the last round on a map
"""
