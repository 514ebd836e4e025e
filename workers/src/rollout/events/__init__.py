"""A run's events on their way to queues and topics of clouds, as CloudEvents. Clients of clouds live behind ``rollout.objects.s3`` and ``gcs``."""
