"""One episode's endpoint: it answers the requests of its agent, one turn after the other, in the dialect of each.

What asks holds the episode's key; anything else is refused as the API would. Everything is bounded: the size of a request,
requests that wait, requests in all. A request that is repeated because its answer did not arrive is the same turn.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
from aiohttp import web
from blake3 import blake3

from rollout.environments.agents import anthropic, memory, openai
from rollout.environments.agents.asks import AgentAsk, AskRefused, GivenReply
from rollout.seams import Memory
from rollout.tools.sandbox.agent_sandbox import AgentDoor

BODY_BYTES_MAX = 4 << 20
WAITING_MAX = 16
"""Requests of one episode that wait for their turn."""
REQUESTS_MAX = 2048
"""Of one episode, those that are refused included; past it the agent is ended."""
MODEL = "policy"
"""What ``/v1/models`` lists; a request may name any model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one API is read and written."""

    path: str
    """Where requests of it are posted."""
    read: Callable[[bytes], AgentAsk]
    """The request of a body. Raises AskRefused."""
    reply: Callable[[GivenReply, AgentAsk], bytes]
    """The body of an answer."""
    events: Callable[[GivenReply, AgentAsk], Iterator[bytes]]
    """The events of a streamed answer, as bytes."""
    error: Callable[[AskRefused], bytes]
    """The body of a refusal."""


OPENAI, ANTHROPIC = (
    Dialect(
        path=module.PATH,
        read=module.read_ask,
        reply=module.write_reply,
        events=module.write_events,
        error=module.write_error,
    )
    for module in (openai, anthropic)
)


@dataclass(slots=True, eq=False)
class AskedTurn:
    """A request on its way."""

    ask: AgentAsk
    """What it asks for."""
    digest: bytes
    """blake3 of path and body: an equal request whose answer was not sent is the same turn."""
    answer: asyncio.Future[GivenReply]
    """Set once, by ``answer`` or ``turn_away``."""
    heard: bool = False
    """An answer of it has been sent."""


@dataclass(slots=True)
class AgentEndpoint:
    """One of them. ``serve`` once, ``next`` and ``answer`` in turns, ``close`` always."""

    key: str
    """What a request has to bear; the episode's own."""
    memory: Memory | None = None
    """What the agent may read and write; None: its paths are not answered."""
    refusal: AskRefused | None = None
    """What every request is told from now on; None: they are answered."""
    flooded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once there were more than ``REQUESTS_MAX`` requests."""
    turned_away: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a request has met ``refusal``."""
    _runner: web.AppRunner | None = None
    _waiting: asyncio.Queue[AskedTurn] = field(default_factory=lambda: asyncio.Queue(WAITING_MAX))
    _turns: list[AskedTurn] = field(default_factory=list)
    _present: AskedTurn | None = None
    _num_requests: int = 0

    async def serve(self, door: AgentDoor) -> None:
        """Answer what comes through a door, which stays the caller's to close."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        for dialect in (OPENAI, ANTHROPIC):
            app.router.add_post(dialect.path, self._handler(dialect))
        app.router.add_get("/v1/models", self._list_models)
        if self.memory is not None:
            app.router.add_post(memory.PATH, self._remember)
        app.router.add_route("*", "/{rest:.*}", self._refuse_path)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=0.1
        )
        await self._runner.setup()
        assert self._runner.server is not None
        await door.serve(self._runner.server)

    async def next(self) -> AgentAsk:
        """The next request, when it comes."""
        self._present = await self._waiting.get()
        return self._present.ask

    def answer(self, reply: GivenReply) -> None:
        """Answer the request that ``next`` gave."""
        assert self._present is not None
        if not self._present.answer.done():
            self._present.answer.set_result(reply)

    def turn_away(self, refused: AskRefused) -> None:
        """Refuse every request from now on, those that wait too."""
        self.refusal = refused
        for turn in self._turns:
            if not turn.answer.done():
                turn.answer.set_exception(refused)
                turn.answer.exception()  # where nobody waits any more, nobody is told

    async def close(self) -> None:
        """Answer nothing more; idempotent."""
        self.turn_away(AskRefused(503, "the episode is over"))
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _handler(self, dialect: Dialect) -> Callable:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                turn = await self._take(request, dialect)
                reply = await asyncio.shield(turn.answer)
            except AskRefused as refused:
                return _respond(dialect.error(refused), status=refused.status)
            return await self._send(request, dialect, turn, reply)

        return handle

    async def _take(self, request: web.Request, dialect: Dialect) -> AskedTurn:
        """The turn that a request asks for. Raises AskRefused."""
        self._admit(request)
        body = await _read(request)
        digest = blake3(dialect.path.encode() + body).digest()
        for turn in self._turns:
            if turn.digest == digest and not turn.heard:
                return turn
        turn = AskedTurn(
            ask=dialect.read(body),
            digest=digest,
            answer=asyncio.get_running_loop().create_future(),
        )
        try:
            self._waiting.put_nowait(turn)
        except asyncio.QueueFull as error:
            message = f"{WAITING_MAX} requests wait already; ask one after the other"
            raise AskRefused(429, message) from error
        self._turns.append(turn)
        return turn

    def _admit(self, request: web.Request) -> None:
        """Raise AskRefused for what has not this episode's key, and where no more is answered."""
        self._require_own(request)
        if self.refusal is not None:
            self.turned_away.set()
            raise self.refusal

    def _require_own(self, request: web.Request) -> None:
        """Raise AskRefused for what has not this episode's key, and past all requests that it may make."""
        self._num_requests += 1
        if self._num_requests > REQUESTS_MAX:
            self.flooded.set()
            raise AskRefused(429, f"more than {REQUESTS_MAX} requests in one episode")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = request.headers.get("x-api-key", bearer)
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            raise AskRefused(
                401, "incorrect API key: take that of the environment", code="invalid_api_key"
            )

    async def _send(
        self, request: web.Request, dialect: Dialect, turn: AskedTurn, reply: GivenReply
    ) -> web.StreamResponse:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the agent has hung up")
        turn.heard = True
        if not turn.ask.stream:
            return _respond(dialect.reply(reply, turn.ask))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        for event in dialect.events(reply, turn.ask):
            await response.write(event)
        await response.write_eof()
        return response

    async def _list_models(self, request: web.Request) -> web.StreamResponse:
        try:
            self._admit(request)
        except AskRefused as refused:
            return _respond(OPENAI.error(refused), status=refused.status)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "rollout"}
        return _respond(msgspec.json.encode({"object": "list", "data": [model]}))

    async def _remember(self, request: web.Request) -> web.StreamResponse:
        """Memory is read and written beside the turns, also once these are used up."""
        assert self.memory is not None
        try:
            self._require_own(request)
            what, body = request.match_info["what"], await _read(request)
            answer = await asyncio.to_thread(memory.answer_memory, self.memory, what, body)
        except AskRefused as refused:
            return _respond(OPENAI.error(refused), status=refused.status)
        return _respond(answer)

    async def _refuse_path(self, request: web.Request) -> web.StreamResponse:
        dialect = ANTHROPIC if "anthropic-version" in request.headers else OPENAI
        try:
            self._admit(request)
        except AskRefused as refused:
            return _respond(dialect.error(refused), status=refused.status)
        shown = f"{request.method} {request.path[:80]}"
        refused = AskRefused(
            404, f"{shown} is not answered here; {OPENAI.path} and {ANTHROPIC.path} are"
        )
        return _respond(dialect.error(refused), status=404)


async def _read(request: web.Request) -> bytes:
    """The body. Raises AskRefused for one that is too long."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        message = f"the request has more than {BODY_BYTES_MAX} bytes"
        raise AskRefused(413, message) from error


def _respond(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
