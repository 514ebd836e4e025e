"""Kinds of plugins beside rewards and environments, as what a run takes in their place."""
