"""One sample's episode as data: what was said, which tokens were sampled, how it ended.

Pure. Tokens that the policy sampled are never rendered again: a later turn's prompt is the earlier
prompt, the sampled ids, and the ids that the renderer puts after the reply (protocol section 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollout.errors import DataError
from rollout.protocol.messages import Task
from rollout.rendering.stops import reply_text
from rollout.seams import Renderer
from rollout.types import (
    Completion,
    GenerateRequest,
    Message,
    Row,
    SamplingParams,
    Trajectory,
    VersionSpan,
    WeightVersion,
)

TURNS_MAX = 64
"""An environment that never ends its episode is ended here, as ``turn-limit``: data, not a failure."""
OUT_OF_TIME = "time-limit"
"""The ending of an episode whose environment twice took too long over the same reply: data, worth 0 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A sample on its way. ``ending`` is None while it goes on.

    ``prompt_ids`` is what the first turn saw; ``token_ids`` everything after it, ``loss_mask[t]`` 1
    where the policy sampled ``token_ids[t]``. ``seed`` is the noise of the present turn and segment.
    ``begun`` counts the tokens at the end that an interruption left of a reply; ``segment`` the
    interruptions so far. ``retokenised``: some reply's text, encoded again, would be other tokens.
    """

    task_id: str
    ordinal: int
    sample: int
    seed: int
    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    loss_mask: tuple[int, ...] = ()
    spans: tuple[VersionSpan, ...] = ()
    turn: int = 0
    turn_ends: tuple[int, ...] = ()
    begun: int = 0
    segment: int = 0
    reply: str = ""
    ending: str | None = None
    retokenised: bool = False

    @property
    def context_ids(self) -> tuple[int, ...]:
        """What the engine sees at the next turn."""
        return self.prompt_ids + self.token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGroup:
    """Episodes that share one request: a whole group at its first turn, one episode later."""

    episodes: tuple[Episode, ...]
    request: GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """``rewards`` by source, before weighting; ``reward`` their weighted sum."""

    rewards: dict[str, float]
    reward: float


def plan_turn(episodes: Sequence[Episode], sampling: SamplingParams) -> tuple[TurnGroup, ...]:
    """The requests of the next turn, in order.

    Episodes of one task that stand at their first turn with equal prompts share a request, so that
    the engine computes the prompt once; later turns are groups of one.
    """
    groups: dict[tuple[object, ...], list[Episode]] = {}
    for episode in episodes:
        alone = () if episode.turn == 0 and not episode.begun else (episode.sample,)
        groups.setdefault((episode.task_id, episode.context_ids, *alone), []).append(episode)
    return tuple(
        TurnGroup(
            episodes=tuple(members),
            request=GenerateRequest(
                prompt_ids=members[0].context_ids,
                seeds=tuple(member.seed for member in members),
                sampling=_left_of(sampling, members[0].begun),
                begun=members[0].begun,
            ),
        )
        for members in groups.values()
    )


def _left_of(sampling: SamplingParams, begun: int) -> SamplingParams:
    """The limits behind so many tokens of the same reply."""
    if not begun:
        return sampling
    return replace(
        sampling,
        max_new_tokens=sampling.max_new_tokens - begun,
        min_new_tokens=max(0, sampling.min_new_tokens - begun),
    )


def take_part(episode: Episode, completion: Completion, version: WeightVersion) -> Episode:
    """The episode with what is there of a reply; ``begun`` and ``segment`` say that it is to go on."""
    sampled = len(completion.token_ids)
    return replace(
        _take_tokens(episode, completion, version),
        begun=episode.begun + sampled,
        segment=episode.segment + bool(sampled),
    )


def take_completion(
    episode: Episode,
    completion: Completion,
    said: Sequence[int],
    renderer: Renderer,
    task: Task,
) -> Episode:
    """The episode after the policy's turn; it has ended when the reply was cut off by a limit.

    ``said`` are the tokens of the whole reply, those before an interruption included.
    """
    reply = reply_text(said, task.sampling, renderer)
    told = _take_tokens(episode, completion, task.version)
    return replace(
        told,
        messages=(*episode.messages, Message(role="assistant", content=reply)),
        turn=episode.turn + 1,
        turn_ends=(*episode.turn_ends, len(told.token_ids)),
        begun=0,
        reply=reply,
        ending="length" if completion.finish == "length" else None,
        retokenised=episode.retokenised or not renderer.survives_text(said),
    )


def _take_tokens(episode: Episode, completion: Completion, version: WeightVersion) -> Episode:
    start = len(episode.token_ids)
    sampled = len(completion.token_ids)
    spans = completion.spans or (
        VersionSpan(start=0, end=sampled, lineage=version.lineage, step=version.step),
    )
    moved = tuple(
        replace(span, start=span.start + start, end=span.end + start)
        for span in spans
        if span.end > span.start
    )
    return replace(
        episode,
        token_ids=episode.token_ids + completion.token_ids,
        logprobs=episode.logprobs + completion.logprobs,
        loss_mask=episode.loss_mask + (1,) * sampled,
        spans=episode.spans + moved,
    )


def take_answer(
    episode: Episode, added: Sequence[Message], seed: int, renderer: Renderer
) -> Episode:
    """The episode after the environment's turn: its messages are appended as tokens of mask 0.

    Raises DataError when the chat template writes the conversation so far differently once it goes
    on: such a template cannot be trained on turn by turn.
    """
    if episode.turn >= TURNS_MAX:
        return replace(episode, ending="turn-limit")
    said_ids, said_mask = renderer.render_training(episode.messages)
    said = said_ids[: _last_said(said_mask)]
    messages = (*episode.messages, *added)
    full = renderer.render_prompt(messages)
    if full[: len(said)] != said:
        raise DataError(
            "the chat template does not keep the rendering of earlier turns when the conversation "
            "goes on; multi-turn training needs one that only appends (set model.chatTemplate)"
        )
    between = _end_of_turn(episode, said, renderer) + full[len(said) :]
    return replace(
        episode,
        messages=messages,
        token_ids=episode.token_ids + between,
        logprobs=episode.logprobs + (0.0,) * len(between),
        loss_mask=episode.loss_mask + (0,) * len(between),
        seed=seed,
    )


def _end_of_turn(episode: Episode, said: Sequence[int], renderer: Renderer) -> tuple[int, ...]:
    """The end token that the template writes behind a reply, where a stop text or another token ended it."""
    ends = renderer.stop_token_ids
    if episode.token_ids[-1] in ends or not said or said[-1] not in ends:
        return ()
    return (said[-1],)


def _prompt_text(messages: Sequence[Message]) -> str:
    """What was said before the policy first spoke, for people."""
    first = next((i for i, one in enumerate(messages) if one.role == "assistant"), len(messages))
    return "\n".join(message.text for message in messages[:first])


def _last_said(mask: Sequence[int]) -> int:
    """One past the assistant's last token: what a template adds after it belongs to the answer."""
    return max((index + 1 for index, said in enumerate(mask) if said), default=0)


def finish_trajectory(
    episode: Episode, row: Row, score: Score, timings: dict[str, float]
) -> Trajectory:
    """The immutable record of an episode that has ended."""
    return Trajectory(
        ordinal=episode.ordinal,
        sample=episode.sample,
        prompt_ids=episode.prompt_ids,
        token_ids=episode.token_ids,
        actor_logprobs=episode.logprobs,
        loss_mask=episode.loss_mask,
        spans=episode.spans,
        rewards=score.rewards,
        reward=score.reward,
        ending=episode.ending or "stop",
        text=episode.reply,
        prompt_text=_prompt_text(episode.messages),
        answer=str(row.get("answer", "")),
        timings=timings,
        retokenised=episode.retokenised,
    )
