"""One step's batch in the hands of one algorithm."""
