"""What a party needs of its machine.

supervisor  child processes: start, restart, stop
netns       a virtual network: namespaces, rates, loss, cuts (Linux, root)
health      the health of a party, as a file
failpoints  places where a test makes a process crash, hang, fail or wait
"""
