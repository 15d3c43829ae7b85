"""The commands that run a study: several runs with one report."""
