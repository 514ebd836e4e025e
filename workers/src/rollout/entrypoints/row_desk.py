"""Answers the coordinator's questions about a run's data, in the process that runs the author's code."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from rollout.coordinator.rows import open_sources
from rollout.data.hugging_face import STREAM_WINDOW, StreamSource
from rollout.errors import RolloutError
from rollout.plugins.network import is_closed
from rollout.plugins.row_messages import (
    MESSAGE_CHARACTERS_MAX,
    Look,
    Open,
    Question,
    Read,
    RowAnswer,
    SourceFacts,
    fail,
)
from rollout.plugins.user_code import describe_failure
from rollout.seams import DataSource
from rollout_api.worker import WorkerConfig

if TYPE_CHECKING:
    from rollout.runs.resolve import ModelFacts, Resolution


NETWORK_CLOSED = (
    "; data code has no network here: bring what it needs in its image, wheel or cache, or let the platform set"
    " the runtime's spec.allowed.dataCodeNetwork"
)


class RowDesk:
    """The opened sources of one connection."""

    def __init__(self) -> None:
        self._sources: Mapping[str, DataSource] = {}

    def answer(self, question: Question) -> RowAnswer:
        """What was asked for, or what failed: the author's code may raise anything."""
        try:
            return self._answer(question)
        except RolloutError as error:
            return fail(error)
        except Exception as error:  # noqa: BLE001 - the answer says it
            traceback.print_exc()
            message = f"raised {describe_failure(error)}{_network_hint(error)}"
            return RowAnswer(error=type(error).__name__, message=message[:MESSAGE_CHARACTERS_MAX])

    def _answer(self, question: Question) -> RowAnswer:
        if isinstance(question, Read):
            rows = self._sources[question.role].rows(question.positions)
            return RowAnswer(rows=[dict(row) for row in rows])
        if isinstance(question, Open):
            config = WorkerConfig.model_validate_json(question.config)
            self._sources = open_sources(config).by_role()
            return RowAnswer(sources=[_facts(*one) for one in self._sources.items()])
        assert isinstance(question, Look)
        return RowAnswer(found=msgspec.json.encode(_look(question)))


def _network_hint(error: BaseException) -> str:
    """What a connection that could not be made comes from, where this process may make none."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__ or seen.__context__
    return NETWORK_CLOSED if seen is not None and is_closed() else ""


def _look(question: Look) -> Resolution | ModelFacts:
    from rollout.entrypoints.resolve import (  # may load torch: only where it is asked for
        look_at_models,
        resolve,
    )
    from rollout.runs.resolve import ResolveRequest

    request = msgspec.json.decode(question.request, type=ResolveRequest)
    return look_at_models(request) if question.models_only else resolve(request)


def _facts(role: str, source: DataSource) -> SourceFacts:
    window = STREAM_WINDOW if isinstance(source, StreamSource) else None
    return SourceFacts(role=role, digest=source.digest, length=len(source), window=window)
