"""Figures, drawn in the style of `dystop.report`.

reproduced  measures beside the numbers of the paper
readings    distances of readings from the paper
bound       the measured gap below the bounds of Theorem 1
winner_map  which mechanism wins in which network
"""
