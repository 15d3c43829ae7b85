"""A live, read-only page that follows runs: it reads run folders and nothing else.

run_folders/  what is read of run folders
views/        what the pages show, as JSON
site          requests, replies, and what each address shows
access        where to listen, and which requests are allowed
server        the HTTP server
static/       the page itself
"""
