"""Figures of this package's commands, drawn in the style of `dystop.report`."""
