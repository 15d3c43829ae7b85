"""Figures of single runs: learning, rounds, maps, labels, and a moving picture."""
