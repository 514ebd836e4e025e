"""Kueue's kinds: what its Workloads say, and whether it is there. What a run asks for stands in ``run/queue``.

Nothing of Kueue is imported; its objects are read as it documents for jobs of others.
"""
