"""A session at a service: the numbers of its models and samplers, and how they are made."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from rollout.client.connection import ServiceConnection
from rollout.client.sampling import SamplingClient
from rollout.client.training import TrainingClient

FIRST_SECONDS = 20.0
"""How long a service that has never answered is asked: an address may be wrong."""


class ClientSession:
    """One session. Models and samplers are numbered as they are asked for, so that a repeat makes none twice."""

    def __init__(self, connection: ServiceConnection, session_id: str) -> None:
        self.connection = connection
        self.id = session_id
        self._models = itertools.count()
        self._samplers = itertools.count()

    @classmethod
    async def open(cls, connection: ServiceConnection, about: Mapping[str, Any]) -> ClientSession:
        """Begin a session. Raises ServiceError."""
        patience = min(FIRST_SECONDS, connection.retry_seconds)
        said = await connection.post("create_session", about, retry_seconds=patience)
        return cls(connection, said.json()["session_id"])

    def next_sampler(self) -> int:
        """The number of the next sampler."""
        return next(self._samplers)

    def next_model(self) -> int:
        """The number of the next model."""
        return next(self._models)

    async def model(self, path: str, body: Mapping[str, Any]) -> TrainingClient:
        """Make a model (``create_model`` or ``load_weights``). Raises ServiceError."""
        said = (await self.connection.post(path, {"session_id": self.id, **body})).json()
        await self.connection.answer(said["request_id"])
        return TrainingClient(self, said["model_id"])

    async def sampler(
        self, *, model_path: str | None = None, base_model: str | None = None
    ) -> SamplingClient:
        """Make a sampler of saved weights or of a base. Raises ServiceError."""
        body = {
            "session_id": self.id,
            "sampling_session_seq_id": self.next_sampler(),
            "model_path": model_path,
            "base_model": base_model,
        }
        said = (await self.connection.post("create_sampling_session", body)).json()
        return SamplingClient(self, said["sampling_session_id"])

    def tokenizer(self, folder: str) -> Any:
        """A tokenizer of a folder on this machine, through transformers. Raises OSError."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
