"""The graphs over which mechanisms mix.

undirected        components, two-way pairs, regular graphs, colourings
in_reach          graphs whose edges all lie within reach
pairs             values by pair of workers, spanning forests, the fastest pairs
cliques           groups with balanced labels, and the edges between them
matching_weights  activation probabilities of matchings, and the mixing weight
"""
