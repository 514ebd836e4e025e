"""Losses on preferences: pairs of answers, and answers with a label."""
