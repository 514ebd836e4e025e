"""A text game: find the key, then the chest that it opens, in a house that is only seen room by room.

Each reply is one command, its last line that is not empty. Worlds are drawn without end, some of them held out for
ever (``treasure_world``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from blake3 import blake3

from rollout.data.rows.mapping import row_messages
from rollout.environments.treasure_world import (
    DIRECTIONS,
    NAMES,
    SPLIT_PARTS,
    World,
    beside,
    draw_world,
    number_at,
)
from rollout.errors import DataError, SpecError
from rollout.turns import Action, Ending, State
from rollout.types import Message, Row

ROOMS_MIN = 3
MOVES_MAX = 64
"""As many replies as the loop of an episode hears (``turns.Budgets``)."""
COST_MAX = 0.5
"""All that moves may cost an episode: a hunt that succeeds is worth half at least."""
RULES = (
    "You are in a house. Find the key, take it, find the chest, and open it. One command a reply:"
    " go north, go east, go south, go west, take key, open chest, look."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreasureHunt:
    """``rooms`` of a house; ``max_moves``: replies until the hunt is lost; 0: four times the shortest hunt, at most 64.

    ``move_cost`` is taken for each move beyond the shortest hunt, at most 0.5 an episode. ``worlds`` and ``held_out`` are
    how many there are to train and to report on; a tenth of ``held_out`` is for selection.
    """

    rooms: int = 6
    max_moves: int = 0
    move_cost: float = 0.0
    worlds: int = 100_000
    held_out: int = 500

    def __post_init__(self) -> None:
        if not ROOMS_MIN <= self.rooms <= len(NAMES):
            raise ValueError(f"rooms: expected {ROOMS_MIN} to {len(NAMES)}, got {self.rooms}")
        if not 0 <= self.max_moves <= MOVES_MAX:
            raise ValueError(f"maxMoves: expected 0 to {MOVES_MAX}, got {self.max_moves}")
        if not 0 <= self.move_cost <= COST_MAX:
            raise ValueError(f"moveCost: expected 0 to {COST_MAX}, got {self.move_cost}")
        if not 1 <= self.worlds <= 1 << 40:
            raise ValueError(f"worlds: expected 1 to {1 << 40}, got {self.worlds}")
        if not 10 <= self.held_out <= 1 << 20:
            raise ValueError(f"heldOut: expected 10 to {1 << 20}, got {self.held_out}")

    def length(self, split: str) -> int:
        """Worlds of a split."""
        lengths = {"train": self.worlds, "report": self.held_out}
        return lengths.get(split, self.held_out // 10)


class TreasureSource:
    """The worlds of one split, by position; drawn when they are asked for."""

    def __init__(self, parameters: TreasureHunt, split: str) -> None:
        if split not in SPLIT_PARTS:
            there = ", ".join(sorted(SPLIT_PARTS))
            raise SpecError(f"treasure-hunt: no split {split!r}; there are {there}")
        self._parameters, self._split = parameters, split
        identity = f"treasure-hunt/1/{split}/{sorted(asdict(parameters).items())}"
        self.digest = f"blake3:{blake3(identity.encode()).hexdigest()}"

    def __len__(self) -> int:
        return self._parameters.length(self._split)

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """``world`` (a number), ``prompt`` and ``messages`` (the first room), ``answer`` (a shortest hunt) of each."""
        return [self._row(position) for position in positions]

    def _row(self, position: int) -> Row:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} outside {len(self)} worlds")
        number = number_at(self._split, position, self._parameters.rooms)
        world = draw_world(number, self._parameters.rooms)
        prompt = f"{RULES}\n\n{describe(world, world.start, has_key=False)}"
        return {
            "prompt": prompt,
            "messages": [{"role": "user", "content": prompt}],
            "answer": ", ".join(world.solution),
            "world": number,
            "level": len(world.solution),
        }


class Hunt:
    """One episode."""

    def __init__(self, world: World, asked: tuple[Message, ...], rules: TreasureHunt) -> None:
        self._world, self._asked, self._rules = world, asked, rules
        self._place, self._has_key = world.start, False
        self._shortest = len(world.solution)
        self._most = rules.max_moves or min(MOVES_MAX, 4 * self._shortest)
        self._moves, self._mistakes = 0, 0

    async def start(self) -> State:
        """The rules and the first room."""
        return State(messages=self._asked)

    async def step(self, action: Action) -> State | Ending:
        """What the command did, or the end."""
        self._moves += 1
        command = read_command(action.text)
        if command == "open chest" and self._place == self._world.chest and self._has_key:
            return self._end("found", 1.0 - self._cost())
        told = self._do(command)
        if self._moves >= self._most:
            return self._end("lost", 0.0)
        return State(
            messages=(Message(role="user", content=told),), signals=self._signals(won=False)
        )

    def _do(self, command: str) -> str:
        """What one is told of any command but the last."""
        verb, _, what = command.partition(" ")
        if verb == "go" and what in self._world.exits(self._place):
            self._place = beside(self._place, what)
            return self._look()
        if command == "look":
            return self._look()
        if command == "take key" and self._place == self._world.key and not self._has_key:
            self._has_key = True
            return "You take the key."
        self._mistakes += 1
        if verb == "go" and what in DIRECTIONS:
            return f"There is no door to the {what}."
        if command == "take key":
            return "You have the key." if self._has_key else "There is no key here."
        if command == "open chest":
            here = self._place == self._world.chest
            return "The chest is locked: you need the key." if here else "There is no chest here."
        return f"No such command. {RULES}"

    def _look(self) -> str:
        return describe(self._world, self._place, has_key=self._has_key)

    def _cost(self) -> float:
        return min(COST_MAX, self._rules.move_cost * (self._moves - self._shortest))

    def _end(self, kind: str, reward: float) -> Ending:
        signals = self._signals(won=kind == "found")
        detail = f"{self._moves} moves, the shortest hunt takes {self._shortest}"
        return Ending(kind=kind, detail=detail, turn_reward=reward, signals=signals)

    def _signals(self, *, won: bool) -> dict[str, float]:
        return {
            "key": float(self._has_key),
            "mistakes": float(self._mistakes),
            "moves": float(self._moves),
            "won": float(won),
        }

    async def close(self) -> None:
        """Nothing to free."""


def read_command(reply: str) -> str:
    """The last line of a reply that is not empty, without case, articles and a full stop."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    words = lines[-1].lower().rstrip(".!").split() if lines else []
    return " ".join(word for word in words if word not in {"the", "a"})


def describe(world: World, place: tuple[int, int], *, has_key: bool) -> str:
    """What is seen of a room."""
    seen = [f"You are in the {world.rooms[place]}.", f"Doors: {', '.join(world.exits(place))}."]
    if place == world.key and not has_key:
        seen.append("A key lies here.")
    if place == world.chest:
        seen.append("A chest stands here.")
    return " ".join(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreasureHuntBuilder:
    """Builds episodes over worlds of its own."""

    parameters: TreasureHunt
    """Of all its episodes."""

    def source(self, split: str, seed: int) -> TreasureSource:
        """The worlds of ``split``; ``seed`` does not matter, on purpose: what one run holds out, all do."""
        del seed
        return TreasureSource(self.parameters, split)

    def build(self, row: Row) -> Hunt:
        """The episode of one row. Raises DataError for a row that is no world's."""
        number = row.get("world")
        if not isinstance(number, int):
            raise DataError(
                "the row has no number 'world': treasure-hunt brings its own rows; leave data out"
            )
        return Hunt(draw_world(number, self.parameters.rooms), row_messages(row), self.parameters)
