"""How a newcomer gets its certificate over the network.

tokens    words that the operator hands out, each good for one certificate
service   the port at which they are redeemed; closed unless asked for
newcomer  what happens on the host of the newcomer
"""
