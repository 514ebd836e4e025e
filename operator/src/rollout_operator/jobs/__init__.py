"""Jobs that owners of ours send into their namespaces: how far one is, and making it."""
