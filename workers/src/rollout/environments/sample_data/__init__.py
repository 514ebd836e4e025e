"""Generators of the sample data sets under ``manifests/samples/data``."""
