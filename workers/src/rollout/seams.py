"""The Protocols people replace. Batch-first: single-item calls are thin wrappers over these.

Async methods never block the event loop: an implementation that computes (the embedded engine, a
user's reward) runs its work in a thread or a child process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from rollout.run_events import RunEnd, RunEvent
from rollout.turns import Action, Ending, State, ToolSpec
from rollout.types import (
    Completion,
    GenerateRequest,
    Message,
    Part,
    Row,
    WeightVersion,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleProgress:
    """How far a sample of a generation under way is."""

    state: Literal["queued", "running", "ended"]
    """``queued``: no token is computed yet; ``ended``: the others of its request may still run."""
    num_tokens: int = 0
    """Tokens sampled so far."""


class Engine(Protocol):
    """Generates from token ids. Knows nothing of messages, rewards or tasks."""

    @property
    def version(self) -> WeightVersion | None:
        """The version that the next ``generate`` samples from; None before the first ``load``."""
        ...

    async def start(self) -> None:
        """Bring the engine up, within its start-up bound. Raises EngineError."""
        ...

    async def load(
        self, version: WeightVersion, weights: Path, changed: frozenset[str] | None = None
    ) -> str:
        """Load a safetensors file and return the digest of the tensors given to the loader.

        ``changed``: the tensors that differ from the version that is there now; None: any may. The
        caller compares the digest with ``version.digest``. Raises EngineError; the old weights are
        then not to be used.
        """
        ...

    async def generate(self, requests: Sequence[GenerateRequest]) -> Sequence[Sequence[Completion]]:
        """Sample every request's group; result ``[i][g]`` belongs to ``requests[i].seeds[g]``.

        The tokens of a completion depend on weights, prompt, sampling and its own seed only (in
        ``Exact``: also on the fixed shape of its group). ``text`` is left empty. Raises EngineError, also for
        ``choices`` where the engine cannot score given tokens.
        """
        ...

    def interrupt(self) -> None:
        """Have the ``generate`` under way return soon, and be fit for the next one; else do nothing.

        What has not ended comes back as ``interrupted`` with the tokens it has; it goes on in another
        request whose prompt ends with them, under another seed.
        """
        ...

    def progress(self) -> Sequence[Sequence[SampleProgress]]:
        """How far the ``generate`` under way is, by request and seed; empty when there is none."""
        ...

    async def stop(self) -> None:
        """Free everything; idempotent."""
        ...


class SleepingEngine(Engine, Protocol):
    """An engine that gives its device's memory to somebody else, between two generations."""

    async def rest(self) -> None:
        """Give the memory away; ``version`` is None from then on. Does nothing asleep, or where nothing was started.

        Raises EngineError where the memory may still be in use: it is free once ``stop`` has returned.
        """
        ...

    async def wake(self) -> None:
        """Have the memory again, which is free. Does nothing awake, or where nothing was started.

        ``version`` is that of before where its weights are proven to be there still, else None until a ``load`` of a
        whole version. Raises EngineError.
        """
        ...


class Renderer(Protocol):
    """The one seam between messages and token ids."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Token ids that end an assistant turn."""
        ...

    def render_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """Token ids of a conversation and its tools, ready for the assistant's turn."""
        ...

    def render_text(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that the model goes on with: no template, what the tokenizer puts before every text."""
        ...

    def render_next(self, reply: Message, added: Sequence[Message]) -> tuple[int, ...]:
        """Token ids that follow ``reply``, from the token that ends its turn on, ready for the next one.

        Appended to what was sampled they are the next prompt: nothing that was said is rendered again. Raises
        DataError where the model's template has no such turn.
        """
        ...

    def parse_reply(
        self, text: str, said: Sequence[int], tools: Sequence[ToolSpec], turn: int
    ) -> tuple[Part, ...]:
        """The parts of a reply (reasoning, text, tool calls), ``text`` and ``said`` its text and tokens."""
        ...

    def render_training(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids and a 0/1 mask of the same length: 1 on what the assistant says and calls, its end included."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion without special tokens."""
        ...

    def survives_text(self, token_ids: Sequence[int]) -> bool:
        """Whether a completion's text, encoded again, is these tokens; special ones are not compared."""
        ...


class Env(Protocol):
    """One episode: one object, single use, no reset. Everything runs in the actor's event loop and never blocks it.

    Each call has a deadline of its own, and is cancelled past it. What ``start`` and ``step`` raise is the task's
    failure; InfrastructureError, or an Ending with that owner, costs nobody's reward: the sample is tried again on
    a fresh object.
    """

    async def start(self) -> State:
        """The conversation that the policy first sees, and its tools."""
        ...

    async def step(self, action: Action) -> State | Ending:
        """Hear a reply; what is new, or that the episode is over."""
        ...

    async def close(self) -> None:
        """Free everything; idempotent. Called whatever happened, also after ``start`` or ``step`` was cancelled."""
        ...


class TextEnv(Protocol):
    """One episode as plain text and plain functions, which may block; ``Env`` for those (``environments.plugin``).

    It may have ``close()`` too, which is called once it is over or given up: also after an error, and from another
    thread while a ``start`` or ``step`` that took too long is still under way.
    """

    def start(self) -> tuple[Message, ...]:
        """The conversation the policy first sees."""
        ...

    def step(self, reply: str) -> tuple[tuple[Message, ...], bool]:
        """Take the assistant's reply; return the messages to add and whether the episode is over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHit:
    """One entry that a search found."""

    key: str
    """Of the entry."""
    value: Any
    """As it was put; lists where tuples were."""
    score: float
    """Cosine of its vector with the one that was asked for, from -1 to 1."""


class Memory(Protocol):
    """What an environment keeps between episodes; for one that declares ``uses_memory = True``.

    An episode sees it as it was committed with the step of its policy's version, and its own writes. These are seen by
    others from the step that consumes its sample, and by nobody where no step does. Limits: ``rollout.memory``.
    """

    def get(self, key: str) -> Any | None:
        """The value of a key; None where there is none."""
        ...

    def put(self, key: str, value: Any, vector: Sequence[float] | None = None) -> None:
        """Keep a plain JSON value, found by its key and, with a ``vector``, by search; None takes it away.

        Raises MemoryRefused for a key, value or vector past its limits, and for one key too many.
        """
        ...

    def search(self, vector: Sequence[float], k: int = 8) -> Sequence[MemoryHit]:
        """The ``k`` entries whose vectors of as many numbers are nearest in direction, the nearest first; of equals by key.

        Raises MemoryRefused for what is no vector.
        """
        ...


class EnvBuilder(Protocol):
    """Makes episodes from rows; may bring its own data."""

    def source(self, split: str, seed: int) -> DataSource | None:
        """The environment's own data for ``split`` (``train``, ``selection``, ``report``), or None."""
        ...

    def build(self, row: Row) -> Env:
        """An episode for one row. It returns at once; what takes time, and what may fail, is ``start``'s."""
        ...


class DataSource(Protocol):
    """Rows by position of the *unshuffled* data; shuffling and cursors are the coordinator's."""

    @property
    def digest(self) -> str:
        """blake3 of the data's identity: equal data, equal digest, wherever it lies."""
        ...

    def __len__(self) -> int:
        """How many rows one epoch has."""
        ...

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions. Raises DataError naming file and line."""
        ...


class RewardModel(Protocol):
    """Scores completions, a batch at a time."""

    def __call__(
        self,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        rows: Sequence[Row],
    ) -> Sequence[float | Mapping[str, float]]:
        """One float, or named floats, per completion."""
        ...


class ObjectSource(Protocol):
    """The reading half of an object store."""

    def path(self, digest: str) -> Path:
        """A local path holding the object's verified bytes. Raises StoreError when missing or corrupt."""
        ...

    def locate(self, digest: str) -> Path:
        """Where they lie on this machine, or would, not verified: for who hashes them while reading. Raises StoreError."""
        ...

    def has(self, digest: str) -> bool:
        """Whether the object is there."""
        ...


class ObjectStore(Protocol):
    """Content-addressed bytes. A digest is ``blake3:<64 hex>``. Nothing half-written is ever seen."""

    def put_file(self, path: Path) -> str:
        """Store a file's bytes and return their digest; a no-op when the object exists."""
        ...

    def put(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        ...

    def put_parts(self, parts: Sequence[bytes | memoryview]) -> str:
        """Store the parts, one after the other, as one object and return its digest."""
        ...

    def keep(self, digest: str, parts: Sequence[bytes | memoryview]) -> str:
        """As ``put_parts``, for who has hashed the parts: they are not hashed again."""
        ...

    def path(self, digest: str) -> Path:
        """A local path holding the object's verified bytes. Raises StoreError when missing or corrupt."""
        ...

    def locate(self, digest: str) -> Path:
        """Where they lie on this machine, or would, not verified: for who hashes them while reading. Raises StoreError."""
        ...

    def has(self, digest: str) -> bool:
        """Whether the object is there."""
        ...

    def delete(self, digest: str) -> None:
        """Remove the object; a no-op when it is not there."""
        ...

    def names(self) -> Sequence[str]:
        """The digest of every object that is there. Raises StoreError, also where the place does not list."""
        ...


class WeightSource(Protocol):
    """Where an engine's weights come from."""

    def path(self, name: str) -> Path:
        """A safetensors file of the version that is stored as this object. Raises StoreError."""
        ...

    def changes(self, since: str, name: str) -> frozenset[str] | None:
        """Tensors by which ``name`` differs from an older object; None where it is not known. Raises StoreError."""
        ...

    num_rebuilt: int
    """How often a version was made anew from a dense base because it was not what it should have been."""

    def forget(self) -> None:
        """What ``path`` gave last was not that version: make it anew the next time."""
        ...


class Tracker(Protocol):
    """Where a step's metrics go. Called once per committed step, in order."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record one step. Must be idempotent for a step it has already recorded."""
        ...

    def close(self, outcome: RunEnd | None = None) -> None:
        """Flush and finish. ``outcome``: how the run has ended; None where it has not, as far as is known."""
        ...


@runtime_checkable
class Follower(Protocol):
    """A tracker that tells what it was given later, by itself: its ``log`` raises nothing."""

    @property
    def trouble(self) -> str:
        """Why it takes nothing for now, in one line; empty where it does."""
        ...


@runtime_checkable
class Announcer(Protocol):
    """A tracker that is told of a run's events, too."""

    def announce(self, events: Sequence[RunEvent]) -> None:
        """Take those that are new, by their ids; those of before are told again. Never waits for a service."""
        ...
