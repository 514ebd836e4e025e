"""The actor: claims groups, plays their episodes with the engine, scores and submits them.

Holds nothing that cannot be made again from the coordinator's task and the spec's seed.
"""
