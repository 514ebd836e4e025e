"""The rows of one episode: a conversation that does not go on behind its last reply begins, or takes up, another.

What was sampled is never rendered again, so a row only grows. One row of an episode is trained on: that with the most
sampled tokens, the later of equals. What the others had is left out, and told as a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollout.actor.episodes import Episode
from rollout.errors import DataError
from rollout.turns import State


@dataclass(slots=True)
class Rows:
    """The episode as it was behind each of its replies; bounded by the turns that an episode may have."""

    _replied: list[Episode] = field(default_factory=list)

    def keep(self, episode: Episode) -> None:
        """Remember the episode behind a reply."""
        self._replied.append(episode)

    def behind(self, episode: Episode, turn: int) -> Episode:
        """The episode on the row of an earlier turn, up to its reply. Raises DataError for a turn that was not."""
        earlier = next((one for one in self._replied if one.turn == turn + 1), None)
        if earlier is None:
            raise DataError(f"the environment goes on behind turn {turn}, which was not had")
        return replace(
            _on_row(episode, earlier),
            messages=earlier.messages,
            tools=earlier.tools,
            forks=episode.forks + 1,
        )

    def choose(self, episode: Episode) -> Episode:
        """An episode that has ended, with the row that is trained on; ``forks`` and ``tokens_left_out`` are told."""
        if not episode.forks:
            return episode
        best = max([*self._replied, episode], key=lambda one: (_num_sampled(one), one.turn))
        left_out = _num_drawn([*self._replied, episode]) - _num_sampled(best)
        told = {"forks": float(episode.forks), "tokens_left_out": float(left_out)}
        return replace(_on_row(episode, best), signals={**episode.signals, **told})


def begin_row(episode: Episode, said: State, prompt_ids: tuple[int, ...], seed: int) -> Episode:
    """The episode on a row that begins with a prompt of its own."""
    return replace(
        episode,
        messages=said.messages,
        tools=said.tools or (),
        prompt_ids=prompt_ids,
        token_ids=(),
        logprobs=(),
        loss_mask=(),
        spans=(),
        turn_ends=(),
        routes=None if episode.routes is None else replace(episode.routes, chosen=b""),
        turn_rewards=(*episode.turn_rewards, said.turn_reward),
        signals={**episode.signals, **said.signals},
        seed=seed,
        forks=episode.forks + 1,
    )


def _on_row(episode: Episode, row: Episode) -> Episode:
    return replace(
        episode,
        prompt_ids=row.prompt_ids,
        token_ids=row.token_ids,
        logprobs=row.logprobs,
        loss_mask=row.loss_mask,
        spans=row.spans,
        turn_ends=row.turn_ends,
        routes=row.routes,
    )


def _num_sampled(episode: Episode) -> int:
    return sum(episode.loss_mask)


def _num_drawn(replied: Sequence[Episode]) -> int:
    """Tokens that were sampled in all turns, each counted once."""
    turns = {one.turn: one for one in replied if one.turn_ends}
    ends = ((one.turn_ends[-2] if len(one.turn_ends) > 1 else 0, one) for one in turns.values())
    return sum(sum(one.loss_mask[before:]) for before, one in ends)
