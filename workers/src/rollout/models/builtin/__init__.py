"""Models made on the spot: ``rollout://`` URIs and their tokenizers."""
