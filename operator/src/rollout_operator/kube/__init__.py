"""Talking to the API server: one shared session, few verbs, every error named."""
