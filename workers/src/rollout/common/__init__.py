"""What every layer may use: processes, quantities, grace periods. Knows nothing of runs."""
