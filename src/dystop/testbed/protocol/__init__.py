"""Messages between the parties, and their bytes.

messages    orders, reports, heartbeats: frozen dataclasses with their bounds
pulls       the request for a model, its header and its refusal
codec       a message as bounded JSON, and back by strict validation
payload     a model as a safetensors file, and the buffer that receives one
coded       messages of a codec, and the receiver of a public copy
"""
