"""What the processes of a run say to each other: messages, routes, client, credentials, TLS."""
