"""One trace through four simulated engines by one policy: events in simulated time, no clock, the same each time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from routing_engine import Request, SimulatedEngine
from routing_policies import NEVER, Policy
from routing_trace import Conversation, Trace

ENGINES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trace. Seconds are simulated; ``cached``: the share of prompt tokens that were not computed."""

    seconds: float
    requests: tuple[Request, ...]
    cached: float

    @property
    def throughput(self) -> float:
        """Tokens answered a second."""
        return sum(one.new_tokens for one in self.requests) / self.seconds

    def first_token_seconds(self, share: float) -> float:
        """A quantile of the time to the first token."""
        waits = sorted(one.first_at - one.came_at for one in self.requests)
        return waits[min(len(waits) - 1, int(share * len(waits)))]


def race(trace: Trace, build: Callable[[Sequence[SimulatedEngine]], Policy]) -> Outcome:
    """Play a trace to its end."""
    return _Play(trace, build).play()


class _Play:
    def __init__(self, trace: Trace, build: Callable[[Sequence[SimulatedEngine]], Policy]) -> None:
        self._engines = [SimulatedEngine(f"engine-{place}") for place in range(ENGINES)]
        self._policy = build(self._engines)
        self._trace = trace
        self._left = iter(trace.conversations)
        self._turns: dict[Request, tuple[Conversation, int]] = {}
        self._open: dict[int, int] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = count()
        self._look_at = NEVER
        self._done: list[Request] = []

    def play(self) -> Outcome:
        for user in range(self._trace.users):
            self._at(user * self._trace.begin_seconds, self._next_conversation)
        now = 0.0
        while self._events:
            now, _, what = heapq.heappop(self._events)
            what(now)
            for engine in self._engines:
                if not engine.busy and engine.load:
                    self._step(engine, now)
        prompts = sum(one.prompt_tokens for one in self._done)
        cached = sum(one.cached_tokens for one in self._done)
        return Outcome(seconds=now, requests=tuple(self._done), cached=cached / prompts)

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), what))

    def _step(self, engine: SimulatedEngine, now: float) -> None:
        engine.busy = True
        seconds, first, last = engine.step()

        def done(now: float) -> None:
            engine.busy = False
            for request in first:
                request.first_at = now
                self._policy.began(request, now)
            for request in last:
                request.ended_at = now
                self._done.append(request)
                self._look(self._policy.ended(request, now))
                self._after(request, now)

        self._at(now + seconds, done)

    def _look(self, at: float) -> None:
        """Ask the policy again at a time; what it wishes last holds."""
        self._look_at = at
        if at < NEVER:
            self._at(at, self._look_now)

    def _look_now(self, now: float) -> None:
        if now == self._look_at:
            self._look(self._policy.look(now))

    def _next_conversation(self, now: float) -> None:
        conversation = next(self._left, None)
        if conversation is not None:
            self._ask(conversation, 0, now)

    def _ask(self, conversation: Conversation, turn: int, now: float) -> None:
        """All samples of a turn at once."""
        requests = conversation.requests(turn)
        self._open[id(conversation)] = len(requests)
        for request in requests:
            request.came_at = now
            self._turns[request] = conversation, turn
            self._look(self._policy.came(request, now))

    def _after(self, request: Request, now: float) -> None:
        """The next turn once all samples of one have ended, the next conversation after the last."""
        conversation, turn = self._turns.pop(request)
        self._open[id(conversation)] -= 1
        if self._open[id(conversation)]:
            return
        think = conversation.turns[turn].think_seconds
        if turn + 1 < len(conversation.turns):
            self._at(now + think, lambda at: self._ask(conversation, turn + 1, at))
        else:
            self._at(now + think, self._next_conversation)
