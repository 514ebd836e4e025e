"""Nodes of the test cluster: fake ones, real ones, their network and their images."""
