"""Messages between the parties, and their bytes.

messages  orders, reports, heartbeats, pulls: frozen dataclasses with their bounds
codec     a message as bounded JSON, and back by strict validation
payload   a model as a safetensors file, and the buffer that receives one
"""
