"""Records that lie packed in a form of their own, read as lines."""
