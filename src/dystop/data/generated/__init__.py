"""Data sets that are generated from a seed: nothing is downloaded.

images   synthetic images
text     sentences of a made-up language
table    features with a class and a number for each row
"""
