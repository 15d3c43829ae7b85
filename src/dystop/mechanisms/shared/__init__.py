"""What several mechanisms share: graphs, values of pairs, pushes, and parameter servers."""
