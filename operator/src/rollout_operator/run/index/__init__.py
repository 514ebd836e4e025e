"""What is looked up over all runs: what they name, what they wait for, and whose turn it is."""
