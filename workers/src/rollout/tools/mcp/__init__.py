"""Tools of servers that speak the Model Context Protocol: listed at plan time, one server an episode, in a sandbox."""
