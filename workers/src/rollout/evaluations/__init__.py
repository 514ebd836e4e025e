"""Measuring a policy: what is asked, how it is scored, and what the scores say with what certainty.

Knows rows and messages, nothing of tokens or models; never imports torch.
"""
