"""What a caller may ask for, one function a route: read the body, see that what it names is the caller's, act or refuse."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from rollout.inference.gateway.keys import ApiKey
from rollout.inference.gateway.rules.limits import allows
from rollout.service.calls import AdapterAsk, LoadState, ModelCall, RefusedCall
from rollout.service.desk import TrainingDesk
from rollout.service.kept.making import read_call
from rollout.service.refusals import CallRefused, not_offered
from rollout.service.registry import (
    FinishedSession,
    ModelStart,
    SavedState,
    SavedVersion,
    ServiceModel,
    ServiceSampler,
    ServiceSession,
    new_model,
)
from rollout.service.saved.archive import Downloads
from rollout.service.tenants.door import KeyDoor
from rollout.service.tenants.room import BODY_BOUNDS, RoomBounds, SharedRoom
from rollout.service.training.bases import TrainingBase
from rollout.service.wire.conversions import (
    check_fits,
    check_load,
    model_id_of,
    read_adapter,
    read_save,
    read_state_save,
    read_step,
    sampler_id,
)
from rollout.service.wire.losses import parse_forward_backward
from rollout.service.wire.requests import (
    HeartbeatAsk,
    ModelAsk,
    ModelInfoAsk,
    PlacedAsk,
    SampleAsk,
    SamplerAsk,
    SamplerSaveAsk,
    SavedInfoAsk,
    SessionAsk,
    StateLoadAsk,
    StateSaveAsk,
    StepAsk,
    read_body,
)
from rollout.service.wire.sampling import read_sample
from rollout.service.wire.versions import NewerClients

T = TypeVar("T", bound=msgspec.Struct)

SKIPS_UNEMBED = (
    "this service leaves out what train_unembed asks for: adapters are on attention and MLP only"
)
TRAINS_WHOLE = "all weights of models over {} are trained: what is said of an adapter is left out"
CREATED = 0
"""The place of a model's creation among its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCaller:
    """One request: the key that it came with, its body, the id or the checkpoint in its path, and what is behind the question mark."""

    key: ApiKey
    body: bytes
    name: str = ""
    checkpoint: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """Whose what it makes is."""
        return self.key.name


class ServiceDoor:
    """The desk as callers reach it. Every method raises CallRefused."""

    def __init__(
        self,
        desk: TrainingDesk,
        keys: KeyDoor,
        poll_seconds: float,
        *,
        skip_unembed: bool = False,
        full_weights: Collection[str] = (),
        bodies: RoomBounds = BODY_BOUNDS,
        downloads: Downloads | None = None,
    ) -> None:
        self.desk, self.downloads = desk, downloads
        self.poll_seconds = poll_seconds
        self._skip_unembed, self._full_weights = skip_unembed, frozenset(full_weights)
        self._newer = NewerClients()
        self.identify = keys.key
        self.bodies = SharedRoom(bodies, "bodies of requests that are read")
        self.answers = SharedRoom(bodies, "answers that are sent")

    async def client_config(self, caller: ServiceCaller) -> dict[str, Any]:
        """Nothing that differs from what clients do by themselves."""
        del caller
        return {}

    async def telemetry(self, caller: ServiceCaller) -> dict[str, str]:
        """Accepted and dropped."""
        del caller
        return {"status": "accepted"}

    async def cancel(self, caller: ServiceCaller) -> dict[str, str]:
        """A call that is given up goes on: its answer is kept for whoever asks again."""
        del caller
        return {}

    async def create_session(self, caller: ServiceCaller) -> dict[str, str]:
        """A session of the caller's."""
        ask = read_body(caller.body, SessionAsk)
        self.desk.use.count_request(caller.key, time.monotonic())
        name = uuid.uuid4().hex
        about = msgspec.json.encode(ask).decode()
        await self.desk.add(ServiceSession(id=name, owner=caller.owner, about=about))
        told = [SKIPS_UNEMBED] if self._skip_unembed else []
        if self._full_weights:
            told.append(TRAINS_WHOLE.format(", ".join(sorted(self._full_weights))))
        told += self._newer.told(ask.sdk_version)
        warning = {"warning_message": "; ".join(told)} if told else {}
        return {"type": "create_session", "session_id": name, **warning}

    async def heartbeat(self, caller: ServiceCaller) -> dict[str, str]:
        """Whether the session is the caller's; nothing ends for want of a heartbeat."""
        ask = read_body(caller.body, HeartbeatAsk)
        self.desk.registry.require(ServiceSession, ask.session_id, caller.owner)
        return {"type": "session_heartbeat"}

    async def finish_session(self, caller: ServiceCaller) -> dict[str, str]:
        """End a session: nothing new begins in it; what was begun is kept."""
        self.desk.registry.require(ServiceSession, caller.name, caller.owner)
        await self.desk.add(FinishedSession(id=caller.name, owner=caller.owner))
        await self.desk.shelf.collect()
        return {}

    async def capabilities(self, caller: ServiceCaller) -> dict[str, Any]:
        """The base models that the key may ask for."""
        models = [
            {
                "model_name": base.name,
                "max_context_length": base.context,
                "trainable": True,
                "sampleable": True,
            }
            for base in self.desk.bases.values()
            if allows(caller.key, base.name)
        ]
        return {"supported_models": models}

    async def create_model(self, caller: ServiceCaller) -> dict[str, str]:
        """A model, made when this returns; its answer is asked for as any other's."""
        ask = read_body(caller.body, ModelAsk)
        self._open_session(ask.session_id, caller.key)
        base = self._base(ask.base_model, caller.key)
        model_id = model_id_of(ask.session_id, ask.model_seq_id)
        adapter = read_adapter(
            ask,
            model_id,
            skip_unembed=self._skip_unembed,
            full_weights=base.name in self._full_weights,
        )
        ids = (model_id, ask.session_id, caller.owner)
        await self.desk.create_model(new_model(ids, base, adapter), caller.key)
        return {"request_id": f"{model_id}#{CREATED}", "model_id": model_id}

    async def load_state(self, caller: ServiceCaller) -> dict[str, str]:
        """A model that begins from a state, or a state into a model that there is."""
        ask = read_body(caller.body, StateLoadAsk)
        if ask.session_id is None or ask.model_seq_id is None:
            return await self._load_in_place(caller, ask)
        self._open_session(ask.session_id, caller.key)
        model_id = model_id_of(ask.session_id, ask.model_seq_id)
        if not self._is_begun(model_id, ask, caller.owner):
            saved = self.desk.registry.require_readable(SavedState, ask.path, caller.owner)
            check_load(ask, saved.base)
            start = ModelStart(state=saved.digest, optimizer=ask.optimizer, path=ask.path)
            ids = (model_id, ask.session_id, caller.owner)
            model = new_model(ids, self._base(saved.base, caller.key), saved.adapter, start)
            with self.desk.shelf.still():
                await self.desk.create_model(model, caller.key)
        return {"request_id": f"{model_id}#{CREATED}", "model_id": model_id}

    def _is_begun(self, model_id: str, ask: StateLoadAsk, owner: str) -> bool:
        """Whether this is a repeat: the model is there, whatever became of the state since."""
        known = self.desk.registry.get(ServiceModel, model_id)
        start = None if known is None or known.owner != owner else known.start
        return start is not None and (start.path, start.optimizer) == (ask.path, ask.optimizer)

    async def _load_in_place(self, caller: ServiceCaller, ask: StateLoadAsk) -> dict[str, str]:
        """Into a model that there is: a call in its order. What a path named when the call first came stays."""
        placed = read_body(caller.body, PlacedAsk)
        model = self.desk.registry.require(ServiceModel, placed.model_id, caller.owner)
        call = await self._known_load(placed, ask)
        if call is None:
            try:
                call = self._read_load(model, ask)
            except CallRefused as refusal:
                call = RefusedCall(why=f"{ask.path[:200]}: {refusal}")
        return await self._submit(caller.key, model.id, placed.seq_id, call)

    async def _known_load(
        self, placed: PlacedAsk, ask: StateLoadAsk
    ) -> LoadState | RefusedCall | None:
        """The same call as the book has it, whatever became of the state since."""
        found = await self.desk.find(placed.model_id, placed.seq_id)
        call = None if found is None else read_call(found)
        if isinstance(call, RefusedCall) and call.why.startswith(f"{ask.path[:200]}: "):
            return call
        saved = self.desk.registry.get(SavedState, ask.path)
        if saved is None or not isinstance(call, LoadState):
            return None
        asked = (saved.digest, ask.optimizer)
        return call if (call.digest, call.optimizer) == asked else None

    def _read_load(self, model: ServiceModel, ask: StateLoadAsk) -> LoadState:
        saved = self.desk.registry.require_readable(SavedState, ask.path, model.owner)
        check_load(ask, saved.base)
        check_fits(saved, model)
        self.desk.shelf.note_load(saved.digest)
        return LoadState(digest=saved.digest, optimizer=ask.optimizer)

    async def describe_model(self, caller: ServiceCaller) -> dict[str, Any]:
        """A model as clients describe one; its tokenizer is named by its folder on this machine."""
        ask = read_body(caller.body, ModelInfoAsk)
        model = self.desk.registry.require(ServiceModel, ask.model_id, caller.owner)
        base = self.desk.bases[model.base]
        return {
            "type": "get_info",
            "model_data": {"model_name": base.name, "tokenizer_id": str(base.folder)},
            "model_id": model.id,
            "model_name": base.name,
            **describe_kind(model.adapter),
        }

    async def describe_saved(self, caller: ServiceCaller) -> dict[str, Any]:
        """The base and the kind of a saved state or of saved weights, as clients describe them."""
        path = read_body(caller.body, SavedInfoAsk).tinker_path
        registry = self.desk.registry
        kind = SavedVersion if registry.get(SavedState, path) is None else SavedState
        saved = registry.require_readable(kind, path, caller.owner)
        model = registry.get(ServiceModel, saved.model)
        assert model is not None
        adapter = model.adapter
        return {
            "base_model": saved.base,
            **describe_kind(adapter),
            "train_unembed": adapter is None,
            "train_mlp": adapter is None or "Mlp" in adapter.targets,
            "train_attn": adapter is None or "Attention" in adapter.targets,
        }

    async def model_state(self, caller: ServiceCaller) -> dict[str, Any]:
        """Where a model stands: calls that are answered, and the chain behind them. Not of the clients' protocol."""
        model = self.desk.registry.require(ServiceModel, caller.name, caller.owner)
        line = self.desk.line(model.id)
        return {
            "model_id": model.id,
            "calls": line.done,
            "chain": line.chain,
            "waiting": sorted(line.waiting),
            "missing": line.missing,
            "broken": line.broken,
        }

    async def forward_backward(self, caller: ServiceCaller) -> dict[str, str]:
        """A loss, and with it a gradient or not."""
        model_id, seq, call = parse_forward_backward(caller.body)
        if isinstance(call, CallRefused):
            call = RefusedCall(why=str(call))
        return await self._submit(caller.key, model_id, seq, call)

    async def optim_step(self, caller: ServiceCaller) -> dict[str, str]:
        """A step of the optimizer."""
        return await self._submit_json(caller, StepAsk, read_step)

    async def save_for_sampler(self, caller: ServiceCaller) -> dict[str, str]:
        """Weights to sample from."""
        return await self._submit_json(caller, SamplerSaveAsk, read_save)

    async def save_state(self, caller: ServiceCaller) -> dict[str, str]:
        """A state that models can begin from."""
        return await self._submit_json(caller, StateSaveAsk, read_state_save)

    async def create_sampler(self, caller: ServiceCaller) -> dict[str, str]:
        """A sampler of a base model or of saved weights."""
        ask = read_body(caller.body, SamplerAsk)
        self._open_session(ask.session_id, caller.key)
        name = sampler_id(ask.session_id, ask.sampling_session_seq_id)
        known = self.desk.registry.get(ServiceSampler, name)
        repeated = known is not None and known.path is not None and known.path == ask.model_path
        if not repeated:
            with self.desk.shelf.still():
                await self._add_sampler(name, ask, caller.key)
        return {"type": "create_sampling_session", "sampling_session_id": name}

    async def _add_sampler(self, name: str, ask: SamplerAsk, key: ApiKey) -> None:
        facts = {"id": name, "owner": key.name, "session": ask.session_id}
        if ask.model_path is not None:
            saved = self.desk.registry.require_readable(SavedVersion, ask.model_path, key.name)
            base = self._base(saved.base, key)
            sampler = ServiceSampler(
                **facts, base=base.name, digest=saved.digest, path=ask.model_path
            )
        else:
            base = self._base(ask.base_model or "", key)
            digest = await self.desk.weights_of_base(base)
            sampler = ServiceSampler(**facts, base=base.name, digest=digest)
        known = self.desk.registry.get(ServiceSampler, name)
        if known not in (None, sampler):
            raise CallRefused(
                f"sampling_session_seq_id: {name} is a sampler of other weights already"
            )
        await self.desk.add(sampler)

    async def describe_sampler(self, caller: ServiceCaller) -> dict[str, str | None]:
        """A sampler as clients describe one."""
        sampler = self.desk.registry.require(ServiceSampler, caller.name, caller.owner)
        return {
            "sampler_id": sampler.id,
            "base_model": sampler.base,
            "model_path": sampler.path,
        }

    async def sample(self, caller: ServiceCaller) -> dict[str, Any]:
        """Completions of a prompt."""
        ask = read_body(caller.body, SampleAsk)
        if ask.sampling_session_id is None or ask.seq_id is None:
            raise not_offered(
                "asample: without sampling_session_id and seq_id", "create a sampling session first"
            )
        sampler = self.desk.registry.require(ServiceSampler, ask.sampling_session_id, caller.owner)
        if not 0 <= ask.seq_id < 2**63:
            raise CallRefused(f"seq_id: expected 0 or more, got {ask.seq_id}")
        request_id = f"{sampler.id}#{ask.seq_id}"
        call = read_sample(ask, self._base(sampler.base, caller.key), request_id)
        with self.desk.shelf.still():
            known = await self.desk.find(sampler.id, ask.seq_id)
            if known is None and not self.desk.shelf.has_weights(sampler):
                raise CallRefused(
                    f"the weights of sampler {sampler.id} were deleted, and its session has finished",
                    404,
                )
            await self.desk.submit_sample(sampler.id, ask.seq_id, call, caller.key)
        ids = [f"{request_id}:{i}" for i in range(ask.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    async def _submit_json(
        self, caller: ServiceCaller, kind: type[T], read: Callable[[T], ModelCall]
    ) -> dict[str, str]:
        placed = read_body(caller.body, PlacedAsk)
        try:
            call: ModelCall = read(read_body(caller.body, kind))
        except CallRefused as refusal:
            call = RefusedCall(why=str(refusal))
        return await self._submit(caller.key, placed.model_id, placed.seq_id, call)

    async def _submit(
        self, key: ApiKey, model_id: str, seq: int, call: ModelCall
    ) -> dict[str, str]:
        model = self.desk.registry.require(ServiceModel, model_id, key.name)
        self._base(model.base, key)
        await self.desk.submit(model.id, seq, call, key)
        return {"request_id": f"{model.id}#{seq}", "model_id": model.id}

    def _open_session(self, name: str, key: ApiKey) -> None:
        self.desk.registry.require(ServiceSession, name, key.name)
        self.desk.use.count_request(key, time.monotonic())
        if self.desk.registry.get(FinishedSession, name) is not None:
            raise CallRefused(f"session {name} has finished; create another")

    def _base(self, name: str, key: ApiKey) -> TrainingBase:
        base = self.desk.bases.get(name)
        if base is None or not allows(key, name):
            there = ", ".join(one for one in self.desk.bases if allows(key, one))
            raise CallRefused(
                f"base_model: {name[:200]!r} is not served to this key; there are {there or 'none'}",
                422,
            )
        return base


def describe_kind(adapter: AdapterAsk | None) -> dict[str, Any]:
    """How clients tell adapters from models whose weights are all trained."""
    return {"is_lora": adapter is not None, "lora_rank": adapter and adapter.rank}
