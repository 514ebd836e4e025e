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

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "aborted", "interrupted"]
"""Why generation ended: an end token or stop text, the token limit, the engine gave up (never scored), or it was asked
to stop (``Engine.interrupt``): what there is may be continued."""

Row = Mapping[str, Any]
"""One record of a data set after field mapping: JSON values only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. ``role`` is one of the four chat roles."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task's prompt, rendered.

    ``ordinal`` is the task ordinal in data order (protocol section 1); evaluation prompts use the
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
    ``include_stop``: what ended a completion stays in its text.
    """

    max_new_tokens: int
    temperature: float = 1.0
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One group: a shared prompt and one seed per wanted completion, ``len(seeds) == G``.

    ``begun``: so many tokens at the prompt's end are the beginning of the completion; a stop text may begin in them.
    """

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParams
    begun: int = 0


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
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    text: str = ""
    spans: tuple[VersionSpan, ...] = ()


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
    where the episode is over, and only its siblings are missing.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One accepted sample attempt: what the policy saw, did and was given for it. Immutable.

    ``rewards`` holds the value of each reward source before weighting; ``reward`` their weighted sum.
    ``loss_mask[t]`` is 1 where ``token_ids[t]`` was sampled by the policy (0 for tool output).
    ``timings`` are seconds. ``retokenised``: its text, encoded again, would be other tokens than those
    that were sampled; None: nobody looked. Neither is part of the content hash.
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
