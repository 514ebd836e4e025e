"""The control plane of the test cluster: its processes, ports, keys and audit log."""
