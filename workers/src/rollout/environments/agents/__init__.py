"""Agents that own their loop: programs in a sandbox whose calls to a model's endpoint are the turns of an episode."""
