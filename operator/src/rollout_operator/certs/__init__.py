"""Certificates: made, renewed, rotated."""
