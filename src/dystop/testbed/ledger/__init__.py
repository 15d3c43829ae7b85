"""The durable state of the coordinator.

tables    the rows of its tables, a ledger in memory, and what a restart resumes from
rows      how rows are written to SQLite, and how damage to them is found
sqlite    the ledger in a file: checksums, backups, one owner
steps     what its rows show about the rounds, for the audit
archive   the same of rounds whose rows are gone
commits   the chain of commits, which shows whether commits are missing
recovery  what `dystop restore` does with a damaged ledger
"""
