"""Answers as they are asked for: at once where they are there, else after a while, with word of what they wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rollout.ledger.sqlite.call_book import BookedCall
from rollout.service.asking import CREATED, ServiceCaller, ServiceDoor
from rollout.service.calls import (
    LoadedAnswer,
    LossAnswer,
    ModelAnswer,
    RefusedAnswer,
    SampleAnswer,
    SampleOutcome,
    SavedAnswer,
    StepAnswer,
)
from rollout.service.chain import chain_head
from rollout.service.refusals import unknown
from rollout.service.registry import (
    Registry,
    SavedState,
    ServiceModel,
    ServiceSampler,
    sampler_of_call,
    saved_path,
    state_path,
)
from rollout.service.wire.losses import PROTOBUF_TYPE, render_loss, render_samples
from rollout.service.wire.requests import FutureAsk, read_body

CHAIN_HEADER = "X-Rollout-Chain"
CHAIN_METRIC = "rollout_chain_head:unique"
"""The first 48 bits of the chain as a number; the whole value is in the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureReply:
    """An answer in HTTP."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


async def reply_to(door: ServiceDoor, caller: ServiceCaller) -> FutureReply:
    """The answer that is asked for, or that it is not there yet. Raises CallRefused for an id of nobody's."""
    ask = read_body(caller.body, FutureAsk)
    line, seq = parse_request_id(ask.request_id)
    registry = door.desk.registry
    model = registry.get(ServiceModel, line)
    thing = model or registry.get(ServiceSampler, line)
    if thing is None or thing.owner != caller.owner:
        raise unknown("request", ask.request_id)
    if model is not None and seq == CREATED:
        return _json(_created(model), chain=model.chain)
    found = await door.desk.wait(line, seq, door.poll_seconds)
    if found is None:
        raise unknown("request", ask.request_id)
    if found.answer is None:
        return _not_yet(door, ask.request_id, line)
    return _model_reply(found, registry) if model is not None else _sample_reply(found)


def parse_request_id(request_id: str) -> tuple[str, int]:
    """The line and the place of a call. Raises CallRefused."""
    line, _, seq = request_id.rpartition("#")
    if not line or not seq.isascii() or not seq.isdecimal() or len(seq) > 18:
        raise unknown("request", request_id)
    return line, int(seq)


def _not_yet(door: ServiceDoor, request_id: str, line: str) -> FutureReply:
    """Clients ask again at once, and show the reason to people where the queue is paused."""
    if fault := door.desk.fault(line):
        return _json({"error": fault, "category": "server"})
    wait = door.desk.wait_of(line)
    body = {"type": "try_again", "request_id": request_id, "queue_state": wait.state}
    if wait.reason:
        body["queue_state_reason"] = wait.reason
    return _json(body, status=408)


def _model_reply(found: BookedCall, registry: Registry) -> FutureReply:
    assert found.answer is not None and found.chain is not None
    answer = msgspec.msgpack.decode(found.answer, type=ModelAnswer)  # pyrefly: ignore[bad-argument-type]
    head = {CHAIN_METRIC: chain_head(found.chain)}
    if isinstance(answer, LossAnswer):
        return FutureReply(
            body=render_loss(answer, answer.metrics | head),
            content_type=PROTOBUF_TYPE,
            headers={CHAIN_HEADER: found.chain},
        )
    if isinstance(answer, StepAnswer):
        return _json({"metrics": answer.metrics | head}, chain=found.chain)
    if isinstance(answer, SavedAnswer):
        return _json(_saved(found, answer), chain=found.chain)
    if isinstance(answer, LoadedAnswer):
        said = {
            "type": "load_weights",
            "model_id": found.line,
            "path": _path_of(registry, answer.digest, found.line),
        }
        return _json(said, chain=found.chain)
    return _refused(answer, found.chain)


def _path_of(registry: Registry, digest: str, model_id: str) -> str:
    """A name of a state: one that the model's owner gave, else one that everybody may read; empty where there is neither."""
    model = registry.get(ServiceModel, model_id)
    owner = "" if model is None else model.owner
    named = [one for one in registry.all(SavedState) if one.digest == digest]
    own = [one.id for one in named if one.owner == owner]
    public = [one.id for one in named if registry.standing(one).public]
    return next(iter(own + public), "")


def _created(model: ServiceModel) -> dict[str, Any]:
    if model.start is None:
        return {"type": "create_model", "model_id": model.id}
    return {"type": "load_weights", "model_id": model.id, "path": model.start.path}


def _saved(found: BookedCall, answer: SavedAnswer) -> dict[str, Any]:
    if answer.state:
        return {"type": "save_weights", "path": state_path(found.line, answer.name or "")}
    body = {"type": "save_weights_for_sampler", "digest": answer.digest}
    if answer.name is not None:
        return body | {"path": saved_path(found.line, answer.name)}
    return body | {"sampling_session_id": sampler_of_call(found.line, found.seq)}


def _sample_reply(found: BookedCall) -> FutureReply:
    assert found.answer is not None
    answer = msgspec.msgpack.decode(found.answer, type=SampleOutcome)  # pyrefly: ignore[bad-argument-type]
    if isinstance(answer, SampleAnswer):
        return FutureReply(body=render_samples(answer), content_type=PROTOBUF_TYPE)
    return _refused(answer, "")


def _refused(answer: RefusedAnswer, chain: str) -> FutureReply:
    return _json({"error": answer.error, "category": "user"}, chain=chain)


def _json(value: Mapping[str, Any], *, status: int = 200, chain: str = "") -> FutureReply:
    headers = {CHAIN_HEADER: chain} if chain else {}
    return FutureReply(body=msgspec.json.encode(value), status=status, headers=headers)
