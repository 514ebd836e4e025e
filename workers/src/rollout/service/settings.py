"""What a service is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollout.errors import SpecError
from rollout_api.v1alpha1.run import RolloutRunSpec

MODELS_MAX = 1024
"""Models of one book."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingServiceSettings:
    """``bases`` as ``[NAME=]MODEL``; ``folder`` holds the book and saved weights; ``keys`` the keys.

    ``skip_unembed``: an adapter on the unembedding that a client asks for is left out, and the client is told.
    ``full_weights``: names of bases whose models have all weights trained, whatever adapter a client asks for.
    ``models_max``: of the book, those of every key together.
    ``models_in_memory``: at most so many models; further ones are on the disk until a call needs them.
    """

    bases: tuple[str, ...]
    folder: Path
    keys: Path
    host: str = "127.0.0.1"
    port: int = 8400
    threads: int = 1
    skip_unembed: bool = False
    full_weights: tuple[str, ...] = ()
    body_bytes_max: int = 256 << 20
    poll_seconds: float = 20.0
    models_max: int = MODELS_MAX
    models_in_memory: int = 64


def settings_of_spec(
    spec: RolloutRunSpec, folder: Path, keys: Path, threads: int | None = None
) -> TrainingServiceSettings:
    """The service that a manifest's ``serve`` asks for, at the address of a laptop. Raises SpecError.

    ``threads`` None: the whole cores of ``learner.resources``, at least one.
    """
    serve, uri = spec.serve, spec.model.uri
    if serve is None or uri is None:
        raise SpecError("spec.serve: needs spec.model.uri, the base that clients train models over")
    name = serve.model_name or uri
    return TrainingServiceSettings(
        bases=(f"{name}={uri}",),
        folder=folder,
        keys=keys,
        threads=threads or spec.learner.service_threads,
        skip_unembed=serve.skip_unembed,
        full_weights=(name,) if serve.full_weights else (),
        models_max=serve.max_models or MODELS_MAX,
    )
