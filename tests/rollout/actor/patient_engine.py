"""An engine that stops in the middle when it is asked to, and goes on behind what it is given."""

from __future__ import annotations

import asyncio

from actor_fakes import END

from rollout.seams import SampleProgress
from rollout.types import Completion


class PatientEngine:
    """Says ``replies`` in turn; every draw ends at ``stops_at`` tokens when ``interrupt`` has been called.

    Gets the reply from the prompt: what follows the last newline was said already. ``drawn`` lists
    (seed, tokens) of every sample of every call.
    """

    def __init__(self, reply: str, stops_at: dict[int, int] | None = None) -> None:
        self.reply, self.stops_at = reply, stops_at or {}
        self.version = None
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.interrupted = False
        self.drawn: list[tuple[int, tuple[int, ...]]] = []
        self.requests = []
        self.holds = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def load(self, version, weights, changed=None) -> str:
        self.version = version
        return version.digest

    def interrupt(self) -> None:
        self.interrupted = True
        self.go_on.set()

    def progress(self):
        if not self.begun.is_set() or self.go_on.is_set():
            return ()
        return [
            [SampleProgress(state="running", num_tokens=2) for _ in request.seeds]
            for request in self.requests[-1]
        ]

    async def generate(self, requests):
        self.requests.append(requests)
        self.begun.set()
        if self.holds:
            self.holds = False
            self.go_on.clear()
        await self.go_on.wait()
        cut, self.interrupted = self.interrupted, False
        return [
            [self._draw(request, seed, place, cut=cut) for place, seed in enumerate(request.seeds)]
            for request in requests
        ]

    def _draw(self, request, seed, place, *, cut):
        said = "".join(map(chr, request.prompt_ids)).rpartition("\n")[2]
        assert self.reply.startswith(said), (said, self.reply)
        ids = (*map(ord, self.reply[len(said) :]), END)
        kept = ids[: self.stops_at.get(place, 2)] if cut else ids
        finish = "stop" if kept[-1:] == (END,) else "interrupted"
        self.drawn.append((seed, kept))
        return Completion(token_ids=kept, logprobs=(-0.25,) * len(kept), finish=finish)
