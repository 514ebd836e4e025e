"""Plugins in processes of their own: gRPC over a Unix socket, in whatever language, under one contract."""
