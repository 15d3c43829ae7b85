"""What several mechanisms share beside graphs.

push    pushes: who receives, and what a push takes
server  rounds with a parameter server
"""
