"""The processes of a run; each reads one WorkerConfig file, wires, and runs."""
