"""What our kinds are to the API server: names, columns, metadata, rules of update."""
