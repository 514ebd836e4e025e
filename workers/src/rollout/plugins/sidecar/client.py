"""Calls of a plugin: started (or met) at the first one, again when it has died, bounded in time, size and number.

Safe from threads; ``ask_soon`` is the same from an event loop. What a plugin's process or socket does is
InfrastructureError, a broken contract PluginError, and a plugin that does not come up, or dies too often, SpecError.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message as Frame
from grpc_health.v1 import health_pb2

from rollout.errors import InfrastructureError, PluginError, SpecError
from rollout.plugins.sidecar.container import Opened, open_process
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.manifest import CONTRACT_MAX, CONTRACT_MIN, MEMORY_CONTRACT
from rollout.plugins.sidecar.slots import CallSlots

BYTES_MAX = 64 << 20
DEATHS_MAX = 3
"""Of one plugin in one process of ours; then it is taken for broken."""
TRIES = 3
POLL_SECONDS = 0.02
DEATH_SECONDS = 0.5
"""How long after a call that nobody answered the end of the process may take to show."""
SHORT_SECONDS = 10.0
"""For describing and configuring, and for closing an episode."""
BUSY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})
CHANNEL = [
    ("grpc.max_send_message_length", BYTES_MAX),
    ("grpc.max_receive_message_length", BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCall:
    """A method of the contract, and what it answers with."""

    path: str
    answer: type[Frame]


GoesOn = Callable[[Any], Awaitable[tuple[PluginCall, Frame] | None]]

HEALTH = PluginCall(path="/grpc.health.v1.Health/Check", answer=health_pb2.HealthCheckResponse)
DESCRIBE = PluginCall(path="/rollout.plugin.v1.Plugin/Describe", answer=contract.DescribeResponse)
CONFIGURE = PluginCall(
    path="/rollout.plugin.v1.Plugin/Configure", answer=contract.ConfigureResponse
)
SCORE = PluginCall(path="/rollout.plugin.v1.Reward/Score", answer=contract.ScoreResponse)
START = PluginCall(path="/rollout.plugin.v1.Environment/Start", answer=contract.Turn)
STEP = PluginCall(path="/rollout.plugin.v1.Environment/Step", answer=contract.Turn)
CONTINUE = PluginCall(path="/rollout.plugin.v1.Environment/Continue", answer=contract.Turn)
CLOSE = PluginCall(path="/rollout.plugin.v1.Environment/Close", answer=contract.CloseResponse)
LIST = PluginCall(path="/rollout.plugin.v1.Tool/List", answer=contract.ListResponse)
CALL = PluginCall(path="/rollout.plugin.v1.Tool/Call", answer=contract.CallResponse)
LEAVE = PluginCall(path="/rollout.plugin.v1.Tool/Close", answer=contract.CloseResponse)

TRACK = PluginCall(path="/rollout.plugin.v1.Tracker/Track", answer=contract.TrackResponse)
SUITE_ROWS = PluginCall(path="/rollout.plugin.v1.Evaluation/Rows", answer=contract.RowsResponse)
DATA_ROWS = PluginCall(path="/rollout.plugin.v1.Data/Rows", answer=contract.RowsResponse)
SUITE_SCORE = PluginCall(path="/rollout.plugin.v1.Evaluation/Score", answer=contract.ScoreResponse)


class PluginTimeout(InfrastructureError):  # noqa: N818 - what happened, as TimeoutError is called
    """A call that was begun was not answered in its time."""


class PluginDied(InfrastructureError):  # noqa: N818 - what happened, as TimeoutError is called
    """The process ended during a call; the next call starts another."""


class _Running:
    """A process that has been configured, and the channel to it."""

    def __init__(self, plugin: Opened, parameters: Mapping[str, str]) -> None:
        self.process = open_process(plugin)
        self.channel = grpc.insecure_channel(f"unix:{self.process.socket}", options=CHANNEL)
        self._methods: dict[str, Any] = {}
        self.uses_memory = False
        try:
            self._begin(plugin, parameters)
        except BaseException:
            self.end()
            raise

    def method(self, call: PluginCall) -> Any:
        """What makes the call, of grpc's own."""
        if call.path not in self._methods:
            self._methods[call.path] = self.channel.unary_unary(
                call.path,
                request_serializer=_written,
                response_deserializer=call.answer.FromString,
            )
        return self._methods[call.path]

    def end(self) -> None:
        """Close the channel and end the process."""
        self.channel.close()
        self.process.end()

    def _begin(self, plugin: Opened, parameters: Mapping[str, str]) -> None:
        self._await_health(plugin)
        self.process.meet()
        asked = contract.DescribeRequest(contract_min=CONTRACT_MIN, contract_max=CONTRACT_MAX)
        said = self._ask_first(DESCRIBE, asked, plugin)
        _require_described(said, plugin)
        request = contract.ConfigureRequest(parameters=parameters)
        configured = self._ask_first(CONFIGURE, request, plugin)
        if configured.HasField("failure"):
            raise SpecError(f"plugin {plugin.title}: {configured.failure.message}")
        if configured.uses_memory and said.contract < MEMORY_CONTRACT:
            raise SpecError(
                f"plugin {plugin.title}: its process uses memory and says contract {said.contract}: plugins have"
                f" memory from contract {MEMORY_CONTRACT} on, let it say {MEMORY_CONTRACT}"
            )
        self.uses_memory = configured.uses_memory

    def _await_health(self, plugin: Opened) -> None:
        until = time.monotonic() + plugin.manifest.start_seconds
        while not self._is_healthy(plugin):
            if not self.process.is_alive:
                how = self.process.describe_end()
                raise SpecError(f"plugin {plugin.title} ended before it served: {how}")
            if time.monotonic() > until:
                raise SpecError(
                    f"plugin {plugin.title} did not serve within {plugin.manifest.start_seconds:g} s"
                    f" (startSeconds): {self.process.describe_end()}"
                )
            time.sleep(POLL_SECONDS)

    def _is_healthy(self, plugin: Opened) -> bool:
        if not Path(self.process.socket).exists():
            return False
        try:
            asked = health_pb2.HealthCheckRequest()
            health = self.method(HEALTH)(asked, timeout=SHORT_SECONDS)
        except grpc.RpcError as error:
            if _code(error) not in BUSY:
                raise SpecError(f"plugin {plugin.title}: health: {_words(error)}") from error
            return False
        return health.status == health_pb2.HealthCheckResponse.SERVING

    def _ask_first(self, call: PluginCall, request: Frame, plugin: Opened) -> Any:
        try:
            return self.method(call)(request, timeout=SHORT_SECONDS)
        except grpc.RpcError as error:
            raise SpecError(
                f"plugin {plugin.title}: {call.path}: {_words(error)}: {self.process.describe_end()}"
            ) from error


def _require_described(said: contract.DescribeResponse, plugin: Opened) -> None:
    """Raise SpecError where a process is another plugin than was meant, or of a contract that nobody speaks here."""
    wanted = plugin.manifest
    for field in ("contract", "name", "version", "kind"):
        if getattr(wanted, field) not in ("", 0, getattr(said, field)):
            raise SpecError(
                f"plugin {plugin.title}: its process says {field} {getattr(said, field)!r},"
                f" {plugin.told_by} says {getattr(wanted, field)!r}"
            )
    if not CONTRACT_MIN <= said.contract <= CONTRACT_MAX:
        raise SpecError(
            f"plugin {plugin.title}: its process says contract {said.contract}, rollout speaks {CONTRACT_MIN} to"
            f" {CONTRACT_MAX}"
        )


class PluginClient:
    """One plugin with its parameters. ``close`` when done; a client that is thrown away ends with its process."""

    def __init__(self, plugin: Opened, given: Mapping[str, str]) -> None:
        self.plugin = plugin
        self._parameters = plugin.configure(given)
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._deaths = 0
        self._slots = CallSlots(plugin.manifest.concurrency)

    def start(self) -> None:
        """Start it, unless it runs. Raises SpecError."""
        self._connected()

    @property
    def pid(self) -> int | None:
        """Of its process's keeper; None before the first call."""
        return self._running.process.pid if self._running else None

    @property
    def socket(self) -> str | None:
        """Path of the socket of its process; None before the first call."""
        return self._running.process.socket if self._running else None

    @property
    def uses_memory(self) -> bool:
        """Whether its process has said that its episodes do; False before the first call."""
        return self._running is not None and self._running.uses_memory

    def ask(self, call: PluginCall, request: Frame | bytes, seconds: float) -> Any:
        """The answer, from a thread."""
        until = time.monotonic() + seconds
        for left in reversed(range(TRIES)):
            running = self._connected()
            try:
                self._slots.take(max(0.0, until - time.monotonic()))
            except TimeoutError as error:
                raise self._busy() from error
            try:
                answer = running.method(call)(request, timeout=max(0.0, until - time.monotonic()))
                return self._require_own(running, call, answer)
            except grpc.RpcError as error:
                self._require_another_try(running, call, error, left)
            finally:
                self._slots.release()
            time.sleep(_pause(left))
        raise AssertionError("the last try raises")

    async def ask_soon(
        self,
        call: PluginCall,
        request: Frame | bytes,
        seconds: float,
        queue_seconds: float | None = None,
        goes_on: GoesOn | None = None,
    ) -> Any:
        """The answer, from an event loop, which is not blocked. Cancelled, the call is, too.

        ``queue_seconds``: how long it may wait for others' calls before its own time begins; None: within it.
        ``goes_on``: what is called next in the place of this call; None of an answer that is the last.
        """
        until = time.monotonic() + seconds + (queue_seconds or 0.0)
        for left in reversed(range(TRIES)):
            running = await asyncio.to_thread(self._connected)
            try:
                waits = until - time.monotonic() if queue_seconds is None else queue_seconds
                await self._slots.take_soon(max(0.0, waits))
            except TimeoutError as error:
                raise self._busy() from error
            try:
                left_seconds = min(seconds, max(0.0, until - time.monotonic()))
                asked = running.method(call).future(request, timeout=left_seconds)
                answer = self._require_own(running, call, await _answer(asked))
                return await self._go_on(running, answer, goes_on, seconds)
            except grpc.RpcError as error:
                await asyncio.to_thread(self._require_another_try, running, call, error, left)
            finally:
                self._slots.release()
            await asyncio.sleep(_pause(left))
        raise AssertionError("the last try raises")

    async def _go_on(
        self, running: _Running, answer: Any, goes_on: GoesOn | None, seconds: float
    ) -> Any:
        """The last answer of a call that is gone on with, of which none is made again."""
        while goes_on is not None and (further := await goes_on(answer)) is not None:
            call, request = further
            try:
                asked = running.method(call).future(request, timeout=seconds)
                answer = self._require_own(running, call, await _answer(asked))
            except grpc.RpcError as error:
                await asyncio.to_thread(self._require_another_try, running, call, error, 0)
        return answer

    def close(self) -> None:
        """End the process; idempotent. Another call would start it again."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.end()

    def _busy(self) -> InfrastructureError:
        bound = f"{self.plugin.manifest.concurrency} calls at a time (concurrency)"
        return InfrastructureError(self._say(f"is busy: {bound}"))

    def _connected(self) -> _Running:
        with self._lock:
            if self._running is not None and not self._running.process.is_alive:
                self._bury(self._running)
            if self._running is None:
                self._running = _Running(self.plugin, self._parameters)
            return self._running

    def _bury(self, dead: _Running) -> None:
        how = dead.process.describe_end()
        dead.end()
        self._running = None
        self._deaths += 1
        if self._deaths >= DEATHS_MAX:
            raise SpecError(self._say(f"has died {self._deaths} times; the last time: {how}"))

    def _require_another_try(
        self, running: _Running, call: PluginCall, error: grpc.RpcError, left: int
    ) -> None:
        """Return where the same call may be made again; else raise what became of it."""
        code = _code(error)
        if code in BUSY and running.process.has_ended(DEATH_SECONDS):
            how = running.process.describe_end()
            raise PluginDied(self._say(f"died during {call.path}: {how}")) from error
        if code in BUSY and left:
            return
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise PluginTimeout(self._say(f"{call.path}: {_words(error)}")) from error
        if code in BUSY or code is grpc.StatusCode.CANCELLED:
            raise InfrastructureError(self._say(f"{call.path}: {_words(error)}")) from error
        raise PluginError(self._say(f"{call.path}: {_words(error)}")) from error

    def _require_own(self, running: _Running, call: PluginCall, answer: Any) -> Any:
        """The answer, where it is of the process that has been configured."""
        if not running.process.answered():
            raise InfrastructureError(self._say(f"was started afresh during {call.path}"))
        return answer

    def _say(self, words: str) -> str:
        return f"plugin {self.plugin.title} {words}"


async def _answer(asked: Any) -> Any:
    """What a future of grpc's gives, without a thread that waits for it."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    asked.add_done_callback(lambda _: _wake(loop, done))
    try:
        await done.wait()
    except asyncio.CancelledError:
        asked.cancel()
        raise
    return asked.result()


def _wake(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(done.set)
    except RuntimeError:
        return  # the loop has been closed: nobody waits


def _written(frame: Frame | bytes) -> bytes:
    return frame if isinstance(frame, bytes) else frame.SerializeToString()


def _pause(left: int) -> float:
    return random.uniform(0.5, 1.5) * 0.05 * (TRIES - left)


def _code(error: grpc.RpcError) -> Any:
    return error.code() if isinstance(error, grpc.Call) else None


def _words(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {(error.details() or '')[:500]}"
    return str(error)[:500]
