"""Rules of batches and of endpoints."""
