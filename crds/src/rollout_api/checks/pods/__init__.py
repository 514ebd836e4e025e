"""Rules of what runs in a cluster: what a runtime allows, labels, devices, variables."""
