"""What clouds give to runs: identities and their rights. Clients of clouds live behind ``rollout.objects.s3`` and ``gcs``."""
