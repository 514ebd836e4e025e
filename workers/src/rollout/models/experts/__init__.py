"""Mixtures of experts: which types are reinforced, and what their samples tell."""
