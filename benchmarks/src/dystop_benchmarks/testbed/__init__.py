"""Benchmarks of the testbed: its coordinator, a worker that serves its model, and the wire."""
