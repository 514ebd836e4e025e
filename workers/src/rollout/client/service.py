"""The way in: a service by its address and key, and what is made there."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

from rollout.client.answers import GetServerCapabilitiesResponse, SupportedModel
from rollout.client.connection import ServiceConnection, require_place
from rollout.client.futures import ApiFuture, ClientFuture
from rollout.client.rest.client import RestClient
from rollout.client.sampling import SamplingClient
from rollout.client.session import ClientSession
from rollout.client.training import TrainingClient

RETRY_SECONDS = 600.0
FINISH_SECONDS = 5.0


class ServiceClient:
    """A service; its address and key are ``TINKER_BASE_URL`` and ``TINKER_API_KEY`` unless they are said.

    ``retry_seconds``: how long a request without an answer is repeated, so that a service may be started again meanwhile.
    Raises SpecError without address or key, and ServiceError where nobody answers or the key is not valid.
    """

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        *,
        display_name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._connection = ServiceConnection(*require_place(base_url, api_key), retry_seconds)
        about = {"sdk_version": "rollout", "user_metadata": user_metadata} | (
            {"display_name": display_name} if display_name else {}
        )
        try:
            self._session = self._connection.run(
                ClientSession.open(self._connection, about)
            ).result()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close("success" if kind is None else "errored").result()

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        *,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
    ) -> ClientFuture[TrainingClient]:
        """A new adapter over a base; without a seed it is drawn, and kept."""
        lora = {
            "rank": rank,
            "seed": seed,
            "train_mlp": train_mlp,
            "train_attn": train_attn,
            "train_unembed": train_unembed,
        }
        body = {"base_model": base_model, "lora_config": lora, "user_metadata": user_metadata}
        return self._model("create_model", body)

    def create_full_training_client(
        self, base_model: str, *, user_metadata: dict[str, str] | None = None
    ) -> ClientFuture[TrainingClient]:
        """A new model whose weights are all trained, over a base that is served for it (``--full-weights``)."""
        body = {"base_model": base_model, "lora_config": None, "user_metadata": user_metadata}
        return self._model("create_model", body)

    def create_training_client_from_state(self, path: str) -> ClientFuture[TrainingClient]:
        """A model that begins from the weights of a saved state; moments begin anew."""
        return self._model("load_weights", {"path": path, "optimizer": False})

    def create_training_client_from_state_with_optimizer(
        self, path: str
    ) -> ClientFuture[TrainingClient]:
        """A model that begins from a saved state as it was."""
        return self._model("load_weights", {"path": path, "optimizer": True})

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> ClientFuture[SamplingClient]:
        """A sampler of saved weights or of a base."""
        work = self._session.sampler(model_path=model_path, base_model=base_model)
        return ClientFuture(self._connection.run(work))

    def create_rest_client(self) -> RestClient:
        """A client without a session, of the same service and key."""
        return RestClient(base_url=self._connection.url, api_key=self._connection.key)

    def get_server_capabilities(self) -> GetServerCapabilitiesResponse:
        """The base models. Raises ServiceError."""
        return self._connection.run(self._capabilities()).result()

    async def create_lora_training_client_async(
        self, base_model: str, rank: int = 32, seed: int | None = None, **more: Any
    ) -> TrainingClient:
        """The model itself; ``more`` as in ``create_lora_training_client``."""
        return await self.create_lora_training_client(base_model, rank, seed, **more)

    async def create_full_training_client_async(
        self, base_model: str, **more: Any
    ) -> TrainingClient:
        """The model itself; ``more`` as in ``create_full_training_client``."""
        return await self.create_full_training_client(base_model, **more)

    async def create_training_client_from_state_async(self, path: str) -> TrainingClient:
        """The model itself."""
        return await self.create_training_client_from_state(path)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str
    ) -> TrainingClient:
        """The model itself."""
        return await self.create_training_client_from_state_with_optimizer(path)

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> SamplingClient:
        """The sampler itself."""
        return await self.create_sampling_client(model_path, base_model)

    async def get_server_capabilities_async(self) -> GetServerCapabilitiesResponse:
        """``get_server_capabilities`` for coroutines."""
        return await ApiFuture(self._connection.run(self._capabilities()))

    def close(
        self,
        status: Literal["success", "errored", "interrupted"] = "success",
        detail: str | None = None,
    ) -> ApiFuture[None]:
        """End the session and the connection; what is not answered yet is not waited for."""
        finished = self._connection.run(self._finish({"status": status, "detail": detail}))
        try:
            finished.result()
        finally:
            self._connection.close()
        return ApiFuture(finished)

    def _model(self, path: str, body: dict[str, Any]) -> ClientFuture[TrainingClient]:
        placed = {"model_seq_id": self._session.next_model(), **body}
        return ClientFuture(self._connection.run(self._session.model(path, placed)))

    async def _capabilities(self) -> GetServerCapabilitiesResponse:
        said = (await self._connection.get("get_server_capabilities")).json()
        return GetServerCapabilitiesResponse(
            supported_models=[
                SupportedModel(
                    model_name=one["model_name"],
                    max_context_length=one["max_context_length"],
                    trainable=one["trainable"],
                    sampleable=one["sampleable"],
                )
                for one in said["supported_models"]
            ]
        )

    async def _finish(self, ending: dict[str, str | None]) -> None:
        path = f"sessions/{self._session.id}/finish"
        await self._connection.post(path, ending, retry_seconds=FINISH_SECONDS)


def connect(
    url: str | None = None, key: str | None = None, *, retry_seconds: float = RETRY_SECONDS
) -> ServiceClient:
    """A service's client, by address and key as `rollout serve --train` prints them."""
    return ServiceClient(base_url=url, api_key=key, retry_seconds=retry_seconds)
