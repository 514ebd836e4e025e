"""What environments keep between episodes: what they write is checked, committed with a step, read, and let go of."""
