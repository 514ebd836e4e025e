"""Training as a service: a client's own loop calls this process, and every call is a fact in its book."""
