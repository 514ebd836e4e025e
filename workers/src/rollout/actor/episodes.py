"""One sample's episode as data: what was said, which tokens were sampled, how it ended.

Pure. Tokens that the policy sampled are never rendered again: a later turn's prompt is the earlier
prompt, the sampled ids, and the ids that the renderer puts after the reply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollout.data.rows.pooled_requests import pack_numbers
from rollout.errors import DataError, EngineError
from rollout.memory import MemoryWrite
from rollout.rendering.stops import reply_text
from rollout.seams import Renderer
from rollout.turns import Action, Budgets, Ending, State, ToolSpec
from rollout.types import (
    Branch,
    Completion,
    ExpertRoutes,
    GenerateRequest,
    Message,
    SamplingParams,
    VersionSpan,
    WeightVersion,
)

OUT_OF_TIME = "time-limit"
"""The ending of an episode whose environment twice took too long over the same reply: data, worth 0 at most."""
SIGNALS_MAX = 32
"""Names of numbers that one episode's environment may tell."""
OUT_OF_SECONDS = "seconds-limit"
"""The ending of an episode that has used up its budget of seconds: data, scored as it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A sample on its way. ``ending`` is None while it goes on.

    ``prompt_ids`` is what the first turn saw; ``token_ids`` everything after it, ``loss_mask[t]`` 1
    where the policy sampled ``token_ids[t]``. ``seed`` is the noise of the present turn and segment.
    ``begun`` counts the tokens at the end that an interruption left of a reply; ``segment`` the
    interruptions so far. ``retokenised``: some reply's text, encoded again, would be other tokens.
    ``replies`` are the texts of all turns; ``turn_rewards`` and ``signals`` what the environment gave for them, the
    last of each name; ``num_calls`` the tool calls so far. ``choices`` are the only replies there may be, where there are
    any, ``choice_logprobs`` what the engine said of each. ``forks``: how often another row was gone on with than
    that of the turn before; token fields, ``messages`` and ``tools`` are the present row's, at the end that of the last
    reply. ``routes``: the experts of the positions that an engine has computed so far, as they were at the first time;
    None: they are not wanted. ``num_sampled`` counts the tokens sampled so far, of all rows; ``rows`` are these, once
    the episode has ended, where there is more than one (``turns.rows``); ``writes`` what its environment wrote into memory.
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
    replies: tuple[str, ...] = ()
    ending: str | None = None
    retokenised: bool = False
    tools: tuple[ToolSpec, ...] = ()
    turn_rewards: tuple[float | None, ...] = ()
    signals: Mapping[str, float] = field(default_factory=dict)
    num_calls: int = 0
    choices: tuple[tuple[int, ...], ...] = ()
    choice_logprobs: tuple[float, ...] = ()
    forks: int = 0
    routes: ExpertRoutes | None = None
    num_sampled: int = 0
    rows: tuple[Branch, ...] = ()
    writes: tuple[MemoryWrite, ...] = ()

    @property
    def reply(self) -> str:
        """The text of the last turn."""
        return self.replies[-1] if self.replies else ""

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
    """``rewards`` by source, before weighting; ``reward`` what they come to; ``costs`` of asking, as ``source/name``."""

    rewards: dict[str, float]
    reward: float
    costs: Mapping[str, float] = field(default_factory=dict)


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
                choices=members[0].choices,
                routes_from=None if members[0].routes is None else members[0].routes.num_positions,
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
        episode,
        **_take_tokens(episode, completion, version),
        begun=episode.begun + sampled,
        segment=episode.segment + bool(sampled),
    )


def take_completion(
    episode: Episode,
    completion: Completion,
    said: Sequence[int],
    renderer: Renderer,
    *,
    sampling: SamplingParams,
    version: WeightVersion,
) -> Episode:
    """The episode after the policy's turn; it has ended when the reply was cut off by a limit.

    ``said`` are the tokens of the whole reply, those before an interruption included. Raises EngineError where choices
    were to be scored and were not.
    """
    if len(completion.choice_logprobs) != len(episode.choices):
        raise EngineError(
            f"{len(episode.choices)} choices were to be scored, the engine scored"
            f" {len(completion.choice_logprobs)}: this one samples only; take the embedded engine"
        )
    reply = reply_text(said, sampling, renderer)
    parts = renderer.parse_reply(reply, said, episode.tools, episode.turn)
    message = Message(role="assistant", content=parts)
    tokens = _take_tokens(episode, completion, version)
    return replace(
        episode,
        **tokens,
        messages=(*episode.messages, message),
        num_calls=episode.num_calls + len(message.calls),
        turn=episode.turn + 1,
        turn_ends=(*episode.turn_ends, len(tokens["token_ids"])),
        begun=0,
        choice_logprobs=completion.choice_logprobs,
        replies=(*episode.replies, reply),
        ending="length" if completion.finish == "length" else None,
        retokenised=episode.retokenised or not renderer.survives_text(said),
    )


def take_numbers(episode: Episode, numbers: Sequence[float]) -> Episode:
    """The episode of a prompt that was embedded or scored: over, its answer the numbers as text."""
    said = pack_numbers(numbers)
    return replace(
        episode,
        messages=(*episode.messages, Message(role="assistant", content=said)),
        turn=episode.turn + 1,
        turn_ends=(*episode.turn_ends, 0),
        replies=(*episode.replies, said),
        ending="stop",
    )


def _take_tokens(
    episode: Episode, completion: Completion, version: WeightVersion
) -> dict[str, Any]:
    """What a reply changes of the fields of tokens: an episode has many fields, and is copied once."""
    start = len(episode.token_ids)
    sampled = len(completion.token_ids)
    spans = completion.spans or (
        VersionSpan(start=0, end=sampled, lineage=version.lineage, step=version.step),
    )
    moved = tuple(
        replace(span, start=span.start + start, end=span.end + start) if start else span
        for span in spans
        if span.end > span.start
    )
    return {
        "token_ids": episode.token_ids + completion.token_ids,
        "logprobs": episode.logprobs + completion.logprobs,
        "loss_mask": episode.loss_mask + (1,) * sampled,
        "spans": episode.spans + moved,
        "routes": _take_routes(episode, completion),
        "num_sampled": episode.num_sampled + sampled,
    }


def _take_routes(episode: Episode, completion: Completion) -> ExpertRoutes | None:
    """The routes up to the last token but one. Raises EngineError where they are wanted and were not told whole."""
    known, told = episode.routes, completion.routes
    if known is None or not completion.token_ids:
        return known
    computed = len(episode.context_ids) + len(completion.token_ids) - 1
    form = None if told is None else replace(told, chosen=b"")
    if told is None or form != replace(known, chosen=b""):
        raise EngineError(
            f"expected the experts of each token as {known.num_layers} layers x {known.top_k}, the engine told"
            f" {'none' if told is None else form}"
        )
    whole = replace(known, chosen=known.chosen + told.chosen)
    if len(whole.chosen) != computed * known.position_bytes:
        raise EngineError(
            f"expected the experts of {computed - known.num_positions} tokens, the engine told those of"
            f" {told.num_positions}"
        )
    return whole


def action_of(episode: Episode, turn: int | None = None) -> Action:
    """The reply of a turn, the last one's without a number, as the environment hears it."""
    turn = episode.turn - 1 if turn is None else turn
    said = [message for message in episode.messages if message.role == "assistant"]
    first = len(said) - len(episode.replies)
    start, end = _sampled_in(episode, turn)
    return Action(
        message=said[first + turn],
        text=episode.replies[turn],
        turn=turn,
        num_prompt_tokens=len(episode.prompt_ids) + start,
        num_tokens=end - start,
    )


def _sampled_in(episode: Episode, turn: int) -> tuple[int, int]:
    """Where the tokens of a turn of the present row lie, the last of which is the episode's last."""
    place = len(episode.turn_ends) - episode.turn + turn
    end = episode.turn_ends[place]
    before = episode.turn_ends[place - 1] if place else 0
    told = episode.loss_mask[before:end]
    return end - sum(told), end


def too_many_calls(episode: Episode, budgets: Budgets) -> bool:
    """Whether the last reply asks for more tool calls than its episode has left."""
    return budgets.tool_calls is not None and episode.num_calls > budgets.tool_calls


def over_budget(episode: Episode, budgets: Budgets, seconds: float) -> str | None:
    """The ending of an episode that has used up a budget ``seconds`` after its start; see ``Budgets`` for the order."""
    if episode.turn >= budgets.turns:
        return "turn-limit"
    if budgets.tokens is not None and episode.num_sampled >= budgets.tokens:
        return "token-limit"
    if budgets.seconds is not None and seconds >= budgets.seconds:
        return OUT_OF_SECONDS
    return None


def end_episode(episode: Episode, ending: Ending) -> Episode:
    """The episode at an ending of the policy's."""
    return replace(episode, **take_said(episode, ending), ending=ending.kind)


def take_answer(episode: Episode, said: State, seed: int, renderer: Renderer) -> Episode:
    """The episode after the environment's turn: its messages are appended as tokens of mask 0.

    Raises DataError where the chat template has no such turn, and for tools that change on the way.
    """
    if said.tools is not None and said.tools != episode.tools:
        raise DataError(
            "the tools of an episode cannot change on the way: they stand in its prompt"
        )
    between = _render_between(episode, said.messages, renderer)
    return replace(
        episode,
        **take_said(episode, said),
        messages=(*episode.messages, *said.messages),
        token_ids=episode.token_ids + between,
        logprobs=episode.logprobs + (0.0,) * len(between),
        loss_mask=episode.loss_mask + (0,) * len(between),
        seed=seed,
    )


def take_said(episode: Episode, said: State | Ending) -> dict[str, Any]:
    """What an environment gave for the last reply, as fields. Raises DataError for what is no finite number."""
    signals = {**episode.signals, **said.signals}
    given = {"turn_reward": said.turn_reward or 0.0, **said.signals}
    wrong = [name for name, value in given.items() if not _is_finite(value)]
    if wrong or len(signals) > SIGNALS_MAX:
        raise DataError(
            f"expected finite numbers of at most {SIGNALS_MAX} names from the environment, got"
            f" {len(signals)} names, and {dict.fromkeys(wrong)!r:.80} of no such number"
        )
    return {"turn_rewards": (*episode.turn_rewards, said.turn_reward), "signals": signals}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _render_between(
    episode: Episode, added: Sequence[Message], renderer: Renderer
) -> tuple[int, ...]:
    """What stands between the reply and the next one; the end of a turn only where it was not sampled."""
    following = renderer.render_next(episode.messages[-1], added)
    ends = renderer.stop_token_ids
    sampled = episode.token_ids[-1] in ends and bool(following) and following[0] in ends
    return following[1:] if sampled else following
