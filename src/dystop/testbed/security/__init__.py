"""Who is who: keys and certificates of one federation.

files      small files that are whole or not there, and private if need be
identity   the key and certificate of one party, checked before anything starts
authority  issuing and revoking certificates
"""
