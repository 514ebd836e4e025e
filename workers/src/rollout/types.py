"""The frozen data that flows through a run: prompt -> completion -> trajectory -> group -> batch.

Nothing here does I/O or knows about torch. Everything is immutable and keyword-only; sequences are
tuples. A trajectory is named by the blake3 of its canonical bytes (see ``rollout.codec``), so equal
content has an equal name wherever it was made.

Worked example, arithmetic with a group of two::

    GenerateRequest(prompt_ids=(17, 20, 10, 18, 28), seeds=(91, 92), sampling=SamplingParams(max_new_tokens=4))
    -> (Completion(token_ids=(19, 2), logprobs=(-0.1, -0.01), finish="stop", ...), Completion(...))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from rollout.memory import MemoryWrite

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "aborted", "interrupted"]
"""Why generation ended: an end token or stop text, the token limit, the engine gave up (never scored), or it was asked
to stop (``Engine.interrupt``): what there is may be continued."""

Row = Mapping[str, Any]
"""One record of a data set after field mapping: JSON values only."""

CallStatus = Literal["ok", "invalid-json", "unclosed", "missing-name", "malformed", "unknown-tool"]
"""What is wrong with a tool call as it was sampled; ``ok``: it names a tool and its arguments are a JSON object."""


# Parts are msgspec structs: a message travels to the children that run rewards, where a union needs a tag.
class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """What is said aloud."""

    text: str
    """As it was decoded."""


class ReasoningPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the policy thinks before it answers."""

    text: str
    """As it was decoded."""
    complete: bool = True
    """False: it was cut off before it ended."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool-call"):
    """One call in a reply of the policy."""

    call_id: str
    """Made from turn and place, so that a replay has the same."""
    name: str
    """The tool that is called; empty where ``status`` is ``missing-name``."""
    arguments_text: str
    """Exactly what was sampled; never rewritten."""
    arguments: Mapping[str, Any] | None = None
    """What ``arguments_text`` says, where ``status`` is ``ok``; else None."""
    status: CallStatus = "ok"
    """``ok``: it names a tool and its arguments are a JSON object; else what is wrong with it."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool-result"):
    """What one call gave."""

    call_id: str
    """``ToolCall.call_id`` of the call that this answers."""
    name: str
    """The tool that was called."""
    text: str
    """What the policy reads."""
    is_error: bool = False
    """The tool says why it did not do it."""


Part = TextPart | ReasoningPart | ToolCall | ToolResult
"""A piece of a message. Images and audio are not trained on, and refused by name where messages are read."""
PARTS_OF: Mapping[Role, tuple[type, ...]] = {
    "system": (TextPart,),
    "user": (TextPart,),
    "assistant": (TextPart, ReasoningPart, ToolCall),
    "tool": (TextPart, ToolResult),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message: its text, or its typed parts in order. Raises ValueError for a part that no such role has.

    A single ``TextPart`` is kept as its text, so that equal messages are equal however they were written.
    """

    role: Role
    """Who speaks; ``PARTS_OF`` says which parts that role may have."""
    content: str | tuple[Part, ...]
    """Text, or typed parts in order; empty text for a message of nothing."""

    def __post_init__(self) -> None:
        if isinstance(self.content, str):
            return
        wrong = next(
            (one for one in self.content if not isinstance(one, PARTS_OF[self.role])), None
        )
        if wrong is not None:
            raise ValueError(
                f"a message of role {self.role} has {' or '.join(t.__name__ for t in PARTS_OF[self.role])},"
                f" got {type(wrong).__name__}"
            )
        if not self.content:
            object.__setattr__(self, "content", "")
        elif len(self.content) == 1 and isinstance(only := self.content[0], TextPart):
            object.__setattr__(self, "content", only.text)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The typed parts, also of a message that is text only."""
        if isinstance(self.content, str):
            return (TextPart(text=self.content),) if self.content else ()
        return self.content

    @property
    def text(self) -> str:
        """What is said aloud: texts and tool results one after the other, without reasoning and calls."""
        if isinstance(self.content, str):
            return self.content
        return "".join(one.text for one in self.content if isinstance(one, TextPart | ToolResult))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in order."""
        return tuple(one for one in self.parts if isinstance(one, ToolCall))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task's prompt, rendered."""

    ordinal: int
    """The task's place in data order, from 0; of an evaluation the place in its split."""
    messages: tuple[Message, ...]
    """The conversation before the policy's first reply."""
    token_ids: tuple[int, ...]
    """``messages`` under the chat template, the generation prompt included."""
    row: Row = field(default_factory=dict)
    """What rewards see beside the completion (``row["answer"]``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample, and where a completion ends."""

    max_new_tokens: int
    """Most tokens of one completion, at least 1."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_k: int = 0
    """So many of the likeliest tokens may be sampled, before ``top_p``; 0: all. Refused by engines without it."""
    top_p: float = 1.0
    """The likeliest tokens that together have this probability, in (0, 1]; 1: all. Refused by engines without it."""
    min_new_tokens: int = 0
    """Nothing ends a completion among so many first tokens, and end tokens are not sampled there."""
    stop_token_ids: tuple[int, ...] = ()
    """End tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion with the token that completes them."""
    include_stop: bool = False
    """What ended a completion stays in its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRoutes:
    """Which experts computed the tokens of a sequence, from its first position or from one that is said, without gaps.

    ``chosen``: for each position, for each of ``num_layers`` layers that choose (in their order), the ids of ``top_k``
    experts, the one of most weight first. An id is one byte, or two with ``wide``, the lower one first.
    """

    num_layers: int
    top_k: int
    wide: bool
    chosen: bytes = b""

    @property
    def position_bytes(self) -> int:
        """What one position takes."""
        return self.num_layers * self.top_k * (2 if self.wide else 1)

    @property
    def num_positions(self) -> int:
        """Whole positions that there are routes of."""
        return len(self.chosen) // self.position_bytes

    def part(self, start: int, end: int | None = None) -> bytes:
        """``chosen`` of the positions from ``start`` to before ``end``; None: to the last."""
        size = self.position_bytes
        return self.chosen[start * size : None if end is None else end * size]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One group: G completions of a shared prompt."""

    prompt_ids: tuple[int, ...]
    """Tokens before the first sampled one."""
    seeds: tuple[int, ...]
    """Seed of each completion's noise; ``len(seeds) == G``."""
    sampling: SamplingParams
    """The same for all G."""
    begun: int = 0
    """So many tokens at the prompt's end begin the completion; a stop text may begin in them."""
    choices: tuple[tuple[int, ...], ...] = ()
    """The only replies that there may be, none of them empty. Nothing is sampled then: every completion is the
    likeliest of them, the first of equals, and says how likely each is (``Completion.choice_logprobs``)."""
    routes_from: int | None = None
    """``Completion.routes`` tells the experts of all tokens from this position on; None: of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """The weight version that sampled the tokens ``[start, end)`` of a completion."""

    start: int
    """First token, from 0."""
    end: int
    """The token after the last one."""
    lineage: int
    """``WeightVersion.lineage``."""
    step: int
    """``WeightVersion.step``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion of N tokens."""

    token_ids: tuple[int, ...]
    """[N]; the end token, when sampled, is the last."""
    logprobs: tuple[float, ...]
    """[N], in nats, under the distribution that was sampled from (after temperature)."""
    finish: Finish
    """Why generation ended."""
    text: str = ""
    """The tokens decoded, without what ended them (``SamplingParams.include_stop``)."""
    spans: tuple[VersionSpan, ...] = ()
    """Versions that sampled it, in order and without gaps; empty: the one that the caller had loaded."""
    turn_rewards: tuple[float, ...] = ()
    """Where it is a whole episode (as rewards see it), what the environment gave for each turn."""
    choice_logprobs: tuple[float, ...] = ()
    """Of each of the request's choices the sum of its tokens' log-probabilities at temperature 1."""
    numbers: tuple[float, ...] = ()
    """The prompt's vector or score, of an engine that gives these; nothing is sampled then."""
    routes: ExpertRoutes | None = None
    """Experts of prompt and completion from ``GenerateRequest.routes_from`` to the last token but one, which nothing
    has computed; None: not asked for, or no token was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What a sample had when its actor gave it up: another actor goes on behind its last token.

    As in ``Trajectory``: ``prompt_ids``, ``token_ids``, ``loss_mask``, ``spans`` and ``routes``.
    """

    sample: int
    """Place in the group, from 0."""
    segment: int
    """Numbers the noise that the rest is drawn from."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """``Trajectory.actor_logprobs`` so far."""
    loss_mask: tuple[int, ...]
    spans: tuple[VersionSpan, ...]
    turn_ends: tuple[int, ...] = ()
    """Lengths of ``token_ids`` after each whole reply; what follows the last one and is masked 1 begins the next."""
    ending: str | None = None
    """Set where the episode is over, and only its siblings are missing."""
    routes: ExpertRoutes | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A further row of one episode, which left its conversation: N tokens of its own.

    It begins with a prompt of its own, or behind an earlier reply. Every sampled token of an episode is in one of its
    rows; in any other it is part of the prompt. As in ``Trajectory`` are ``token_ids``, ``actor_logprobs``, ``spans`` and
    ``routes``.
    """

    prompt_ids: tuple[int, ...]
    """What stands before the row's own tokens: what it shares with an earlier row included."""
    token_ids: tuple[int, ...]
    actor_logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    """[N]; 1 at least once."""
    spans: tuple[VersionSpan, ...]
    routes: ExpertRoutes | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One accepted sample attempt of N tokens: what the policy saw, did and was given for it. Immutable.

    ``timings``, ``costs`` and ``retokenised`` are not part of the content hash; an unset ``routes`` is not written, nor
    are unset ``branches`` and ``memory``. Tokens and what there is of each of them are those of the episode's first row.
    """

    ordinal: int
    """``Prompt.ordinal`` of its task."""
    sample: int
    """Place in the group, from 0 to G - 1."""
    prompt_ids: tuple[int, ...]
    """Tokens before the first reply."""
    token_ids: tuple[int, ...]
    """[N]: replies and, between them, what environment and tools said."""
    actor_logprobs: tuple[float, ...]
    """[N], in nats, as ``Completion.logprobs``; 0 where ``loss_mask`` is."""
    loss_mask: tuple[int, ...]
    """[N]: 1 where the policy sampled the token, 0 for tool output."""
    spans: tuple[VersionSpan, ...]
    """Which weight version sampled which of ``token_ids``."""
    rewards: Mapping[str, float]
    """Value of each reward source before weighting."""
    reward: float
    """Weighted sum of ``rewards``."""
    ending: str
    """How the episode ended: ``stop``, ``length``, a limit of ``Budgets``, or the environment's own ``Ending.kind``."""
    text: str = ""
    """The last reply, for people and rewards."""
    prompt_text: str = ""
    """The messages before the first reply, for people."""
    answer: str = ""
    """The row's ``answer``; empty where it has none."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase."""
    retokenised: bool | None = None
    """Its text, encoded again, would be other tokens than those sampled; None: unknown."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """What its rewards cost, as ``source/name`` (tokens, a price)."""
    routes: ExpertRoutes | msgspec.UnsetType = msgspec.UNSET
    """Of a mixture of experts, those that computed each position first, from the prompt's first token to the one
    before the last sampled."""
    plugins: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Where the run's plugins may change, the digest of each that played and scored it, by its path; unset, nothing is written."""
    branches: tuple[Branch, ...] | msgspec.UnsetType = msgspec.UNSET
    """The episode's further rows, in the order in which they began; unset where there is none. Never empty."""
    memory: tuple[MemoryWrite, ...] | msgspec.UnsetType = msgspec.UNSET
    """What its environment wrote into memory, each key once, in order; unset where it wrote nothing. Never empty."""

    @property
    def rows(self) -> tuple[Trajectory | Branch, ...]:
        """What is trained on token by token: the first row, which is the trajectory itself, and the further ones."""
        return (self,) if isinstance(self.branches, msgspec.UnsetType) else (self, *self.branches)

    @property
    def num_tokens(self) -> int:
        """Tokens after the prompts, of all rows."""
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled, of all rows."""
        return sum(sum(row.loss_mask) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """All accepted trajectories of one task."""

    ordinal: int
    """``Prompt.ordinal`` of the task."""
    trajectories: tuple[Trajectory, ...]
    """By sample index; fewer than G where some were lost."""
    num_excluded: int = 0
    """Samples that were lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """A committed policy: ``step`` 0 is the initial model of ``lineage``.

    ``digest`` is over the tensors (``rollout.weights.digest``), ``object`` names the safetensors file
    in the object store, or a delta (``rollout.weights.delta``): then ``bases`` name what it builds on, the
    delta before it first and the dense base last.
    """

    lineage: int
    step: int
    digest: str
    object: str
    bases: tuple[str, ...] = ()

    @property
    def objects(self) -> tuple[str, ...]:
        """Every object that is needed to have these weights."""
        return (self.object, *self.bases)
