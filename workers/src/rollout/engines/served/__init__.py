"""What every engine behind a server needs: a lock on its weights, calls in flight."""
