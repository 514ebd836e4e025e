"""The laptop's operator: the same plan that a cluster gets, applied to processes of this machine.

Loads no torch and no transformers, whatever it runs.
"""
