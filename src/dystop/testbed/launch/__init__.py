"""What a party needs of the machine below it.

launch      child processes: started, started again, all stopped at the end
netns       a network of one's own: namespaces, rates, loss, cuts (Linux, root)
failpoints  places where a test can make a process crash, hang, fail or wait
"""
