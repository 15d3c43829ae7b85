"""The simulator's shell: virtual time around the same decisions that the testbed takes."""
