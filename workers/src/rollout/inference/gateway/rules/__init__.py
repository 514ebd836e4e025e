"""What the gateway decides: plain data in, data out. No clock, no client, no task."""
