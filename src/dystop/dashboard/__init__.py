"""A live, read-only page that follows runs: it reads run folders, and nothing else.

thin      long histories in few points
history   what is kept of a record log
follow    reads what is new in a record log
tail      where a run has got to, without reading all of it
files     reads the small files of a run folder, without following links out of it
shelf     which runs there are
library   what is in them
words     numbers as a reader wants them
summary   what a run is and where it stands
view      a run as the page shows it
crew      the workers, and how stale each is
scene     the last round on the map
index     all runs as the page shows them
bind      where to listen, with which secret
door      who may come in
replies   requests and answers as values
site      what lies at which address
server    HTTP, read-only
static/   the page itself
"""
