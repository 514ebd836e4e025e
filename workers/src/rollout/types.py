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


class ReasoningPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the policy thinks before it answers. ``complete`` False: it was cut off before it ended."""

    text: str
    complete: bool = True


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool-call"):
    """One call in a reply of the policy.

    ``arguments_text`` is exactly what was sampled and is never written anew; ``arguments`` what it says, where
    ``status`` is ``ok``, else None. ``call_id`` is made from turn and place, so that a replay has the same.
    """

    call_id: str
    name: str
    arguments_text: str
    arguments: Mapping[str, Any] | None = None
    status: CallStatus = "ok"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool-result"):
    """What one call gave; ``is_error``: the tool says why it did not do it."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


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
    content: str | tuple[Part, ...]

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
    """One task's prompt, rendered.

    ``ordinal`` is the task ordinal in data order; evaluation prompts use the
    position in their split. ``row`` is what rewards see beside the completion (``row["answer"]``).
    """

    ordinal: int
    messages: tuple[Message, ...]
    token_ids: tuple[int, ...]
    row: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample, and where a completion ends. ``temperature`` 0 is greedy.

    ``stop_token_ids`` are end tokens, ``stop`` texts that end a completion with the token that completes them;
    nothing ends it among the first ``min_new_tokens``, and end tokens are not sampled there.
    ``include_stop``: what ended a completion stays in its text. ``top_k`` (0: all) and then ``top_p`` leave the most
    likely tokens at that temperature, which engines that cannot refuse.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False


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
    """One group: a shared prompt and one seed per wanted completion, ``len(seeds) == G``.

    ``begun``: so many tokens at the prompt's end are the beginning of the completion; a stop text may begin in them.
    ``choices``: the only replies that there may be, none of them empty. Nothing is sampled then: every completion is the
    likeliest of them, the first of equals, and says how likely each is (``Completion.choice_logprobs``).
    ``routes_from``: the experts of all tokens from this position on are wanted (``Completion.routes``); None: of none.
    """

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParams
    begun: int = 0
    choices: tuple[tuple[int, ...], ...] = ()
    routes_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Tokens ``[start, end)`` of a completion were sampled from weight version ``step`` of ``lineage``."""

    start: int
    end: int
    lineage: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion.

    ``logprobs[t]`` is the log-probability in nats of ``token_ids[t]`` under the distribution it was
    sampled from (after temperature); the end token, when sampled, is the last of ``token_ids``.
    ``turn_rewards``: where it is a whole episode (as rewards see it), what the environment gave for each turn.
    ``choice_logprobs``: of each of the request's choices the sum of its tokens' log-probabilities at temperature 1.
    ``numbers``: the prompt's vector or score, of an engine that gives these; nothing is sampled then.
    ``routes``: where they were asked for and a token was sampled, the experts of prompt and completion from
    ``GenerateRequest.routes_from`` to the last token but one: nothing has computed the last.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    text: str = ""
    spans: tuple[VersionSpan, ...] = ()
    turn_rewards: tuple[float, ...] = ()
    choice_logprobs: tuple[float, ...] = ()
    numbers: tuple[float, ...] = ()
    routes: ExpertRoutes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleProgress:
    """How far a sample of a generation under way is."""

    state: Literal["queued", "running", "ended"]
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What a sample had when its actor gave it up: another actor goes on behind its last token.

    ``token_ids`` and what runs beside them are as in ``Trajectory``. ``turn_ends`` are the lengths of
    ``token_ids`` after each whole reply of the policy; what follows the last one and is masked 1 is the
    beginning of the next. ``segment`` numbers the noise that the rest is drawn from. ``ending`` is set
    where the episode is over, and only its siblings are missing. ``routes`` as in ``Trajectory``.
    """

    sample: int
    segment: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    spans: tuple[VersionSpan, ...]
    turn_ends: tuple[int, ...] = ()
    ending: str | None = None
    routes: ExpertRoutes | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One accepted sample attempt: what the policy saw, did and was given for it. Immutable.

    ``rewards`` holds the value of each reward source before weighting; ``reward`` their weighted sum.
    ``loss_mask[t]`` is 1 where ``token_ids[t]`` was sampled by the policy (0 for tool output).
    ``timings`` are seconds. ``retokenised``: its text, encoded again, would be other tokens than those
    that were sampled; None: nobody looked. ``costs``: what its rewards cost, as ``source/name`` (tokens, a price). None of
    these is part of the content hash. ``routes``: of a mixture of experts, those that computed each position when it was
    first computed, from the prompt's first token to the one before the last sampled. Where it is unset, nothing of it is
    written, so that trajectories of other models have the bytes that they had.
    """

    ordinal: int
    sample: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    actor_logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    spans: tuple[VersionSpan, ...]
    rewards: Mapping[str, float]
    reward: float
    ending: str
    text: str = ""
    prompt_text: str = ""
    answer: str = ""
    timings: Mapping[str, float] = field(default_factory=dict)
    retokenised: bool | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    routes: ExpertRoutes | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """All accepted trajectories of one task, by sample index; ``num_excluded`` counts lost samples."""

    ordinal: int
    trajectories: tuple[Trajectory, ...]
    num_excluded: int = 0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run has ended: ``kind`` is ``Succeeded``, ``Failed`` or ``Stopped`` (it may go on)."""

    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that has come to be true of a run. ``ident`` within the run is the same however often it is found."""

    ident: str
    kind: str
    data: Mapping[str, Any]
