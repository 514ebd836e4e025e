"""An environment of Gymnasium whose observations are texts: each reply of the policy is an action.

``{python: {module: rollout.environments.adapters.gymnasium, className: GymnasiumText, parameters: [{name: id, value:
"module:Name-v0"}]}}``. Spaces: observations of ``Text``, actions of ``Text`` or ``Discrete``; others are refused by name.
An action that is none is answered with what there is, and costs a turn. The package ``gymnasium`` is the user's.
``RememberingGymnasium`` in the place of ``GymnasiumText`` makes each environment with ``memory=``.
"""

from __future__ import annotations

from typing import Any

from rollout.environments.adapters.attempts import Attempts
from rollout.environments.adapters.packages import require_package
from rollout.environments.adapters.seeds import seed_rows
from rollout.environments.threads import THREADS
from rollout.errors import SpecError
from rollout.seams import Memory
from rollout.turns import Action, Ending, State
from rollout.types import Message, Row


class GymnasiumText:
    """One episode. ``id`` is what ``gymnasium.make`` takes, ``instruction`` stands before the first observation.

    The reward of each turn is the environment's; ``steps`` and ``mistakes`` are told as signals.
    """

    def __init__(
        self,
        row: Row,
        id: str,  # noqa: A002 - Gymnasium's own name
        instruction: str = "",
        memory: Memory | None = None,
    ) -> None:
        self._seed, self._id, self._instruction = int(row["seed"]), id, instruction
        self._given = {} if memory is None else {"memory": memory}
        self._env: Any = None
        self._attempts = Attempts()

    @classmethod
    def rows(cls, split: str) -> list[dict[str, Any]]:
        """A seed each. Raises SpecError where the package is not installed."""
        require_package("gymnasium", "gymnasium")
        return seed_rows(split)

    async def start(self) -> State:
        """The first observation. Raises SpecError for spaces that are no texts."""
        observation = await THREADS.call(self._begin)
        text = f"{self._instruction}\n\n{observation}" if self._instruction else observation
        return State(messages=(Message(role="user", content=text),))

    async def step(self, action: Action) -> State | Ending:
        """The next observation with its reward, or the end."""
        taken = _read_action(self._env.action_space, action.text)
        if taken is None:
            return self._attempts.refuse(_describe(self._env.action_space))
        self._attempts.took()
        observation, reward, terminated, truncated, _ = await THREADS.call(
            lambda: self._env.step(taken)
        )
        signals = self._attempts.signals()
        if terminated or truncated:
            kind = "terminated" if terminated else "truncated"
            return Ending(kind=kind, turn_reward=float(reward), signals=signals)
        told = Message(role="user", content=str(observation))
        return State(messages=(told,), turn_reward=float(reward), signals=signals)

    async def close(self) -> None:
        """Close the environment; idempotent."""
        env, self._env = self._env, None
        if env is not None:
            await THREADS.call(env.close)

    def _begin(self) -> str:
        self._env = require_package("gymnasium", "gymnasium").make(self._id, **self._given)
        spaces = {"observations": self._env.observation_space, "actions": self._env.action_space}
        for what, space in spaces.items():
            kind = type(space).__name__
            if kind != "Text" and (what, kind) != ("actions", "Discrete"):
                raise SpecError(
                    f"gymnasium environment {self._id}: its {what} are {kind}; this takes Text, and Discrete"
                    " actions: wrap it"
                )
        observation, _ = self._env.reset(seed=self._seed)
        return str(observation)


class RememberingGymnasium:
    """Builds the same episodes of an environment that keeps something between them: its constructor takes ``memory``."""

    uses_memory = True

    def __init__(self, id: str, instruction: str = "") -> None:  # noqa: A002 - likewise
        self._id, self._instruction = id, instruction

    def rows(self, split: str) -> list[dict[str, Any]]:
        """A seed each. Raises SpecError where the package is not installed."""
        return GymnasiumText.rows(split)

    def build(self, row: Row, memory: Memory) -> GymnasiumText:
        """The episode of one row."""
        return GymnasiumText(row, self._id, self._instruction, memory)


def _read_action(space: Any, text: str) -> Any:
    """What a reply means in a space of actions; None where it is no action of it."""
    said = text.strip()
    if type(space).__name__ == "Text":
        return said if space.contains(said) else None
    try:
        number = int(said)
    except ValueError:
        return None
    return number if space.contains(number) else None


def _describe(space: Any) -> str:
    if type(space).__name__ == "Discrete":
        first = int(space.start)
        return f"Answer with a whole number from {first} to {first + int(space.n) - 1}."
    return f"Answer with {space.min_length} to {space.max_length} characters it knows."
