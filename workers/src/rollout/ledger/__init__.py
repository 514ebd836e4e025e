"""Durable truth of a run: one contract, SQLite now."""
