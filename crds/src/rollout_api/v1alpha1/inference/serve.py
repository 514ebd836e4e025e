"""A run without a loop of its own: its place in the schema, refused until something serves it."""

from rollout_api.base import ApiModel, filled


class Serve(ApiModel):
    """Training as a service: a client asks for forward passes, updates, samples and saves, one after the other."""

    max_models: int = filled(1, ge=1, le=1024)
    """Adapters over the run's model that clients may have at once."""
