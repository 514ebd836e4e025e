"""Several runs side by side: their curves, their settings, their order."""
