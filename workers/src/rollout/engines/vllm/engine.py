"""The vLLM engine: a supervised server on a Unix socket behind the ``Engine`` seam.

One request per sample, each with its own seed; a version is loaded only while nothing is sampled and
with every cache cleared, so no token ever comes from a mixture. A crash is an EngineError for whoever
was waiting and leaves no version loaded; the next ``load`` starts a new server, a bounded number of
times in a row. Nothing here imports vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout.engines.served.inflight import NOTHING_YET, Call
from rollout.engines.served.rwlock import WeightGate
from rollout.engines.stops import StopTexts
from rollout.engines.vllm.adapters import AdapterShelf
from rollout.engines.vllm.command import POLICY, VllmSettings
from rollout.engines.vllm.scoring import (
    GivenScore,
    build_score_body,
    choose_likeliest,
    parse_score,
)
from rollout.engines.vllm.server import VllmServer, start_server
from rollout.engines.vllm.sleeping import Asleep, put_to_sleep, wake_cache, wake_weights
from rollout.engines.vllm.wire import (
    build_generate_body,
    build_update_body,
    label_version,
    parse_completion,
    parse_loaded,
)
from rollout.errors import EngineError, StoreError, VersionRefused
from rollout.seams import SampleProgress
from rollout.types import Completion, GenerateRequest, WeightVersion
from rollout.weights.verify import tensor_names, wanted_tensors

CONTROL_SECONDS_MAX = 30.0
STOP_ALL = {"mode": "abort", "clear_cache": "true"}
REPORT = {"method": "report_version"}
RESTART_DELAY_MAX_SECONDS = 30.0
QUEUED_PER_SEQUENCE = 2
"""Requests sent per sequence decoded: the next one waits in the server, not in our event loop."""


class VllmEngine:
    """Owns one server and the version it serves. Use from one event loop."""

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._gate = WeightGate()
        self._slots = asyncio.Semaphore(QUEUED_PER_SEQUENCE * settings.num_seqs)
        self._server: VllmServer | None = None
        self._version: WeightVersion | None = None
        self._num_starts = 0
        self._calls: list[Call] = []
        self._shelf: AdapterShelf | None = None
        self._wanted: frozenset[str] = frozenset()
        self._model = POLICY
        self._stops = StopTexts(settings.model_dir)
        self._asleep: Asleep | None = None
        self._lacks_cache = False

    @property
    def version(self) -> WeightVersion | None:
        """The version that the next ``generate`` samples from; None before a load, after a crash and asleep."""
        awake = self._server is not None and self._server.healthy and self._asleep is None
        return self._version if awake else None

    async def start(self) -> None:
        """Bring the server up with the model folder's own weights. Raises EngineError or SpecError."""
        async with self._gate.exclusive(self._settings.request_seconds_max):
            await self._healthy_server()

    async def load(
        self, version: WeightVersion, weights: Path, changed: frozenset[str] | None = None
    ) -> str:
        """Load a version, starting a server first where the last one is gone.

        Only the modules of the ``changed`` tensors are loaded, where the version before is known good.
        Returns the digest of the tensors given to the loader; a digest other than the version's leaves
        the engine with no version. Raises EngineError.
        """
        if self._settings.adapter is None:
            await asyncio.to_thread(self._require_whole, weights)
        async with self._gate.exclusive(self._settings.request_seconds_max):
            if self._asleep is not None and self._server is not None and self._server.healthy:
                raise EngineError("vLLM sleeps: call wake before load")
            server = await self._healthy_server()
            before, self._version = self.version, None
            try:
                if self._settings.adapter is None:
                    update = build_update_body(weights, changed, before)
                    digest = await self._load_into(server, version, update)
                else:
                    digest = await self._place_adapter(server, version, weights)
            except BaseException:
                server.broken = True
                raise
            if digest == version.digest:
                self._version = version
            return digest

    async def generate(self, requests: Sequence[GenerateRequest]) -> Sequence[Sequence[Completion]]:
        """Sample every request's group; see the seam. Raises EngineError when the server fails."""
        async with self._gate.shared():
            if self._server is None or self.version is None:
                raise EngineError(
                    "vLLM has no weights loaded: call load first, again after a crash"
                )
            for request in requests:
                require_servable(request, self._settings)
            call = Call(self._server, requests)
            self._calls.append(call)
            try:
                groups = await self._sample_groups(call)
                await call.settle()
            finally:
                self._calls.remove(call)
        self._num_starts = 0
        return groups

    async def rest(self) -> None:
        """Give the device's memory away until ``wake``; see the seam. Raises EngineError where it may not be given away."""
        if not self._settings.sleep_level:
            raise EngineError("vLLM was not started to sleep: set sleep_level")
        async with self._gate.exclusive(self._settings.request_seconds_max):
            server = self._server
            if server is None or not server.healthy or self._lacks_cache:
                await self.stop()
                return
            if self._asleep is not None:
                return
            try:
                self._asleep = await put_to_sleep(server, self._settings.sleep_level)
            except BaseException:
                server.broken = True
                raise

    async def wake(self) -> None:
        """Have the device's memory again; see the seam. Raises EngineError."""
        async with self._gate.exclusive(self._settings.request_seconds_max):
            server, asleep = self._server, self._asleep
            if asleep is None:
                return
            if server is None or not server.healthy:
                await self.stop()
                return
            version, self._version = self._version, None
            try:
                same = await wake_weights(server, asleep)
                if same and version is not None:
                    label = label_version(version)
                    await server.call("/resume", seconds_max=CONTROL_SECONDS_MAX, version=label)
                    self._version = version
            except BaseException:
                server.broken = True
                raise
            self._asleep, self._lacks_cache = None, asleep.level == 2

    def interrupt(self) -> None:
        """Have what is being sampled come back as it is; see the seam."""
        for call in self._calls:
            call.interrupt()

    def progress(self) -> Sequence[Sequence[SampleProgress]]:
        """How far the generation under way is; see the seam. Running samples are estimates."""
        return [states for call in self._calls for states in call.look()]

    async def stop(self) -> None:
        """End the server and everything it started; idempotent."""
        server, self._server, self._version = self._server, None, None
        self._asleep, self._lacks_cache = None, False
        if server is not None:
            await server.stop()

    async def _sample_groups(self, call: Call) -> list[tuple[Completion, ...]]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    [
                        group.create_task(self._complete(call, row, place))
                        for place in range(len(request.seeds))
                    ]
                    for row, request in enumerate(call.requests)
                ]
        except ExceptionGroup as errors:
            await call.settle()
            raise errors.exceptions[0] from None
        return [tuple(task.result() for task in row) for row in tasks]

    async def _complete(self, call: Call, row: int, place: int) -> Completion:
        if call.requests[row].choices:
            return await self._choose(call, row, place)
        return await self._sample(call, row, place)

    async def _choose(self, call: Call, row: int, place: int) -> Completion:
        """The likeliest of the request's choices; nothing where what there is was asked for."""
        request = call.requests[row]
        call.begin(row, place)
        try:
            scores = [await self._score(call, request, choice) for choice in request.choices]
        finally:
            call.leave(row, place)
        known = [one for one in scores if one is not None]
        if len(known) == len(scores):
            return choose_likeliest(request.choices, known)
        return NOTHING_YET if call.interrupted else replace(NOTHING_YET, finish="aborted")

    async def _score(
        self, call: Call, request: GenerateRequest, choice: tuple[int, ...]
    ) -> GivenScore | None:
        """How likely one choice is; None where the server was not asked, or gave it up."""
        body = build_score_body(request, choice, self._model)
        async with self._slots:
            if call.interrupted:
                return None
            answer = await self._ask(call.server, body)
        return parse_score(answer, len(request.prompt_ids), choice)

    async def _sample(self, call: Call, row: int, place: int) -> Completion:
        request = call.requests[row]
        seed = request.seeds[place]
        body = build_generate_body(request, seed, self._model, self._stops.file)
        async with self._slots:
            if call.interrupted:
                return NOTHING_YET
            call.begin(row, place)
            try:
                completion = parse_completion(await self._ask(call.server, body))
            except BaseException:
                call.leave(row, place)
                raise
        if completion.finish == "aborted" and call.interrupted:
            completion = replace(completion, finish="interrupted")
        call.end(row, place, len(completion.token_ids))
        return self._stops.cut(completion, request)

    async def _ask(self, server: VllmServer, body: dict[str, Any]) -> bytes:
        """One sample of our version; a server that turns out to serve another one is not trusted on."""
        version = self._version
        try:
            return await server.call(
                "/inference/v1/generate",
                body=body,
                seconds_max=self._settings.request_seconds_max,
                version=None if version is None else label_version(version),
            )
        except VersionRefused:
            self._version = None
            raise

    async def _load_into(
        self, server: VllmServer, version: WeightVersion, update: dict[str, Any]
    ) -> str:
        """Pause with caches cleared, load, ask for the digest, resume; half-way means a broken server.

        The server's gate opens for the version only where its digest is the right one.
        """
        label, bound = label_version(version), CONTROL_SECONDS_MAX
        if not self._lacks_cache:  # nothing is scheduled before the cache is back
            await server.call("/pause", parameters=STOP_ALL, seconds_max=bound)
        await server.call("/start_weight_update", seconds_max=bound)
        await server.call(
            "/update_weights", body=update, seconds_max=self._settings.load_seconds_max
        )
        finish = {"weight_version": label}
        answer, _ = await asyncio.gather(
            server.call("/collective_rpc", body=REPORT, seconds_max=bound),
            server.call("/finish_weight_update", body=finish, seconds_max=bound),
        )
        digest = parse_loaded(answer)
        if self._lacks_cache:
            await wake_cache(server)
            self._lacks_cache = False
        good = label if digest == version.digest else None
        await server.call("/resume", seconds_max=bound, version=good)
        return digest

    def _require_whole(self, weights: Path) -> None:
        """Raise EngineError unless ``weights`` is readable and has every tensor of the model.

        A tensor that is absent is no error to vLLM: it serves uninitialised memory in its place.
        """
        try:
            self._wanted = self._wanted or wanted_tensors(self._settings.model_dir)
            missing = sorted(self._wanted - tensor_names(weights))
        except StoreError as error:
            raise EngineError(f"vLLM was not given new weights: {error}") from error
        if missing:
            raise EngineError(
                f"weights {weights} lack {len(missing)} of the model's tensors, first {missing[0]}"
            )

    async def _place_adapter(
        self, server: VllmServer, version: WeightVersion, weights: Path
    ) -> str:
        """Load one more adapter beside those that are there; what runs keeps the one that it began with."""
        assert self._settings.adapter is not None
        if self._shelf is None or not self._shelf.serves(server):
            self._shelf = AdapterShelf(self._settings.adapter, server)
        placed = await self._shelf.load(version, weights)
        label, bound = label_version(version), CONTROL_SECONDS_MAX
        if placed.digest == version.digest:
            self._model = placed.name
            name = {"new_version": label}
            await server.call("/update_weight_version", body=name, seconds_max=bound)
            await server.call("/resume", seconds_max=bound, version=label)
        return placed.digest

    async def _healthy_server(self) -> VllmServer:
        if self._server is not None and self._server.healthy:
            return self._server
        fresh = self._server is not None
        await self.stop()
        if self._num_starts > self._settings.restarts_max:
            raise EngineError(
                f"vLLM was started {self._num_starts} times without completing one batch; "
                f"giving up: see {self._settings.log_path}"
            )
        delay = restart_delay_seconds(self._num_starts)
        self._num_starts += 1
        await asyncio.sleep(delay)
        self._server = await start_server(self._settings, fresh=fresh)
        return self._server


def require_servable(request: GenerateRequest, settings: VllmSettings) -> None:
    """Raise EngineError for a prompt that vLLM would cut short, or that would end its engine process."""
    prompt, num_new = request.prompt_ids, request.sampling.max_new_tokens
    if request.choices:
        # A prompt and a choice are a prompt of vLLM's, behind which it samples one token.
        num_new = max(map(len, request.choices)) + 1
        if not all(request.choices):
            raise EngineError("expected at least one token in every choice")
    if len(prompt) + num_new > settings.max_model_length:
        raise EngineError(
            f"a prompt of {len(prompt)} tokens and {num_new} new ones do not fit max_model_length "
            f"{settings.max_model_length}; raise it to {len(prompt) + num_new}"
        )
    ids = [*prompt, *(token for choice in request.choices for token in choice)]
    if not prompt or not 0 <= min(ids) <= max(ids) < settings.vocab_size:
        raise EngineError(
            f"a prompt of {len(prompt)} tokens must have ids from 0 to {settings.vocab_size - 1}, "
            f"and has {min(ids, default=None)} to {max(ids, default=None)}"
        )


def restart_delay_seconds(num_starts: int) -> float:
    """How long to wait before a start when ``num_starts`` went before it without a batch in between."""
    return 0.0 if not num_starts else min(2.0 ** (num_starts - 1), RESTART_DELAY_MAX_SECONDS)
