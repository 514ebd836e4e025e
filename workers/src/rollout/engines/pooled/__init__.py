"""Vectors and scores: a transformer's forward without decoding, pooled or through its head."""
