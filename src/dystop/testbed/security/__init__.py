"""Keys and certificates of one federation.

files      small files that are replaced whole, under a lock, private if needed
identity   key and certificate of one party, checked before anything starts
authority  issuing and revoking certificates
tls        credentials for gRPC, and the name of the peer
"""
