"""Figures, drawn from what `dystop.report.data` computes.

style         colours, line styles, sizes and legends of all figures
svg           figures as files and as inline SVG
single_runs/  learning, rounds, maps, labels, and a moving picture
comparison/   curves, bars, sweeps and heat maps of groups
paper         figures for a paper (`dystop plot`)
paper_style   their looks
gap           `dystop gap`
"""
