"""What there is at a service and what becomes of it, without a session: lists, and changes of what was saved."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

from rollout.client.connection import ServiceConnection, require_place
from rollout.client.futures import ApiFuture
from rollout.client.rest import told
from rollout.client.rest.told import ParsedCheckpointTinkerPath

T = TypeVar("T")

RETRY_SECONDS = 60.0


class RestClient:
    """A service by address and key; futures raise ServiceError. Changes may be repeated: again they change nothing.

    Raises SpecError without address or key, and ValueError for what is no path of something saved.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._connection = ServiceConnection(*require_place(base_url, api_key), retry_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. Again: nothing."""
        self._connection.close()

    def list_training_runs(
        self, limit: int = 20, offset: int = 0
    ) -> ApiFuture[told.TrainingRunsResponse]:
        """The key's models, newest first."""
        return self._get(f"training_runs?{_page(limit, offset)}", told.TrainingRunsResponse)

    def get_training_run(self, training_run_id: str) -> ApiFuture[told.TrainingRun]:
        """One of them."""
        return self._get(f"training_runs/{_part(training_run_id)}", told.TrainingRun)

    def get_training_run_by_tinker_path(self, tinker_path: str) -> ApiFuture[told.TrainingRun]:
        """The one that was saved under a path."""
        return self.get_training_run(_parsed(tinker_path).training_run_id)

    def get_weights_info_by_tinker_path(
        self, tinker_path: str
    ) -> ApiFuture[told.WeightsInfoResponse]:
        """What something saved, or published by another key, is of."""
        return self._run(self._weights_info(tinker_path))

    def list_checkpoints(self, training_run_id: str) -> ApiFuture[told.CheckpointsListResponse]:
        """What a model was saved as."""
        path = f"training_runs/{_part(training_run_id)}/checkpoints"
        return self._get(path, told.CheckpointsListResponse)

    def list_user_checkpoints(
        self, limit: int = 100, offset: int = 0
    ) -> ApiFuture[told.CheckpointsListResponse]:
        """What all of the key's models were saved as."""
        return self._get(f"checkpoints?{_page(limit, offset)}", told.CheckpointsListResponse)

    def list_sessions(
        self, limit: int = 20, offset: int = 0
    ) -> ApiFuture[told.ListSessionsResponse]:
        """The key's sessions."""
        return self._get(f"sessions?{_page(limit, offset)}", told.ListSessionsResponse)

    def get_session(self, session_id: str) -> ApiFuture[told.GetSessionResponse]:
        """The models and samplers of one of them."""
        return self._get(f"sessions/{_part(session_id)}", told.GetSessionResponse)

    def get_sampler(self, sampler_id: str) -> ApiFuture[told.GetSamplerResponse]:
        """A sampler."""
        return self._get(f"samplers/{_part(sampler_id)}", told.GetSamplerResponse)

    def delete_checkpoint(self, training_run_id: str, checkpoint_id: str) -> ApiFuture[None]:
        """Something saved is there no more; ``checkpoint_id`` as lists tell it."""
        path = f"{told.SCHEME}{training_run_id}/{checkpoint_id}"
        return self.delete_checkpoint_from_tinker_path(path)

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> ApiFuture[None]:
        """The same by its path."""
        return self._change("DELETE", tinker_path)

    def publish_checkpoint_from_tinker_path(self, tinker_path: str) -> ApiFuture[None]:
        """Every key of the service may read it."""
        return self._change("POST", tinker_path, "/publish")

    def unpublish_checkpoint_from_tinker_path(self, tinker_path: str) -> ApiFuture[None]:
        """It is the key's alone again."""
        return self._change("DELETE", tinker_path, "/publish")

    def set_checkpoint_ttl_from_tinker_path(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> ApiFuture[None]:
        """It expires so many seconds from now (an hour to ten years), or, None, never."""
        return self._change("PUT", tinker_path, "/ttl", {"ttl_seconds": ttl_seconds})

    def download_checkpoint(self, tinker_path: str, folder: str | Path) -> ApiFuture[Path]:
        """Weights as a folder that transformers loads, a state's adapter as one for PEFT; the folder is whole or not there.

        Raises FileExistsError where something is there.
        """
        target = Path(folder).absolute()
        if target.exists():
            raise FileExistsError(f"folder: {target} is there already; name one that is not")
        return self._run(self._download(_place(tinker_path), target))

    def _change(self, method: str, path: str, what: str = "", body: Any = None) -> ApiFuture[None]:
        return self._run(self._changed(method, f"{_place(path)}{what}", body))

    async def _changed(self, method: str, path: str, body: Any) -> None:
        await self._connection.send(method, path, body)

    async def _weights_info(self, path: str) -> told.WeightsInfoResponse:
        reply = await self._connection.post("weights_info", {"tinker_path": path})
        return reply.read(told.WeightsInfoResponse)

    async def _download(self, place: str, target: Path) -> Path:
        await self._connection.fetch_folder(f"{place}/archive", target)
        return target

    def _get(self, path: str, kind: type[T]) -> ApiFuture[T]:
        return self._run(self._read(path, kind))

    async def _read(self, path: str, kind: type[T]) -> T:
        return (await self._connection.get(path)).read(kind)

    def _run(self, work: Coroutine[Any, Any, T]) -> ApiFuture[T]:
        return ApiFuture(self._connection.run(work))


def _parsed(path: str) -> ParsedCheckpointTinkerPath:
    return ParsedCheckpointTinkerPath.from_tinker_path(path)


def _place(path: str) -> str:
    """Where the service has something saved."""
    parsed = _parsed(path)
    kind, _, name = parsed.checkpoint_id.partition("/")
    return f"training_runs/{_part(parsed.training_run_id)}/checkpoints/{kind}/{_part(name)}"


def _part(text: str) -> str:
    return quote(text, safe=":")


def _page(limit: int, offset: int) -> str:
    return urlencode({"limit": limit, "offset": offset})
