"""A run without a loop of its own: a client asks for the passes, updates and samples of a loop that is theirs."""

from pydantic import Field

from rollout_api.base import ApiModel, Name, filled, many
from rollout_api.v1alpha1.inference.endpoint import ApiKey


class Serve(ApiModel):
    """Training as a service over the run's model; it ends when the run is deleted or suspended, or at a limit."""

    model_name: Name | None = None
    """What clients call the base model. Unset: its `uri`."""
    api_keys: tuple[ApiKey, ...] = many(64, key="name")
    """Keys of clients, as `rollout infer keys create` makes them; what was made with a key is seen by keys of its name only.
    In a cluster at least one; on one machine they are not read, and the keys of that machine hold."""
    skip_unembed: bool = filled(default=False)
    """Leave out the adapter on the unembedding that clients ask for by default, and tell them; else they are refused."""
    full_weights: bool = filled(default=False)
    """Train all weights of every model, each in a copy of the base, whatever adapter clients ask for, and tell them; else
    models are adapters."""
    max_models: int | None = Field(default=None, ge=1, le=1024)
    """Models of the service, those of every key together; further ones are refused. Unset: 1024, of which 64 are in memory."""
