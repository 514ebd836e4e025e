"""The rows of one episode: a conversation that does not go on behind its last reply begins, or takes up, another.

What was sampled is never rendered again, so a row only grows. All rows are trained on. Each sampled token is so in one
of them: the row that its reply was drawn on. A row that begins behind a reply of another has all before as its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from rollout.actor.episodes import Episode, take_said
from rollout.errors import DataError
from rollout.turns import State
from rollout.types import Branch

NOTHING = -1
"""What a row with a prompt of its own goes on behind, in place of a turn."""


@dataclass(slots=True)
class Rows:
    """The episode as it was behind each of its replies, and what each of these stood behind; bounded by its turns."""

    _replied: list[Episode] = field(default_factory=list)
    _behind: list[int] = field(default_factory=list)
    _at: int = NOTHING

    def keep(self, episode: Episode) -> None:
        """Remember the episode behind its latest reply; idempotent."""
        if len(self._replied) == episode.turn:
            return
        assert len(self._replied) + 1 == episode.turn, "every reply is kept"
        self._replied.append(episode)
        self._behind.append(self._at)
        self._at = episode.turn - 1

    def begins(self, said: State) -> bool:
        """Whether a reply to this would be the first of a row."""
        return said.after == NOTHING or said.after in self._behind

    @property
    def num_rows(self) -> int:
        """Rows so far, at least 1."""
        return max(1, len(self._cut()))

    def behind(self, episode: Episode, turn: int) -> Episode:
        """The episode on the row of an earlier turn, up to its reply. Raises DataError for a turn that was not."""
        if not 0 <= turn < len(self._replied):
            raise DataError(f"the environment goes on behind turn {turn}, which was not had")
        self._at, earlier = turn, self._replied[turn]
        return replace(
            episode,
            prompt_ids=earlier.prompt_ids,
            token_ids=earlier.token_ids,
            logprobs=earlier.logprobs,
            loss_mask=earlier.loss_mask,
            spans=earlier.spans,
            turn_ends=earlier.turn_ends,
            routes=earlier.routes,
            messages=earlier.messages,
            tools=earlier.tools,
            forks=episode.forks + 1,
        )

    def begin(
        self, episode: Episode, said: State, prompt_ids: tuple[int, ...], seed: int
    ) -> Episode:
        """The episode on a row that begins with a prompt of its own. Raises DataError as ``take_said``."""
        self._at = NOTHING
        return replace(
            episode,
            **take_said(episode, said),
            messages=said.messages,
            tools=said.tools or (),
            prompt_ids=prompt_ids,
            token_ids=(),
            logprobs=(),
            loss_mask=(),
            spans=(),
            turn_ends=(),
            routes=None if episode.routes is None else replace(episode.routes, chosen=b""),
            seed=seed,
            forks=episode.forks + 1,
        )

    def finish(self, episode: Episode) -> Episode:
        """An episode that has ended, with its rows where there are several; ``forks`` and ``rows`` are told."""
        if not episode.forks:
            return episode
        self.keep(episode)
        found = [self._row(behind, last) for behind, last in self._cut()]
        rows = tuple(row for place, row in enumerate(found) if place == 0 or 1 in row.loss_mask)
        told = {"forks": float(episode.forks), "rows": float(len(rows))}
        return replace(episode, rows=rows, signals={**episode.signals, **told})

    def _cut(self) -> Sequence[tuple[int, int]]:
        """Of each row, in the order of their first replies, what that stands behind, and the last reply."""
        rows: list[tuple[int, int]] = []
        ends: dict[int, int] = {}
        for turn, behind in enumerate(self._behind):
            place = ends.pop(behind, len(rows))
            if place == len(rows):
                rows.append((behind, turn))
            rows[place] = (rows[place][0], turn)
            ends[turn] = place
        return rows

    def _row(self, behind: int, last: int) -> Branch:
        start = 0 if behind == NOTHING else len(self._replied[behind].token_ids)
        return row_of(self._replied[last], start)


def row_of(episode: Episode, start: int = 0) -> Branch:
    """The present row of an episode from a token on; what is before is its prompt."""
    spans = (span for span in episode.spans if span.start >= start)
    return Branch(
        prompt_ids=episode.prompt_ids + episode.token_ids[:start],
        token_ids=episode.token_ids[start:],
        actor_logprobs=episode.logprobs[start:],
        loss_mask=episode.loss_mask[start:],
        spans=tuple(replace(one, start=one.start - start, end=one.end - start) for one in spans),
        routes=UNSET if episode.routes is None else episode.routes,
    )
