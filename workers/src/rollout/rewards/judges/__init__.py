"""Models that judge answers: each by itself with a score, or those of a group against each other.

The judge is behind a URL, or its weights are on this machine; how it is asked and understood is the same.
"""
