"""A live, read-only page that follows runs: it reads run folders and nothing else.

files        small files of a run folder; no link leads out of it
discovery    finds the runs under a folder
record_log   follows a record log, or reads only its end
history      what is kept of a record log
downsample   long histories in few points
library      all runs with their files, read again only when they change
values       checks values that files contain
summary      what a run is and how far it got
workers      staleness and activity of each worker
map_view     the last round on a map
view         one run as JSON for its page
curves       the evaluations of many runs
study        one study as JSON for its page
index        all runs as JSON for the list
site         requests, replies, and what each address shows
access       where to listen, and which requests are allowed
server       the HTTP server
static/      the page itself
"""
