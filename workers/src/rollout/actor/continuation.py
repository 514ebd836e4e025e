"""A sample that another actor began: its beginning as data, and an episode that goes on from it.

Environments are objects of one process, so the replies that were given are given again to a fresh one.
One that answers otherwise than it did (a clock, a sandbox) cannot be gone on with: the sample then
starts over, with the noise it had at first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from rollout.actor.episodes import Episode, action_of, take_answer, take_completion
from rollout.errors import DataError
from rollout.protocol.messages import Task
from rollout.seams import Renderer
from rollout.turns import Action, Ending, State
from rollout.types import Completion, ExpertRoutes, Finish, Prefix


def build_prefix(episode: Episode) -> Prefix | None:
    """What is kept of an episode; None where nothing was sampled, its reply was chosen, or it has more rows than one."""
    if not episode.token_ids or episode.choices or episode.forks:
        return None
    return Prefix(
        sample=episode.sample,
        segment=episode.segment,
        prompt_ids=episode.prompt_ids,
        token_ids=episode.token_ids,
        logprobs=episode.logprobs,
        loss_mask=episode.loss_mask,
        spans=episode.spans,
        turn_ends=episode.turn_ends,
        ending=episode.ending,
        routes=UNSET if episode.routes is None else episode.routes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvAnswers:
    """A started environment as a prefix's replies are given to it again: ``ask`` says one and returns its answer.

    ``heard`` is told of the episode behind each reply that the environment is asked about.
    """

    ask: Callable[[Action], Awaitable[State | Ending]]
    renderer: Renderer
    heard: Callable[[Episode], None]


async def continue_episode(
    fresh: Episode, prefix: Prefix, answers: EnvAnswers, task: Task
) -> Episode | None:
    """``fresh`` with the prefix in it; None where the environment does not answer as it did.

    The environment has heard the prefix's replies afterwards. The seed is the caller's to set, from the
    episode's turn and segment. Raises what ``ask`` raises.
    """
    routes = None if isinstance(prefix.routes, UnsetType) else prefix.routes
    if prefix.prompt_ids != fresh.prompt_ids or (routes is None) != (fresh.routes is None):
        return None
    # Replies are repeated without an engine, which tells no routes.
    episode: Episode | None = replace(fresh, routes=None)
    for number, end in enumerate(prefix.turn_ends):
        if episode is None:
            return None
        last = number + 1 == len(prefix.turn_ends)
        episode = _repeat_reply(episode, prefix, end, answers.renderer, task, last=last)
        if episode.ending is None and not (last and prefix.ending):
            answers.heard(_as_it_was(episode, prefix, routes))
            episode = await _repeat_answer(episode, prefix, answers)
    whole = None if episode is None else _take_rest(episode, prefix)
    return None if whole is None else replace(whole, routes=routes)


def _repeat_reply(
    episode: Episode, prefix: Prefix, end: int, renderer: Renderer, task: Task, *, last: bool
) -> Episode:
    start = len(episode.token_ids)
    said = prefix.token_ids[start:end]
    finish: Finish = "length" if last and prefix.ending == "length" else "stop"
    completion = Completion(
        token_ids=said, logprobs=prefix.logprobs[start:end], finish=finish, spans=()
    )
    return take_completion(
        episode, completion, said, renderer, sampling=task.sampling, version=task.version
    )


def _as_it_was(episode: Episode, prefix: Prefix, routes: ExpertRoutes | None) -> Episode:
    """The episode behind a reply, with what only the first actor could know of it."""
    length = len(episode.token_ids)
    computed = len(episode.prompt_ids) + length - 1
    return replace(
        episode,
        spans=tuple(span for span in prefix.spans if span.end <= length),
        routes=None if routes is None else replace(routes, chosen=routes.part(0, computed)),
    )


async def _repeat_answer(episode: Episode, prefix: Prefix, answers: EnvAnswers) -> Episode | None:
    said = await answers.ask(action_of(episode))
    if isinstance(said, Ending) or said.after is not None:  # a prefix is of one row
        return None
    try:
        answered = take_answer(episode, said, 0, answers.renderer)
    except DataError:
        return None
    if len(prefix.token_ids) == len(episode.token_ids):  # given up before its environment answered
        return answered
    so_far = len(answered.token_ids)
    return answered if answered.token_ids == prefix.token_ids[:so_far] else None


def _take_rest(episode: Episode, prefix: Prefix) -> Episode | None:
    """The beginning of the next reply, and what only the first actor could know."""
    rest = len(prefix.token_ids) - len(episode.token_ids)
    if rest < 0 and len(prefix.token_ids) == (prefix.turn_ends or (0,))[-1]:
        return replace(episode, spans=prefix.spans, segment=prefix.segment)
    if rest < 0 or (rest and (prefix.ending or 0 in prefix.loss_mask[-rest:])):
        return None
    return replace(
        episode,
        token_ids=prefix.token_ids,
        logprobs=prefix.logprobs,
        loss_mask=prefix.loss_mask,
        spans=prefix.spans,
        begun=rest,
        segment=prefix.segment,
        ending=prefix.ending,
        num_sampled=sum(prefix.loss_mask),
    )
