"""What a device holds, which devices there are, and whether a run fits."""
