"""What the dashboard reads of run folders.

files        small files of a run folder, and checks of the values in them
discovery    finds the runs under a folder
log_reader   follows a record log, or reads only its end
history      what is kept of a record log
downsample   long histories in few points
curves       the evaluations of many runs
library      all runs with their files, read again only when they change
"""
