"""What travels between a client and the service: JSON, and protocol buffers where the client sends them."""
