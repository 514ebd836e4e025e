"""The layers of a snapshot, each taken and read through one contract. Which there are: ``LAYERS``."""
