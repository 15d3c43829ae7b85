"""How a new worker gets its certificate over the network.

tokens  created by the operator, each valid for one certificate
server  the port where tokens are redeemed; closed unless asked for
client  what happens on the host of the new worker
"""
