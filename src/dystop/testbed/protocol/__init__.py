"""What the parties say to each other, and how it looks as bytes.

messages   orders, reports, heartbeats, pulls: frozen dataclasses with their bounds
codec      a message as bounded JSON, and back by strict validation
interface  sessions and pulls as every transport offers them
header     the header of a model on the wire: written, compared, explained
payload    a model as a safetensors file, and the parcel that takes one in
quiet      logs that a peer cannot fill
"""
