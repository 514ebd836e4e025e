"""Questions whose answer is found by searching, hop by hop (MuSiQue, Trivedi et al. 2022, arXiv:2108.00573).

Each question has a knowledge base of its own, the row's ``paragraphs``, which nothing but ``search`` and ``read`` shows.
A reply without a call is the answer: its token F1 is the reward, EM is measured beside it. Asking again for what was
told costs a little, and the same over and over ends the episode as ``tool-loop``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rollout.data.rows.mapping import row_messages
from rollout.environments.musique_answers import read_answer, right_answers, score_answer
from rollout.environments.with_tools import COUNTED
from rollout.errors import DataError
from rollout.seams import DataSource
from rollout.tools.search import SearchSource
from rollout.tools.toolbox import Toolbox
from rollout.turns import Action, Ending, State, ToolSpec
from rollout.types import Message, Row

FIELD = "paragraphs"
PENALTY_MAX = 0.3
ASKED = (
    "Answer the question. Its answer is in documents that you find with search and read; it takes several of them."
    " Search until you know, then end with one line that says Answer: and the answer in as few words as possible."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MusiqueSearchParameters:
    """``instruction`` stands before the question; empty: the row's messages are asked as they are.

    ``max_turns``: replies that may call tools; ``repeat_penalty`` is taken for each call that was answered before, at
    most 0.3 an episode.
    """

    max_turns: int = 6
    repeat_penalty: float = 0.05
    instruction: str = ASKED

    def __post_init__(self) -> None:
        if not 1 <= self.max_turns <= 64:
            raise ValueError(f"maxTurns: expected 1 to 64, got {self.max_turns}")
        if not 0 <= self.repeat_penalty <= PENALTY_MAX:
            raise ValueError(
                f"repeatPenalty: expected 0 to {PENALTY_MAX}, got {self.repeat_penalty}"
            )


class MusiqueSearch:
    """One question."""

    def __init__(
        self,
        messages: tuple[Message, ...],
        answers: list[str],
        toolbox: Toolbox,
        rules: MusiqueSearchParameters,
    ) -> None:
        self._messages, self._answers, self._toolbox, self._rules = (
            messages,
            answers,
            toolbox,
            rules,
        )
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._turns = 0
        self._penalty = 0.0

    async def start(self) -> State:
        """The question and the tools."""
        return State(messages=self._messages, tools=self._toolbox.specs)

    async def step(self, action: Action) -> State | Ending:
        """What the calls found, or the score of the answer."""
        if not action.calls:
            scores = score_answer(read_answer(action.text), self._answers)
            return Ending(
                kind="answered", turn_reward=scores["f1"], signals={**self._counts, **scores}
            )
        self._turns += 1
        if self._turns > self._rules.max_turns:
            detail = f"no answer after {self._rules.max_turns} turns of searching"
            return Ending(kind="turn-limit", detail=detail, signals=self._unanswered())
        return await self._search(action)

    async def _search(self, action: Action) -> State | Ending:
        done = await self._toolbox.answer(action.calls)
        self._counts.update(done.signals)
        cost = self._cost(done.signals.get("tool_repeats", 0))
        if done.loop:
            signals = self._unanswered()
            return Ending(kind="tool-loop", detail=done.loop, turn_reward=-cost, signals=signals)
        results = Message(role="tool", content=done.results)
        return State(messages=(results,), turn_reward=-cost, signals=dict(self._counts))

    def _cost(self, repeats: float) -> float:
        """What so many repeated calls cost, as far as the episode has not paid all that it may."""
        cost = min(repeats * self._rules.repeat_penalty, PENALTY_MAX - self._penalty)
        self._penalty += cost
        return cost

    def _unanswered(self) -> dict[str, float]:
        return {**self._counts, "em": 0.0, "f1": 0.0}

    async def close(self) -> None:
        """Close the tools."""
        await self._toolbox.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class MusiqueSearchBuilder:
    """Builds episodes; the rows are the run's, in the data set's own form."""

    parameters: MusiqueSearchParameters
    """Of all its episodes."""
    sources: tuple[SearchSource, ...] = (SearchSource(field=FIELD),)
    """What is searched; unless said otherwise the row's own paragraphs."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the policy sees, by name."""
        specs = [spec for source in self.sources for spec in source.specs]
        return tuple(sorted(specs, key=lambda spec: spec.name))

    def source(self, split: str, seed: int) -> DataSource | None:
        """No rows of its own."""
        del split, seed
        return None

    def build(self, row: Row) -> MusiqueSearch:
        """The episode of one row. Raises DataError for one without an answer or paragraphs."""
        if not str(row.get("answer") or "").strip():
            raise DataError("the row has no answer; name its field with answerField")
        toolbox = Toolbox(self.sources, row)
        return MusiqueSearch(self._asked(row), right_answers(row), toolbox, self.parameters)

    def _asked(self, row: Row) -> tuple[Message, ...]:
        messages = row_messages(row)
        if not self.parameters.instruction:
            return messages
        text = f"{self.parameters.instruction}\n\nQuestion: {messages[-1].text}"
        return (*messages[:-1], Message(role="user", content=text))
