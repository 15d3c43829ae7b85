"""The commands of the testbed: all parties at once, one party, the run folder, and keys."""
