"""A service in the test's loop, and a client that says on the wire what it is told to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from aiohttp.test_utils import TestClient, TestServer

from rollout.inference.gateway.keys import KeyFile, KeyLimits
from rollout.ledger.sqlite.call_book import CallBook
from rollout.service.api import PREFIX, build_service
from rollout.service.asking import ServiceDoor
from rollout.service.desk import TrainingDesk
from rollout.service.kept.tensors import Keeper
from rollout.service.server import open_downloads
from rollout.service.tenants.door import KEY_PREFIX, KeyDoor
from rollout.service.tenants.room import BODY_BOUNDS, QUEUE_BOUNDS, RoomBounds
from rollout.service.training.bases import TrainingBase
from rollout.service.wire.losses import PROTOBUF_TYPE
from rollout.service.wire.schema import FLOAT32, INT64, WIRE
from rollout.serving.saved_weights import export_for_client

TINY = "tiny=rollout://tiny-qwen2?hidden=32&layers=2&heads=2"
IDENTITY = {"machine": "test"}
SEQUENCE = (5, 6, 7, 8, 9, 10, 11)
STEP = {"learning_rate": 1e-2, "beta2": 0.95, "eps": 1e-8}
WAIT_SECONDS = 60.0


def wire_datum(
    tokens: Sequence[int], targets: Sequence[int], inputs: Mapping[str, Sequence[float]]
) -> Any:
    datum = WIRE["Datum"]()
    datum.model_input.add().encoded_text.tokens = np.asarray(tokens, "<i4").tobytes()
    add_tensor(datum, "target_tokens", np.asarray(targets, "<i8"))
    for name, values in inputs.items():
        add_tensor(datum, name, np.asarray(values, "<f4"))
    return datum


def add_tensor(datum: Any, name: str, values: np.ndarray) -> None:
    tensor = datum.loss_fn_inputs.add(key=name).value
    tensor.dense, tensor.dtype = values.tobytes(), INT64 if values.dtype.kind == "i" else FLOAT32
    tensor.shape.extend(values.shape)


def sequence_datum(tokens: Sequence[int] = SEQUENCE, **inputs: Sequence[float]) -> Any:
    return wire_datum(tokens[:-1], tokens[1:], inputs or {"weights": [1.0] * (len(tokens) - 1)})


@dataclass(kw_only=True)
class WireClient:
    """Calls with one key. ``model`` is the one that was created last; ``seq`` the last number that was used."""

    http: TestClient
    key: str
    session: str = ""
    model: str = ""
    seq: int = 0
    chains: list[str] = field(default_factory=list)

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        headers = {"X-API-Key": self.key}
        async with self.http.post(f"{PREFIX}/{path}", json=body, headers=headers) as reply:
            return reply.status, await reply.json()

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"X-API-Key": self.key}
        async with self.http.request(
            method, f"{PREFIX}/{path}", json=body, headers=headers
        ) as reply:
            return reply.status, await reply.json()

    async def change(self, checkpoint: str, method: str, what: str = "", body: Any = None) -> Any:
        """Of something saved, by its path; ``what`` as the route ends."""
        model, _, name = checkpoint.removeprefix("tinker://").partition("/")
        return await self.send(method, f"training_runs/{model}/checkpoints/{name}{what}", body)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(f"{PREFIX}/{path}", headers={"X-API-Key": self.key}) as reply:
            return reply.status, await reply.json()

    async def begin(self, seed: int = 1, rank: int = 4, number: int = 0, **lora: Any) -> str:
        if not self.session:
            self.session = (await self.post("create_session", {"sdk_version": "0"}))[1][
                "session_id"
            ]
        ask = {
            "session_id": self.session,
            "model_seq_id": number,
            "base_model": "tiny",
            "lora_config": {"rank": rank, "seed": seed, "train_unembed": False, **lora},
        }
        status, said = await self.post("create_model", ask)
        assert status == 200, said
        self.model, self.seq = said["model_id"], 0
        return self.model

    async def backward(
        self, data: Sequence[Any], loss: str = "cross_entropy", seq: int | None = None, **more: Any
    ) -> tuple[int, Any]:
        return (await self.backward_with_headers(data, loss, seq, **more))[:2]

    async def backward_with_headers(
        self, data: Sequence[Any], loss: str = "cross_entropy", seq: int | None = None, **more: Any
    ) -> tuple[int, Any, Mapping[str, str]]:
        ask = WIRE["ForwardBackwardRequest"](
            model_id=self.model, seq_id=self.next_seq(seq), loss_fn=loss, data=data
        )
        ask.forward_only = more.pop("forward_only", False)
        for name, number in more.items():
            ask.loss_fn_config.add(key=name, value=number)
        headers = {"X-API-Key": self.key, "Content-Type": PROTOBUF_TYPE}
        async with self.http.post(
            f"{PREFIX}/forward_backward", data=ask.SerializeToString(), headers=headers
        ) as reply:
            return reply.status, await reply.json(), reply.headers

    async def step(self, seq: int | None = None, **params: float) -> tuple[int, Any]:
        ask = {"model_id": self.model, "seq_id": self.next_seq(seq), "adam_params": STEP | params}
        return await self.post("optim_step", ask)

    async def save(
        self, name: str | None = None, seq: int | None = None, **more: Any
    ) -> tuple[int, Any]:
        ask: dict[str, Any] = {"model_id": self.model, "seq_id": self.next_seq(seq), **more}
        ask |= {"sampling_session_seq_id": 0} if name is None else {"path": name}
        return await self.post("save_weights_for_sampler", ask)

    async def save_state(self, name: str, seq: int | None = None, **more: Any) -> tuple[int, Any]:
        ask = {"model_id": self.model, "seq_id": self.next_seq(seq), "path": name, **more}
        return await self.post("save_weights", ask)

    async def load_state(
        self, path: str, *, optimizer: bool, seq: int | None = None, **more: Any
    ) -> tuple[int, Any]:
        """Into the model; a name without a scheme is one of the model's own."""
        whole = path if "://" in path else f"tinker://{self.model}/weights/{path}"
        ask = {
            "model_id": self.model,
            "seq_id": self.next_seq(seq),
            "path": whole,
            "optimizer": optimizer,
        }
        return await self.post("load_weights", ask | more)

    async def begin_from(self, path: str, number: int, *, optimizer: bool) -> str:
        ask = {
            "session_id": self.session,
            "model_seq_id": number,
            "path": path,
            "optimizer": optimizer,
        }
        said = await self.answer(await self.post("load_weights", ask))
        self.model, self.seq = said["model_id"], 0
        assert said["path"] == path
        return self.model

    async def sampler(self, number: int, **of: str) -> tuple[int, Any]:
        ask = {"session_id": self.session, "sampling_session_seq_id": number, **of}
        return await self.post("create_sampling_session", ask)

    def next_seq(self, given: int | None) -> int:
        if given is None:
            self.seq += 1
            return self.seq
        return given

    async def sample(self, sampler: str, seq: int = 0, **more: Any) -> tuple[int, Any]:
        ask = {
            "sampling_session_id": sampler,
            "seq_id": seq,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]},
            "sampling_params": {"max_tokens": 4, **more.pop("params", {})},
            **more,
        }
        return await self.post("asample", ask)

    async def answer(self, said: tuple[int, Any]) -> Any:
        """The answer to an acknowledged call, however long it takes; of a model's call its chain, too."""
        status, ack = said
        assert status == 200, ack
        async with asyncio.timeout(WAIT_SECONDS):
            while (found := await self.look(ack["request_id"])) is None:
                pass
        return found

    async def look(self, request_id: str) -> Any:
        """The answer as it stands; None: not yet."""
        headers = {"X-API-Key": self.key}
        async with self.http.post(
            f"{PREFIX}/retrieve_future", json={"request_id": request_id}, headers=headers
        ) as reply:
            if reply.status == 408:
                return None
            body = await reply.read()
            if chain := reply.headers.get("X-Rollout-Chain"):
                self.chains.append(chain)
            if reply.content_type != PROTOBUF_TYPE:
                return msgspec.json.decode(body)
        kind = "SampleResponse" if ":sample" in request_id else "ForwardBackwardOutput"
        message = WIRE[kind]()
        message.ParseFromString(body)
        return message

    async def state(self) -> Any:
        status, said = await self.get(f"rollout/models/{self.model}")
        assert status == 200, said
        return said


def logprobs_of(output: Any) -> np.ndarray:
    (record,) = output.loss_fn_outputs
    found = {one.key: one.value for one in record.fields}
    return np.frombuffer(found["logprobs"].data, "<f4")


def metrics_of(output: Any) -> dict[str, float]:
    return {one.key: one.value for one in output.metrics}


@dataclass(kw_only=True)
class RunningService:
    """One process's worth of service; ``stop`` ends it as a kill would: nothing is written any more."""

    desk: TrainingDesk
    door: ServiceDoor
    book: CallBook
    http: TestClient
    keys: KeyFile
    tasks: list[asyncio.Task]
    folder: Path

    def client(self, name: str = "one", **limits: Any) -> WireClient:
        key = self.keys.create(name, KeyLimits(**limits), now=0.0, expires=None)
        return WireClient(http=self.http, key=KEY_PREFIX + key)

    def follow(self, client: WireClient) -> WireClient:
        """The client that another process's worth had, with its key, session and model."""
        return WireClient(
            http=self.http,
            key=client.key,
            session=client.session,
            model=client.model,
            seq=client.seq,
        )

    async def stop(self, *, anchors: bool = False) -> None:
        """Without ``anchors`` what a kill leaves: an end in order keeps every model as it is."""
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.http.close()
        await self.desk.close()
        self.book.close()
        if not anchors:
            shutil.rmtree(self.folder / "anchors", ignore_errors=True)


@asynccontextmanager
async def running_services(base: TrainingBase, folder: Path) -> AsyncIterator[Callable]:
    running: list[RunningService] = []

    async def start(
        place: Path = folder,
        *,
        computes: bool = True,
        skip_unembed: bool = False,
        models_max: int = 1024,
        models_in_memory: int = 64,
        bytes_in_memory: int | None = None,
        full_weights: tuple[str, ...] = (),
        queue: RoomBounds = QUEUE_BOUNDS,
        bodies: RoomBounds = BODY_BOUNDS,
    ) -> RunningService:
        book = CallBook(place / "calls.sqlite", IDENTITY)
        desk = TrainingDesk(
            book,
            {base.name: base},
            Keeper.under(place),
            threads=1,
            models_max=models_max,
            models_in_memory=models_in_memory,
            bytes_in_memory=bytes_in_memory,
            queue=queue,
        )
        keys = KeyFile(folder / "keys")
        try:
            await desk.open()
        except BaseException:
            await desk.close()
            book.close()
            raise
        door = ServiceDoor(
            desk,
            KeyDoor(keys),
            0.2,
            skip_unembed=skip_unembed,
            full_weights=full_weights,
            bodies=bodies,
            downloads=open_downloads(place, desk, export_for_client),
        )
        server = TestServer(build_service(door, 1 << 24))
        await server.start_server(auto_decompress=False)
        http = TestClient(server)
        duties = (
            (desk.compute_forever, desk.sample_forever, desk.shelf.tidy_forever) if computes else ()
        )
        one = RunningService(
            desk=desk,
            door=door,
            book=book,
            http=http,
            keys=keys,
            folder=place,
            tasks=[asyncio.create_task(duty()) for duty in duties],
        )
        running.append(one)
        return one

    try:
        yield start
    finally:
        for one in running:
            await one.stop()
