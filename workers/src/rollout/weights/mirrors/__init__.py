"""Where the weights lie that an actor patches: a file in memory, or one in a folder."""
