"""A tool that gets pages of hosts that a run names: GET alone, over addresses that are checked and then held to."""
