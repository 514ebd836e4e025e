"""Code of users: found and loaded."""
