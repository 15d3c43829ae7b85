"""What the coordinator must not forget.

tables    the lines of its tables, a ledger in memory, and what a restart goes on from
sqlite    the ledger in a file: checksums, backups, one owner
recovery  going on from a backup
"""
