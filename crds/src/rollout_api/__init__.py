"""The contract of rollout: kinds, checks, generated schemas. Imports pydantic only."""
